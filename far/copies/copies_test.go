package copies_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"polder/far"
	"polder/far/copies"
	"polder/far/record"
	"polder/far/store"
)

// TestNothingIsLostWithAPlace: one place after the other loses all that it has.
func TestNothingIsLostWithAPlace(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := newCluster(t, 3, copies.Config{})
		c.fill(t)
		for _, l := range c.lenders {
			c.healed(t, time.Minute)
			l.kill()
			c.checkAll(t)
			for i := 0; i < keys; i += 7 {
				c.set(t, i)
			}
		}
		c.healed(t, time.Minute)
		c.checkAll(t)
		st := c.store.Stats()
		if st.Lost != 0 || st.CopiesLost == 0 || st.Repaired == 0 || c.heap.Stats().Lost != 0 {
			t.Errorf("got %+v, want copies lost and repaired, and no segment lost", st)
		}
	})
}

// TestAPlaceThatStopsCostsMilliseconds: neither readers nor writers wait for it for longer than it takes to see that it is
// late; when it goes on, it has lost nothing.
func TestAPlaceThatStopsCostsMilliseconds(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := newCluster(t, 3, copies.Config{})
		c.fill(t)
		c.healed(t, time.Minute)
		for round := range 6 {
			l := c.lenders[round%3]
			l.stop()
			slow, began := time.Duration(0), time.Now()
			for i := range keys {
				at := time.Now()
				if i%3 == 0 {
					c.set(t, i)
				} else {
					c.check(t, i)
				}
				slow = max(slow, time.Since(at))
			}
			if limit := 250 * time.Millisecond; slow > limit || time.Since(began) > 2*limit {
				t.Errorf("while a place was stopped, an operation took %v, and %d took %v, want at most %v", slow, keys, time.Since(began), limit)
			}
			l.goOn()
			c.healed(t, time.Minute)
		}
		c.checkAll(t)
		if st := c.store.Stats(); st.CopiesLost != 0 || st.Lost != 0 || st.Sealed == 0 || st.SecondsUsed == 0 {
			t.Errorf("got %+v, want segments sealed and reads made again, and nothing lost", st)
		}
	})
}

// TestAPlaceThatIsLeavingIsEmptied while it is read and written, and no segment has fewer copies at any time.
func TestAPlaceThatIsLeavingIsEmptied(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := newCluster(t, 3, copies.Config{})
		c.fill(t)
		c.healed(t, time.Minute)
		l := c.lenders[0]
		if l.store.Lent() == 0 {
			t.Fatal("there is nothing at the place")
		}
		l.leave(true)
		for i := 0; l.store.Lent() > 0; i++ {
			if i == 3*keys {
				t.Fatalf("the place still has %d segments: %v", l.store.Lent(), c.store.Explain())
			}
			c.set(t, i%keys)
			c.check(t, i*7%keys)
			if st := c.store.Stats(); st.Endangered > 0 {
				t.Fatalf("%d segments are endangered while a place is leaving", st.Endangered)
			}
			time.Sleep(10 * time.Millisecond)
		}
		c.fill(t)
		if n := l.store.Lent(); n > 0 {
			t.Errorf("a place that is leaving got %d segments although two others stay", n)
		}
		l.leave(false) // it stays after all
		c.fill(t)
		if l.store.Lent() == 0 {
			t.Error("a place that stays after all got nothing")
		}
		c.checkAll(t)
		if st := c.store.Stats(); st.Lost != 0 || st.CopiesLost != 0 {
			t.Errorf("got %+v, want nothing lost", st)
		}
	})
}

// TestWhatMovesIsCopiedFromWhereItWas: of two copies one is damaged, and nobody knows that, and the other one has to move.
func TestWhatMovesIsCopiedFromWhereItWas(t *testing.T) {
	for _, delay := range []time.Duration{time.Millisecond, 200 * time.Millisecond} { // the others answer faster, or a read is late
		whatMovesIsCopiedFromWhereItWas(t, delay)
	}
}

