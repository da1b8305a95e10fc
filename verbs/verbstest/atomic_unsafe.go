package verbstest

import (
	"sync/atomic"
	"unsafe"
)

// atomicWord views 8 aligned bytes as the host's atomic word.
func atomicWord(b []byte) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(b[:8])))
}
