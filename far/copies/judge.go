package copies

import (
	"context"
	"slices"
	"time"

	"polder/far/store"
)

// judging is what is known of segments of which a copy may be damaged. Whoever finds that copies differ, or that one
// has other bytes than were written, has looked at a part of the segment only. Another copy may be damaged elsewhere,
// so none is given up before the judge has looked at all that counts in the segment, in all copies.
//
// A segment is suspected until the judge has done that. If something is right in no copy that can be reached, it
// stays suspected until the others can be reached, too. Of a segment that is suspected no copy goes because its place
// was given up, or because there are enough others.
type judging struct {
	look     store.Judge // see Judge; guarded by Store.mu
	suspects []*segment  // guarded by Store.mu
	busy     bool        // guarded by Store.mu
	began    time.Time   // guarded by Store.mu
}

// Judge implements store.Mirror.
func (s *Store) Judge(look store.Judge) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.judging.look = look
}

// suspect has the judge look at g soon. Without a judge, nobody can say which copies are right, and all of them stay.
func (g *segment) suspect() {
	s := g.store
	s.mu.Lock()
	j := &s.judging
	if j.look != nil && g.suspicions.Add(1) == 1 {
		j.suspects = append(j.suspects, g)
	}
	s.mu.Unlock()
	s.wake()
}

// beginJudging has the judge look at the suspects, if it is time. s.mu must be held.
func (s *Store) beginJudging() {
	j := &s.judging
	if len(j.suspects) == 0 || j.busy || s.ctx.Err() != nil || s.proc.Since(j.began) < scrubEvery {
		return
	}
	j.busy, j.began = true, s.proc.Now()
	s.wg.Go(s.proc, s.judgeAll)
}

// judgeAll judges the suspects, one after the other. If something is left to be done for one of them, judgeAll ends,
// and all that are left are judged when it is called next: for most of them the reason will be the same, such as that
// there is no room.
func (s *Store) judgeAll() {
	j := &s.judging
	for done := true; ; {
		s.mu.Lock()
		if !done || len(j.suspects) == 0 || s.ctx.Err() != nil {
			j.busy = false
			s.mu.Unlock()
			return
		}
		g, judge := j.suspects[0], j.look
		j.suspects = j.suspects[1:]
		s.mu.Unlock()
		was := g.suspicions.Load()
		if done = g.judged(s.ctx, judge) && g.suspicions.CompareAndSwap(was, 0); !done {
			s.mu.Lock()
			j.suspects = append(j.suspects, g)
			s.mu.Unlock()
		}
	}
}

// A patch is bytes that belong in a copy which has others there.
type patch struct {
	off   int
	bytes []byte
}

// apply writes the patches to c, and reports whether it could.
func (s *Store) apply(ctx context.Context, c copyOf, patches []patch) bool {
	for _, p := range patches {
		each, cancel := s.proc.WithTimeout(ctx, repairTimeout)
		err := c.seg.Write(each, p.bytes, p.off)
		cancel()
		if err != nil {
			return false
		}
	}
	return true
}

// judged has the judge look at g, and replaces the damaged copies. It reports false if it has to be called again.
//
// A damaged copy is moved: the new one has the right bytes wherever the judge has found them in another copy, and
// those of the damaged copy everywhere else. If it cannot be moved, for example since its place is full, it is dropped,
// and repair makes another; but only if the judge has found a whole copy. So nothing is given up that is good in one
// copy only.
func (g *segment) judged(ctx context.Context, judge store.Judge) (done bool) {
	g.mu.Lock()
	cs, rewound := g.copies.Load(), g.rewound
	g.mu.Unlock()
	near := slices.DeleteFunc(slices.Clone(*cs), func(c copyOf) bool { return c.lost() || !c.place.usable() })
	whole, patches := slices.Clone(near), make(map[copyOf][]patch)
	all := judge(ctx, g, func(op store.ReadOp, good func() bool) bool {
		r := g.reread(ctx, near, op, good)
		if r.right == nil {
			return false
		}
		for _, c := range r.bad {
			patches[c] = append(patches[c], patch{op.Off, r.right})
		}
		whole = slices.DeleteFunc(whole, func(c copyOf) bool { return slices.Contains(r.bad, c) || slices.Contains(r.unreadable, c) })
		copy(op.Buf, r.right)
		return good()
	})
	done = all || len(near) == len(*cs) && !g.isAway()
	for _, c := range near {
		switch {
		case len(patches[c]) == 0 || g.mend(ctx, c, patches[c], rewound):
		case !all || !g.condemn(c, whole, rewound):
			done = false
		}
	}
	return done || g.isFreed()
}

// condemn drops a copy as if it were lost: it has other bytes than were written, and the copies in whole have the
// right ones. It reports false if it does not, since g was written from the front again, or none of these copies is
// left.
func (g *segment) condemn(bad copyOf, whole []copyOf, rewound int) bool {
	g.mu.Lock()
	var kept []copyOf
	stays := false
	for _, c := range *g.copies.Load() {
		if c != bad {
			kept = append(kept, c)
			stays = stays || slices.Contains(whole, c) && !c.lost()
		}
	}
	if g.freed || g.rewound != rewound || !stays || len(kept) == len(*g.copies.Load()) {
		g.mu.Unlock()
		return false
	}
	g.copies.Store(&kept)
	g.closed = true
	g.mu.Unlock()
	if bad.place.Every {
		g.store.bare.Add(1)
	}
	g.store.condemned(bad)
	g.store.wg.Go(g.store.proc, func() { g.replaced(g.store.ctx, []copyOf{bad}) }) // nobody waits for that
	g.store.wake()
	return true
}

// mend moves a copy to other memory at the same place, with the patches, and reports whether it has. rewound is what
// g.rewound was before the bytes of the patches were read.
func (g *segment) mend(ctx context.Context, bad copyOf, patches []patch, rewound int) bool {
	g.mu.Lock()
	g.closed = true // no copy moves while g is written to
	g.mu.Unlock()
	if bad.lost() || !bad.place.usable() || !g.move(ctx, bad, bad.place, patches, rewound) {
		return false
	}
	g.store.condemned(bad)
	return true
}

// condemned notes that a copy was replaced since it was damaged.
func (s *Store) condemned(bad copyOf) {
	s.counts.condemned.Add(1)
	s.log.Warn("a copy has other bytes than were written, and is replaced", "copy", bad.seg.Name())
}
