package copies_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"polder/far/copies"
	"polder/far/store"
)

// keeping is a lender that keeps what it lent for who comes back for it.
type keeping struct {
	*lender
	open map[*lent]bool // what was reopened; guarded by mu
	busy bool           // nothing can be reopened now; guarded by mu
}

func keeps(l *lender) *keeping { return &keeping{lender: l, open: map[*lent]bool{}} }

func (k *keeping) Reopen(ctx context.Context, name string) (store.Segment, error) {
	if err := k.ready(ctx); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.busy {
		return nil, errDown
	}
	for g := range k.segments {
		if g.Name() == name {
			k.open[g] = true
			return g, nil
		}
	}
	return nil, &store.LostError{Segment: name}
}

func (k *keeping) Prune(ctx context.Context) error {
	if err := k.ready(ctx); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for g := range k.segments {
		if !k.open[g] {
			_ = g.Segment.Free(ctx)
			delete(k.segments, g)
		}
	}
	return nil
}

// reopening is a store that has reopened a segment whose second copy, of two, could not be reached, and given back what nobody has.
type reopening struct {
	*copies.Store
	good, away, other *lender  // where its copies are, and a third place
	kept              *keeping // away
	seg               store.Segment
	name              string // of the segment, before
	told              string // what it is called by now, as whoever opens the store next is told; guarded by good.mu
}

const said = "what was written to the segment"

func reopen(t *testing.T) *reopening {
	t.Helper()
	var places []copies.Place
	r := &reopening{good: newLender("good", "", 100), away: newLender("away", "", 100), other: newLender("other", "", 100)}
	for _, l := range []*lender{r.good, r.away, r.other} {
		p := l.place()
		k := keeps(l)
		p.Store = k
		places = append(places, p)
		if l == r.away {
			r.kept = k
		}
	}
	open := func(epoch uint64) *copies.Store {
		s, err := copies.Open(copies.Config{Places: places, Keep: &copies.Keep{Epoch: epoch, Moved: func(_ context.Context, _ uint64, name func() string) error {
			is := name()
			r.good.mu.Lock()
			defer r.good.mu.Unlock()
			r.told = is
			return nil
		}}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	before := open(1)
	r.other.set(&r.other.full)
	g := alloc(t, before)
	if err := g.Write(t.Context(), []byte(said), 0); err != nil {
		t.Fatal(err)
	}
	r.name = g.Name()
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	r.other.goOn()
	r.away.cut()
	r.Store = open(2)
	var err error
	if r.seg, err = r.Reopen(t.Context(), r.name); err != nil {
		t.Fatal(err)
	}
	if err := r.Prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// reads fails the test if the segment has not what it should.
func (r *reopening) reads(t *testing.T) {
	t.Helper()
	op := [1]store.ReadOp{{Seg: r.seg, Buf: make([]byte, len(said))}}
	if r.Read(t.Context(), op[:]); op[0].Err != nil || string(op[0].Buf) != said {
		t.Errorf("got %q, %v, want %q", op[0].Buf, op[0].Err, said)
	}
}

// TestACopyThatIsAwayForAMomentComesBack when a store is opened: nothing is made in its place, and it counts again as soon as it can be reached, although
// what nobody has reopened is given back.
func TestACopyThatIsAwayForAMomentComesBack(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		r := reopen(t)
		defer r.Close()
		if err := r.seg.Write(t.Context(), []byte("x"), 0); !errors.Is(err, store.ErrSealed) {
			t.Errorf("a write to a segment of which a copy is away: %v, want ErrSealed", err)
		}
		time.Sleep(copies.DefaultRepairAfter / 2)
		if r.seg.Name() != r.name {
			t.Errorf("the segment is called %q while a copy is away, want %q", r.seg.Name(), r.name)
		}
		r.Renamed()
		r.kept.set(&r.kept.busy)
		r.away.goOn()
		time.Sleep(time.Second)
		r.kept.mu.Lock()
		r.kept.busy = false
		r.kept.mu.Unlock()
		time.Sleep(2 * time.Second)
		if st := r.Stats(); st.Repaired != 0 || st.Endangered != 0 || r.CopiesOf(r.seg) != 2 {
			t.Errorf("got %+v and %d copies, want both, and none that was made", st, r.CopiesOf(r.seg))
		}
		r.good.kill()
		r.reads(t)
	})
}

// TestACopyThatStaysAwayIsReplaced after Config.RepairAfter, and given back when its place can be reached.
func TestACopyThatStaysAwayIsReplaced(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		r := reopen(t)
		defer r.Close()
		time.Sleep(copies.DefaultRepairAfter + 2*time.Second)
		if st := r.Stats(); st.Repaired != 1 || st.Endangered != 0 {
			t.Errorf("got %+v, want one copy that was made", st)
		}
		if strings.Contains(r.told, "away") || !strings.Contains(r.told, "other") || r.seg.Name() != r.told {
			t.Errorf("the segment is called %q and who opens it next is told %q, want its copies without that which is away", r.seg.Name(), r.told)
		}
		if err := r.Remove("away"); err != nil {
			t.Errorf("a place whose copies have been replaced cannot be removed: %v", err)
		}
		r.good.kill()
		r.reads(t)
	})
}

// TestAPlaceThatIsWaitedForStays one of the store's.
func TestAPlaceThatIsWaitedForStays(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		r := reopen(t)
		defer r.Close()
		if err := r.Remove("away"); !errors.Is(err, copies.ErrInUse) {
			t.Errorf("removing it: %v, want ErrInUse", err)
		}
		if err := r.seg.Free(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := r.Remove("away"); err != nil {
			t.Errorf("removing it when the segment has been given back: %v", err)
		}
	})
}

