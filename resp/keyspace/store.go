package keyspace

import (
	"context"

	"polder/far"
)

// store is where a space keeps entries under their keys: a map in far memory, or a cache. The methods are those of
// far.ByteMap, whose documentation says what they do.
type store interface {
	Get(ctx context.Context, key, dst []byte) (far.Entry, error)
	GetInto(ctx context.Context, key, dst []byte) (e far.Entry, size int, err error)
	Stat(ctx context.Context, key []byte) (e far.Entry, size int, err error)
	Set(ctx context.Context, key []byte, e far.Entry) error
	Delete(ctx context.Context, key []byte) (bool, error)
	Scan(ctx context.Context, cursor uint64, yield func(key []byte, e far.Entry)) (uint64, error)
	Random(ctx context.Context, dst []byte) ([]byte, error)
	Prefetch(ctx context.Context, keys ...[]byte) error
	FetchHeads(ctx context.Context, keys [][]byte) error
	Len() int
	Clear()
}

// Memory is what INFO and CONFIG GET say of memory.
type Memory struct {
	Used, Max int64 // bytes; a Max of 0 is no limit
	Policy    string
	Removals  uint64 // how many keys were evicted or lost
}

// Memory reports the budget of local memory as the limit: data beyond it lies in far memory. While a space is
// loading, it has no limit.
func (sp *Space) Memory() Memory {
	switch {
	case sp.cache != nil:
		return sp.cache.memory()
	case sp.loading.Load():
		return Memory{Policy: noEviction}
	}
	return Memory{Used: sp.heap.Stats().Resident, Max: sp.heap.Local(), Policy: noEviction}
}

// noEviction is Redis's name of a policy by which no key ever vanishes.
const noEviction = "noeviction"
