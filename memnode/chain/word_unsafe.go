package chain

import (
	"sync/atomic"
	"unsafe"
)

// word is the word at b, which is aligned to 8 bytes, for sync/atomic. NICs of this package are little-endian, and
// the host must be, too.
//
// Preconditions: len(b) >= 8.
func word(b []byte) *uint64 {
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(b[:8])))
}

// Load reads the word at b as a NIC's atomics would.
func Load(b []byte) uint64 { return atomic.LoadUint64(word(b)) }

// Swap writes the word at b as a NIC's atomics would, and returns what it was.
func Swap(b []byte, v uint64) uint64 { return atomic.SwapUint64(word(b), v) }

// Store writes the word at b as a NIC's atomics would.
func Store(b []byte, v uint64) { atomic.StoreUint64(word(b), v) }
