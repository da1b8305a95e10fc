package far

import "unsafe"

// bucketsOf views mem, which is aligned to a page, as buckets.
func bucketsOf(mem []byte) []bucket {
	return unsafe.Slice((*bucket)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/bucketSize)
}

// bucketSize is a cache line, as the declaration below insists.
const bucketSize = 64

var _ [bucketSize]byte = [unsafe.Sizeof(bucket{})]byte{}

// padding is the number of bytes in mem before the first address that is a
// multiple of align, a power of two.
func padding(mem []byte, align int) int {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	return int(-at & uintptr(align-1))
}
