package copies

import (
	"cmp"
	"context"
	"slices"
)

const (
	// balanceLeast and balancePart keep copies from moving to and fro. They move only if the emptier place has room
	// for at least balanceLeast more segments than the fuller one, and the difference is at least one balancePart-th
	// of the emptier place's room.
	balanceLeast = 16
	balancePart  = 4
	// balanceAtOnce is how many copies move at most until the places are compared anew: what places say of their room
	// lags behind.
	balanceAtOnce = 16
	// balanceNewest is how many of the newest segments stay where they are, since something may yet be written to
	// them.
	balanceNewest = 16
)

// uneven returns the place with the most room, the places from which copies should move there, the fullest first, and
// how many copies should move. A place that was added takes part once it gets as many new copies as others. Places
// that lend idle memory take no part: their room changes all the time.
func (s *Store) uneven() (to *place, full []*place, n int) {
	now := s.proc.Now()
	room := make(map[*place]int64)
	for _, p := range s.all() {
		if st := p.state(); p.usable() && p.stays() && !st.Idle && !p.Every && now.Sub(p.joined) >= s.cfg.Ramp {
			room[p] = st.Space
			full = append(full, p)
		}
	}
	if len(full) < 2 {
		return nil, nil, 0
	}
	slices.SortStableFunc(full, func(a, b *place) int { return cmp.Compare(room[a], room[b]) })
	to = full[len(full)-1]
	least := max(balanceLeast*int64(s.SegmentSize()), room[to]/balancePart)
	full = slices.DeleteFunc(full, func(p *place) bool { return room[to]-room[p] < least })
	if len(full) > 0 {
		n = int(min(balanceAtOnce, (room[to]-room[full[0]])/int64(s.SegmentSize())/2))
	}
	return to, full, n
}

// balance moves up to n copies of segments from the places in full to the place to, as long as nothing has to be
// repaired.
func (s *Store) balance(segments []*segment, to *place, full []*place, n int) {
	for _, g := range segments {
		s.mu.Lock()
		busy := len(s.queue) > 0
		s.mu.Unlock()
		if n == 0 || busy || s.ctx.Err() != nil || !to.usable() || !to.stays() {
			return
		}
		if c, ok := g.movable(to, full); ok && g.move(s.ctx, c, to, nil, 0) {
			n--
		}
	}
}

// rests reports whether g is not empty, will hardly be written to any more, and is not being written to or copied
// now. Store.mu must not be held.
func (g *segment) rests() bool {
	g.store.mu.Lock()
	newest := g.store.next
	g.store.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.end.Load() > 0 && newest-g.number >= balanceNewest && g.writing == 0 && !g.freed && !g.repairing
}

// movable returns a copy of g that can move to the place to, from the first place in full that has such a copy. No
// other copy of g may be in the zone of to.
func (g *segment) movable(to *place, full []*place) (copyOf, bool) {
	cs := *g.copies.Load()
	for _, p := range full {
		at := func(c copyOf) bool { return c.place == p && !c.lost() }
		near := func(c copyOf) bool { return c.place == to || c.place != p && c.place.zone() == to.zone() }
		if i := slices.IndexFunc(cs, at); i >= 0 && !slices.ContainsFunc(cs, near) {
			return cs[i], true
		}
	}
	return copyOf{}, false
}

// move moves the copy from to the place to, and reports whether it has. The bytes are read from that copy itself: if
// one of several copies is damaged nobody knows which, and the good ones must not be those that go. The patches are
// bytes that the new copy gets in the place of these, and rewound is what g.rewound was before they were read.
func (g *segment) move(ctx context.Context, from copyOf, to *place, patches []patch, rewound int) bool {
	s := g.store
	g.mu.Lock()
	if g.freed || g.repairing || g.writing > 0 || len(g.away) > 0 || len(patches) > 0 && rewound != g.rewound {
		g.mu.Unlock()
		return false
	}
	g.repairing = true
	end := int(g.end.Load())
	g.mu.Unlock()

	c := copyOf{place: to}
	var err error
	c.seg, err = s.allocAt(ctx, to)
	made := err == nil && s.copyTo(ctx, g, c, from, nil, 0, end) && s.apply(ctx, c, patches)
	g.mu.Lock()
	next := slices.Clone(*g.copies.Load())
	i := slices.Index(next, from)
	moved := made && i >= 0 && !g.freed
	if moved {
		next[i], g.closed = c, true
		g.copies.Store(&next)
	} else {
		g.repairing = false
	}
	g.mu.Unlock()
	if !moved {
		if err == nil {
			to.giveBack(c.seg)
		}
		return false
	}
	g.replaced(ctx, []copyOf{from})
	g.mu.Lock()
	g.repairing = false
	g.mu.Unlock()
	s.counts.repaired.Add(1)
	return true
}
