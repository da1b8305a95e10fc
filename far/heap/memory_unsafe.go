package heap

import "unsafe"

// padding is the number of bytes in mem before the first address that is a multiple of align, a power of two.
func padding(mem []byte, align int) int {
	return int(-addressOf(mem) & uintptr(align-1))
}

// addressOf is where the bytes of b, which are off the Go heap, lie.
func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
