package heap

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// Who waits for room for what shrinks is refused only after that was tried for
// which something is kept, even if others who wait are told that there is none.
func TestWhoShrinksIsRefusedAfterATryOnly(t *testing.T) {
	var l Logs
	l.round = &round{done: make(chan struct{})}
	other, shrinks := l.join(ForMutator), l.join(ForShrink)
	l.look()
	if l.refuse(errStoreFull, false) {
		t.Error("refused though nothing was tried for what shrinks")
	}
	select {
	case <-shrinks.done:
		t.Fatal("the wait has ended")
	default:
	}
	if !l.refuse(errStoreFull, true) {
		t.Error("not refused after everything was tried")
	}
	for _, r := range []*round{other, shrinks} {
		<-r.done
		if r.err != errStoreFull {
			t.Errorf("got %v, want %v", r.err, errStoreFull)
		}
	}
}

// TestAFullSegmentIsTheEvacuatorsThoughThereIsNoOther: a segment that is full is handed over although there is no other for who
// was writing there. It may be what makes the room that he waits for.
func TestAFullSegmentIsTheEvacuatorsThoughThereIsNoOther(t *testing.T) {
	const size, record = 64 << 10, 1 << 10
	var l Logs
	if err := l.Init(16*size, 16*size, 0, size, 1); err != nil {
		t.Fatal(err)
	}
	defer l.Mapping.Close()
	for range size / record {
		if _, _, ok := l.Place(&l.Shrunk, record, ForShrink); !ok {
			t.Fatal("there is no room for a segment of what shrinks")
		}
	}
	for {
		if _, _, ok := l.Place(&l.Open[0], record, ForShrink); !ok {
			break
		}
	}
	full := l.Shrunk.Seg
	if l.look(); !l.refuse(errStoreFull, true) || !l.isFull() {
		t.Fatal("nobody is told that it is full")
	}
	if _, _, ok := l.Place(&l.Shrunk, record, ForShrink); ok {
		t.Fatal("there is room still")
	}
	if l.isFull() {
		t.Error("who waits for room is refused before the evacuator has looked at it")
	}
	if !l.Segs[full].evacuable() {
		t.Error("the evacuator may not empty it")
	}
}

// TestOpenSegmentsAreTheEvacuatorsThoughNoneIsFull: if all that could go lies in open segments, the evacuator seals these. Nobody
// is refused before it has looked at them.
func TestOpenSegmentsAreTheEvacuatorsThoughNoneIsFull(t *testing.T) {
	const size, segments = 64 << 10, 5 // one is the evacuator's, which no mutator may take
	h := &Heap{Ctx: t.Context(), barren: 1}
	h.Far.size = size
	l := &h.Logs
	if err := l.Init(segments*size, segments*size, 0, size, 1); err != nil {
		t.Fatal(err)
	}
	defer l.Mapping.Close()
	for _, ol := range []*OpenLog{&l.kept[0], &l.kept[1], &l.Objects[0], &l.Streams[0]} {
		if _, _, ok := l.Place(ol, 48, ForScope); !ok {
			t.Fatal("there is no room for the segments that are to be open")
		}
	}
	if _, _, ok := l.Place(&l.Open[0], 48, ForMutator); ok {
		t.Fatal("there is room still")
	}
	waits := l.join(ForMutator)
	l.look()
	h.stuck()
	select {
	case <-waits.done:
		t.Errorf("who waits for room was told %v", waits.err)
	default:
	}
	for i := range l.Segs[:l.top] {
		if !l.Segs[i].sealed {
			t.Errorf("segment %d is still open", i)
		}
	}
}

