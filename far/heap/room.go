package heap

import (
	"context"
	"errors"
	"fmt"
	"time"

	"polder/far/farlog"
)

// In a store that gets full, the heap keeps a reserve of segments for the next checkpoint: only a checkpoint gives
// back what the one before it refers to.

// checkpointReserve is how many segments a whole reserve has: enough to write back all that is local, and to write
// the indexes, which take most of what is left then.
func (h *Heap) checkpointReserve() int { return 2 + int(h.Budget.Load()*5/4)/h.Far.SegSize }

// indexReserve is how many segments of the reserve the indexes would take now.
func (h *Heap) indexReserve() int {
	var s Stats
	h.Logs.account(&s)
	return 2 + int((s.Lines[Tables]+s.Lines[Leaves]+s.Lines[Words])*5/4)/h.Far.SegSize
}

// keptReserve is how many segments of the reserve nothing may use up but a checkpoint, and cleaning before it. It
// allows for indexes that grow.
func (h *Heap) keptReserve() int {
	n := h.indexReserve()
	return max(h.checkpointReserve()/4, n*3/2, h.slack(n)+2)
}

// slack is how many segments of the reserve have to be left at least, if indexes take n: some segments that are
// written before a checkpoint do not get full.
func (h *Heap) slack(n int) int { return n + 1 + h.checkpointReserve()/8 }

// leastReserve is enough to clean far memory, see openSpare, and to take a checkpoint.
func (h *Heap) leastReserve() int { return h.slack(h.indexReserve()) + 1 }

// Reserve makes the reserve for the next checkpoint whole, as far as a store that gets full has room for it.
func (h *Heap) Reserve(ctx context.Context) error {
	return h.Far.Reserve(ctx, h.leastReserve(), h.checkpointReserve())
}

// reserveLater is how long after it was opened a heap makes a reserve that nobody waits for: what else the opener
// needs comes first. After a failure, the heap leaves the store alone for as long, and tries again.
const reserveLater = 100 * time.Millisecond

// FirstReserve is Reserve for a heap that is being opened. If the store has plenty of room, FirstReserve does not wait:
// the reserve is made while the heap is used, and what the heap takes until then is little beside the room that there
// is.
func (h *Heap) FirstReserve(ctx context.Context) error {
	if !h.Far.Plenty(h.checkpointReserve()) {
		defer h.limitDirty()
		return h.Reserve(ctx)
	}
	h.Wg.Go(func() {
		for {
			select {
			case <-time.After(reserveLater):
			case <-h.Ctx.Done():
				return
			}
			if h.Reserve(h.Ctx) == nil {
				return
			}
		}
	})
	return nil
}

// lendReserve makes a segment of the reserve the open one, for what is written back before a checkpoint, if at least
// leave segments of the reserve are left then.
func (h *Heap) lendReserve(leave int) bool {
	s := h.Far.TakeReserved(leave)
	if s == nil || h.openWith(s) != nil {
		return false
	}
	if h.backing != nil {
		h.backing.reserved = true
	}
	h.limitDirty()
	return true
}

// Replays says whether a journal is being replayed. Until that ends, or there is a checkpoint, nothing is refused: what
// is stored is what the heap's owner before had stored, in the room that is the reserve by now.
func (h *Heap) Replays(on bool) {
	if h.replays.Store(on); on || !h.Far.Plenty(h.checkpointReserve()) {
		h.limitDirty()
	}
}

// Bytes without a far copy may be written twice until a checkpoint needs no more for them: what is stored while one
// is made is a part of it, and is written back before the next, into segments that do not get full.
const dirtyWritten, dirtyBytes = 15, 7 // so many are written for so many

// dirtyReserve is how many segments of the reserve the next checkpoints would take now.
func (h *Heap) dirtyReserve() int {
	return h.slack(h.indexReserve()) + int(h.Dirty()*dirtyWritten/dirtyBytes)/h.Far.SegSize
}

// limitDirty limits the bytes without a far copy to what fits into the reserve, as long as the reserve is not whole
// because the store is full. What the last checkpoint refers to goes only with the next one. So that one must not
// fail for lack of room: no other would ever succeed. As long as indexes cannot go far, nothing may be stored.
func (h *Heap) limitDirty() {
	h.limiting.Lock()
	defer h.limiting.Unlock()
	n, lacks := h.Far.Reserved(), h.Far.LacksPages()
	most := int64(max(0, n-h.keptReserve())) * int64(h.Far.SegSize) * dirtyBytes / dirtyWritten
	if lacks {
		most = 0
	}
	h.mostDirty.Store(most)
	h.limited.Store(h.Far.Keeps() && (lacks || n < h.checkpointReserve()) && !h.replays.Load())
}

// BorrowForPages is farlog.Log.BorrowForPages.
func (h *Heap) BorrowForPages(ctx context.Context, use PageUse) (Segment, error) {
	defer h.limitDirty()
	return h.Far.BorrowForPages(ctx, use)
}

