package resp

import (
	"context"

	"polder/far"
)

// store is where a server keeps entries under their keys: a map in far memory,
// or a cache. Its methods are those of far.ByteMap, whose page says what they do.
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

// memory is what INFO and CONFIG GET say of a server's memory.
type memory struct {
	used, max int64 // bytes; a max of 0 is none
	policy    string
	removals  uint64 // of keys evicted
}

// memory reports the budget of local memory as the limit: what is more lies in far
// memory.
func (srv *Server) memory() memory {
	if srv.cache != nil {
		return srv.cache.memory()
	}
	m := memory{policy: noEviction}
	for _, at := range srv.stores() {
		m.used += at.heap.Stats().Resident
		m.max += at.heap.Local()
	}
	return m
}

// noEviction is Redis's name of a policy by which no key ever vanishes.
const noEviction = "noeviction"
