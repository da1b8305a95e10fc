package component

import "unsafe"

// offset is where in mem a byte of it lies.
func offset(mem []byte, b *byte) int {
	return int(uintptr(unsafe.Pointer(b)) - uintptr(unsafe.Pointer(&mem[0])))
}
