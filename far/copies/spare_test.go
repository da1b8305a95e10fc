package copies_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"polder/far"
	"polder/far/copies"
	"polder/far/store"
)

// newIdleCluster is newCluster with so many places that lend what is idle, beside those that lend a fixed size.
func newIdleCluster(t *testing.T, fixed, idle int, cfg copies.Config) *cluster {
	t.Helper()
	c := newCluster(t, fixed+idle, cfg)
	for _, l := range c.lenders[fixed:] {
		l.idle = true
	}
	return c
}

// spared waits until every segment with something in it has a spare copy.
func (c *cluster) spared(t *testing.T) {
	t.Helper()
	c.healed(t, time.Minute)
	var was int
	for i := 0; ; i++ {
		st := c.store.Stats()
		if st.Spares > 0 && st.Spares == was {
			return
		}
		if i == 60 {
			t.Fatalf("no spare copies are made, or no end of them: %+v", st)
		}
		was = st.Spares
		time.Sleep(5 * time.Second)
	}
}

// What may vanish does: readers get what was written, whether or not the store knows already, nothing is endangered, and the
// copies are made again.
func TestWhatMayVanishIsNotMissed(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := newIdleCluster(t, 2, 2, copies.Config{})
		for _, l := range c.lenders[:2] { // so that spare copies are read
			l.setDelay(3 * time.Millisecond)
		}
		c.fill(t)
		c.spared(t)
		c.checkAll(t) // finds out which are near
		for _, l := range c.lenders[2:] {
			if n := l.drop(); n == 0 {
				t.Fatal("nothing may vanish at a place that lends what is idle")
			} else if held := len(l.segments); n != held {
				t.Errorf("%d of %d segments may vanish at a place that lends what is idle, although there is room elsewhere", n, held)
			}
		}
		c.checkAll(t)
		if st := c.store.Stats(); st.Endangered != 0 {
			t.Errorf("%d segments are endangered by what may vanish", st.Endangered)
		}
		for _, l := range c.lenders[2:] {
			l.tell()
		}
		c.checkAll(t)
		time.Sleep(5 * time.Second)
		c.spared(t)
		c.checkAll(t)
		if st := c.store.Stats(); st.Lost != 0 || st.Condemned != 0 || st.Vanished == 0 || c.heap.Stats().Lost != 0 {
			t.Errorf("got %+v, want copies that vanished, and nothing lost or condemned", st)
		}
		if text := strings.Join(c.store.Explain(), "\n"); !strings.Contains(text, "may vanish") {
			t.Errorf("it says nothing of spare copies:\n%s", text)
		}
	})
}

// TestACopyThatCountsAtAnIdlePlaceLeavesOthersTheirSpares: a segment of which such a place has a copy that counts can have no spare one, and those behind it can.
func TestACopyThatCountsAtAnIdlePlaceLeavesOthersTheirSpares(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := newIdleCluster(t, 2, 1, copies.Config{})
		c.lenders[1].set(&c.lenders[1].full)
		seg, err := c.store.Alloc(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if c.lenders[2].store.Lent() != 1 {
			t.Fatal("no copy counts at the place that lends what is idle")
		}
		if err := seg.Write(t.Context(), make([]byte, 64), 0); err != nil {
			t.Fatal(err)
		}
		c.lenders[1].goOn()
		time.Sleep(time.Minute) // until it is asked for room again
		c.fill(t)
		c.spared(t)
		if st := c.store.Stats(); st.Spares < 2 {
			t.Errorf("%d spare copies: %+v", st.Spares, st)
		}
	})
}

// There is no spare copy of a segment of whose copies one is damaged: it would have the same bytes, and take the place of the good one.
func TestADamagedCopyHasNoSpareCopy(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := newIdleCluster(t, 2, 1, copies.Config{})
		for _, l := range c.lenders[1:] {
			l.setDelay(2 * time.Millisecond) // the damaged one is the nearest
		}
		c.fill(t)
		c.lenders[0].damage(rand.New(rand.NewPCG(1, 2)))
		time.Sleep(30 * time.Second)
		c.lenders[1].leave(true)
		time.Sleep(10 * time.Second)
		c.lenders[1].kill()
		c.checkAll(t)
		if st := c.store.Stats(); c.heap.Stats().Lost != 0 || st.Lost != 0 {
			t.Errorf("got %+v, want nothing lost", st)
		}
	})
}

