package arena

import (
	"sync/atomic"
	"unsafe"
)

// Word64 is the first 8 bytes of b as an atomic word in the host's byte order.
//
// Preconditions: b lies in a mapping, aligned to 8 bytes.
func Word64(b []byte) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(b[:8])))
}

// Word32 is the first 4 bytes of b, likewise, aligned to 4.
func Word32(b []byte) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(unsafe.SliceData(b[:4])))
}
