package index

import "unsafe"

const refSize = int(unsafe.Sizeof(Ref(0)))

// refsOf views mem, which is aligned to a page, as references.
func refsOf(mem []byte) []Ref {
	return unsafe.Slice((*Ref)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/refSize)
}
