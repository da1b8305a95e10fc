package bytemap

import (
	"context"
	"fmt"
	"time"

	"polder/far/entry"
	"polder/far/heap"
	"polder/far/index"
)

// need is what a call has to wait for before it can be tried again.
type need uint8

const (
	ready     need = iota
	needWhole      // the bytes of a far entry
	needHead       // its header and key
	needRoom       // room in the logs
	needLeaf       // the leaf of the key
	needPlace      // a place in the table of the shard
)

// step is the outcome of one try of a call.
type step struct {
	need need
	at   index.Place // the far entry that is needed
	room heap.Claim  // for what room is needed
	err  error
}

// stepOf is the step of a call that has come to err, or has to wait for room.
func stepOf(err error) step {
	switch err {
	case heap.ErrNoRoom:
		return step{need: needRoom}
	case heap.ErrNoShrink:
		return step{need: needRoom, room: heap.ForShrink}
	case errSettling:
		return step{need: needPlace}
	}
	return step{err: err}
}

// miss is the step of a call that needs an entry which is not present.
func (sh *shard) miss(h *Maps, p index.Place, st status, n need) step {
	if sh.closed {
		return step{err: heap.ErrClosed}
	}
	switch st {
	case absent:
		sh.count.absent++
		return step{err: ErrNotFound}
	case unread:
		return step{need: needLeaf}
	case crowded:
		return step{need: needPlace}
	}
	w := *sh.t.Word(p)
	switch st {
	case lost:
		if w.Addr() == 0 { // it may have been in a leaf that is lost
			return step{err: &heap.LostError{Segment: *h.core.LastLost.Load()}}
		}
		if !w.IsLost() {
			h.core.WakeJanitor() // to account for the whole segment
		}
		return step{err: &heap.LostError{Segment: h.core.Far.Seg(w.Addr()).Seg.Name()}}
	default:
		return step{need: n, at: p}
	}
}

// expire removes an entry whose time has come.
func (sh *shard) expire(h *Maps, p index.Place, e entry.Local) {
	sh.remove(h, p, e)
	sh.t.Tighten(p)
	sh.count.expired++
}

// expireNow is the step of a read that came by an entry whose time has come.
func (sh *shard) expireNow(h *Maps, p index.Place, e entry.Local) step {
	sh.expire(h, p, e)
	return step{err: ErrNotFound}
}

// do calls try with the shard's lock held. If that has to wait, do goes on as slow does.
func (m *Map) do(ctx context.Context, sh *shard, hs entry.Hash, key []byte, try func(*holding) step) error {
	sh.mu.Lock()
	if !sh.closed {
		if s := try(nil); s.need == ready {
			sh.mu.Unlock()
			return s.err
		}
	}
	sh.mu.Unlock()
	return m.slow(ctx, sh, hs, key, try)
}

// slow calls try, with the shard's lock held, until try need not wait. Between two calls it waits, without the lock,
// for what try needs.
func (m *Map) slow(ctx context.Context, sh *shard, hs entry.Hash, key []byte, try func(*holding) step) error {
	h := m.h
	if err := h.core.Begin(); err != nil {
		return err
	}
	defer h.core.End()
	var hd holding
	defer hd.release(h)
	var lacking time.Time // since then there has been no place in the table
	short := false        // a header and key were not where the key's length said
	for {
		late := ctx.Err() != nil // asked once: a call that leads a flight has to make it; and before Lock: a nil ctx panics
		sh.mu.Lock()
		if sh.closed {
			sh.mu.Unlock()
			return m.gone()
		}
		s := try(&hd)
		var f *heap.Flight
		var leader bool
		var busy <-chan struct{}
		if (s.need == needWhole || s.need == needHead) && !late {
			use := heap.UseHead
			if s.need == needWhole || short {
				use = heap.UseLook
			}
			if c := hd.of(sh.t.Word(s.at).Addr(), use != heap.UseHead); c != nil && c.Corrupt() {
				sh.mu.Unlock()
				return c.Err
			}
			f, leader, busy = m.board(nil, 0, sh, s.at, use, len(key))
		} else if s.need == needLeaf && !late {
			if c := hd.of(sh.cold.At(sh.cold.Of(hs.Tag())).Addr(), true); c != nil && c.Corrupt() {
				sh.mu.Unlock()
				return c.Err
			}
			f, leader, busy = m.boardLeaf(nil, 0, sh, hs.Tag())
		}
		sh.mu.Unlock()
		switch {
		case s.need == ready:
			return s.err
		case late:
			return context.Cause(ctx)
		case s.need == needRoom:
			var letGo func()
			if len(hd.flights) > 0 {
				letGo = func() { hd.release(h) }
			}
			if err := h.core.WaitFor(ctx, s.room, letGo); err != nil {
				return err
			}
		case s.need == needPlace:
			hd.release(h) // others may wait for what these flights hold
			if lacking.IsZero() {
				lacking = time.Now()
			} else if time.Since(lacking) > heap.StoreTimeout {
				return fmt.Errorf("cannot look a key up: there is no place in the index, and nothing of it can go far: %w", heap.ErrMetadataFull)
			}
			if err := h.settler.wait(ctx); err != nil {
				return err
			}
		case busy != nil:
			hd.release(h)
			select {
			case <-busy:
			case <-ctx.Done():
				return fmt.Errorf("cannot fetch: all buffers are in use: %w", context.Cause(ctx))
			}
		default:
			hd.add(f)
			if err := m.fly(ctx, f, leader); err != nil {
				return err
			}
			short = f.Short
		}
	}
}
