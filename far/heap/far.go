package heap

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"polder/far/farlog"
	"polder/far/store"
)

// What a heap is over, which package store says. Package far knows it by these names.
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

// StoreTimeout bounds every operation on the store that no caller waits for.
const StoreTimeout = store.Timeout

// farLog is the far memory of a heap. One of its segments is open, and is
// appended to through the staging buffers of a window, by the evacuator alone.
type farLog struct {
	farlog.Log

	freeing atomic.Int64 // segments that are being given back
	freed   atomic.Bool  // one has been, since the store was last asked

	// The rest is the evacuator's.
	window
	open    *FarSegment
	Retry   time.Time // not before then is the store asked for memory again
	backoff time.Duration
	err     error // why
}

const (
	minBackoff = 5 * time.Millisecond
	MaxBackoff = time.Second
)

// Failed notes an error of the store, and that it is to be left alone for a
// while. A full one is asked again soon.
func (f *farLog) Failed(err error) error {
	f.backoff = min(max(2*f.backoff, minBackoff), MaxBackoff)
	if errors.Is(err, ErrStoreFull) {
		f.backoff = minBackoff
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

// GiveBack gives far memory back after Stop, when nothing refers to it any more; without what outlives the
// heap, if its store is a Keeper.
func (h *Heap) GiveBack() error {
	ctx, cancel := context.WithTimeout(context.Background(), StoreTimeout)
	defer cancel()
	return h.Far.Close(ctx)
}

// checkpointReserve is how many segments are kept for the next checkpoint: what it takes to write back all that is local,
// and for indexes, which take most of what is left.
func (h *Heap) checkpointReserve() int { return 2 + int(h.Budget.Load()*5/4)/h.Far.SegSize }

// indexReserve is how many of them indexes take now.
func (h *Heap) indexReserve() int {
	var s Stats
	h.Logs.account(&s)
	return 2 + int((s.Lines[Tables]+s.Lines[Leaves]+s.Lines[Words])*5/4)/h.Far.SegSize
}

// keptReserve is how many of them nothing but a checkpoint is to use up: indexes grow, too, and cleaning takes one.
func (h *Heap) keptReserve() int {
	n := h.indexReserve()
	return max(h.checkpointReserve()/4, n*3/2, n+2)
}

// Reserve sees to it that there is room for the next checkpoint in a store that gets full, as far as that has room.
func (h *Heap) Reserve(ctx context.Context) error { return h.Far.Reserve(ctx, h.checkpointReserve()) }

// lendReserve makes a segment of the reserve the open one, for what is written back before a checkpoint, if so many are left then.
func (h *Heap) lendReserve(leave int) bool {
	s := h.Far.TakeReserved(leave)
	if s == nil || h.openWith(s) != nil {
		return false
	}
	if h.backing != nil {
		h.backing.reserved = true
	}
	if h.committed.Load() {
		h.limitDirty()
	}
	return true
}

// dirtyReserve is how many segments of the reserve a checkpoint would take now, of which some may not be filled.
func (h *Heap) dirtyReserve() int {
	return h.indexReserve() + 1 + h.checkpointReserve()/8 + int(h.Dirty()*8/7)/h.Far.SegSize
}

// limitDirty has no more be stored that has no far copy than fits into the reserve, if that is not whole because the store is full. What the
// last checkpoint refers to goes only with the next one, which must not fail for lack of room: that would be for ever.
func (h *Heap) limitDirty() {
	n := h.Far.Reserved()
	h.mostDirty.Store(int64(max(0, n-h.keptReserve())) * int64(h.Far.SegSize) * 7 / 8)
	h.limited.Store(h.Far.Keeps() && n < h.checkpointReserve())
}

// MayStore fails with ErrStoreFull if the next checkpoint would have no room for more than is there already. What dies, or another node,
// makes room, and the checkpoint after that has it.
func (h *Heap) MayStore() error {
	if !h.limited.Load() || h.Dirty() < h.mostDirty.Load() { // fast path
		return nil
	}
	if !h.refused.Swap(true) {
		h.Logs.Wake() // cleaning may yield some
	}
	return errStoreFull
}

// cleanForCheckpoint cleans some far memory into the reserve after somebody was refused: what becomes free waits for the next
// checkpoint, and is more.
func (h *Heap) cleanForCheckpoint() error {
	if !h.refused.Swap(false) || h.Far.resting() != nil && !errors.Is(h.Far.err, ErrStoreFull) {
		return nil
	}
	for tries := 0; tries < 64 && h.Ctx.Err() == nil; tries++ {
		s := h.Far.Sparsest()
		if s == nil || float64(s.Live.Load()) > (1-worthCleaning)*float64(h.Far.SegSize) {
			return nil
		}
		if !h.hasRoom(Unit) && !h.openSpare() {
			return nil
		}
		if err := h.learnAll(s); err != nil {
			if errors.Is(err, ErrNotNow) {
				return nil
			}
			return err
		}
		if err := h.clean(s, false); errors.Is(err, ErrStoreFull) {
			h.closeFar() // what is left of s goes into another one
		} else if err != nil {
			return err
		}
	}
	return nil
}

// openSpare makes a spare segment the open one, or one of the reserve that the next checkpoint does not take.
func (h *Heap) openSpare() bool {
	if s := h.Far.TakeSpare(false); s != nil {
		return h.openWith(s) == nil
	}
	return h.lendReserve(h.dirtyReserve())
}

// Commit is farlog.Log.Commit, and gives back what has waited for the checkpoint.
func (h *Heap) Commit(ctx context.Context, checkpoint []byte, segs []store.Segment) error {
	free, err := h.Far.Commit(ctx, checkpoint, segs, h.checkpointReserve())
	for _, s := range free {
		h.free(func() error { return h.Far.GiveBack(ctx, s) })
	}
	if err == nil {
		_ = h.Reserve(ctx) // as far as there is room
		h.committed.Store(true)
	}
	h.limitDirty()
	h.Logs.Stir()
	h.Logs.Wake() // what is reserved by now need not be looked for any longer
	return err
}
