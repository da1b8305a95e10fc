package copies

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"polder/far/store"
	"polder/internal/turns"
)

// A Vanisher is a segment at a place that may ask for its memory back (State.Idle).
type Vanisher interface {
	store.Segment
	// MayVanish permits the place to drop what is in the segment.
	MayVanish(ctx context.Context) error
	// MustStay takes that back, and reports whether the segment has all that was written to it, which it does not
	// if it has vanished before.
	MustStay(ctx context.Context) (bool, error)
	// Vanished reports whether it has. Then it can only be given back.
	Vanished() bool
}

// A spare is a copy of a segment beside those that count, at a place that may drop it at any time, and was told
// that it may. What it is a copy of, and how far, does not change.
type spare struct {
	copyOf
	may  Vanisher // its segment
	have int      // bytes of the segment, from its beginning, that it has

	mu     sync.Mutex
	asking int  // who ask the place that it must stay: it is not given back meanwhile; guarded by mu
	freed  bool // its segment has been given back, and so is it when nobody asks any more; guarded by mu
}

// take has x be no spare copy of g's any more, if it is one, and nobody asks its place that it must stay. Then it is the caller's.
func (g *segment) take(x *spare) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.asking == 0 && g.spare.CompareAndSwap(x, nil)
}

// ask has x not be given back until asked is called, if it is g's spare copy.
func (g *segment) ask(x *spare) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if g.spare.Load() != x {
		return false
	}
	x.asking++
	return true
}

// asked ends what ask has begun, and reports whether x may be used.
func (x *spare) asked() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.asking--; x.asking == 0 && x.freed {
		x.place.giveBackLater(x.seg)
	}
	return !x.freed
}

// free gives x back, which was the spare copy of a segment that is given back.
func (x *spare) free() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.freed = true; x.asking == 0 {
		x.place.giveBack(x.seg)
	}
}

// has reports whether x has the first end bytes, as far as is known.
func (x *spare) has(end int) bool { return x != nil && x.have >= end && !x.may.Vanished() && !x.lost() }

// checkSpare lets go of g's spare copy if that has vanished or has to move, and reports whether g should have one,
// or one that has more.
func (g *segment) checkSpare() (wanted bool) {
	x := g.spare.Load()
	switch {
	case x == nil:
	case x.lost() || x.may.Vanished():
		if g.take(x) {
			g.store.counts.vanished.Add(1)
			x.place.giveBackLater(x.seg)
		}
		x = nil
	case !x.place.stays():
		if g.take(x) {
			x.place.giveBackLater(x.seg)
		}
		x = nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	end := int(g.end.Load())
	settled := end > 0 && g.scanned == end && g.writing == 0 // it is not being filled just now
	g.scanned = end
	return settled && !g.freed && !g.repairing && (x == nil || x.have < end) && g.unlike != g.copies.Load()
}

// makeSpares makes spare copies of segments, as long as nothing has to be repaired.
func (s *Store) makeSpares(segments []*segment) {
	for _, g := range segments {
		s.mu.Lock()
		busy := len(s.queue) > 0
		s.mu.Unlock()
		if busy || s.ctx.Err() != nil || !g.makeSpare(s.ctx) {
			return
		}
	}
}

// makeSpare makes a spare copy of g, or has the one that there is have more, if all copies that count have the same bytes wherever a write was
// acknowledged. Where they differ, as when one is damaged, the store does not know which is right, and a spare copy of the wrong one could take the place of
// a good one later: so g has none until the wrong copy has been found (Judge), and replaced, or other copies have taken the place of these.
// The place that lends what is idle does without: it has no spare copy to drop, and a copy that counts is moved within its deadline, as always.
// It reports false if there is no room for more of them; where all places that lend what is idle have a copy that counts, others may still have one.
func (g *segment) makeSpare(ctx context.Context) bool {
	s := g.store
	g.mu.Lock()
	end, cs, writing, rewound := int(g.end.Load()), *g.copies.Load(), g.writing > 0, g.rewound
	x := g.spare.Load()
	g.mu.Unlock()
	if writing { // the end has been raised, and nothing need be there yet
		return true
	}
	// became has x be g's spare copy in the place of old, if it has what there is.
	became := func(old, x *spare) bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return !g.freed && g.rewound == rewound && g.spare.CompareAndSwap(old, x)
	}
	if x != nil {
		if !g.take(x) { // until it has more nobody else gives it back
			return true
		}
		more := x
		if s.copyTo(ctx, g, x.copyOf, copyOf{}, cs, x.have, end) {
			more = &spare{copyOf: x.copyOf, may: x.may, have: end}
		}
		if !became(nil, more) {
			x.place.giveBack(x.seg)
		}
		return true
	}
	c, ok, full := s.borrowSpare(ctx, cs)
	if !ok {
		return !full
	}
	seg, ok := c.seg.(Vanisher)
	ok = ok && s.copyTo(ctx, g, c, copyOf{}, cs, 0, end) && seg.MayVanish(ctx) == nil
	if ok = ok && became(nil, &spare{copyOf: c, may: seg, have: end}); !ok {
		c.place.giveBack(c.seg)
	}
	return true
}

