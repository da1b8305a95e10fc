package far

import (
	"context"
	"errors"
	"fmt"
)

// The cleaner is the evacuator's work on far memory, and runs in its
// goroutine: it reads a segment of which little lives, appends what does to
// the open segment, turns the index's words, and gives the segment back. It
// runs when more than half of the far memory is dead, and when the store has
// no segment left; for that case the heap keeps one to spare.

const (
	// cleanAbove is the part of far memory that may be dead, provided there
	// are at least cleanFrom segments.
	cleanAbove = 0.5
	cleanFrom  = 4
	// worthCleaning is the part of a segment that must be dead for it to be
	// cleaned when the store is full.
	worthCleaning = 1.0 / 16
)

// farReady sees to it that the open segment has room for n bytes. Nothing may
// be staged.
func (h *core) farReady(n int) bool {
	f := &h.far
	owing := f.owing()
	may := h.shrinking || !owing
	if may && f.hasRoom(n) {
		return true
	}
	if f.resting() == nil {
		if !may {
			may = h.repaid()
		}
		if may && (f.hasRoom(n) || h.openAnother()) {
			return true
		}
	}
	if !errors.Is(f.err, ErrStoreFull) {
		return false
	}
	h.reap()
	if f.freed.Swap(false) && may && h.openAnother() {
		return true
	}
	worth, tries := worthCleaning, 4
	if h.shrinking {
		if seg := f.takeSpare(true); seg != nil {
			return f.openWith(seg) == nil
		}
		worth, tries = shrinkCleaning, 64
	}
	// Every segment that is cleaned into a spare one yields some room and
	// becomes a spare one. While some are lent, that room is for cleaning, too.
	full := f.open == nil
	for range tries {
		s := f.sparsest()
		if s == nil || float64(s.live.Load()) > (1-worth)*float64(f.segSize) {
			return false
		}
		if !owing || full {
			spare := f.takeSpare(false)
			if spare == nil || f.openWith(spare) != nil {
				return false
			}
		}
		err := h.clean(s, false)
		if full = owing && errors.Is(err, ErrStoreFull); err != nil && !full {
			h.logs.note(err)
			return false
		}
		owing = f.owing()
		if (h.shrinking || !owing) && f.hasRoom(n) {
			return true
		}
	}
	return false
}

// hasRoom reports whether n bytes can be appended to the open segment.
func (f *farLog) hasRoom(n int) bool {
	if f.open != nil && f.open.gone() {
		f.close()
	}
	return f.open != nil && f.open.end+n <= f.segSize
}

// sparsest returns the sealed segment with the fewest live bytes, or nil.
func (f *farLog) sparsest() (best *farSegment) {
	f.all(func(s *farSegment) {
		if s.cleanable() && (best == nil || s.live.Load() < best.live.Load()) {
			best = s
		}
	})
	return best
}

func (s *farSegment) cleanable() bool {
	return s.sealed.Load() && !s.broken && s.live.Load() > 0 && !s.gone()
}

// worst returns the segment whose cleaning yields most for its cost, which is
// to read what was written and to write what lives; old segments come first,
// since what lives in a young one may soon be dead. It is nil if far memory is
// clean enough.
func (f *farLog) worst() (best *farSegment) {
	var live, filled, n int64
	var most float64
	f.all(func(s *farSegment) {
		if !s.sealed.Load() {
			return
		}
		n++
		live += s.live.Load()
		filled += s.filled.Load()
		if s.cleanable() {
			u := float64(s.live.Load()) / float64(s.filled.Load())
			if gain := (1 - u) / (1 + u) * float64(f.age-s.age+1); gain > most {
				best, most = s, gain
			}
		}
	})
	if n < cleanFrom || float64(filled-live) < cleanAbove*float64(filled) {
		return nil
	}
	return best
}

// tidy cleans far memory until it is clean enough or there is other work.
func (h *core) tidy() error {
	for h.ctx.Err() == nil && h.far.resting() == nil {
		s := h.far.worst()
		if s == nil {
			return nil
		}
		if err := h.clean(s, true); err != nil {
			return err
		}
		if !h.logs.satisfied() {
			h.logs.wake() // more urgent
			return nil
		}
	}
	return nil
}

// clean moves what lives in s to the open segment, or to further ones if it
// may borrow.
func (h *core) clean(s *farSegment, borrow bool) error {
	s.pins.Add(1)
	err := h.cleanPinned(s, borrow)
	s.pins.Add(-1)
	if s.dead() {
		h.drop(s)
	}
	return err
}

