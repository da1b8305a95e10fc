package offload

import "unsafe"

// elements is b as elements of T, in the byte order of this machine, which is
// the little-endian one of the wire.
//
// Preconditions: b is aligned for T.
func elements[T number](b []byte) []T {
	var t T
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), len(b)/int(unsafe.Sizeof(t)))
}