// borrowSpare borrows a segment at a place that lends what is idle, and where none of cs is. It reports full if there is such a place, and none has room.
func (s *Store) borrowSpare(ctx context.Context, cs []copyOf) (c copyOf, ok, full bool) {
	for _, p := range s.candidates() {
		st := p.state()
		if !st.Idle || st.Leaving || !p.usable() || slices.ContainsFunc(cs, func(c copyOf) bool { return c.place == p }) {
			continue
		}
		full = true
		if st.Space < spareRoom*int64(s.SegmentSize()) {
			continue
		}
		if seg, err := p.alloc(ctx); err == nil {
			return copyOf{p, seg}, true, false
		}
	}
	return copyOf{}, false, full
}

const (
	// spareRoom is for how many other segments there must be room at a place that gets a spare copy.
	spareRoom = 2
	// spareGiveUp is how many spare copies make way for one that counts.
	spareGiveUp = 4
)

// makeWay gives some spare copies at p back, which has no more to lend, and reports whether there were any.
func (s *Store) makeWay(ctx context.Context, p *place) bool {
	if !p.state().Idle {
		return false
	}
	var some []*segment
	s.mu.Lock()
	for g := range s.segments {
		if x := g.spare.Load(); x != nil && x.place == p {
			some = append(some, g)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(some, func(a, b *segment) int { return cmp.Compare(a.number, b.number) })
	ok := false
	for _, g := range some[:min(len(some), spareGiveUp)] {
		x := g.spare.Load()
		if x == nil || x.place != p || !g.take(x) {
			continue
		}
		p.copies.Add(-1)
		if x.seg.Free(ctx) != nil {
			p.owe(x.seg)
			continue
		}
		ok = true
	}
	return ok
}

// confirm takes the right to vanish back from g's spare copy, if it has the first end bytes, and reports whether it is still there
// then. It stays g's spare copy, so that it is read meanwhile.
func (g *segment) confirm(ctx context.Context, end int) (*spare, bool) {
	x := g.spare.Load()
	if !x.has(end) || !x.place.usable() || !x.place.stays() || !g.ask(x) {
		return nil, false
	}
	ctx, cancel := g.store.proc.WithTimeout(ctx, repairTimeout)
	defer cancel()
	ok, err := x.may.MustStay(ctx)
	if mine := x.asked(); mine && ok && err == nil {
		return x, true
	}
	if g.take(x) { // or it has been given back already
		g.store.counts.vanished.Add(1)
		x.place.giveBackLater(x.seg)
	}
	return nil, false
}

// promote has g's spare copy count, if it has the first end bytes and has not vanished.
//
// Preconditions: nothing is written to g.
func (g *segment) promote(ctx context.Context, end int) (copyOf, bool) {
	x, ok := g.confirm(ctx, end)
	if !ok || !g.spare.CompareAndSwap(x, nil) {
		return copyOf{}, false
	}
	g.store.counts.promoted.Add(1)
	return x.copyOf, true
}

// rescue is called when all copies of g that count are lost: its spare copy takes their place, if it has not vanished. Otherwise
// g is lost.
func (g *segment) rescue() {
	s := g.store
	g.mu.Lock()
	end := int(g.end.Load())
	g.mu.Unlock()
	x, ok := g.confirm(s.ctx, end)
	g.mu.Lock()
	if ok = ok && !g.freed; ok {
		old := g.copies.Load()
		g.copies.Store(&[]copyOf{x.copyOf}) // before it is none beside them any more: somebody may look for one just now
		if ok = g.spare.CompareAndSwap(x, nil); ok {
			s.counts.promoted.Add(1)
			s.counts.copiesLost.Add(int64(len(*old)))
			for _, o := range *old {
				o.place.copies.Add(-1)
			}
		} else {
			g.copies.Store(old)
		}
	}
	g.rescuing = false
	g.mu.Unlock()
	if !ok {
		g.look()
		return
	}
	s.log.Warn("all copies of a segment that count were lost, and one that might have vanished is left", "segment", g.Name())
	g.replaced(s.ctx, nil)
	s.wake()
}

// counting is what pick is told in the place of an end if only copies that count will do.
const counting = -1

// countOf is the end of what a read needs of a copy, or counting.
func countOf(op *store.ReadOp) int {
	if op.Bulk { // as of repairs, which do not look at what they copy
		return counting
	}
	return op.Off + len(op.Buf)
}

// hurries reports whether a copy of g is at a place that has to give memory back to its host: then it is not moved
// at leisure.
func (g *segment) hurries() bool {
	return slices.ContainsFunc(*g.copies.Load(), func(c copyOf) bool { st := c.place.state(); return st.Idle && st.Leaving })
}

// leisure waits after some bytes of g were copied, since began, if others use the places and g need not hurry. It reports false
// if ctx has ended.
func (s *Store) leisure(ctx context.Context, g *segment, began time.Time) bool {
	if s.proc.Since(time.Unix(0, s.used.Load())) >= inUse || g.hurries() {
		return true
	}
	timer := s.proc.NewTimer((repairShare - 1) * s.proc.Since(began))
	if s.proc.Wait(timer, ctx.Done()) != turns.Late {
		timer.Stop()
		return false
	}
	return true
}
