package farbench

import (
	"hash/maphash"
	"math/bits"
	"sync"
)

// lockedMap is Go's map as several goroutines share it: cut into shards, each behind a lock. It has as many shards as
// a far map of the same size.
type lockedMap struct {
	seed   maphash.Seed
	shards []lockedShard
}

type lockedShard struct {
	mu sync.Mutex
	m  map[string][]byte // under mu
	_  [112]byte         // keeps shards on cache lines of their own
}

// newLockedMap makes a map for so many bytes in all.
func newLockedMap(size int64) *lockedMap {
	n := min(max(1<<(bits.Len64(uint64(size>>18))-1), 64), 4096)
	l := &lockedMap{seed: maphash.MakeSeed(), shards: make([]lockedShard, n)}
	for i := range l.shards {
		l.shards[i].m = map[string][]byte{}
	}
	return l
}

// get appends the value of key to buf.
func (l *lockedMap) get(key, buf []byte) []byte {
	s := &l.shards[maphash.Bytes(l.seed, key)&uint64(len(l.shards)-1)]
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(buf, s.m[string(key)]...)
}

// add appends to the value of key.
func (l *lockedMap) add(key string, more []byte) {
	s := &l.shards[maphash.String(l.seed, key)&uint64(len(l.shards)-1)]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m[key] = append(s.m[key], more...)
}
