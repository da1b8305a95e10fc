package heap

import (
	"context"
	"errors"
	"fmt"

	"polder/far/record"
	"polder/far/store"
)

// The cleaner is the evacuator's work on far memory, and runs in its goroutine. It reads a segment in which little
// lives, appends the live records to the open segment, tells their owners, and gives the segment back. It runs when
// more than a third of the far memory is dead, and when the store has no segment left; for that case the heap keeps a
// spare one.

const (
	// worthCleaning is the part of a segment that must be dead for it to be cleaned when the store is full.
	worthCleaning  = 1.0 / 16
	shrinkCleaning = 1.0 / 64 // the same, to make room ForShrink
)

// FarReady sees to it that the open segment has room for n bytes, and reports whether it has.
func (h *Heap) FarReady(n int) bool {
	f := &h.Far
	owing := f.Owing()
	may := h.shrinking || !owing || h.backing != nil
	if may && h.midway == nil && h.hasRoom(n) {
		return true
	}
	if f.resting() == nil {
		if !may {
			may = h.repaid()
		}
		if may && (h.midway == nil && h.hasRoom(n) || h.openAnother()) {
			return true
		}
	}
	why := f.err
	if !errors.Is(why, ErrStoreFull) {
		return false
	}
	switch {
	case h.backing != nil && h.backing.writing:
		return h.hasRoom(n) || h.lendReserve(h.indexReserve())
	case h.replays.Load():
		if h.lendReserve(h.dirtyReserve()) {
			return true
		}
	}
	if h.farCleaned(n, owing, may) {
		return true
	}
	if f.err == nil {
		f.err = why // writes have succeeded meanwhile, but the store is as full as before
	}
	return false
}

// farCleaned is FarReady when the store is full.
func (h *Heap) farCleaned(n int, owing, may bool) bool {
	f := &h.Far
	h.Drain() // what is being written may be what has to be cleaned, or may die
	h.reap()
	postponed := h.postponed
	h.postponed = 0
	if f.freed.Swap(false) && may && h.openAnother() {
		return true
	}
	worth, tries := worthCleaning, 4
	if h.shrinking {
		if seg := f.TakeSpare(true); seg != nil {
			return h.openWith(seg) == nil
		}
		worth, tries = shrinkCleaning, 64
	}
	// Every segment that is cleaned into a spare one yields some room and becomes a spare one. While spare segments
	// are lent, that room is for cleaning, too.
	for range tries {
		s := h.unfinished()
		another := s == nil
		if another {
			s = f.Sparsest()
		}
		if s == nil || another && !s.Yields(worth) {
			return false
		}
		if another && !owing || f.open == nil {
			if spare := f.TakeSpare(false); spare == nil || h.openWith(spare) != nil {
				return false
			}
		}
		err := h.clean(s, false)
		if errors.Is(err, ErrNotNow) {
			h.postponed = postponed + 1
			return false
		}
		if owing && errors.Is(err, ErrStoreFull) {
			h.closeFar() // what is left of s goes into another segment
		} else if err != nil {
			h.Logs.note(err)
			return false
		}
		owing = f.Owing()
		if (h.shrinking || !owing) && h.hasRoom(n) {
			return true
		}
	}
	return false
}

// unfinished is h.midway, which has to be cleaned further before any other segment; nil if there is none.
func (h *Heap) unfinished() *FarSegment {
	if s := h.midway; s != nil && (s.Gone() || s.Live.Load() == 0) {
		h.midway = nil
	}
	return h.midway
}

// hasRoom reports whether n bytes can be appended to the open segment.
func (h *Heap) hasRoom(n int) bool {
	f := &h.Far
	if f.open != nil && f.open.Gone() {
		h.closeFar()
	}
	return f.open != nil && f.open.End+n <= f.SegSize
}

// tidy cleans far memory until it is clean enough or there is other work.
func (h *Heap) tidy() error {
	for h.Ctx.Err() == nil && h.Far.resting() == nil {
		s := h.unfinished()
		borrow := s == nil
		if borrow {
			s = h.Far.Worst()
		}
		if s == nil {
			break
		}
		if err := h.clean(s, borrow); err != nil {
			if errors.Is(err, ErrNotNow) {
				h.untidy++
				return nil
			}
			return err
		}
		h.untidy = 0
		if !h.Logs.Satisfied() {
			h.Logs.Wake() // more urgent
			return nil
		}
	}
	h.untidy = 0
	return nil
}

// clean moves what lives in s to the open segment, or to further ones if it may borrow. If owners cannot tell just now
// what lives, or there is no room, it ends in the middle, and goes on from there the next time.
func (h *Heap) clean(s *FarSegment, borrow bool) error {
	part := s.Pin()
	fails, unmoved := h.Far.fails, h.Far.unmoved
	end, err := h.cleanPinned(s, borrow, fails)
	h.Drain()
	if err == nil && h.Far.fails != fails {
		err = h.Far.failed
	}
	_ = h.host.Learn(h.Ctx, nil) // owners may forget again what they have learned; this cannot fail
	moved := h.Far.fails == fails && h.Far.unmoved == unmoved
	if s.Cleaned = 0; moved && (errors.Is(err, ErrNotNow) || errors.Is(err, ErrStoreFull)) {
		s.Cleaned = end
	}
	if h.midway = nil; !borrow && errors.Is(err, ErrNotNow) {
		h.midway = s
	}
	if err == nil && h.Far.unmoved == unmoved && !s.Gone() && s.Live.Load() != 0 && (s.Restored || h.host.Leaks()) {
		s.Forsake()
		h.WakeJanitor()
	}
	s.Unpin(part)
	if s.Dead() {
		h.Drop(s)
	}
	return err
}

