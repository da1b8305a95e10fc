package far

import "unsafe"

// offsetIn is the offset in a T of the number to which at returns a pointer. It reports false if the number is not
// within the T.
func offsetIn[T any, N Number](at func(*T) *N) (int, bool) {
	v := new(T)
	p := at(v)
	off := uintptr(unsafe.Pointer(p)) - uintptr(unsafe.Pointer(v)) // huge if p lies before v
	if size := unsafe.Sizeof(*v); p == nil || off > size || size-off < unsafe.Sizeof(*p) {
		return 0, false
	}
	return int(off), true
}

// elementBytes returns the memory of vs as bytes. They are in the byte order of this machine, which is that of the
// wire: little-endian.
func elementBytes[T any](vs []T) []byte {
	if len(vs) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&vs[0])), len(vs)*int(unsafe.Sizeof(vs[0])))
}
