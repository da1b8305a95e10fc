package objects

import "unsafe"

// wordsOf views mem, which is aligned to a word, as words.
func wordsOf(mem []byte) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/8)
}

// bytesOf views words as bytes.
func bytesOf(ws []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(ws))), len(ws)*8)
}

// gensOf views mem, which is aligned to a page, as numbers of 32 bits.
func gensOf(mem []byte) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/4)
}

// wordOffset is the index of *p in table.
func wordOffset(table []uint64, p *uint64) uint64 {
	return uint64(uintptr(unsafe.Pointer(p))-uintptr(unsafe.Pointer(unsafe.SliceData(table)))) / 8
}

// isIn reports whether p points into table.
func isIn(table []uint64, p *uint64) bool {
	at := uintptr(unsafe.Pointer(p))
	first := uintptr(unsafe.Pointer(unsafe.SliceData(table)))
	return at >= first && at < first+uintptr(len(table))*8
}
