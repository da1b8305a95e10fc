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
	// MustStay takes the permission back, and reports whether the segment still has all that was written to it. It
	// does not if it vanished before.
	MustStay(ctx context.Context) (bool, error)
	// Vanished reports whether the segment has vanished. Then it can only be given back.
	Vanished() bool
}

// A spare is a copy of a segment beside those that count, at a place that was told that it may drop the copy at any
// time. Which segment it is a copy of, and how much of it, does not change.
type spare struct {
	copyOf
	may  Vanisher // the segment at the place
	have int      // bytes of the copied segment, from its beginning, that it has

	mu     sync.Mutex
	asking int  // calls of MustStay under way: the copy is not given back meanwhile; guarded by mu
	freed  bool // the segment has been given back, and the copy will be when asking is 0; guarded by mu
}

// take makes x no longer g's spare copy, and reports whether it has; then x is the caller's. It reports false if x is
// not g's spare copy, or if somebody is asking its place to keep it.
func (g *segment) take(x *spare) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.asking == 0 && g.spare.CompareAndSwap(x, nil)
}

// ask keeps x from being given back until asked is called. It reports false, and does nothing, if x is not g's spare
// copy.
func (g *segment) ask(x *spare) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if g.spare.Load() != x {
		return false
	}
	x.asking++
	return true
}

// asked ends what ask began, and reports whether x may be used: it may not if its segment was given back.
func (x *spare) asked() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.asking--; x.asking == 0 && x.freed {
		x.place.giveBackLater(x.seg)
	}
	return !x.freed
}

// free gives back x, whose segment is given back, or leaves that to asked if somebody is asking its place to keep it.
func (x *spare) free() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.freed = true; x.asking == 0 {
		x.place.giveBack(x.seg)
	}
}

// has reports whether x has the first end bytes, as far as is known.
func (x *spare) has(end int) bool { return x != nil && x.have >= end && !x.may.Vanished() && !x.lost() }

// checkSpare lets go of g's spare copy if the copy has vanished or has to move. It reports whether g should get a
// spare copy, or its spare copy should get more of g.
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
	settled := end > 0 && g.scanned == end && g.writing == 0 // g is not being filled just now
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

// makeSpare makes a spare copy of g, or extends the one that g has, if all copies that count have the same bytes
// wherever a write was acknowledged. If they differ, as when one is damaged, the store does not know which is right,
// and a spare copy of the wrong one could take the place of a good copy later. So g has no spare copy until the wrong
// copy has been found (Judge) and replaced, or other copies have taken the place of these. The place that lends idle
// memory then has no spare copy of g to drop, and has to have copies that count moved within its deadline, as always.
//
// makeSpare reports false if there is no room for more spare copies. If every place that lends idle memory has a copy
// of g that counts, it reports true: other segments may still get a spare copy.
func (g *segment) makeSpare(ctx context.Context) bool {
	s := g.store
	g.mu.Lock()
	end, cs, writing, rewound := int(g.end.Load()), *g.copies.Load(), g.writing > 0, g.rewound
	x := g.spare.Load()
	g.mu.Unlock()
	if writing { // end has been raised, but the bytes need not be there yet
		return true
	}
	// became makes x g's spare copy in the place of old, unless g was freed or written from the front again
	// meanwhile.
	became := func(old, x *spare) bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return !g.freed && g.rewound == rewound && g.spare.CompareAndSwap(old, x)
	}
	if x != nil {
		if !g.take(x) { // nobody else gives x back while it is being extended
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

// borrowSpare borrows a segment at a place that lends idle memory and has no copy in cs. If there are such places,
// but none has room, full is true.
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
	// spareRoom is how many segments a place must have room for to get a spare copy.
	spareRoom = 2
	// spareGiveUp is how many spare copies make way for a copy that counts.
	spareGiveUp = 4
)

// makeWay gives back some spare copies at p, which has no more memory to lend, and reports whether it has given any
// back.
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

// confirm takes back the permission to drop g's spare copy, if the copy has the first end bytes, and reports whether
// it is still there then. It remains g's spare copy, so that it can be read meanwhile.
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

// promote makes g's spare copy one that counts, if it has the first end bytes and has not vanished. The caller adds
// it to g.copies.
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

// rescue is called when all copies of g that count are lost. The spare copy takes their place, if it has not
// vanished; otherwise g is lost.
func (g *segment) rescue() {
	s := g.store
	g.mu.Lock()
	end := int(g.end.Load())
	g.mu.Unlock()
	x, ok := g.confirm(s.ctx, end)
	g.mu.Lock()
	if ok = ok && !g.freed; ok {
		old := g.copies.Load()
		// Stored before x stops being the spare copy: a reader must find it as one or the other.
		g.copies.Store(&[]copyOf{x.copyOf})
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

// counting is passed to pick instead of an end if only copies that count will do.
const counting = -1

// countOf is what pick is told for op: the end of the bytes that a copy must have, or counting.
func countOf(op *store.ReadOp) int {
	if op.Bulk { // such as a read of repair, which does not check what it copies
		return counting
	}
	return op.Off + len(op.Buf)
}

// hurries reports whether a copy of g is at a place that has to give memory back to its host. Then g is copied at
// full speed.
func (g *segment) hurries() bool {
	return slices.ContainsFunc(*g.copies.Load(), func(c copyOf) bool { st := c.place.state(); return st.Idle && st.Leaving })
}

// leisure is called after some bytes of g were copied, which began at began. If others use the places and g need not
// hurry, it waits. It reports false if ctx has ended.
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