// InVain reports whether the last checkpoint made no room, though somebody had looked for some.
func (h *Heap) InVain() bool { return h.room.Now().Fruitless > 0 }

// Limited reports whether MayStore may wait.
func (h *Heap) Limited() bool { return h.limited.Load() }

// mostDelay is for how long MayStore waits for a checkpoint that is due, as one that cannot be kept is.
const mostDelay = 5 * time.Second

// MayStore waits while there are as many bytes without a far copy as the next checkpoint has room for (see
// limitDirty). Meanwhile the evacuator cleans, and a checkpoint gives back the segments that have waited for it.
// MayStore fails with ErrStoreFull when that has made no room, or with the reason why there was no checkpoint in
// time. It fails at once if a checkpoint may wait for the caller: see Blocks and AwaitRoom. After it has failed,
// records that die make room, or another node does.
func (h *Heap) MayStore(ctx context.Context) error {
	var late <-chan time.Time
	asked := int64(-1) // how many checkpoints there had been when the evacuator was last asked for room
	for h.limited.Load() && h.Dirty() >= h.mostDirty.Load() {
		r := h.room.Now()
		switch {
		case h.isEvacuator():
			return errEvacuator
		case h.refuses():
			return errStoreFull
		case asked != r.Checkpoints:
			asked = r.Checkpoints
			h.wantRoom()
		}
		if h.Blocks.Load() {
			return errStoreFull
		}
		if late == nil {
			late = time.After(mostDelay)
		}
		if err := h.awaitCheckpoint(ctx, &r, late); err != nil {
			return err
		}
	}
	return nil
}

// AwaitRoom is for callers that have found the store full, and hold nothing that a checkpoint waits for. It has far
// memory cleaned and a checkpoint made, and returns when that may have made room: the caller then tries again what
// has failed. It fails as MayStore does.
func (h *Heap) AwaitRoom(ctx context.Context) error {
	if h.refuses() {
		return errStoreFull
	}
	r := h.room.Now()
	h.wantRoom()
	return h.awaitCheckpoint(ctx, &r, time.After(mostDelay))
}

func (h *Heap) refuses() bool { return h.room.Refuses(h.Far.SegSize, h.farLive) }

// farLive is how many bytes live in far memory.
func (h *Heap) farLive() (n int64) {
	h.Far.All(func(s *FarSegment) { n += s.Live.Load() })
	return n
}

// wantRoom has the evacuator look for room: see cleanForCheckpoint.
func (h *Heap) wantRoom() {
	h.wanted.Store(true)
	h.Logs.Wake()
}

// awaitCheckpoint waits for the checkpoint after r.
func (h *Heap) awaitCheckpoint(ctx context.Context, r *farlog.Waiting, late <-chan time.Time) error {
	select {
	case <-r.More:
		return nil
	case <-late:
		if r.Why != nil {
			return fmt.Errorf("cannot make room: %w", r.Why)
		}
		return errStoreFull
	case <-ctx.Done():
		return fmt.Errorf("cannot make room: %w: %w", context.Cause(ctx), ErrStoreFull)
	case <-h.Ctx.Done():
		return ErrClosed
	}
}

// cleanForCheckpoint looks for room for those who wait in MayStore. It cleans some far memory, and asks for a
// checkpoint, which gives back what is free then, and writes back what is dirty, so that more can be cleaned.
func (h *Heap) cleanForCheckpoint() error {
	if !h.wanted.Swap(false) {
		return nil
	}
	err := h.cleanSparse()
	h.room.Looked()
	h.Far.Want()
	return err
}

// cleanSparse cleans segments in which some is dead, as long as there is room for what lives in them.
func (h *Heap) cleanSparse() error {
	if h.Far.resting() != nil && !errors.Is(h.Far.err, ErrStoreFull) {
		return nil
	}
	for tries := 0; tries < mostCleaned && h.Ctx.Err() == nil; tries++ {
		s := h.unfinished()
		if s == nil {
			if s = h.Far.Sparsest(); s == nil || !s.Yields(worthCleaning) || !h.hasRoom(Unit) && !h.openSpare() {
				return nil
			}
		}
		if err := h.clean(s, false); errors.Is(err, ErrStoreFull) {
			h.closeFar() // what is left of s goes into another one
		} else if errors.Is(err, ErrNotNow) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

// mostCleaned bounds how many segments are cleaned while nothing else is done.
const mostCleaned = 64

// openSpare makes a spare segment the open one, or else a segment of the reserve that the next checkpoint does not
// need. If the checkpoints before have yielded nothing, the next one, which follows at once, has to do with one
// segment less: otherwise nobody could clean any more as soon as late copies have used up the segments for that.
func (h *Heap) openSpare() bool {
	if s := h.Far.TakeSpare(false); s != nil {
		return h.openWith(s) == nil
	}
	leave := h.dirtyReserve()
	if h.room.Now().Fruitless > 0 {
		leave--
	}
	return h.lendReserve(leave)
}