func (h *core) cleanPinned(s *farSegment, borrow bool) error {
	f := &h.far
	if s.live.Load() == 0 {
		return nil // the janitor may already have given it back
	}
	h.count.cleanedSegments.Add(1)
	for off := 0; off < s.end; {
		n := min(len(h.scratch), s.end-off)
		ops := []ReadOp{{Seg: s.seg, Off: off, Buf: h.scratch[:n]}}
		ctx, cancel := context.WithTimeout(h.ctx, storeTimeout)
		f.store.Read(ctx, ops)
		cancel()
		if err := ops[0].Err; err != nil {
			return f.failed(fmt.Errorf("cannot clean %s: %w", s.seg.Name(), err))
		}
		h.count.bytesIn.Add(uint64(n))
		done, err := h.cleanPart(s, off, h.scratch[:n], borrow)
		if err != nil {
			return err
		}
		off += done
	}
	return nil
}

// cleanPart deals with the entries in b, which was read at off of s, and
// returns the bytes of those that are in it entirely.
func (h *core) cleanPart(s *farSegment, off int, b []byte, borrow bool) (int, error) {
	f := &h.far
	base := s.id*f.units + uint64(off)/unit
	begin := 0 // staged entries before it are settled
	at := 0
	for at < len(b) {
		addr := base + uint64(at)/unit
		e, err := decodeHead(b[at:], addr)
		if err == nil && e.size() > len(b)-at {
			err = errShort
		}
		if err == errShort && at > 0 {
			break // the rest is read with the next part
		}
		if err == nil {
			e, err = decodeEntry(b[at:], addr)
		}
		switch {
		case err != nil:
		case e.staged():
			err = errForeign
		default:
			if o := h.host.Owner(e.mapID()); o == nil {
				err = errForeign
			} else {
				err = o.Check(e)
			}
		}
		if err != nil {
			// The entry stays where it is, and so does the segment.
			s.broken = true
			h.count.corrupt.Add(1)
			return 0, errOr(h.settleClean(s, base, b[begin:at], begin),
				&CorruptError{Segment: s.seg.Name(), Off: off + at, Err: err})
		}
		n := e.size()
		if !h.host.Owner(e.mapID()).Live(e, addr) {
			at += n
			continue
		}
		if !f.fits(n) {
			if err := h.settleClean(s, base, b[begin:at], begin); err != nil {
				return 0, err
			}
			begin = at
			if !f.fits(n) {
				if !f.hasRoom(n) && (!borrow || !h.openAnother()) {
					return 0, fmt.Errorf("cannot clean %s: no room for what lives in it: %w", s.seg.Name(), ErrStoreFull)
				}
			}
		}
		b, to := f.reserve(n)
		sealCopy(b, e, to)
		e.setFar(to)
		e.setFlag(flagStaged)
		at += n
	}
	return at, h.settleClean(s, base, b[begin:at], begin)
}

// repaid borrows spare segments for those that are lent, and reports whether none
// is lent any more.
func (h *core) repaid() bool {
	f := &h.far
	for f.owing() {
		if err := f.borrowSpare(h.ctx); err != nil {
			f.failed(err)
			return false
		}
	}
	f.succeeded()
	return true
}

// openAnother borrows a segment and makes it the open one.
func (h *core) openAnother() bool {
	f := &h.far
	seg, err := f.borrow(h.ctx)
	if err == nil {
		err = f.openWith(seg)
	}
	if err != nil {
		f.failed(err)
		return false
	}
	f.succeeded()
	return true
}

// settleClean writes what is staged and makes the index refer to it. b is the
// part of what was read of s in which staged entries may lie; it begins skip
// bytes behind the address base, and tells where each entry has gone.
func (h *core) settleClean(s *farSegment, base uint64, b []byte, skip int) error {
	f := &h.far
	to, bytes := f.open, f.staged
	if bytes == 0 {
		return nil
	}
	err := f.flush(h.ctx)
	if err == nil {
		h.count.bytesOut.Add(uint64(bytes))
		h.count.cleanedBytes.Add(uint64(bytes))
	}
	for at := 0; at < len(b); {
		e := entry(b[at:])
		n := e.size()
		if e.staged() {
			from, size := base+uint64(skip+at)/unit, roundSize(n)
			if err == nil && h.host.Owner(e.mapID()).Moved(e, from, e.far(), to) {
				h.buryFar(from, size)
			} else {
				to.live.Add(-int64(size))
			}
		}
		at += n
	}
	if to.dead() {
		h.wakeJanitor()
	}
	return err
}

var errForeign = errors.New("they are not those of the entry that was looked for")
