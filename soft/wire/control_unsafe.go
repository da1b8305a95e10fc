package wire

import (
	"sync/atomic"
	"unsafe"
)

// asWords views b, which must be page-aligned memory, as atomic words.
func asWords(b []byte) []atomic.Uint64 {
	return unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)
}

// asEntries views b, which must be page-aligned memory, as n table entries.
func asEntries(b []byte, n int) []entry {
	_ = b[:n*entrySize]
	return unsafe.Slice((*entry)(unsafe.Pointer(unsafe.SliceData(b))), n)
}
