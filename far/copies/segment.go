package copies

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"polder/far/store"
	"polder/internal/turns"
)

// segment is a segment and its copies.
type segment struct {
	store  *Store
	number uint64
	copies atomic.Pointer[[]copyOf] // replaced under mu
	spare  atomic.Pointer[spare]    // a copy beside these, or nil; set under mu

	// How often it was suspected since the judge has looked at it. It is among the suspects of judging, or being
	// judged, unless this is 0.
	suspicions atomic.Int64

	mu        sync.Mutex
	end       atomic.Int64 // up to where something was written, or is about to be; changes under mu
	writing   int          // writes under way; guarded by mu
	acked     bool         // a write has succeeded, or may have for an earlier process; guarded by mu
	closed    bool         // nothing more is written to it; guarded by mu
	repairing bool         // it is being copied; guarded by mu
	// Ranges of writes that have failed: copies may have different bytes there, none of which count; guarded by mu.
	torn     []span
	freed    bool       // guarded by mu
	rescuing bool       // rescue is about to be called; guarded by mu
	scanned  int        // what end was when checkSpare last looked; guarded by mu
	away     []awayCopy // copies that could not be reached when it was reopened; guarded by mu
	awaited  time.Time  // until when the copies in away count like copies at places that do not answer
	reaching bool       // the copies in away are being reopened; guarded by mu
	unlike   *[]copyOf  // the value of copies when these had different bytes outside torn; guarded by mu
	rewound  int        // how often a write began before end: a spare copy may be old there; guarded by mu

	once sync.Once // closes lost
	lost chan struct{}
}

var errFreed = errors.New("the segment has been given back")

// Lost implements store.Segment.
func (g *segment) Lost() <-chan struct{} { return g.lost }

// Name implements store.Segment.
func (g *segment) Name() string {
	g.mu.Lock()
	cs, away := *g.copies.Load(), g.away
	g.mu.Unlock()
	switch {
	case len(cs) == 0:
		return "a segment without copies"
	case g.store.cfg.Keep != nil:
		name := nameOf(g.number, cs)
		for _, a := range away {
			if a.place != nil {
				name += between + a.called
			}
		}
		return name
	}
	name := cs[0].seg.Name()
	for _, c := range cs[1:] {
		name += between + c.seg.Name()
	}
	return name
}

// look drops the copies that are lost, and reports how many are left. It reports 0 also if g was freed or a rescue is
// under way.
func (g *segment) look() (left int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	cs := *g.copies.Load()
	if g.freed || g.isLost() || g.rescuing {
		return 0
	}
	if slices.ContainsFunc(cs, copyOf.lost) {
		kept := make([]copyOf, 0, len(cs))
		for _, c := range cs {
			if !c.lost() {
				kept = append(kept, c)
			}
		}
		if len(kept) == 0 && slices.ContainsFunc(g.away, func(a awayCopy) bool { return a.place != nil }) {
			return 0 // a copy that could not be reached may still be there
		}
		if len(kept) == 0 && g.spare.Load().has(int(g.end.Load())) && g.store.ctx.Err() == nil {
			g.rescuing, g.closed = true, true
			g.store.wg.Go(g.store.proc, g.rescue)
			return 0
		}
		for _, c := range cs {
			if c.lost() {
				c.place.copies.Add(-1)
				g.store.counts.copiesLost.Add(1)
				if c.place.Every {
					g.store.bare.Add(1)
				}
			}
		}
		cs = kept
		if len(cs) > 0 { // else the lost copies stay, so that the name says where g was
			g.copies.Store(&cs)
			g.closed = true
		} else {
			g.once.Do(func() {
				close(g.lost)
				if g.acked {
					g.store.counts.lost.Add(1)
				} else { // and no write will succeed: see Write
					g.store.log.Info("all copies of a segment are lost, and nothing with them, since nothing had been written to it", "segment", nameOf(g.number, cs))
				}
			})
		}
	}
	return len(cs)
}

// isFreed reports whether g has been given back.
func (g *segment) isFreed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.freed
}

// isLost reports whether all copies are lost.
func (g *segment) isLost() bool {
	select {
	case <-g.lost:
		return true
	default:
		return false
	}
}

// Write implements store.Segment: it returns when all copies have p. If one of them is late or fails, no more is
// written to the segment, and the error is store.ErrSealed.
func (g *segment) Write(ctx context.Context, p []byte, off int) error {
	s := g.store
	g.mu.Lock()
	cs := *g.copies.Load()
	switch {
	case g.freed:
		g.mu.Unlock()
		return errFreed
	case g.closed || g.repairing:
		g.mu.Unlock()
		return store.ErrSealed
	case slices.ContainsFunc(cs, func(c copyOf) bool { return !c.place.usable() || c.lost() }):
		g.seal()
		g.mu.Unlock()
		return store.ErrSealed
	}
	var stale *spare
	if int64(off) < g.end.Load() { // g is being written from the front again
		g.rewound++
		if x := g.spare.Load(); x != nil && off < x.have && g.take(x) {
			stale = x
		}
	}
	g.end.Store(max(g.end.Load(), int64(off+len(p))))
	g.writing++
	g.mu.Unlock()
	if stale != nil {
		stale.place.giveBackLater(stale.seg)
	}
	s.used.Store(s.proc.Now().UnixNano())

	wrote, err := s.writeAll(ctx, cs, p, off)

	g.mu.Lock()
	defer g.mu.Unlock()
	g.writing--
	if err == nil && g.isLost() { // g was lost during the write: the write does not count, and Stats.Lost stays right
		return store.ErrSealed
	}
	if err == nil {
		g.acked = true
		return nil
	}
	g.torn = append(g.torn, span{off, off + len(p)}) // no more than the writes under way now: g is closed next
	if wrote == 0 || context.Cause(ctx) != nil {
		g.closed = true
		return err
	}
	g.seal()
	return store.ErrSealed
}

