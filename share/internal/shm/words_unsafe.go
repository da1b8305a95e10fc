package shm

import (
	"sync/atomic"
	"unsafe"
)

// words views mapped memory as atomic words.
func words(b []byte) []atomic.Uint64 {
	if len(b)%8 != 0 || uintptr(unsafe.Pointer(unsafe.SliceData(b)))%8 != 0 {
		panic("BUG: shared words are not aligned")
	}
	return unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)
}
