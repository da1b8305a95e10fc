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
	spare  atomic.Pointer[spare]    // a copy beside those, or nil; set under mu

	mu        sync.Mutex
	end       atomic.Int64 // up to where something was written, or is about to be; changes under mu
	writing   int          // writes under way; guarded by mu
	acked     bool         // a write has succeeded, or may have for who had the store before; guarded by mu
	closed    bool         // nothing more is written to it; guarded by mu
	repairing bool         // it is being copied; guarded by mu
	torn      []span       // what writes that have failed were to write: copies may have different bytes there, none of which count; guarded by mu
	freed     bool         // guarded by mu
	rescuing  bool         // rescue is about to be called; guarded by mu
	scanned   int          // end when scan looked last; guarded by mu
	away      []awayCopy   // copies that could not be reached when it was reopened; guarded by mu
	awaited   time.Time    // until when they count as if their places did not answer
	reaching  bool         // they are being reopened; guarded by mu
	unlike    *[]copyOf    // those that had different bytes, beside torn; guarded by mu
	rewound   int          // how often something was written before end, where a spare copy may have other bytes; guarded by mu

	once sync.Once // of lost
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

// look takes note of copies that are lost, and reports how many are left.
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
			return 0 // one that could not be reached may be there yet
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
		if len(cs) > 0 { // else it is told by its name where it was
			g.copies.Store(&cs)
			g.closed = true
		} else {
			g.once.Do(func() {
				close(g.lost)
				if g.acked {
					g.store.counts.lost.Add(1)
				} else { // and nothing will be: see Write
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
	if int64(off) < g.end.Load() { // it is written from the front again
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
	if err == nil && g.isLost() { // since then: it does not count, and what was lost need not be counted anew
		return store.ErrSealed
	}
	if err == nil {
		g.acked = true
		return nil
	}
	g.torn = append(g.torn, span{off, off + len(p)}) // only of writes that were under way: nothing more is written
	if wrote == 0 || context.Cause(ctx) != nil {
		g.closed = true
		return err
	}
	g.seal()
	return store.ErrSealed
}

// A span is a range of a segment's bytes.
type span struct{ begin, end int }

// doesNotCount are the bytes of g that were never acknowledged to be written.
func (g *segment) doesNotCount() []span {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.torn)
}

// seal has nothing more written to g because of a copy. g.mu must be held.
func (g *segment) seal() {
	if !g.closed {
		g.closed = true
		g.store.counts.sealed.Add(1)
		g.store.wake()
	}
}

// soonWritten is for how long a write waits for all copies together, before each is waited for.
const soonWritten = time.Millisecond

// writeAll writes p to all copies at once, and reports how many have it. It does not wait for one that is late, but
// until nobody reads p any more.
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
		// Fast path: this goroutine begins all writes, and wakes up once. Goroutines that wait for one copy each, and
		// whatever wakes them, cost more than the copies. A disk, which is behind the nodes, comes first: it takes longest.
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
	var late *turns.Timer // of those that follow the first
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

// allLanded reports whether all flights are there and have succeeded.
func allLanded(flights []store.Flight) bool {
	return !slices.ContainsFunc(flights, func(f store.Flight) bool { return f == nil || !f.Landed() })
}

// undone are the copies that have not answered.
func undone(cs []copyOf, done *[MaxCopies]bool) (rest []copyOf) {
	for i, c := range cs {
		if !done[i] {
			rest = append(rest, c)
		}
	}
	return rest
}

// bare reports whether g lacks a copy that can be used at a place that has every segment.
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
	if !g.reaching { // who reaches for them counts them
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
