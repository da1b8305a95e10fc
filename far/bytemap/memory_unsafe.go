package bytemap

import "unsafe"

// shardAt is the shard i places behind first.
func shardAt(first *shard, i int) *shard {
	return (*shard)(unsafe.Add(unsafe.Pointer(first), uintptr(i)*unsafe.Sizeof(shard{})))
}

// shardsAt is the n shards from first on.
func shardsAt(first *shard, n int) []shard { return unsafe.Slice(first, n) }

// A shard fills whole cache lines, and its counter of hits ends the first of them.
var (
	_ [3 * 64]byte = [unsafe.Sizeof(shard{})]byte{}
	_ [64]byte     = [unsafe.Offsetof(shard{}.count) + unsafe.Sizeof(shardCounters{}.hits)]byte{}
)
