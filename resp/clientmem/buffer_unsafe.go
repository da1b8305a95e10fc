package clientmem

import "unsafe"

// buffer returns the empty buffer of size bytes whose first byte is given.
func buffer(first *byte, size int) []byte { return unsafe.Slice(first, size)[:0] }
