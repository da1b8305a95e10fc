package shm

import (
	"sync/atomic"
	"unsafe"
)

// halves views mapped memory as atomic 32-bit words.
func halves(b []byte) []atomic.Uint32 {
	if len(b)%8 != 0 || uintptr(unsafe.Pointer(unsafe.SliceData(b)))%8 != 0 {
		panic("BUG: shared words are not aligned")
	}
	return unsafe.Slice((*atomic.Uint32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}
