package copies_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"polder/far/copies"
	"polder/far/record"
	"polder/far/store"
)

// compared waits until the store has compared the copies of all segments, one a second.
func (c *cluster) compared() {
	time.Sleep(time.Duration(2*c.store.Stats().Segments+10) * time.Second)
}

// TestNothingIsLostThoughBothCopiesAreDamaged in different records: every record has a good copy, and is read from there, and
// in the end all copies are good, whether somebody reads the records or nobody does, and although there was no room for some time.
func TestNothingIsLostThoughBothCopiesAreDamaged(t *testing.T) {
	for name, how := range map[string]struct{ read, full bool }{"and read": {read: true}, "and not read": {}, "while there is no room": {full: true}} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				c := newCluster(t, 2, copies.Config{})
				c.fill(t)
				c.healed(t, time.Minute)
				for i, off := range []int{record.SegmentSize + 100, segmentSize / 2} {
					l := c.lenders[i]
					l.damageAt(off)
					if how.full {
						l.set(&l.full)
					}
				}
				if how.read {
					c.checkAll(t)
				}
				if c.compared(); how.full {
					c.checkAll(t)
					for _, l := range c.lenders {
						l.goOn()
					}
					c.compared()
				}
				for _, l := range c.lenders {
					c.healed(t, time.Minute)
					l.kill()
					c.checkAll(t)
				}
				if st, hs := c.store.Stats(), c.heap.Stats(); st.Condemned == 0 || st.Lost != 0 || hs.Lost != 0 {
					t.Errorf("got %+v, and %d entries lost, want copies condemned, and nothing lost", st, hs.Lost)
				}
			})
		})
	}
}

// TestWhatBothCopiesHaveWrongHidesNothing: a record that no copy has right is lost. Those behind it in the segment are not.
func TestWhatBothCopiesHaveWrongHidesNothing(t *testing.T) {
	for name, lost := range map[string]int{"the header of the segment": 9, "a value": record.SegmentSize + 100} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				c := newCluster(t, 2, copies.Config{})
				c.fill(t)
				c.healed(t, time.Minute)
				for _, l := range c.lenders {
					l.damageAt(lost)
				}
				c.lenders[0].damageAt(segmentSize / 2)
				wrong := func() (n int) {
					for i := range keys {
						if _, err := c.m.Get(t.Context(), key(i), nil); err != nil {
							n++
						}
					}
					return n
				}
				before := wrong()
				c.compared()
				c.healed(t, time.Minute)
				c.lenders[1].kill()
				c.healed(t, time.Minute)
				if after := wrong(); after != before {
					t.Errorf("%d entries are lost, want no more than the %d that no copy had right", after, before)
				}
			})
		})
	}
}

// TestACopyOfWhatIsWrittenAnewIsNotReplaced because of what was there before.
func TestACopyOfWhatIsWrittenAnewIsNotReplaced(t *testing.T) {
	for _, all := range []bool{true, false} { // whether the judge has looked at all that counts
		inVirtualTime(t, func(t *testing.T) {
			s, a, _ := pair(t)
			g := alloc(t, s)
			has := said
			judged := 0
			s.Judge(func(ctx context.Context, seg store.Segment, reread store.Rereader) bool {
				op := store.ReadOp{Seg: seg, Buf: make([]byte, len(said))}
				ok := reread(op, func() bool { return string(op.Buf) == has })
				if judged++; judged == 1 {
					has = "anew" + said[4:]
					if err := seg.Write(ctx, []byte(has), 0); err != nil {
						t.Error(err)
					}
				}
				return ok && all
			})
			if err := g.Write(t.Context(), []byte(said), 0); err != nil {
				t.Fatal(err)
			}
			a.damageAt(3)
			time.Sleep(time.Minute)
			n := 0
			s.EachCopy(t.Context(), g, make([]byte, len(has)), func(error) { n++ })
			op := store.ReadOp{Seg: g, Buf: make([]byte, len(has))}
			if st := s.Stats(); judged == 0 || st.Condemned != 0 || n != 2 || !s.Reread(t.Context(), op, func() bool { return string(op.Buf) == has }) {
				t.Errorf("the judge was asked %d times; %d copies have %q, and %d were replaced, want 2 with %q, and none replaced", judged, n, op.Buf, st.Condemned, has)
			}
		})
	}
}