// torn is a segment with something in it of which more was to be written, which one of its two copies has not got; and the places of its
// copies, and one that lends what is idle.
func torn(t *testing.T) (s *copies.Store, g store.Segment, a, b, idle *lender) {
	t.Helper()
	a, b, idle = newLender("a", "", 100), newLender("b", "", 100), newLender("idle", "", 100)
	idle.idle = true
	s, err := copies.Open(copies.Config{Places: []copies.Place{a.place(), b.place(), idle.place()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	g = alloc(t, s)
	if err := g.Write(t.Context(), []byte(said), 0); err != nil {
		t.Fatal(err)
	}
	b.stop()
	if err := g.Write(t.Context(), []byte("what is not"), len(said)); !errors.Is(err, store.ErrSealed) {
		t.Fatalf("a write that a place does not answer: %v, want ErrSealed", err)
	}
	b.goOn()
	return s, g, a, b, idle
}

// The copies of a segment differ in what was not acknowledged. That does not count: the spare copy has what does.
func TestASegmentThatWasClosedHasASpareCopy(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		s, g, a, b, _ := torn(t)
		time.Sleep(5 * time.Second)
		if st := s.Stats(); st.Spares != 1 || st.Sealed != 1 {
			t.Fatalf("got %+v, want a spare copy of one segment that was closed", st)
		}
		a.kill()
		b.kill()
		time.Sleep(time.Second)
		op := [1]store.ReadOp{{Seg: g, Buf: make([]byte, len(said))}}
		if s.Read(t.Context(), op[:]); op[0].Err != nil || string(op[0].Buf) != said {
			t.Errorf("got %q, %v, want %q", op[0].Buf, op[0].Err, said)
		}
	})
}

// TestASpareCopyIsReadIfTheOthersAreDamaged.
func TestASpareCopyIsReadIfTheOthersAreDamaged(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		s, g, a, b, _ := torn(t)
		time.Sleep(5 * time.Second)
		a.damageAt(3)
		b.damageAt(3)
		op := store.ReadOp{Seg: g, Buf: make([]byte, len(said))}
		if !s.Reread(t.Context(), op, func() bool { return string(op.Buf) == said }) || s.Stats().Spares != 1 {
			t.Errorf("got %q and %+v, want %q, from the spare copy", op.Buf, s.Stats(), said)
		}
	})
}

// Nobody knows which copy is right if they differ in what was acknowledged. There is no spare copy then, and a place that lends what is idle
// gets its memory back nevertheless, since the copy that it has is moved.
func TestASegmentWithADamagedCopyIsGivenBackInTime(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		s, g, a, b, idle := torn(t)
		a.damageAt(3)
		time.Sleep(10 * time.Second)
		if st := s.Stats(); st.Spares != 0 {
			t.Errorf("got %+v, want no spare copy of a segment with a damaged one", st)
		}
		b.leave(true) // so that the place that lends what is idle has a copy that counts
		for began := time.Now(); idle.store.Lent() == 0 || b.store.Lent() > 0; time.Sleep(time.Millisecond) {
			if time.Since(began) > time.Minute {
				t.Fatalf("it is not moved: %v", s.Explain())
			}
		}
		b.leave(false)
		idle.leave(true)
		began := time.Now()
		for idle.store.Lent() > 0 {
			time.Sleep(time.Millisecond)
			if time.Since(began) > 2*time.Second {
				t.Fatalf("the place that lends what is idle still has a copy: %v", s.Explain())
			}
		}
		op := store.ReadOp{Seg: g, Buf: make([]byte, len(said))}
		if !s.Reread(t.Context(), op, func() bool { return string(op.Buf) == said }) {
			t.Error("the good copy is not there")
		}
	})
}

