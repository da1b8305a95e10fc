package softnic

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// aligned reports whether b's first byte is at an address divisible by 8.
func aligned(b []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%8 == 0
}

// word is the first 8 bytes of b for sync/atomic, in the host's byte order.
//
// Preconditions: aligned(b), len(b) >= 8.
func word(b []byte) *uint64 {
	// A slice expression, for b[7] would be a plain read to the race detector.
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(b[:8])))
}

// loadWord copies the aligned word src to dst in one access.
//
// Preconditions: aligned(src), len(src) >= 8.
func loadWord(dst *[8]byte, src []byte) {
	binary.NativeEndian.PutUint64(dst[:], atomic.LoadUint64(word(src)))
}

// move copies src to dst. If they are 8 bytes and dst is aligned, dst changes
// in one atomic access, so that the host can poll it.
//
// Preconditions: len(dst) == len(src).
func move(dst, src []byte) {
	if len(src) == 8 && aligned(dst) {
		atomic.StoreUint64(word(dst), binary.NativeEndian.Uint64(src))
		return
	}
	copy(dst, src)
}

// compareSwap replaces the word w by swap if it equals compare, and returns
// what it was.
func compareSwap(w *uint64, compare, swap uint64) uint64 {
	for {
		old := atomic.LoadUint64(w)
		if old != compare || atomic.CompareAndSwapUint64(w, old, swap) {
			return old
		}
	}
}

// maskedAdd adds addend to the word w field by field; boundaries has the highest bit of each field. It returns what w
// was.
func maskedAdd(w *uint64, addend, boundaries uint64) uint64 {
	for {
		old := atomic.LoadUint64(w)
		// Without the highest bit of a field no carry leaves it; the sum of
		// the highest bits is then put in without its own carry.
		sum := (old&^boundaries + addend&^boundaries) ^ (old^addend)&boundaries
		if atomic.CompareAndSwapUint64(w, old, sum) {
			return old
		}
	}
}

// fetchAdd adds to the word w and returns what it was.
func fetchAdd(w *uint64, addend uint64) uint64 {
	return atomic.AddUint64(w, addend) - addend
}