// TestNoCopyIsDroppedBeforeAnotherIsKnownToBeWhole: if a damaged copy cannot be moved since there is no room, it stays until the
// judge has looked at all that counts, and has found a copy that is right everywhere.
func TestNoCopyIsDroppedBeforeAnotherIsKnownToBeWhole(t *testing.T) {
	for _, c := range []struct {
		all, other bool // the judge looks at all that counts; the other copy is damaged, too, elsewhere
		drops      int64
	}{{true, false, 1}, {false, false, 0}, {true, true, 0}} {
		inVirtualTime(t, func(t *testing.T) {
			s, a, b := pair(t)
			s.Judge(func(_ context.Context, seg store.Segment, reread store.Rereader) bool {
				for _, at := range []int{0, len(said) / 2} {
					half := said[at : at+len(said)/2]
					op := store.ReadOp{Seg: seg, Off: at, Buf: make([]byte, len(half))}
					if !reread(op, func() bool { return string(op.Buf) == half }) {
						return false
					}
				}
				return c.all
			})
			g := alloc(t, s)
			if err := g.Write(t.Context(), []byte(said), 0); err != nil {
				t.Fatal(err)
			}
			a.set(&a.full)
			b.set(&b.full)
			a.damageAt(3)
			if c.other {
				b.damageAt(len(said) - 3)
			}
			if time.Sleep(time.Minute); s.Stats().Condemned != c.drops {
				t.Errorf("%+v: %d copies were dropped, want %d", c, s.Stats().Condemned, c.drops)
			}
			a.goOn()
			b.goOn()
			time.Sleep(time.Minute)
			for _, l := range []*lender{a, b} {
				op := [1]store.ReadOp{{Seg: g, Buf: make([]byte, len(said)/2*2)}}
				if s.Read(t.Context(), op[:]); op[0].Err != nil || string(op[0].Buf) != said[:len(op[0].Buf)] {
					t.Errorf("%+v: when there was room, %q was read, %v, want %q", c, op[0].Buf, op[0].Err, said)
				}
				l.kill()
				time.Sleep(10 * time.Second)
			}
		})
	}
}

// judgeOf has the store know what is right in every segment: what was said, a half at a time.
func judgeOf(s *copies.Store) {
	s.Judge(func(_ context.Context, seg store.Segment, reread store.Rereader) bool {
		all := true
		for _, at := range []int{0, len(said) / 2} {
			half := said[at : at+len(said)/2]
			op := store.ReadOp{Seg: seg, Off: at, Buf: make([]byte, len(half))}
			all = reread(op, func() bool { return string(op.Buf) == half }) && all
		}
		return all
	})
}

// reads reports whether some copy has what was said.
func reads(t *testing.T, s *copies.Store, g store.Segment) bool {
	t.Helper()
	op := store.ReadOp{Seg: g, Buf: make([]byte, len(said))}
	return s.Reread(t.Context(), op, func() bool { return string(op.Buf) == said })
}

// TestAGoodCopyIsWaitedForWhileOthersAreDamaged: its place is away for so long that it is given up, and comes back after that.
func TestAGoodCopyIsWaitedForWhileOthersAreDamaged(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		a, b, c := newLender("a", "", 100), newLender("b", "", 100), newLender("c", "", 100)
		c.cut()
		s, err := copies.Open(copies.Config{Places: []copies.Place{a.place(), b.place(), c.place()}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		judgeOf(s)
		g := alloc(t, s)
		if err := g.Write(t.Context(), []byte(said), 0); err != nil {
			t.Fatal(err)
		}
		a.cut()
		b.damageAt(3)
		if reads(t, s, g) {
			t.Fatal("the damaged copy is read as if it were good")
		}
		c.goOn()
		time.Sleep(2 * copies.DefaultRepairAfter)
		if st := s.Stats(); st.Repaired != 1 || st.Doubted != 1 || !strings.Contains(strings.Join(s.Explain(), "\n"), "wait for a copy") {
			t.Errorf("while the good copy is away: %+v, %q, want one copy that was made, and that the good one is waited for", st, s.Explain())
		}
		a.goOn()
		time.Sleep(time.Minute)
		if st := s.Stats(); !reads(t, s, g) || st.Doubted != 0 || s.CopiesOf(g) != copies.DefaultCopies {
			t.Errorf("when it is there again: %+v and %d copies, want what was written, and 2", st, s.CopiesOf(g))
		}
		for _, l := range []*lender{a, b, c} {
			l.kill()
			time.Sleep(10 * time.Second)
			if !reads(t, s, g) {
				t.Errorf("%s has lost its copy, and what was written is nowhere", l.name)
			}
		}
	})
}

// TestNoCopyThatIsTooManyGoesUnlooked: a store is to have fewer copies than before, and the only good one is among those that are too
// many.
func TestNoCopyThatIsTooManyGoesUnlooked(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var places []copies.Place
		var lenders []*lender
		for _, name := range []string{"a", "b", "c", "d"} {
			l := newLender(name, "", 100)
			p := l.place()
			p.Store = keeps(l)
			lenders, places = append(lenders, l), append(places, p)
		}
		open := func(epoch uint64, n int) *copies.Store {
			s, err := copies.Open(copies.Config{Copies: n, Places: places, Keep: &copies.Keep{Epoch: epoch, Moved: func(context.Context, uint64, func() string) error { return nil }}})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		s := open(1, 3)
		g := alloc(t, s)
		if err := g.Write(t.Context(), []byte(said), 0); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(2, 2)
		defer s.Close()
		judgeOf(s)
		g, err := s.Reopen(t.Context(), g.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range lenders[1:3] {
			l.damageAt(3)
		}
		for _, l := range lenders[:2] {
			l.leave(true)
		}
		time.Sleep(time.Minute)
		if !reads(t, s, g) || s.CopiesOf(g) != 2 || lenders[0].store.Lent()+lenders[1].store.Lent() > 0 {
			t.Errorf("%d copies, and some has what was written: %v, want 2 that have, and none at the places that leave: %v", s.CopiesOf(g), reads(t, s, g), s.Explain())
		}
		for _, l := range lenders[2:] {
			l.kill()
			time.Sleep(10 * time.Second)
			if !reads(t, s, g) {
				t.Errorf("%s has lost its copy, and what was written is nowhere", l.name)
			}
		}
	})
}