func whatMovesIsCopiedFromWhereItWas(t *testing.T, delay time.Duration) {
	inVirtualTime(t, func(t *testing.T) {
		c := newCluster(t, 3, copies.Config{})
		c.fill(t)
		c.healed(t, time.Minute)
		leaves, damaged := c.lenders[0], c.lenders[1]
		damaged.damage(rand.New(rand.NewPCG(1, 2)))
		leaves.setDelay(delay)
		leaves.leave(true)
		for i := 0; leaves.store.Lent() > 0; i++ {
			if i == 1000 {
				t.Fatalf("the place still has %d segments: %v", leaves.store.Lent(), c.store.Explain())
			}
			time.Sleep(10 * time.Millisecond)
		}
		c.checkAll(t)
		c.compared() // what is damaged may be where nothing lives
		if st := c.store.Stats(); c.heap.Stats().Lost != 0 || st.Condemned == 0 {
			t.Errorf("%d values are lost, and of the damaged copies %d were found", c.heap.Stats().Lost, st.Condemned)
		}
	})
}

// TestAPlaceThatCannotBeDoneWithoutKeepsWhatItHas: of two places, one cannot leave without the loss of a copy. That is
// said, and a third place changes it.
func TestAPlaceThatCannotBeDoneWithoutKeepsWhatItHas(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := newCluster(t, 3, copies.Config{})
		third := c.lenders[2]
		third.cut()
		time.Sleep(10 * time.Second)
		c.fill(t)
		c.lenders[0].leave(true)
		time.Sleep(time.Minute)
		c.fill(t)
		c.checkAll(t)
		if st := c.store.Stats(); st.Endangered > 0 || c.lenders[0].store.Lent() < st.Segments || st.Places[0].State != "leaving" {
			t.Errorf("got %+v, and %d segments at the place that is leaving, want a copy of each", st, c.lenders[0].store.Lent())
		}
		if said := strings.Join(c.store.Explain(), "\n"); !strings.Contains(said, "cannot be moved: that takes 2 other nodes that stay, and there are 1") {
			t.Errorf("it is said: %s", said)
		}
		had, repaired := c.lenders[0].store.Lent(), c.store.Stats().Repaired
		third.goOn()
		time.Sleep(time.Minute)
		if n := c.store.Stats().Repaired - repaired; n != int64(had) {
			t.Errorf("%d copies were made to move %d", n, had)
		}
		if n := c.lenders[0].store.Lent(); n > 0 {
			t.Errorf("with a third place that stays, there are still %d segments", n)
		}
		if said := strings.Join(c.store.Explain(), "\n"); !strings.Contains(said, "Nothing is there any more") {
			t.Errorf("it is said: %s", said)
		}
		c.checkAll(t)
	})
}

// TestAPlaceThatIsAwayForLongIsReplaced: what it has is copied elsewhere, and given back when it returns.
func TestAPlaceThatIsAwayForLongIsReplaced(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := newCluster(t, 3, copies.Config{})
		c.fill(t)
		c.healed(t, time.Minute)
		for _, l := range c.lenders[1:] {
			l.setDelay(time.Millisecond)
		}
		c.lenders[0].cut()
		time.Sleep(30 * time.Second)
		if st := c.store.Stats(); st.Endangered != 0 || st.Repaired == 0 {
			t.Errorf("%d segments are endangered 30 s after a place has gone, want none", st.Endangered)
		}
		took := c.store.Stats().RepairTime
		if time.Sleep(time.Minute); took <= 0 || took > 10*time.Second || c.store.Stats().RepairTime != took {
			t.Errorf("copies were made for %v, and then, when all were there, for %v, want a short time, and no more", took, c.store.Stats().RepairTime-took)
		}
		c.lenders[1].kill() // so what is left is at one place, which must have all
		c.checkAll(t)
		c.lenders[0].goOn()
		c.healed(t, time.Minute)
		c.checkAll(t)
		held := 0
		for _, l := range c.lenders {
			held += l.store.Lent()
		}
		if st := c.store.Stats(); held != 2*st.Segments {
			t.Errorf("the places lend %d segments for %d with two copies", held, st.Segments)
		}
	})
}

// TestADamagedCopyIsReplaced: other bytes than were written are found out, and read from another copy.
func TestADamagedCopyIsReplaced(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := newCluster(t, 3, copies.Config{})
		c.fill(t)
		c.healed(t, time.Minute)
		l := c.lenders[0]
		l.mu.Lock()
		for g := range l.segments {
			m := g.Segment.(*store.MemSegment)
			for i := range m.Mem {
				m.Mem[i] ^= 0x10
			}
		}
		l.mu.Unlock()
		for i := range keys / 2 { // what was read again becomes local,
			if err := c.m.Prefetch(t.Context(), key(i)); err != nil {
				t.Fatal(err)
			}
			c.check(t, i)
		}
		c.checkAll(t) // or does not
		time.Sleep(2 * time.Second)
		if st := c.store.Stats(); st.Condemned < 10 || c.heap.Stats().Corrupt == 0 || st.Lost != 0 {
			t.Errorf("got %+v, want copies condemned that were read, and not only those that were compared", st)
		}
		c.healed(t, time.Minute)
		for i := range keys { // the cleaner finds the others
			c.set(t, i)
		}
		c.checkAll(t)
	})
}

