package far

import (
	"time"

	"polder/far/bytemap"
	"polder/far/heap"
	"polder/far/store"
)

// Config configures a Heap.
type Config struct {
	// Local is the budget of resident memory, in bytes. At least MinLocal.
	Local int64
	// MaxLocal is the largest budget that SetLocal can set, which costs
	// address space. Zero means four times Local.
	MaxLocal int64
	// ScopeBytes is how much local memory an open scope is certain to get for objects that are fetched or made in it.
	// The heap reserves that much for every scope there is; where that would be more than an eighth of the budget, it
	// lets only so many scopes in at a time. Zero means 64 KiB. If scopes turn out to take more, the heap reserves
	// more for each.
	//
	// An object takes its size and 16 bytes, in multiples of 16. An object that is made takes 9 bytes more for its
	// word. An object that is fetched takes 32 bytes more if it has 4 KiB or more, and up to an eighth more if the
	// objects of its class have no fixed size.
	ScopeBytes int
	// HeldTooLong is how long a scope may be open before the log reports it, with the place where the scope was made,
	// the stack of the goroutine that first entered it, and, when the scope is left, the stack of the goroutine that
	// leaves it. Zero means a second.
	HeldTooLong time.Duration
	// MaxValue is the largest value in bytes that a ByteMap takes. Zero means
	// a quarter of Local or 512 MiB, whichever is less.
	MaxValue int
	// CheckpointEvery is how often a heap made by Open takes a checkpoint, if something has changed since the last
	// one. A heap with objects that are kept always counts as changed. Zero means that no checkpoints are taken at
	// intervals. In any case the heap takes one when it is closed, and when far memory that waits for a checkpoint to
	// be given back is needed or has become a large part of all.
	CheckpointEvery time.Duration
}

// core is the part of cfg that configures the memory below the heap.
func (cfg *Config) core() heap.Config {
	return heap.Config{Local: cfg.Local, MaxLocal: cfg.MaxLocal, ScopeBytes: cfg.ScopeBytes, HeldTooLong: cfg.HeldTooLong}
}

// ByteMap is a hash map from byte strings to byte strings on a Heap; its methods are in package bytemap. Entries are
// local or far. So is the index (16 bytes an entry) once it takes much of the budget.
//
// An entry whose Expire has passed is as good as absent: no call returns it.
type ByteMap = bytemap.Map

// Entry is a value in a ByteMap, the time when it expires, and a tag that the caller chooses and the map stores with
// the value.
type Entry = bytemap.Entry

// UpdateFunc decides what becomes of an entry. See ByteMap.Update.
type UpdateFunc = bytemap.UpdateFunc

// Verdict is what an UpdateFunc wants done.
type Verdict = bytemap.Verdict

const (
	Keep   = bytemap.Keep   // leave it as it is
	Put    = bytemap.Put    // store the returned Entry
	Remove = bytemap.Remove // delete it
)

// Txn makes several changes to maps of one heap that count together or not at all. A single change can fail, and then
// has changed nothing. Commit and Rollback never fail or wait; after Rollback everything is as it was.
type Txn = bytemap.Txn

// MapStats is what has happened to one map since it was made, and its present state.
type MapStats = bytemap.Stats

// MaxKeySize is the longest key, in bytes.
const MaxKeySize = bytemap.MaxKeySize

// NoWait is a context for calls that must not wait: where they would, they
// return ErrWouldBlock and have changed nothing.
var NoWait = heap.NoWait

// A Store is memory that somebody else lends, in segments of one size. The heap needs nothing else of far memory.
// Package pool provides a Store over the network, and MemStore is one in this process.
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
	// MinSegmentSize is the least size of a store's segments, in bytes: a segment has to hold an entry with the
	// longest key.
	MinSegmentSize = store.MinSegmentSize
)