// A spare copy takes the place of one that is lost, without anything being copied; unless it has vanished, which the store may
// not know yet.
func TestASpareCopyTakesThePlaceOfALostOne(t *testing.T) {
	for _, vanishes := range []bool{false, true} {
		t.Run(fmt.Sprintf("it has vanished: %v", vanishes), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				c := newIdleCluster(t, 3, 2, copies.Config{})
				c.fill(t)
				c.spared(t)
				before := c.store.Stats()
				if vanishes {
					for _, l := range c.lenders[3:] {
						l.drop()
					}
				}
				c.lenders[0].kill()
				time.Sleep(10 * time.Second)
				c.healed(t, time.Minute)
				st := c.store.Stats()
				switch promoted := st.Promoted - before.Promoted; {
				case vanishes && promoted != 0:
					t.Errorf("%d copies that had vanished count", promoted)
				case !vanishes && promoted == 0:
					t.Errorf("got %+v, want spare copies in the place of those that were lost", st)
				}
				for _, l := range c.lenders[3:] {
					l.tell()
				}
				for _, l := range c.lenders[1:3] { // whatever is left has been copied from what was written
					l.kill()
					c.checkAll(t)
					c.healed(t, time.Minute)
				}
				if st := c.store.Stats(); st.Lost != 0 || c.heap.Stats().Lost != 0 {
					t.Errorf("got %+v, want nothing lost", st)
				}
			})
		})
	}
}

// TestASpareCopyIsNotGivenBackWhileItIsAskedToStay: its place would be asked for what it may have lent to somebody else by then.
func TestASpareCopyIsNotGivenBackWhileItIsAskedToStay(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		a, b, c := newLender("a", "", 100), newLender("b", "", 100), newLender("c", "", 100)
		c.idle = true
		s, err := copies.Open(copies.Config{Places: []copies.Place{a.place(), b.place(), c.place()}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		g := alloc(t, s)
		if err := g.Write(t.Context(), []byte("something"), 0); err != nil {
			t.Fatal(err)
		}
		for s.Stats().Spares == 0 {
			time.Sleep(time.Second)
		}
		c.setDelay(100 * time.Millisecond)
		a.kill()
		b.kill()
		op := [1]store.ReadOp{{Seg: g, Buf: make([]byte, 9)}}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		s.Read(ctx, op[:]) // which has both be missed, and the third asked
		cancel()
		c.setDelay(0) // of what comes later
		if err := g.Free(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.wrong != nil || len(c.segments) != 0 {
			t.Errorf("the place of the spare copy was asked wrongly: %v; it has %d segments, want none", c.wrong, len(c.segments))
		}
	})
}

// A segment in which nothing lives is written from the front again, perhaps while a spare copy is being made: what takes the
// place of a lost copy then has what was written last.
func TestASpareCopyHasWhatWasWrittenLast(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := newIdleCluster(t, 3, 2, copies.Config{})
		for _, l := range c.lenders[:3] {
			l.setDelay(3 * time.Millisecond)
		}
		c.fill(t)
		c.spared(t)
		c.checkAll(t) // finds out which are near
		for _, l := range c.lenders[3:] {
			l.drop()
		}
		c.fill(t) // segments of before are written again
		c.lenders[0].kill()
		c.healed(t, time.Minute)
		for _, l := range c.lenders[3:] {
			l.tell()
		}
		for _, l := range c.lenders[1:3] {
			l.kill()
			c.checkAll(t)
			c.healed(t, time.Minute)
		}
		if st := c.store.Stats(); st.Lost != 0 || st.Condemned != 0 || c.heap.Stats().Lost != 0 {
			t.Errorf("got %+v, want nothing lost or condemned", st)
		}
	})
}