// A damaged copy that nobody reads is found in the background, before it is the only one: whatever is damaged in a copy, also part of a record's header.
func TestADamagedCopyThatNobodyReadsIsReplaced(t *testing.T) {
	for name, damage := range map[string]func(l *lender){
		"the header of the segment": func(l *lender) { l.damageAt(9) },
		"the size of a record":      func(l *lender) { l.damageAt(record.SegmentSize + 18) },
		"the length of a key":       func(l *lender) { l.damageAt(record.SegmentSize + 27) },
		"any bit":                   func(l *lender) { l.damage(rand.New(rand.NewPCG(3, 4))) },
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				c := newCluster(t, 3, copies.Config{})
				c.fill(t)
				c.healed(t, time.Minute)
				pass := func() { // what is old has its turn, although there is always something new
					var last store.Segment
					for range 10 * c.store.Stats().Segments {
						next := alloc(t, c.store)
						if err := next.Write(t.Context(), []byte(said), 0); err != nil {
							t.Fatal(err)
						}
						if last != nil {
							_ = last.Free(t.Context())
						}
						last = next
						time.Sleep(200 * time.Millisecond)
					}
					_ = last.Free(t.Context())
				}
				pass()
				damage(c.lenders[0])
				pass()
				c.healed(t, time.Minute)
				for _, l := range c.lenders[1:] {
					l.kill()
					c.checkAll(t)
					c.healed(t, time.Minute)
				}
				st, hs := c.store.Stats(), c.heap.Stats()
				if st.Condemned == 0 || st.Lost != 0 || hs.Lost != 0 || hs.Corrupt != 0 {
					t.Errorf("got %+v, and %d reads that brought other bytes, want copies condemned before anybody read them, and nothing lost", st, hs.Corrupt)
				}
			})
		})
	}
}

// TestWithFewerPlacesThanCopies: the store goes on with as few as it may, and makes up for it.
func TestWithFewerPlacesThanCopies(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := newCluster(t, 2, copies.Config{})
		c.lenders[1].cut()
		c.fill(t)
		if st := c.store.Stats(); st.Places[1].Copies != 0 || st.Places[0].Copies < 10 {
			t.Errorf("got %+v, want all copies at one place", st)
		}
		time.Sleep(2 * time.Second)
		if st := c.store.Stats(); st.Endangered != st.Segments {
			t.Errorf("%d of %d segments are endangered, want all", st.Endangered, st.Segments)
		}
		c.lenders[1].goOn()
		c.healed(t, time.Minute)
		c.lenders[0].kill()
		c.checkAll(t)
	})
	inVirtualTime(t, func(t *testing.T) {
		l := newLender("a", "", 10)
		down := newLender("b", "", 10)
		down.cut()
		s, err := copies.Open(copies.Config{Places: []copies.Place{l.place(), down.place()}, Min: 2})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := s.Alloc(t.Context()); !errors.Is(err, copies.ErrTooFew) || errors.Is(err, store.ErrStoreFull) {
			t.Errorf("with one place for two copies Alloc says %v, want ErrTooFew", err)
		}
		if n := l.store.Lent(); n != 0 {
			t.Errorf("the place lends %d segments afterwards, want none", n)
		}
	})
}

// TestAFullPlaceIsNoReasonForFewerCopies.
func TestAFullPlaceIsNoReasonForFewerCopies(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		a, b := newLender("a", "", 10), newLender("b", "", 3)
		s, err := copies.Open(copies.Config{Places: []copies.Place{a.place(), b.place()}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for i := range 4 {
			_, err := s.Alloc(t.Context())
			if full := errors.Is(err, store.ErrStoreFull); full != (i == 3) || err != nil && !full {
				t.Errorf("Alloc %d: %v, want ErrStoreFull from the fourth on", i, err)
			}
		}
		if n := a.store.Lent(); n != 3 {
			t.Errorf("%d segments are lent, want 3", n)
		}
	})
}

