package far

import "unsafe"

// bucketsOf views mem, which is aligned to a page, as buckets.
func bucketsOf(mem []byte) []bucket {
	return unsafe.Slice((*bucket)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/bucketSize)
}

// bucketSize is a cache line, as the declaration below insists.
const bucketSize = 64

var _ [bucketSize]byte = [unsafe.Sizeof(bucket{})]byte{}

// shardAt is the shard i places behind first.
func shardAt(first *shard, i int) *shard {
	return (*shard)(unsafe.Add(unsafe.Pointer(first), uintptr(i)*unsafe.Sizeof(shard{})))
}

// shardsAt is the n shards from first on.
func shardsAt(first *shard, n int) []shard { return unsafe.Slice(first, n) }

// A shard is some cache lines, of which the counter of hits ends the first.
var (
	_ [3 * 64]byte = [unsafe.Sizeof(shard{})]byte{}
	_ [64]byte     = [unsafe.Offsetof(shard{}.count) + unsafe.Sizeof(shardCounters{}.hits)]byte{}
)

// wordsOf views mem, which is aligned to a page, as words.
func wordsOf(mem []byte) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/8)
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