// cleanPinned is clean with s pinned. It returns the offset that it has come to.
func (h *Heap) cleanPinned(s *FarSegment, borrow bool, fails int) (off int, err error) {
	off = max(record.SegmentSize, s.Cleaned)
	if s.Live.Load() == 0 {
		return off, nil // the janitor may already have given it back
	}
	if s.Cleaned == 0 {
		h.Count.cleanedSegments.Add(1)
	}
	for off < s.End {
		b, err := h.readPart(s, off)
		if err != nil {
			return off, err
		}
		done, err := h.cleanPart(s, off, b, borrow, fails)
		if err != nil {
			return off, err
		}
		off += done
	}
	return off, nil
}

// cleanPart moves the live records in b, which was read at off of s, and returns how many bytes of b the records take
// that are in it entirely. fails is how many writes had failed before.
func (h *Heap) cleanPart(s *FarSegment, off int, b []byte, borrow bool, fails int) (int, error) {
	f := &h.Far
	if err := h.learnPart(s, off, b); err != nil {
		return 0, err
	}
	for at := 0; at < len(b); {
		e, err := h.cleanable(s, off+at, b[at:])
		if err == record.ErrShort && at > 0 {
			return at, nil // the rest is read with the next part
		}
		if err != nil {
			good := func() bool {
				_, err := h.cleanable(s, off+at, b[at:])
				return err == nil || err == record.ErrShort && at > 0
			}
			if h.Reread(s.Seg, off+at, b[at:], good) {
				if err := h.learnPart(s, off+at, b[at:]); err != nil { // what was learned before is of the bad copy
					return 0, err
				}
				continue
			}
			// The record stays where it is, and so does the segment.
			s.Broken = true
			return 0, &CorruptError{Segment: s.Seg.Name(), Off: off + at, Err: err}
		}
		n := e.Size()
		at += n
		addr := s.Address(off + at - n)
		if !h.host.Owner(e.Owner()).Live(e, addr) {
			continue
		}
		for !f.fits(n) {
			h.submit()
			if f.fails != fails {
				return 0, f.failed
			}
			if !h.hasRoom(n) && (!borrow || !h.openAnother()) {
				return 0, fmt.Errorf("cannot clean %s: no room for what lives in it: %w", s.Seg.Name(), ErrStoreFull)
			}
			h.refill()
		}
		room, _ := f.reserve(n, fromFar|source(addr))
		record.Move(room, e)
	}
	return len(b), nil
}

// cleanable returns the record that b begins with, which was read at off of s, or an error if it is not one of an
// owner's.
func (h *Heap) cleanable(s *FarSegment, off int, b []byte) (record.Record, error) {
	e, err := s.DecodeHead(b, off)
	if err == nil && e.Size() > len(b) {
		err = record.ErrShort
	}
	if err == nil {
		e, err = s.Decode(b, off)
	}
	if err != nil {
		return nil, err
	}
	o := h.host.Owner(e.Owner())
	if o == nil {
		return nil, ErrForeign
	}
	return e, o.Check(e, nil)
}

// learnPart has the host learn about the records in b, which was read at off of s.
func (h *Heap) learnPart(s *FarSegment, off int, b []byte) error {
	if !h.host.Learns() {
		return nil
	}
	h.suspects = h.suspects[:0]
	for n := 0; n < len(b); {
		e, err := s.DecodeHead(b[n:], off+n)
		if err != nil || e.Size() > len(b)-n {
			break
		}
		h.suspects = append(h.suspects, Suspect{Owner: e.Owner(), Number: e.Number(), Addr: s.Address(off + n)})
		n += e.Size()
	}
	if len(h.suspects) == 0 {
		return nil // cleanPart will say what is wrong with it
	}
	return h.host.Learn(h.Ctx, h.suspects)
}

// readPart reads what is at off of s, as much as fits into h.scratch.
func (h *Heap) readPart(s *FarSegment, off int) ([]byte, error) {
	f := &h.Far
	n := min(len(h.scratch), s.End-off)
	ops := []store.ReadOp{{Seg: s.Seg, Off: off, Buf: h.scratch[:n], Bulk: true}}
	ctx, cancel := context.WithTimeout(h.Ctx, StoreTimeout)
	defer cancel()
	f.Store.Read(ctx, ops)
	if err := ops[0].Err; err != nil {
		return nil, f.Failed(fmt.Errorf("cannot clean %s: %w", s.Seg.Name(), err))
	}
	h.Count.BytesIn.Add(uint64(n))
	return h.scratch[:n], nil
}

// repaid borrows spare segments in the place of those that are lent, and reports whether none is lent any more.
func (h *Heap) repaid() bool {
	f := &h.Far
	for f.Owing() {
		if err := f.BorrowSpare(h.Ctx); err != nil {
			f.Failed(err)
			return false
		}
	}
	f.succeeded()
	return true
}

// openAnother borrows a segment and makes it the open one.
func (h *Heap) openAnother() bool {
	f := &h.Far
	seg, err := f.Borrow(h.Ctx)
	if err == nil {
		err = h.openWith(seg)
	}
	if err != nil {
		f.Failed(err)
		return false
	}
	f.succeeded()
	return true
}

// ErrNotNow: what the cleaner needs to know is about to change.
var ErrNotNow = errors.New("it is about to change")

var ErrForeign = errors.New("they are not those of the entry that was looked for")