// TestCopiesAreInDifferentZones, as long as there are some; when a zone is there again, what was moved together is taken apart.
func TestCopiesAreInDifferentZones(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := newCluster(t, 4, copies.Config{})
		for i, l := range c.lenders {
			l.mu.Lock()
			l.zone = fmt.Sprint("rack ", i/2)
			l.mu.Unlock()
		}
		apart := func() {
			t.Helper()
			var perZone [2]int
			st := c.store.Stats()
			for i, p := range st.Places {
				perZone[i/2] += p.Copies
			}
			if n := st.Segments; perZone != [2]int{n, n} {
				t.Errorf("%d segments have %v copies in the zones, want one in each", n, perZone)
			}
		}
		for _, l := range c.lenders[2:] { // those of one zone have most to lend
			for range 10 {
				if _, err := l.store.Alloc(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 4 {
			defer alloc(t, c.store).Free(t.Context())
		}
		apart() // from the start
		c.fill(t)
		c.healed(t, time.Minute)
		time.Sleep(time.Second) // for what is being borrowed or given back
		apart()
		c.lenders[0].cut()
		c.lenders[1].cut()
		time.Sleep(30 * time.Second)
		c.checkAll(t)
		if st := c.store.Stats(); st.Endangered != 0 {
			t.Errorf("%d segments are endangered although two places are left", st.Endangered)
		}
		c.lenders[0].goOn()
		c.lenders[1].goOn()
		c.healed(t, time.Minute)
		time.Sleep(time.Minute)
		apart()
		c.checkAll(t)
	})
}

// TestReadsGoToTheNearestCopy: to the place that answers fastest, as soon as both are known.
func TestReadsGoToTheNearestCopy(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		s, a, b := pair(t)
		var all []store.Segment
		for range 4 { // those of even and of odd numbers begin with different copies
			g := alloc(t, s)
			if err := g.Write(t.Context(), []byte("both have it"), 0); err != nil {
				t.Fatal(err)
			}
			all = append(all, g)
		}
		a.mu.Lock()
		a.delay = 10 * time.Microsecond
		a.mu.Unlock()
		b.mu.Lock()
		b.delay = 400 * time.Microsecond
		b.mu.Unlock()
		began := time.Now()
		const reads = 400
		for i := range reads {
			op := [1]store.ReadOp{{Seg: all[i%len(all)], Buf: make([]byte, 12)}}
			if s.Read(t.Context(), op[:]); op[0].Err != nil {
				t.Fatal(op[0].Err)
			}
		}
		if took, most := time.Since(began), reads*10*time.Microsecond+10*400*time.Microsecond; took > most {
			t.Errorf("%d reads took %v, want at most %v: nearly all from the near copy", reads, took, most)
		}
	})
}

// TestALateCopySealsTheSegment at once, and what both copies have stays.
func TestALateCopySealsTheSegment(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		s, a, b := pair(t)
		g := alloc(t, s)
		if err := g.Write(t.Context(), []byte("both have it"), 0); err != nil {
			t.Fatal(err)
		}
		b.stop()
		began := time.Now()
		if err := g.Write(t.Context(), []byte("one has it"), 100); !errors.Is(err, store.ErrSealed) || time.Since(began) > 2*copies.DefaultLate {
			t.Errorf("a write of which one copy is late: %v after %v, want ErrSealed after %v", err, time.Since(began), copies.DefaultLate)
		}
		b.goOn()
		time.Sleep(time.Second)
		if err := g.Write(t.Context(), []byte("nobody has it"), 200); !errors.Is(err, store.ErrSealed) {
			t.Errorf("a write after that: %v, want ErrSealed for good", err)
		}
		a.cut()
		op := [1]store.ReadOp{{Seg: g, Buf: make([]byte, 12)}}
		if s.Read(t.Context(), op[:]); op[0].Err != nil || string(op[0].Buf) != "both have it" {
			t.Errorf("the late copy has %q, %v", op[0].Buf, op[0].Err)
		}
	})
}

// TestALateCopyIsWaitedForWhereThereIsHardlyRoom for another segment to go on in, but not for long.
func TestALateCopyIsWaitedForWhereThereIsHardlyRoom(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		a, b := newLender("a", "", 8), newLender("b", "", 8)
		s, err := copies.Open(copies.Config{Places: []copies.Place{a.place(), b.place()}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		g := alloc(t, s)
		b.stop()
		time.AfterFunc(5*copies.DefaultLate, b.goOn)
		if err := g.Write(t.Context(), []byte("both have it"), 0); err != nil {
			t.Errorf("a write of which one copy is %v late: %v", 5*copies.DefaultLate, err)
		}
		b.stop()
		began := time.Now()
		if err := g.Write(t.Context(), []byte("one has it"), 100); !errors.Is(err, store.ErrSealed) || time.Since(began) > time.Second {
			t.Errorf("a write of which one copy does not come: %v after %v, want ErrSealed within a second", err, time.Since(began))
		}
		b.goOn()
	})
}

