package copies

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"polder/far/store"
)

const (
	keepEvery = 100 * time.Millisecond
	scanEvery = time.Second
	// repairers is how many segments are copied at a time, so that some are read while others are written.
	repairers = 4
	// pieceSize is how much of a segment is copied at once.
	pieceSize = 256 << 10
	// inUse: the places are in use if somebody has read or written within this time. Then copying takes only one part
	// in repairShare of the time.
	inUse       = 10 * time.Millisecond
	repairShare = 4
	// repairTimeout bounds the copying of a piece.
	repairTimeout = 10 * time.Second
)

// wake makes keep scan the segments.
func (s *Store) wake() {
	select {
	case s.rescan <- struct{}{}:
	default:
	}
}

// keep asks silent places whether they answer, gives back the segments that places are owed, and repairs.
func (s *Store) keep() {
	tick := s.proc.NewTimer(keepEvery)
	defer tick.Stop()
	var scanned time.Time
	usable := 0
	for {
		due := false
		switch s.proc.Wait(tick, s.ctx.Done(), s.rescan) {
		case 0:
			return
		case 1:
			due = true
		default:
			tick.Reset(keepEvery)
		}
		now, n := s.proc.Now(), 0 // places that can be used, and stay
		for _, p := range s.all() {
			p.ping(s.ctx)
			p.settleDebts(s.ctx)
			if p.stale.Load() && p.mayPrune() && !p.pruning.Load() {
				s.wg.Go(s.proc, func() { p.prune(s.ctx) })
			}
			given := p.given(now, s.cfg.RepairAfter)
			due = p.givenUp.Swap(given) != given || due
			if p.usable() && p.stays() {
				n++
			}
		}
		if due || n != usable || now.Sub(scanned) >= scanEvery {
			usable, scanned = n, now
			s.scan()
		}
	}
}

