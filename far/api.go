package far

import (
	"time"

	"polder/far/bytemap"
	"polder/far/heap"
	"polder/far/store"
)

// Config configures a Heap.
type Config struct {
	// Local is the budget of resident memory, in bytes. At least
	// MinLocal.
	Local int64
	// MaxLocal is the largest budget that SetLocal can set, which costs
	// address space. Zero means four times Local.
	MaxLocal int64
	// ScopeBytes is how much local memory a scope can take for certain while
	// it is open, for objects that are fetched or made in it. That much is
	// kept in reserve for every scope there is; or, where it would be more than
	// an eighth of the budget, only so many are let in at a time. Zero means
	// 64 KiB. If scopes turn out to take more, more is kept.
	//
	// An object takes its size and 16 bytes, in multiples of 16; one that is
	// made, 9 more for its word; one that is fetched, 32 more from 4 KiB on,
	// and if its class has no size of its own up to an eighth more.
	ScopeBytes int
	// HeldTooLong is how long a scope may be open before it is reported in the
	// log, with the stack of the goroutine that made it and of the one that
	// leaves it. Zero means a second.
	HeldTooLong time.Duration
	// MaxValue is the largest value in bytes that a ByteMap takes. Zero means
	// a quarter of Local or 512 MiB, whichever is less.
	MaxValue int
	// CheckpointEvery is how often a heap that was opened takes a checkpoint, if something has changed, as objects that are kept may always have. Zero means when
	// it is closed, and when far memory is needed that waits for a checkpoint to be given back.
	CheckpointEvery time.Duration
}

// core is what the heap's memory needs to know of cfg.
func (cfg *Config) core() heap.Config {
	return heap.Config{Local: cfg.Local, MaxLocal: cfg.MaxLocal, ScopeBytes: cfg.ScopeBytes, HeldTooLong: cfg.HeldTooLong}
}

// ByteMap is a hash map from byte strings to byte strings on a Heap: see package bytemap, where its methods are. Entries are local or
// far, and so is, once it takes much of the budget, the index (16 bytes an entry).
//
// An entry whose Expire has passed is as good as absent: no call returns it.
type ByteMap = bytemap.Map

// Entry is a value in a ByteMap, with when it expires and a tag of the caller's, which the map keeps beside it.
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

// Txn makes several changes to maps of one heap that count together or not at
// all: after Rollback everything is as it was, and neither Commit nor Rollback
// can fail or wait. Each single change can, and has then changed nothing.
type Txn = bytemap.Txn

// MapStats is what one map has done and how it stands.
type MapStats = bytemap.Stats

// MaxKeySize is the longest key, in bytes.
const MaxKeySize = bytemap.MaxKeySize

// NoWait is a context for calls that must not wait: where they would, they
// return ErrWouldBlock and have changed nothing.
var NoWait = heap.NoWait

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