// TestWhatWasRepairedIsNotWrittenTo, since what had come late at one copy the new one has not.
func TestWhatWasRepairedIsNotWrittenTo(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := newLender("c", "", 100)
		a, b := newLender("a", "", 100), newLender("b", "", 100)
		s, err := copies.Open(copies.Config{Places: []copies.Place{a.place(), b.place(), c.place()}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		used, fresh := alloc(t, s), alloc(t, s)
		if err := used.Write(t.Context(), []byte("something"), 0); err != nil {
			t.Fatal(err)
		}
		away := a
		if a.store.Lent() == 0 {
			away = b
		}
		away.cut()
		time.Sleep(time.Minute)
		away.goOn()
		time.Sleep(time.Second)
		if st := s.Stats(); st.Repaired == 0 {
			t.Fatalf("nothing was repaired: %+v", st)
		}
		if err := used.Write(t.Context(), []byte("more"), 100); !errors.Is(err, store.ErrSealed) {
			t.Errorf("a write to a segment that was repaired: %v, want ErrSealed", err)
		}
		if err := fresh.Write(t.Context(), []byte("more"), 0); err != nil {
			t.Errorf("a write to one in which there was nothing: %v", err)
		}
	})
}

// TestWhoIsHeldUpBlamesNobody: when nobody answers it may be this process that does not listen.
func TestWhoIsHeldUpBlamesNobody(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		s, a, b := pair(t)
		a.stop()
		b.stop()
		if _, err := s.Alloc(t.Context()); err == nil {
			t.Error("stopped places have lent something")
		}
		for _, p := range s.Stats().Places {
			if p.State != "up" {
				t.Errorf("%s is %s since nobody has answered", p.Name, p.State)
			}
		}
		a.goOn()
		b.goOn()
		alloc(t, s)
	})
}

// A sealer is a store whose segments take three writes each.
type sealer struct {
	*far.MemStore
	again *atomic.Int64 // how often a segment was begun anew that had refused that before
}

type sealed struct {
	store.Segment
	s       *sealer
	writes  atomic.Int64
	refused atomic.Int64 // writes at its beginning
}

func (s *sealer) Alloc(ctx context.Context) (store.Segment, error) {
	g, err := s.MemStore.Alloc(ctx)
	return &sealed{Segment: g, s: s}, err
}

func (s *sealer) Read(ctx context.Context, ops []store.ReadOp) {
	for i := range ops {
		one := [1]store.ReadOp{ops[i]}
		one[0].Seg = ops[i].Seg.(*sealed).Segment
		s.MemStore.Read(ctx, one[:])
		ops[i].Err = one[0].Err
	}
}

func (g *sealed) Write(ctx context.Context, p []byte, off int) error {
	if g.writes.Add(1) > 3 {
		// Once may be: of a segment that is begun anew after three writes nobody knows yet. Writes come in
		// any order, so that it need not be the first that is refused.
		if off == 0 && g.refused.Add(1) > 1 {
			g.s.again.Add(1)
		}
		return store.ErrSealed
	}
	return g.Segment.Write(ctx, p, off)
}

// TestTheHeapGoesOnBehindSealedSegments, and does not use them again.
func TestTheHeapGoesOnBehindSealedSegments(t *testing.T) {
	store := &sealer{far.NewMemStore(segmentSize, 10_000), new(atomic.Int64)}
	h, err := far.NewHeap(store, far.Config{Local: far.MinLocal})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	c := &cluster{heap: h, m: h.NewByteMap("test"), versions: make([]int, keys)}
	for range 3 {
		c.fill(t)
	}
	c.checkAll(t)
	if n := store.again.Load(); n != 0 {
		t.Errorf("segments were begun anew %d times although they had refused that before", n)
	}
}