// TestACopyThatIsAwayIsNotLost: the others are, and it comes back.
func TestACopyThatIsAwayIsNotLost(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		r := reopen(t)
		defer r.Close()
		r.good.kill()
		time.Sleep(copies.DefaultRepairAfter + 2*time.Second)
		select {
		case <-r.seg.Lost():
			t.Error("it counts as lost, and the place of a copy may come back")
		default:
		}
		r.away.goOn()
		time.Sleep(2 * time.Second)
		r.reads(t)
		if st := r.Stats(); st.Repaired != 1 || st.Endangered != 0 || st.Lost != 0 {
			t.Errorf("got %+v, want one copy that was made, and nothing lost", st)
		}
	})
}

// TestADamagedCopyDoesNotTakeThePlaceOfOneThatIsAway: nobody knows yet that it is damaged, and the owner dies. Who opens the store next finds the good one.
func TestADamagedCopyDoesNotTakeThePlaceOfOneThatIsAway(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		r := reopen(t)
		defer r.Close()
		for g := range r.good.segments {
			g.Segment.(*store.MemSegment).Mem[0] ^= 1
		}
		r.good.leave(true) // there is a reason to move it
		time.Sleep(copies.DefaultRepairAfter / 2)
		if name := r.seg.Name(); !strings.Contains(name, "away") || r.told != "" && !strings.Contains(r.told, "away") {
			t.Errorf("the segment is called %q and who opens it next is told %q, without the copy that is away", name, r.told)
		}
		r.away.goOn()
		time.Sleep(2 * time.Second)
		op := store.ReadOp{Seg: r.seg, Buf: make([]byte, len(said))}
		if !r.Reread(t.Context(), op, func() bool { return string(op.Buf) == said }) {
			t.Error("the good copy is not there")
		}
	})
}

// TestNothingIsWrittenToCopiesOfWhichNobodyKnows: an empty segment has other copies than before, and the next process could not be told
// yet where they are. What would be written to them would be looked for in those that it had before.
func TestNothingIsWrittenToCopiesOfWhichNobodyKnows(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var places []copies.Place
		var lenders []*lender
		for _, name := range []string{"a", "b", "c"} {
			l := newLender(name, "", 100)
			p := l.place()
			p.Store = keeps(l)
			lenders, places = append(lenders, l), append(places, p)
		}
		asked, answer := make(chan struct{}), make(chan struct{})
		s, err := copies.Open(copies.Config{Places: places, Keep: &copies.Keep{Epoch: 1, Moved: func(ctx context.Context, _ uint64, _ func() string) error {
			asked <- struct{}{}
			<-answer
			return nil
		}}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		g := alloc(t, s)
		for _, l := range lenders {
			if l.store.Lent() > 0 {
				l.leave(true)
				break
			}
		}
		<-asked
		if err := g.Write(t.Context(), []byte("something"), 0); !errors.Is(err, store.ErrSealed) {
			t.Errorf("a write to copies of which nobody knows: %v, want ErrSealed", err)
		}
		close(answer)
		time.Sleep(time.Second)
		if err := g.Write(t.Context(), []byte("something"), 0); err != nil {
			t.Errorf("a write when that is known: %v", err)
		}
	})
}

// TestWhatIsToLeaveWaitsForACopyThatIsAway: it moves when that is there again, so that there are never too many.
func TestWhatIsToLeaveWaitsForACopyThatIsAway(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		r := reopen(t)
		defer r.Close()
		r.good.leave(true)
		time.Sleep(copies.DefaultRepairAfter / 2)
		if n := r.other.store.Lent(); n != 0 {
			t.Errorf("%d copies were made while one was away for a moment", n)
		}
		r.away.goOn()
		time.Sleep(5 * time.Second)
		if r.good.store.Lent() != 0 || r.CopiesOf(r.seg) != 2 {
			t.Errorf("%d chunks are where nothing is to be, and there are %d copies", r.good.store.Lent(), r.CopiesOf(r.seg))
		}
		r.reads(t)
	})
}

// TestRoomIsForAllCopies: places that are leaving, or lend what is idle, do not count, and of the others as many must have it as there are copies.
func TestRoomIsForAllCopies(t *testing.T) {
	ls := []*lender{newLender("a", "", 10), newLender("b", "", 30), newLender("c", "", 20), newLender("d", "", 40)}
	var places []copies.Place
	for _, l := range ls {
		places = append(places, l.place())
	}
	s, err := copies.Open(copies.Config{Places: places, Copies: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, step := range []struct {
		change func()
		want   int
	}{
		{func() {}, 30},
		{func() { ls[3].leaving = true }, 20},
		{func() { ls[3].leaving, ls[3].idle = false, true }, 20},
		{func() { ls[3].idle, ls[1].down = false, true }, 20},
		{func() { ls[3].down, ls[2].down = true, true }, 0},
	} {
		step.change()
		if got, _ := s.Room(); got != step.want {
			t.Errorf("there is room for %d segments, want %d", got, step.want)
		}
	}
	places[1].State = nil
	unknown, err := copies.Open(copies.Config{Places: places[:2], Copies: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer unknown.Close()
	if got, known := unknown.Room(); got != 0 || known {
		t.Errorf("of a place nothing is known, and there is room for %d segments, want 0", got)
	}
}