// With one copy that counts and one that may vanish, the loss of the first loses nothing as long as the second is there.
func TestOneCopyAndOneThatMayVanish(t *testing.T) {
	for _, vanishes := range []bool{false, true} {
		t.Run(fmt.Sprintf("it has vanished: %v", vanishes), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				c := newIdleCluster(t, 2, 1, copies.Config{Copies: 1})
				c.fill(t)
				c.spared(t)
				if vanishes {
					c.lenders[2].drop()
				}
				c.lenders[0].kill()
				if !vanishes {
					c.checkAll(t)
				}
				time.Sleep(5 * time.Second)
				lost := 0
				for i := range keys {
					var gone *far.LostError
					if _, err := c.m.Get(t.Context(), key(i), nil); errors.As(err, &gone) {
						lost++
					} else {
						c.check(t, i)
					}
				}
				if st := c.store.Stats(); vanishes != (lost > 0) || vanishes != (st.Promoted == 0) {
					t.Errorf("%d keys are lost, %+v, want some: %v", lost, st, vanishes)
				}
			})
		})
	}
}

// What a place that lends what is idle has beside spare copies it does not drop. When its host needs the memory it is moved, until the
// host has enough, and not at leisure.
func TestWhatMustStayIsMoved(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := newIdleCluster(t, 0, 3, copies.Config{})
		c.fill(t)
		c.healed(t, time.Minute)
		l := c.lenders[0]
		had := l.store.Lent()
		if had == 0 {
			t.Fatal("there is nothing at the place")
		}
		l.drop()
		l.tell()
		l.leave(true)
		for i := 0; l.store.Lent() > had/2; i++ {
			if i == 1000 {
				t.Fatalf("the place still has %d of %d segments: %v", l.store.Lent(), had, c.store.Explain())
			}
			c.set(t, i%keys)
			c.check(t, i*7%keys)
			time.Sleep(5 * time.Millisecond)
		}
		l.leave(false)
		time.Sleep(10 * time.Second) // what was under way ends
		c.healed(t, time.Minute)
		c.checkAll(t)
		if st := c.store.Stats(); st.Lost != 0 || st.CopiesLost != 0 {
			t.Errorf("got %+v, want nothing lost", st)
		}
	})
}

// Spare copies make way for copies that count.
func TestSpareCopiesMakeWay(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		a, b := newLender("a", "", 12), newLender("b", "", 6)
		b.idle = true
		s, err := copies.Open(copies.Config{Places: []copies.Place{a.place(), b.place()}, Copies: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		var all []store.Segment
		for range 12 {
			g := alloc(t, s)
			if err := g.Write(t.Context(), make([]byte, segmentSize), 0); err != nil {
				t.Fatal(err)
			}
			all = append(all, g)
		}
		time.Sleep(10 * time.Second)
		if n := s.Stats().Spares; n == 0 {
			t.Fatal("no spare copies were made")
		}
		for range 6 {
			g := alloc(t, s)
			all = append(all, g)
		}
		if _, err := s.Alloc(t.Context()); err == nil {
			t.Error("there is room for more than there is")
		}
		if n := s.Stats().Spares; n != 0 {
			t.Errorf("%d spare copies are in the way", n)
		}
		slices.Reverse(all)
		for _, g := range all {
			if err := g.Free(t.Context()); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Second)
		if n := a.store.Lent() + b.store.Lent(); n != 0 {
			t.Errorf("%d segments were not given back", n)
		}
		for _, l := range []*lender{a, b} {
			if l.wrong != nil {
				t.Error(l.wrong)
			}
		}
	})
}

// A place that lends what is idle, and has nothing to lend since its host needs it, keeps nobody from writing, as long as there
// is another.
func TestAHostThatNeedsItsMemoryKeepsNobodyFromWriting(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := newIdleCluster(t, 1, 1, copies.Config{})
		c.lenders[1].set(&c.lenders[1].full)
		c.fill(t)
		c.checkAll(t)
		if st := c.store.Stats(); st.Endangered == 0 {
			t.Error("nothing is endangered although there is one copy of everything")
		}
		c.lenders[1].goOn()
		c.healed(t, time.Minute)
		c.checkAll(t)
		c.lenders[0].set(&c.lenders[0].full) // which is another matter
		c.lenders[1].set(&c.lenders[1].full)
		var err error
		for i := 0; i < 4*keys && err == nil; i++ {
			err = c.m.Set(t.Context(), key(keys+i), far.Entry{Value: value(i, 1)})
		}
		if !errors.Is(err, far.ErrFull) {
			t.Errorf("with all places full: got %v, want %v", err, far.ErrFull)
		}
	})
}
