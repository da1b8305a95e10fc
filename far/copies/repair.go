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
	// repairers is how many segments are copied at a time: some are read while others are written.
	repairers = 4
	// pieceSize is how much of a segment is copied at once.
	pieceSize = 256 << 10
	// inUse: while others use the places, copying takes one part of repairShare of the time.
	inUse       = 10 * time.Millisecond
	repairShare = 4
	// repairTimeout bounds the copying of a piece.
	repairTimeout = 10 * time.Second
)

// wake has keep look at the segments.
func (s *Store) wake() {
	select {
	case s.rescan <- struct{}{}:
	default:
	}
}

// keep asks silent places whether they answer, gives back what they are owed, and repairs.
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

// scan finds what has too few copies, and has it repaired, that with the fewest first.
func (s *Store) scan() {
	seen, bare := s.bare.Load(), false // before it is known which segments there are
	s.mu.Lock()
	all := slices.SortedFunc(maps.Keys(s.segments), func(a, b *segment) int { return cmp.Compare(a.number, b.number) })
	s.mu.Unlock()
	type case_ struct {
		g    *segment
		left int
	}
	var short []case_
	var spares []*segment // that could have a spare copy, and have all others
	var old []*segment    // to which nothing is written any more, it seems
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
	for s.repairing < min(repairers, len(s.queue)) && s.ctx.Err() == nil {
		if s.repairing++; s.repairing == 1 {
			s.began = s.proc.Now()
		}
		s.wg.Go(s.proc, s.repairAll)
	}
}

// good are the copies of g at places that are not given up.
func (g *segment) good() (good []copyOf) {
	for _, c := range *g.copies.Load() {
		if !c.place.givenUp.Load() && !c.lost() {
			good = append(good, c)
		}
	}
	return good
}

// health says how many copies g has at places that are not given up, and whether something can be done for it now: one that could not be
// reached may be there again, or there is a place for another copy, for one at a place that stays, or for one in another zone.
func (g *segment) health() (left int, repairable bool) {
	good := g.good()
	n, every := g.lacks(good)
	if n > 0 || every || g.comesBack() {
		return len(good), true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(good), g.needless(good)
}

// lacks is Store.lacks for g, which has copies that are waited for beside the good ones: what is missing is made, and nothing moves meanwhile.
func (g *segment) lacks(good []copyOf) (n int, every bool) {
	waiting := shared(g.waiting())
	n, every = g.store.lacks(slices.Concat(good, waiting))
	if len(waiting) > 0 {
		n = min(n, max(0, g.store.cfg.Copies-len(shared(good))-len(waiting)))
	}
	return n, every
}

// needless reports whether g waits for copies that it need not wait for any longer, since there are good ones enough. g.mu must be held.
func (g *segment) needless(good []copyOf) bool {
	return len(g.away) > 0 && !g.reaching && g.expired() && len(shared(good)) >= g.store.cfg.Copies
}

// lacks says how many copies a segment with the good ones could get now at places that share the copies out, and whether it could get one at a place that
// has every segment.
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

// reachable is how many of the copies are at places that answer.
func reachable(cs []copyOf) (n int) {
	for _, c := range cs {
		if c.place.usable() && !c.lost() {
			n++
		}
	}
	return n
}

// repairAll repairs what is in the queue.
func (s *Store) repairAll() {
	for some := false; ; {
		s.mu.Lock()
		if len(s.queue) == 0 || s.ctx.Err() != nil {
			if s.repairing--; s.repairing == 0 {
				s.counts.repairTime += s.proc.Since(s.began)
			}
			s.mu.Unlock()
			if some {
				s.wake() // there may be more
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

// repair gives g the copies that it lacks, and reports whether it has got some.
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
	g.closed = g.closed || g.end.Load() > 0 // what nothing is in can still be written to
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
	// What takes the place of a copy is copied from it as long as it can be read: if one of several is damaged nobody knows which, and
	// it must not be the others that go. One that cannot be read for the moment does not move: only what is missing is made.
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
	for i, c := range fresh {
		var from copyOf
		if i < len(going) {
			from = going[i]
		}
		if s.copyTo(ctx, g, c, from, nil, 0, end) {
			made = append(made, c)
		} else {
			c.place.giveBack(c.seg)
		}
	}

	g.mu.Lock()
	var old []copyOf
	vain := g.freed
	if !vain && len(made) > 0 {
		var next []copyOf
		next, old = s.choose(*g.copies.Load(), made)
		// Places may have begun or ended to leave meanwhile: no other copy goes than one that was read, or is of no use.
		vain = slices.ContainsFunc(old, func(c copyOf) bool { return !c.lost() && !c.place.givenUp.Load() && !slices.Contains(going, c) })
		if !vain {
			g.copies.Store(&next)
		}
	}
	var needless []awayCopy // there are others enough
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
	told := len(made)+len(needless) == 0 || g.replaced(ctx, old)
	g.mu.Lock()
	// Until then nothing is written to it: whoever opens the store next would not find the copies that have it.
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

// choose says which copies of a segment stay now that some have been made, and which go: those at places that were given up,
// of two in a zone that which is too many, and those at places that are leaving if there are enough others.
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
	slices.SortStableFunc(had, func(a, b copyOf) int { // those that are leaving last
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
	for len(stay) > s.cfg.Copies { // of those that were there, since they may be late
		last := len(stay) - 1
		go_ = append(go_, stay[last])
		stay = stay[:last]
	}
	return stay, go_
}

// errUnlike: copies have different bytes where all should have what was acknowledged. One of them is damaged, and only who wrote the bytes
// can say which. Or a process that had the store before was writing there when it ended: who has reopened a segment does not know how much of
// it was acknowledged.
var errUnlike = errors.New("its copies have different bytes")

// errAway: a copy that is to move cannot be read. It stays until it can be, or its place is given up.
var errAway = errors.New("the copy that is to move cannot be read")

// pieces are buffers of a piece, to be reused: made anew, they would have the collector of garbage run all the time.
var pieces = sync.Pool{New: func() any { return new([pieceSize]byte) }}

// copyTo copies the bytes of g from off to end to c, and reports whether it could. It reads from if that is a copy, and otherwise any
// copy. Those of alike have to have the same bytes, but for what does not count, of which c gets zeros then.
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
			g.differs(ctx, g.copies.Load())
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

// readPiece reads a piece of g at off, of the copy from if that is one and otherwise of any, and compares it with those of alike, but for what is torn.
func (s *Store) readPiece(ctx context.Context, g *segment, from copyOf, alike []copyOf, buf []byte, off int, torn []span) error {
	op := [1]store.ReadOp{{Seg: g, Off: off, Buf: buf, Bulk: true}}
	if from.place == nil {
		s.read(ctx, op[:])
	} else if !s.readAt(ctx, &readCall{from: []copyOf{from}}, op[:], 0, false) { // nor a second one elsewhere, if it is late
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

// compare reports whether c, which is a copy of g, has the bytes want at off, but for those of torn: errUnlike if it has others.
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

// blank clears what b, the bytes of a segment from off on, has of torn.
func blank(b []byte, off int, torn []span) {
	for _, t := range torn {
		if begin, end := max(t.begin-off, 0), min(t.end-off, len(b)); begin < end {
			clear(b[begin:end])
		}
	}
}
