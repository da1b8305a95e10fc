package far

import "unsafe"

// offsetIn is where in a T the number lies that at returns a pointer to. It reports false if that is
// not within.
func offsetIn[T any, N Number](at func(*T) *N) (int, bool) {
	v := new(T)
	p := at(v)
	off := uintptr(unsafe.Pointer(p)) - uintptr(unsafe.Pointer(v)) // huge if it lies before
	if size := unsafe.Sizeof(*v); p == nil || off > size || size-off < unsafe.Sizeof(*p) {
		return 0, false
	}
	return int(off), true
}

// elementBytes is vs as bytes, in the byte order of this machine, which is the
// little-endian one of the wire.
func elementBytes[T any](vs []T) []byte {
	if len(vs) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&vs[0])), len(vs)*int(unsafe.Sizeof(vs[0])))
}