// scan finds the segments that have too few copies, and has them repaired, those with the fewest copies first. If
// there are none, it starts the making of spare copies, the balancing and the scrubbing.
func (s *Store) scan() {
	seen, bare := s.bare.Load(), false // loaded before the segments are listed
	s.mu.Lock()
	all := slices.SortedFunc(maps.Keys(s.segments), func(a, b *segment) int { return cmp.Compare(a.number, b.number) })
	s.mu.Unlock()
	type case_ struct {
		g    *segment
		left int
	}
	var short []case_
	var spares []*segment // segments that should have a spare copy, and have all others
	var old []*segment    // segments that will hardly be written to any more
	to, full, most := s.uneven()
	idle := slices.ContainsFunc(s.all(), func(p *place) bool { return p.state().Idle })
	for _, g := range all {
		if g.look() == 0 {
			if g.comesBack() {
				short = append(short, case_{g, 0})
			}
			continue
		}
		bare = bare || g.bare()
		left, repairable := g.health()
		if repairable {
			short = append(short, case_{g, left})
		}
		if wanted := (idle || g.spare.Load() != nil) && g.checkSpare(); wanted && len(shared(g.good())) >= s.cfg.Copies {
			spares = append(spares, g)
		}
		if most > 0 && g.rests() {
			old = append(old, g)
		}
	}
	if !bare {
		s.full.Store(seen)
	}
	if lost := s.counts.lost.Load(); lost != s.told {
		s.log.Error("segments were lost, with all their copies", "segments", lost-s.told, "since the start", lost)
		s.told = lost
	}
	slices.SortStableFunc(short, func(a, b case_) int { return cmp.Compare(a.left, b.left) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = s.queue[:0]
	for _, c := range short {
		s.queue = append(s.queue, c.g)
	}
	if len(spares) > 0 && len(short) == 0 && !s.sparing && s.ctx.Err() == nil {
		s.sparing = true
		s.wg.Go(s.proc, func() {
			s.makeSpares(spares)
			s.mu.Lock()
			s.sparing = false
			s.mu.Unlock()
		})
	}
	if len(old) > 0 && len(short) == 0 && !s.balancing && s.ctx.Err() == nil {
		s.balancing = true
		s.wg.Go(s.proc, func() {
			s.balance(old, to, full, most)
			s.mu.Lock()
			s.balancing = false
			s.mu.Unlock()
		})
	}
	if len(short) == 0 {
		s.beginScrub(all)
	}
	s.beginJudging()
	for s.repairing < min(repairers, len(s.queue)) && s.ctx.Err() == nil {
		if s.repairing++; s.repairing == 1 {
			s.began = s.proc.Now()
		}
		s.wg.Go(s.proc, s.repairAll)
	}
}

// good returns the copies of g that are not lost, at places that are not given up.
func (g *segment) good() (good []copyOf) {
	for _, c := range *g.copies.Load() {
		if !c.place.givenUp.Load() && !c.lost() {
			good = append(good, c)
		}
	}
	return good
}

// health returns how many good copies g has, and whether repair can do something for g now: reach a copy that could
// not be reached, make a missing copy, make one at a place that stays or in another zone, give back one that is too
// many, or forget copies that g need not wait for.
func (g *segment) health() (left int, repairable bool) {
	good := g.good()
	n, every := g.lacks(good)
	if n > 0 || every || g.comesBack() {
		return len(good), true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(good), g.needless(good) || g.excess(good)
}

// excess reports whether g has more copies than it should, enough of them good, and is not suspected, so that some
// may go. g.mu must be held.
func (g *segment) excess(good []copyOf) bool {
	cs, want := g.copies.Load(), g.store.cfg.Copies
	return len(shared(*cs)) > want && len(shared(good)) >= want && reachable(good) == len(good) && g.suspicions.Load() == 0 && g.unlike != cs
}

// lacks is Store.lacks for g, whose copies that it waits for count beside the good ones. While g waits for any, only
// missing copies are made, and none moves.
func (g *segment) lacks(good []copyOf) (n int, every bool) {
	waiting := shared(g.waiting())
	n, every = g.store.lacks(slices.Concat(good, waiting))
	if len(waiting) > 0 {
		n = min(n, max(0, g.store.cfg.Copies-len(shared(good))-len(waiting)))
	}
	return n, every
}

// needless reports whether g need not wait for the copies in away any longer: it has waited long enough, there are
// enough good copies, and g is not suspected. g.mu must be held.
func (g *segment) needless(good []copyOf) bool {
	return len(g.away) > 0 && !g.reaching && g.expired() && len(shared(good)) >= g.store.cfg.Copies && g.suspicions.Load() == 0
}

// lacks returns how many more copies a segment with the good copies should get at places that share the copies out,
// or 0 if no such place can take one now; and whether the segment should get a copy at a place with Every.
func (s *Store) lacks(good []copyOf) (n int, every bool) {
	if len(good) == 0 {
		return 0, false
	}
	zones, had, stay := make(map[string]bool), shared(good), 0
	for _, c := range had {
		zones[c.place.zone()] = true
		if c.place.stays() {
			stay++
		}
	}
	want := s.cfg.Copies
	for _, p := range s.all() {
		switch {
		case !p.usable() || slices.ContainsFunc(good, func(c copyOf) bool { return c.place == p }):
		case p.Every:
			every = every || !p.isFull()
		case len(had) < want || p.stays() && (stay < want || len(zones) < len(had) && !zones[p.zone()]):
			n = max(1, want-stay)
		}
	}
	return n, every
}

// reachable returns how many of the copies are at places that answer, and not lost.
func reachable(cs []copyOf) (n int) {
	for _, c := range cs {
		if c.place.usable() && !c.lost() {
			n++
		}
	}
	return n
}

// repairAll repairs the segments in the queue.
func (s *Store) repairAll() {
	for some := false; ; {
		s.mu.Lock()
		if len(s.queue) == 0 || s.ctx.Err() != nil {
			if s.repairing--; s.repairing == 0 {
				s.counts.repairTime += s.proc.Since(s.began)
			}
			s.mu.Unlock()
			if some {
				s.wake() // there may be more to repair
			}
			return
		}
		g := s.queue[0]
		s.queue = s.queue[1:]
		s.mu.Unlock()
		if _, still := g.health(); !still { // a place that was leaving may stay by now
			continue
		}
		if g.repair(s.ctx) {
			some = true
		}
	}
}

// repair gives g the copies that it lacks, and reports whether it has made any.
func (g *segment) repair(ctx context.Context) bool {
	s := g.store
	if g.comesBack() {
		each, cancel := s.proc.WithTimeout(ctx, repairTimeout)
		s.Reach(each, g)
		cancel()
		if g.look() == 0 {
			return false
		}
	}
	g.mu.Lock()
	if g.freed || g.repairing || g.writing > 0 {
		g.mu.Unlock()
		return false
	}
	g.repairing = true
	g.closed = g.closed || g.end.Load() > 0 // an empty segment can still be written to
	end := int(g.end.Load())
	g.mu.Unlock()

	var fresh, made []copyOf
	good := g.good()
	n, every := g.lacks(good)
	waiting := g.waiting()
	if n > 0 {
		if c, ok := g.promote(ctx, end); ok {
			made, good = append(made, c), append(good, c)
			n--
		}
	}
	if n > 0 {
		fresh, _ = s.borrow(ctx, n, slices.Concat(good, waiting))
	}
	// A new copy that replaces an old one is copied from the old one, as long as that can be read: if one of several
	// copies is damaged nobody knows which, and the good ones must not be those that go. If a copy that is to go
	// cannot be read at the moment, no copy moves: only missing copies are made.
	_, going := s.choose(*g.copies.Load(), slices.Concat(made, fresh))
	if slices.ContainsFunc(going, func(c copyOf) bool { return !c.lost() && !c.place.givenUp.Load() && !c.place.usable() }) {
		for missing := max(0, s.cfg.Copies-len(shared(good))); len(fresh) > missing; {
			last := len(fresh) - 1
			fresh[last].place.giveBack(fresh[last].seg)
			fresh = fresh[:last]
		}
		_, going = s.choose(*g.copies.Load(), slices.Concat(made, fresh))
	}
	if every {
		fresh = append(fresh, s.borrowEvery(ctx, good)...)
	}
	going = slices.DeleteFunc(going, func(c copyOf) bool { return c.lost() || !c.place.usable() })
	var spent []copyOf // copies whose bytes others have that stay
	promoted := len(made)
	for i, c := range fresh {
		var from copyOf
		if i < len(going) {
			from = going[i]
		}
		if s.copyTo(ctx, g, c, from, nil, 0, end) {
			made = append(made, c)
			spent = append(spent, from)
		} else {
			c.place.giveBack(c.seg)
		}
	}
	spent = append(spent, g.superfluous(ctx, made, spent, promoted, end)...)

	g.mu.Lock()
	var old []copyOf
	vain := g.freed
	if !vain && (len(made) > 0 || len(shared(g.good())) >= s.cfg.Copies) {
		var next []copyOf
		if next, old, vain = g.exchange(made, spent); !vain {
			g.copies.Store(&next)
		}
	}
	var needless []awayCopy // copies that g need not wait for any longer
	if !vain && g.needless(g.good()) {
		needless, g.away = g.away, nil
	}
	if vain {
		g.repairing = false
	}
	g.mu.Unlock()
	if vain {
		for _, c := range made {
			c.place.giveBack(c.seg)
		}
		return false
	}
	told := len(made)+len(needless)+len(old) == 0 || g.replaced(ctx, old)
	g.mu.Lock()
	// Only now can g be written to again: before, whoever opens the store next would not have found the copies with
	// the new bytes.
	g.repairing = false
	g.closed = g.closed || !told
	if told || g.freed {
		g.count(needless, -1)
	} else {
		g.away = needless
	}
	g.mu.Unlock()
	s.counts.repaired.Add(int64(len(made)))
	return len(made) > 0
}

// superfluous returns copies that may go when g has got the copies in made, beside those in spent: as many as spare
// copies were promoted in their place, and those that have the same bytes as one that stays. Others may have something
// right that is wrong in all that stay.
func (g *segment) superfluous(ctx context.Context, made, spent []copyOf, promoted, end int) (more []copyOf) {
	cs := g.copies.Load()
	stay, going := g.store.choose(*cs, made)
	stay = slices.DeleteFunc(stay, func(c copyOf) bool { return c.lost() || !c.place.usable() })
	for _, c := range going {
		switch {
		case c.lost() || !c.place.usable() || slices.Contains(spent, c):
		case promoted > 0:
			more = append(more, c)
			promoted--
		case len(stay) > 0:
			if err := g.compareAll(ctx, c, stay[:1], end); err == nil {
				more = append(more, c)
			} else if errors.Is(err, errUnlike) {
				g.differs(cs)
			}
		}
	}
	return more
}

// exchange returns the copies that g has from now on when it gets those in made, and the old ones that go: those that
// are lost, those in spent, and, unless g is suspected, those at places that were given up. It is in vain if a copy
// has to stay for which there is no place: meanwhile a place may have come back. g.mu must be held.
func (g *segment) exchange(made, spent []copyOf) (next, old []copyOf, vain bool) {
	s := g.store
	next, going := s.choose(*g.copies.Load(), made)
	for _, c := range going {
		given := c.place.givenUp.Load()
		switch {
		case c.lost() || slices.Contains(spent, c) || given && (g.suspicions.Load() == 0 || len(next) == MaxCopies):
			old = append(old, c)
		case len(next) == MaxCopies || slices.ContainsFunc(next, func(o copyOf) bool { return o.place == c.place }):
			return nil, nil, true
		default:
			if next = append(next, c); given {
				s.log.Warn("a copy at a place that does not answer is waited for, since those that are left are not known to be good", "place", c.place.Name, "segment", g.number)
			}
		}
	}
	return next, old, false
}

// choose says which copies of a segment stay and which go, of those that it had and those that were made for it.
// Copies go that are lost or at places that were given up, as far as exchange lets them. If there are more than Config.Copies, old copies go: first
// those that share a zone with another copy, then those at places that are leaving, then others. Copies at places
// with Every always stay.
func (s *Store) choose(had, made []copyOf) (stay, go_ []copyOf) {
	var apart []copyOf // at places that have every segment
	for _, c := range slices.Concat(had, made) {
		if c.place.Every {
			apart = append(apart, c)
		}
	}
	had, made = shared(had), shared(made)
	defer func() { stay = append(stay, apart...) }()
	zones := make(map[string]int)
	for _, c := range slices.Concat(had, made) {
		zones[c.place.zone()]++
	}
	stay = slices.Clone(made)
	had = slices.Clone(had)
	slices.SortStableFunc(had, func(a, b copyOf) int { // copies at places that are leaving come last
		switch x, y := a.place.stays(), b.place.stays(); {
		case x == y:
			return 0
		case x:
			return -1
		}
		return 1
	})
	for _, c := range had {
		z := c.place.zone()
		if c.lost() || c.place.givenUp.Load() || len(stay) >= s.cfg.Copies && zones[z] > 1 {
			zones[z]--
			go_ = append(go_, c)
		} else {
			stay = append(stay, c)
		}
	}
	for len(stay) > s.cfg.Copies { // from the end, where the old copies are, since they may be late
		last := len(stay) - 1
		go_ = append(go_, stay[last])
		stay = stay[:last]
	}
	return stay, go_
}

// errUnlike: copies have different bytes where all should have the bytes that were acknowledged. One of them is
// damaged, and only whoever wrote the bytes can say which. Or a process that had the store before was writing there
// when it ended: a process that has reopened a segment does not know how much of it was acknowledged.
var errUnlike = errors.New("its copies have different bytes")

// errAway: a copy that is to move cannot be read. It stays until it can be read, or until its place is given up.
var errAway = errors.New("the copy that is to move cannot be read")

// pieces are buffers of pieceSize bytes, for reuse: new ones would keep the garbage collector running.
var pieces = sync.Pool{New: func() any { return new([pieceSize]byte) }}

// copyTo copies the bytes of g between off and end to c, and reports whether it could. It reads the copy from or, if
// from is zero, any copy. The copies in alike must have the same bytes, except in the ranges that do not count; if
// alike is not empty, c gets zeros in these ranges.
func (s *Store) copyTo(ctx context.Context, g *segment, c, from copyOf, alike []copyOf, off, end int) bool {
	piece := pieces.Get().(*[pieceSize]byte)
	defer pieces.Put(piece)
	buf := piece[:]
	torn := g.doesNotCount()
	for ; off < end; off += len(buf) {
		began := s.proc.Now()
		buf = buf[:min(len(buf), end-off)]
		each, cancel := s.proc.WithTimeout(ctx, repairTimeout)
		err := s.readPiece(each, g, from, alike, buf, off, torn)
		if err == nil {
			err = c.seg.Write(each, buf, off)
		}
		cancel()
		if errors.Is(err, errUnlike) {
			g.differs(g.copies.Load())
		}
		if err != nil {
			if ctx.Err() == nil && !g.isFreed() {
				s.log.Warn("cannot copy a segment", "to", c.seg.Name(), "error", err)
			}
			return false
		}
		s.counts.repairedBytes.Add(int64(len(buf)))
		if !s.leisure(ctx, g, began) {
			return false
		}
	}
	return true
}

// readPiece reads a piece of g at off into buf, from the copy from or, if from is zero, from any copy. If alike is
// not empty, it clears the ranges in torn, and compares the rest with the copies in alike.
func (s *Store) readPiece(ctx context.Context, g *segment, from copyOf, alike []copyOf, buf []byte, off int, torn []span) error {
	op := [1]store.ReadOp{{Seg: g, Off: off, Buf: buf, Bulk: true}}
	if from.place == nil {
		s.read(ctx, op[:])
	} else if !s.readAt(ctx, &readCall{from: []copyOf{from}}, op[:], 0, false) { // no second read elsewhere
		op[0].Err = cmp.Or(op[0].Err, errAway)
	}
	err := op[0].Err
	if len(alike) > 0 {
		blank(buf, off, torn)
	}
	for i := 0; i < len(alike) && err == nil; i++ {
		err = s.compare(ctx, g, alike[i], buf, off, torn)
	}
	return err
}

// compare compares the bytes of c, a copy of g, at off with want, which has zeros in the ranges in torn. It leaves
// these ranges out, and returns errUnlike if other bytes differ.
func (s *Store) compare(ctx context.Context, g *segment, c copyOf, want []byte, off int, torn []span) error {
	piece := pieces.Get().(*[pieceSize]byte)
	defer pieces.Put(piece)
	op := [1]store.ReadOp{{Seg: g, Off: off, Buf: piece[:len(want)], Bulk: true}}
	if !s.readAt(ctx, &readCall{from: []copyOf{c}}, op[:], 0, false) {
		return op[0].Err
	}
	blank(op[0].Buf, off, torn)
	if !bytes.Equal(op[0].Buf, want) {
		return errUnlike
	}
	return nil
}

// blank clears the ranges in torn in b, which has the bytes of a segment from off on.
func blank(b []byte, off int, torn []span) {
	for _, t := range torn {
		if begin, end := max(t.begin-off, 0), min(t.end-off, len(b)); begin < end {
			clear(b[begin:end])
		}
	}
}
