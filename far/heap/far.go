package heap

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"polder/far/farlog"
	"polder/far/store"
)

// Names of package store for what a heap stands on. Package far uses them by these short names.
type (
	Store      = store.Store
	Segment    = store.Segment
	ReadOp     = store.ReadOp
	MemStore   = store.MemStore
	MemSegment = store.MemSegment
)

// MinSegmentSize is the least size of a store's segments, in bytes.
const MinSegmentSize = store.MinSegmentSize

// NewMemStore is store.NewMemStore.
func NewMemStore(size, segments int) *MemStore { return store.NewMemStore(size, segments) }

// FarSegment is a segment of far memory.
type FarSegment = farlog.Segment

// PageUse is farlog.PageUse. Owners of indexes use it, and its values, by these names.
type PageUse = farlog.PageUse

const (
	SettlePages = farlog.SettlePages
	CleanPages  = farlog.CleanPages
	UrgentPages = farlog.UrgentPages
)

// StoreTimeout bounds every operation on the store that no caller waits for.
const StoreTimeout = store.Timeout

// farLog is the far memory of a heap. One of its segments is open: the evacuator, and nobody else, appends to it
// through the staging buffers of a window.
type farLog struct {
	farlog.Log

	freeing atomic.Int64 // segments that are being given back
	freed   atomic.Bool  // a segment has been given back since the store was last asked for one

	// The rest is the evacuator's.
	window
	open    *FarSegment
	Retry   time.Time // the store is not asked for memory again before then
	backoff time.Duration
	err     error // the last failure of the store; nil once it has succeeded again
}

const (
	MinBackoff = 5 * time.Millisecond
	MaxBackoff = time.Second
)

// Failed notes an error of the store, which is then left alone for a while: longer after every failure in a row, but
// only for MinBackoff if it is full.
func (f *farLog) Failed(err error) error {
	f.backoff = min(max(2*f.backoff, MinBackoff), MaxBackoff)
	if errors.Is(err, ErrStoreFull) {
		f.backoff = MinBackoff
	}
	f.err, f.Retry = err, time.Now().Add(f.backoff)
	return err
}

func (f *farLog) succeeded() { f.err, f.backoff = nil, 0 }

// resting reports whether the store is to be left alone, and why.
func (f *farLog) resting() error {
	if f.err != nil && time.Now().Before(f.Retry) {
		return f.err
	}
	return nil
}

// BuryFar accounts for the death of a far copy of size bytes, in whole classes.
func (h *Heap) BuryFar(addr uint64, size int) { h.Far.Seg(addr).Bury(size) }

// GiveBack gives far memory back after Stop, when nothing refers to it any more. If the store is a Keeper, what is to
// outlive the heap stays.
func (h *Heap) GiveBack() error {
	ctx, cancel := context.WithTimeout(context.Background(), StoreTimeout)
	defer cancel()
	return h.Far.Close(ctx)
}

// Commit is farlog.Log.Commit, and then gives back the segments that have waited for the checkpoint.
func (h *Heap) Commit(ctx context.Context, checkpoint []byte, segs []store.Segment) error {
	free, err := h.Far.Commit(ctx, checkpoint, segs, h.leastReserve(), h.checkpointReserve())
	for _, s := range free {
		h.free(func() { h.Far.GiveBack(ctx, s) })
	}
	why := err
	if err == nil {
		why = h.Reserve(ctx) // as far as there is room
		h.replays.Store(false)
	}
	h.limitDirty()
	h.room.Committed(h.Far.Reserved(), h.mostDirty.Load(), h.farLive(), why)
	h.Logs.Stir()
	h.Logs.Wake() // it need not look any longer for what is reserved by now
	return err
}