// A span is a range of a segment's bytes.
type span struct{ begin, end int }

// doesNotCount returns the ranges of g that were written to, but never acknowledged.
func (g *segment) doesNotCount() []span {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.torn)
}

// seal closes g, so that nothing more is written to it, because of a copy that is late, lost or has failed. g.mu must
// be held.
func (g *segment) seal() {
	if !g.closed {
		g.closed = true
		g.store.counts.sealed.Add(1)
		g.store.wake()
	}
}

// soonWritten is how long a write waits for all copies together, before it waits for each copy in a goroutine of its
// own.
const soonWritten = time.Millisecond

// writeAll writes p to all copies at once, and reports how many have it. It gives up on copies that are late, but
// returns only when nobody reads p any more.
func (s *Store) writeAll(ctx context.Context, cs []copyOf, p []byte, off int) (wrote int, err error) {
	if len(cs) == 1 {
		if err = cs[0].seg.Write(ctx, p, off); err == nil {
			wrote = 1
		}
		return wrote, err
	}
	type answer struct {
		of  int
		err error
	}
	began, answers := s.proc.Now(), make(chan answer, len(cs))
	each, giveUp := context.WithCancel(ctx)
	defer giveUp()
	end := func(i int, write func() error) { s.proc.Go(func() { answers <- answer{i, write()} }) }
	var flights [MaxCopies]store.Flight
	flying, all := atomic.Int32{}, make(chan struct{}, 1)
	landed := func() {
		if flying.Add(-1) == 0 {
			all <- struct{}{}
		}
	}
	for i, c := range cs {
		if _, ok := c.seg.(store.Starter); ok {
			flying.Add(1)
		} else {
			end(i, func() error { return c.seg.Write(each, p, off) })
		}
	}
	if flying.Load() > 0 {
		// Fast path: this goroutine begins all writes, and wakes up once. A goroutine for each copy, and whatever
		// wakes it, would cost more than the copies. A disk, which comes after the nodes in cs, is begun first: it
		// takes longest.
		for i, c := range slices.Backward(cs) {
			if g, ok := c.seg.(store.Starter); ok {
				flights[i] = g.Start(each, p, off, landed)
			}
		}
		soon := s.proc.NewTimer(soonWritten)
		turns.Recv(s.proc, all, soon)
		soon.Stop()
	}
	if allLanded(flights[:len(cs)]) {
		for i, c := range cs {
			err = cmp.Or(err, flights[i].End(ctx))
			c.place.answered(0)
		}
		return len(cs), err
	}
	for i, f := range flights[:len(cs)] {
		if f != nil {
			end(i, func() error { return f.End(each) })
		}
	}
	var late *turns.Timer // fires when the copies that follow the first are late
	var done [MaxCopies]bool
	for answered := 0; answered < len(cs); {
		a, ok := turns.Recv(s.proc, answers, late)
		if !ok {
			if wait := lateEvery - s.proc.Since(began); wait > 0 && !slices.ContainsFunc(undone(cs, &done), func(c copyOf) bool { return !c.place.Every }) {
				late.Reset(wait)
				continue
			}
			for i, c := range cs {
				if !done[i] {
					c.place.fallSilent(began, c.seg)
				}
			}
			giveUp()
			late = nil
			a, _ = turns.Recv(s.proc, answers, nil)
		}
		answered++
		done[a.of] = true
		if a.err != nil {
			if p := cs[a.of].place; p.Every && each.Err() == nil {
				s.log.Error("a place that has a copy of everything cannot be written", "place", p.Name, "error", a.err)
				p.refused()
			}
			err = cmp.Or(err, a.err)
			continue
		}
		cs[a.of].place.answered(0)
		if wrote++; wrote == 1 {
			late = s.proc.NewTimer(max(s.patience(), s.proc.Since(began)))
			defer late.Stop()
		}
	}
	return wrote, err
}

// allLanded reports whether all copies have flights, and all flights have succeeded.
func allLanded(flights []store.Flight) bool {
	return !slices.ContainsFunc(flights, func(f store.Flight) bool { return f == nil || !f.Landed() })
}

// undone returns the copies that have not answered.
func undone(cs []copyOf, done *[MaxCopies]bool) (rest []copyOf) {
	for i, c := range cs {
		if !done[i] {
			rest = append(rest, c)
		}
	}
	return rest
}

// bare reports whether g has no copy, or only a lost one, at some place with Every.
func (g *segment) bare() bool {
	cs := *g.copies.Load()
	for _, p := range g.store.all() {
		if p.Every && !slices.ContainsFunc(cs, func(c copyOf) bool { return c.place == p && !c.lost() }) {
			return true
		}
	}
	return false
}

// Free implements store.Segment. Copies at places that do not answer are given back when they do.
func (g *segment) Free(ctx context.Context) error {
	g.mu.Lock()
	if g.freed {
		g.mu.Unlock()
		return errFreed
	}
	g.freed, g.closed = true, true
	if !g.reaching { // else Reach, which is under way, counts them
		g.count(g.away, -1)
	}
	cs := *g.copies.Load()
	x := g.spare.Swap(nil)
	g.mu.Unlock()
	s := g.store
	s.mu.Lock()
	delete(s.segments, g)
	s.mu.Unlock()
	if x != nil {
		x.free()
	}
	if g.isLost() {
		return nil
	}
	for _, c := range cs {
		c.place.giveBack(c.seg)
	}
	return nil
}