// TestWhatIsLostIsCountedOnce, however often it is looked at.
func TestWhatIsLostIsCountedOnce(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		s, a, b := pair(t)
		g := alloc(t, s)
		if err := g.Write(t.Context(), []byte("something"), 0); err != nil {
			t.Fatal(err)
		}
		a.kill()
		b.kill()
		time.Sleep(time.Minute)
		st := s.Stats()
		if st.Lost != 1 || st.CopiesLost != 2 || st.Places[0].Copies != 0 || st.Places[1].Copies != 0 {
			t.Errorf("got %+v, want one segment and its two copies lost, and none left", st)
		}
		if err := g.Free(t.Context()); err != nil {
			t.Error(err)
		}
		for _, p := range s.Stats().Places {
			if p.Copies != 0 {
				t.Errorf("%s has %d copies when all is given back", p.Name, p.Copies)
			}
		}
	})
}

// TestWhatNothingWasAcknowledgedInIsNotLost with all its copies: neither an empty segment nor one to which a write is under way, which
// fails then. One that somebody else has opened before may have had something.
func TestWhatNothingWasAcknowledgedInIsNotLost(t *testing.T) {
	lose := func(t *testing.T, s *copies.Store, g store.Segment, lost int64, places ...*lender) {
		t.Helper()
		for _, l := range places {
			l.kill()
		}
		time.Sleep(time.Minute)
		select {
		case <-g.Lost():
		default:
			t.Error("the segment is still there")
		}
		if st := s.Stats(); st.Lost != lost || st.CopiesLost != 2 {
			t.Errorf("got %+v, want %d segments and both copies lost", st, lost)
		}
		if says := strings.Contains(strings.Join(s.Explain(), "\n"), "were lost"); says != (lost > 0) {
			t.Errorf("it says %q", s.Explain())
		}
	}
	t.Run("empty", func(t *testing.T) {
		inVirtualTime(t, func(t *testing.T) {
			s, a, b := pair(t)
			g := alloc(t, s)
			lose(t, s, g, 0, a, b)
			if err := g.Write(t.Context(), []byte("something"), 0); !errors.Is(err, store.ErrSealed) {
				t.Errorf("a write to it: %v, want ErrSealed", err)
			}
		})
	})
	t.Run("a write is under way", func(t *testing.T) {
		inVirtualTime(t, func(t *testing.T) {
			a, b := newLender("a", "", 100), newLender("b", "", 100)
			answer := make(chan struct{})
			var places []copies.Place
			for _, l := range []*lender{a, b} {
				p := l.place()
				p.Store = &answering{l, answer}
				places = append(places, p)
			}
			s, err := copies.Open(copies.Config{Places: places})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			g := alloc(t, s)
			wrote := make(chan error)
			go func() { wrote <- g.Write(t.Context(), []byte("something"), 0) }()
			time.Sleep(time.Millisecond) // both copies have it
			lose(t, s, g, 0, a, b)
			close(answer)
			if err := <-wrote; !errors.Is(err, store.ErrSealed) {
				t.Errorf("a write to it: %v, want ErrSealed", err)
			}
			lose(t, s, g, 0)
		})
	})
	t.Run("who had it before may have written to it", func(t *testing.T) {
		inVirtualTime(t, func(t *testing.T) {
			r := reopen(t)
			defer r.Close()
			r.away.goOn()
			time.Sleep(2 * time.Second)
			lose(t, r.Store, r.seg, 1, r.good, r.away)
		})
	})
}

// answering is a lender whose answers to writes wait.
type answering struct {
	*lender
	answer chan struct{}
}

type answered struct {
	*lent
	answer chan struct{}
}

func (a *answering) Alloc(ctx context.Context) (store.Segment, error) {
	seg, err := a.lender.Alloc(ctx)
	if err != nil {
		return nil, err
	}
	return answered{seg.(*lent), a.answer}, nil
}

func (g answered) Start(ctx context.Context, p []byte, off int, landed func()) store.Flight {
	return start(ctx, g, p, off, landed)
}

func (g answered) Write(ctx context.Context, p []byte, off int) error {
	err := g.lent.Write(ctx, p, off)
	<-g.answer
	return err
}

// TestCloseEndsWhatIsBeingGivenBack to a place that has stopped meanwhile.
func TestCloseEndsWhatIsBeingGivenBack(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		s, _, b := pair(t)
		g := alloc(t, s)
		b.stop()
		began := time.Now()
		if err := g.Free(t.Context()); err != nil {
			t.Error(err)
		}
		s.Close() // the bubble does not end before all that was begun in it
		if took := time.Since(began); took > 2*copies.DefaultLate {
			t.Errorf("it took %v", took)
		}
	})
}