// TestThereIsRoomWhenAnIndexMayGrow: who waits for much, such as a checkpoint, is told to try again as soon as he would succeed, and not before.
func TestThereIsRoomWhenAnIndexMayGrow(t *testing.T) {
	const size, segments = 64 << 10, 24
	waited := 0
	for taken := range segments {
		for much := range int64(segments) {
			var l Logs
			if err := l.Init(segments*size, segments*size, 0, size, 1); err != nil {
				t.Fatal(err)
			}
			var segs []int
			for range taken {
				if s, ok := l.Take(ForMutator, Locked, -1); ok {
					segs = append(segs, s)
				}
			}
			grow := func() error { return l.GrowIndex(Checkpoint, much*size, ForMutator) }
			for err := grow(); err == ErrNoRoom && len(segs) > 0; {
				l.Release(segs[0])
				segs = segs[1:]
				room, free := l.roomForWaiting(), l.available()
				if err = grow(); room != (err == nil) {
					t.Errorf("%d segments are free, %d are wanted: there is room: %v; and then: %v", free, much, room, err)
				}
				waited++
			}
			if err := l.Mapping.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if waited == 0 {
		t.Error("nobody has waited")
	}
}

// TestWhoWantsLittleIsNotRefusedWithWhoWantsMuch: a round of waiting that ends since one who waits can have no more is none that ends for all.
func TestWhoWantsLittleIsNotRefusedWithWhoWantsMuch(t *testing.T) {
	const size = 64 << 10
	for _, want := range []error{nil, errLocalFull} {
		h := new(Heap)
		h.Ctx = t.Context()
		l := &h.Logs
		if err := l.Init(16*size, 16*size, 0, size, 1); err != nil {
			t.Fatal(err)
		}
		defer l.Mapping.Close()
		for ok := want != nil; ok; {
			_, ok = l.Take(ForMutator, Locked, -1)
		}
		l.inUse.Store(true)
		l.look()
		refused := make(chan error)
		go func() { refused <- h.WaitFor(t.Context(), ForMutator, nil) }()
		for waits := false; !waits; {
			l.Mu.Lock()
			waits = l.waiting > 0
			l.Mu.Unlock()
		}
		if !l.refuse(l.errFull(), false) {
			t.Fatal("nobody was refused")
		}
		if err := <-refused; err != want {
			t.Errorf("got %v, want %v", err, want)
		}
	}
}

// Who has waited for a checkpoint that failed for another reason than lack of room is told that, and not that far memory is full.
func TestWhoWaitsInVainIsToldWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &Heap{Ctx: t.Context()}
		h.Logs.kick = make(chan struct{}, 1)
		h.room.Init()
		silent := errors.New("too few places answer")
		h.room.Committed(0, 0, 0, silent)
		h.limited.Store(true)
		if err := h.MayStore(t.Context()); !errors.Is(err, silent) || errors.Is(err, ErrStoreFull) {
			t.Errorf("got %v, want %v", err, silent)
		}
	})
}

// TestRoomIsKeptForWhatIsExpected, but no more than an eighth of the budget, and only as long as it is.
func TestRoomIsKeptForWhatIsExpected(t *testing.T) {
	const size = 64 << 10
	var l Logs
	if err := l.Init(64*size, 64*size, 0, size, 1); err != nil {
		t.Fatal(err)
	}
	defer l.Mapping.Close()
	least := l.low
	for _, c := range []struct{ expected, more int }{{5, 4}, {64, 7}, {0, 0}} { // one is kept anyway
		if l.Expect(int64(c.expected) * size); l.low != least+c.more {
			t.Errorf("with %d segments expected %d are kept empty, want %d", c.expected, l.low, least+c.more)
		}
	}
}

// TestNobodyIsRefusedForWhatHasDiedMeanwhile: what died since the evacuator began to look may make room, so it looks again.
func TestNobodyIsRefusedForWhatHasDiedMeanwhile(t *testing.T) {
	var l Logs
	l.round = &round{done: make(chan struct{})}
	r := l.join(ForMutator)
	l.look()
	l.Stir()
	if l.refuse(errStoreFull, true) || l.isFull() {
		t.Error("refused though something has died")
	}
	select {
	case <-r.done:
		t.Error("the wait has ended")
	default:
	}
	if l.look(); !l.refuse(errStoreFull, true) || !l.isFull() {
		t.Error("not refused when nothing has died")
	}
}

// TestWhoMayStoreLaterWaitsForACheckpoint, and is not refused, when none was in vain yet.
func TestWhoMayStoreLaterWaitsForACheckpoint(t *testing.T) {
	h := &Heap{Ctx: t.Context()}
	h.Logs.kick = make(chan struct{}, 1)
	h.limited.Store(true) // to no byte
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.MayStore(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if !h.wanted.Load() {
		t.Error("the evacuator was not asked for room")
	}
}
