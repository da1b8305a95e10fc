package index

import "unsafe"

const refSize = int(unsafe.Sizeof(Ref(0)))

// refsOf views mem, which is aligned to a page, as references.
func refsOf(mem []byte) []Ref {
	return unsafe.Slice((*Ref)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/refSize)
}

// bucketsOf views mem, which is aligned to a page, as buckets.
func bucketsOf(mem []byte) []Bucket {
	return unsafe.Slice((*Bucket)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/bucketSize)
}

// bucketSize is a cache line, as the declaration below insists.
const bucketSize = 64

var _ [bucketSize]byte = [unsafe.Sizeof(Bucket{})]byte{}
