package copies

import (
	"context"
	"errors"
	"time"
)

// scrubEvery is the time between the comparisons of two segments. With two copies of 2 MiB each, that takes about a
// thousandth of what a network moves, and comparing all of a terabyte takes six days.
const scrubEvery = time.Second

// A scrubber compares copies.
type scrubber struct {
	busy  bool      // guarded by Store.mu
	began time.Time // guarded by Store.mu
	upTo  uint64    // number of the segment whose turn it was
	// The greatest number when this pass began. Newer segments wait for the next pass: they may come as fast as
	// segments are compared.
	last uint64
}

// beginScrub has the copies of the next segment compared, if it is time. all has the segments in the order of their
// numbers. s.mu must be held.
func (s *Store) beginScrub(all []*segment) {
	b := &s.scrubber
	if len(all) == 0 || s.judging.look == nil || b.busy || s.ctx.Err() != nil || s.proc.Since(b.began) < scrubEvery {
		return
	}
	b.busy, b.began = true, s.proc.Now()
	s.wg.Go(s.proc, func() {
		b.next(s.ctx, all)
		s.mu.Lock()
		b.busy = false
		s.mu.Unlock()
	})
}

// next compares the copies of the segment whose turn it is.
func (b *scrubber) next(ctx context.Context, all []*segment) {
	for range 2 {
		for _, g := range all {
			if g.number > b.upTo && g.number <= b.last && g.scrub(ctx) {
				b.upTo = g.number
				return
			}
		}
		b.upTo, b.last = 0, all[len(all)-1].number
	}
}

// scrub compares the copies of g, and reports whether there was something to compare. If the copies differ, the judge
// is asked which of them are right.
func (g *segment) scrub(ctx context.Context) bool {
	g.mu.Lock()
	cs, end, rewound, known := g.copies.Load(), int(g.end.Load()), g.rewound, g.unlike
	busy := g.freed || g.repairing || g.writing > 0
	g.mu.Unlock()
	if busy || end == 0 || len(*cs) < 2 || reachable(*cs) < len(*cs) {
		return false
	}
	if known == cs { // known to differ, perhaps where nothing counts: comparing them again is of no use
		g.differs(cs)
		return true
	}
	if errors.Is(g.compareAll(ctx, (*cs)[0], (*cs)[1:], end), errUnlike) {
		g.mu.Lock()
		// Otherwise a write from the front may have reached only some of the copies when they were compared.
		same := g.rewound == rewound && !g.freed
		g.mu.Unlock()
		if same {
			g.differs(cs)
		}
	}
	return true
}

// compareAll compares the first end bytes of the copy c with others. It returns nil if all have the same bytes wherever
// they count, and errUnlike if they do not.
func (g *segment) compareAll(ctx context.Context, c copyOf, others []copyOf, end int) error {
	s := g.store
	piece := pieces.Get().(*[pieceSize]byte)
	defer pieces.Put(piece)
	torn := g.doesNotCount()
	for off := 0; off < end; off += pieceSize {
		began := s.proc.Now()
		each, cancel := s.proc.WithTimeout(ctx, repairTimeout)
		err := s.readPiece(each, g, c, others, piece[:min(pieceSize, end-off)], off, torn)
		cancel()
		if err != nil {
			return err
		}
		if !s.leisure(ctx, g, began) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// differs notes that the copies cs of g had different bytes, and has the judge asked which of them are right.
func (g *segment) differs(cs *[]copyOf) {
	g.mu.Lock()
	g.unlike = cs
	g.mu.Unlock()
	g.suspect()
}
