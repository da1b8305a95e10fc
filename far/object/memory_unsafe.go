package object

import "unsafe"

// word64 is the first 8 bytes of b, which is aligned to them, as a word.
func word64(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(b[:8]))) }
