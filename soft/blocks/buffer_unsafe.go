package blocks

import "unsafe"

// alignedBuffer returns n bytes at an address that direct input and output
// accepts.
func alignedBuffer(n int) []byte {
	b := make([]byte, n+directAlign)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) % directAlign
	return b[skip : int(skip)+n : int(skip)+n]
}
