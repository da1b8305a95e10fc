package far

import (
	"polder/far/heap"
	"polder/far/store"
)

// A Store is memory that somebody else lends, in segments of one size. The
// heap needs no more of it than this; package pool provides one over the
// network, and MemStore is one in this process.
type Store = store.Store

// A Segment is a borrowed piece of a store.
type Segment = store.Segment

// ReadOp is one read of a batch: len(Buf) bytes at Off of Seg.
type ReadOp = store.ReadOp

// MemStore is a Store in this process, for tests and for programs that want a map
// without the network.
type MemStore = store.MemStore

// NewMemStore makes a store of up to segments segments of size bytes, a power
// of two.
func NewMemStore(size, segments int) *MemStore { return store.NewMemStore(size, segments) }

const (
	// MinLocal is the smallest local budget.
	MinLocal = heap.MinLocal
	// MinSegmentSize is the least size of a store's segments, in bytes: one holds an
	// entry with the longest key.
	MinSegmentSize = store.MinSegmentSize
)
