package farlog

import (
	"context"
	"errors"
	"slices"
	"testing"

	"polder/far/record"
	"polder/far/store"
)

// newLog makes a log with a segment in it, whose records come to 160 bytes, and the number of times that it said that
// a segment may be dead.
func newLog(t *testing.T, st store.Store) (f *Log, s *Segment, died *int) {
	t.Helper()
	f, died = new(Log), new(int)
	f.Init(st, func() { *died++ })
	t.Cleanup(func() {
		if err := f.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return f, addSegment(t, f), died
}

func addSegment(t *testing.T, f *Log) *Segment {
	t.Helper()
	seg, err := f.Borrow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s, err := f.Add(seg, record.Data)
	if err != nil {
		t.Fatal(err)
	}
	s.Append(160)
	return s
}

// A segment is dead when nothing is written to it any more, nothing in it lives, and nobody has it pinned, whatever
// comes last; the log is told then.
func TestASegmentSaysThatItIsDead(t *testing.T) {
	steps := map[string]func(s *Segment, pin int){
		"sealed":   func(s *Segment, _ int) { s.Seal() },
		"buried":   func(s *Segment, _ int) { s.Bury(160) },
		"unpinned": func(s *Segment, pin int) { s.Unpin(pin) },
	}
	for last := range steps {
		t.Run(last+" last", func(t *testing.T) {
			f, s, died := newLog(t, store.NewMemStore(store.MinSegmentSize, 4))
			pin := s.Pin()
			for name, step := range steps {
				if name != last {
					step(s, pin)
				}
			}
			if s.Dead() || *died != 0 {
				t.Errorf("dead before it was %s: %v; the log was told %d times", last, s.Dead(), *died)
			}
			steps[last](s, pin)
			if !s.Dead() || *died != 1 {
				t.Errorf("dead when it was %s: %v; the log was told %d times", last, s.Dead(), *died)
			}
			addr := s.Address(record.SegmentSize)
			f.Drop(t.Context(), s)
			if f.SegOf(addr) != nil {
				t.Error("it is found after it was dropped")
			}
		})
	}
}

// refusing is a store that takes no segment back while it refuses.
type refusing struct {
	*store.MemStore
	refuse bool
}

type refusingSegment struct {
	store.Segment
	st *refusing
}

var errRefused = errors.New("refused")

func (r *refusing) Alloc(ctx context.Context) (store.Segment, error) {
	s, err := r.MemStore.Alloc(ctx)
	if err != nil {
		return nil, err
	}
	return refusingSegment{s, r}, nil
}

func (s refusingSegment) Free(ctx context.Context) error {
	if s.st.refuse {
		return errRefused
	}
	return s.Segment.Free(ctx)
}

// What the store does not take back is offered to it again, and is given up after many tries.
func TestWhatIsNotTakenBackIsOfferedAgain(t *testing.T) {
	st := &refusing{MemStore: store.NewMemStore(store.MinSegmentSize, 8), refuse: true}
	f, _, _ := newLog(t, st)
	seg, err := st.Alloc(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lent := st.Lent()
	f.GiveBack(t.Context(), seg)
	if paid, lost := f.PayBack(t.Context()); paid != 0 || lost != 0 {
		t.Errorf("a store that refuses took %d, and %d were given up", paid, lost)
	}
	st.refuse = false
	if paid, lost := f.PayBack(t.Context()); paid != 1 || lost != 0 || st.Lent() != lent-1 {
		t.Errorf("took %d, gave up %d, %d are lent, want 1, 0, %d", paid, lost, st.Lent(), lent-1)
	}
	if seg, err = st.Alloc(t.Context()); err != nil {
		t.Fatal(err)
	}
	st.refuse = true
	f.GiveBack(t.Context(), seg)
	for try := 2; try <= maxTries; try++ {
		if _, lost := f.PayBack(t.Context()); (lost == 1) != (try == maxTries) {
			t.Fatalf("given up after %d tries: %d", try, lost)
		}
	}
	st.refuse = false
	if err := seg.Free(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A number is used again, but a position is not: what is read of a segment's former life fails its check.
func TestASegmentHasAPositionOfItsOwn(t *testing.T) {
	f, s, _ := newLog(t, store.NewMemStore(store.MinSegmentSize, 4))
	s.Seal()
	s.Bury(160)
	f.Drop(t.Context(), s)
	next := addSegment(t, f)
	if next.ID != s.ID || next.Position() == s.Position() || next.Seed == s.Seed {
		t.Errorf("number %d and then %d, want the same; position %d, %d, seed %#x, %#x, want others",
			s.ID, next.ID, s.Position(), next.Position(), s.Seed, next.Seed)
	}
}

// roomyStore says that it has room for so many segments.
type roomyStore struct {
	store.Store
	room int
}

func (s *roomyStore) Room() (int, bool) { return s.room, true }

// TestShortSegmentsAreCleanedWhereMemoryIsTight: those that ended with little in them, all of which lives, take as much as full ones.
func TestShortSegmentsAreCleanedWhereMemoryIsTight(t *testing.T) {
	st := &roomyStore{store.NewMemStore(store.MinSegmentSize, 16), 100}
	f, s, _ := newLog(t, st)
	for range 7 {
		s.Seal()
		s = addSegment(t, f)
	}
	if s := f.Worst(); s != nil {
		t.Errorf("segment %d is to be cleaned, though nothing is dead and there is much room", s.ID)
	}
	st.room = 1
	if f.Worst() == nil {
		t.Error("no segment is to be cleaned, though there is hardly room, and next to nothing in any of them")
	}
}

// TestWhatIsEmptyIsNotCleanedFor: a segment of which nothing lives is given back as it is. Those in which nearly all lives are left alone meanwhile.
func TestWhatIsEmptyIsNotCleanedFor(t *testing.T) {
	f, s, _ := newLog(t, store.NewMemStore(store.MinSegmentSize, 32))
	for i := range 16 {
		s.Append(1600)
		s.Bury(160)
		if s.Seal(); i%2 == 0 {
			s.Bury(1600)
		}
		s = addSegment(t, f)
	}
	if s := f.Worst(); s != nil {
		t.Errorf("segment %d is to be cleaned, of which %d of %d bytes live: half of the others are empty", s.ID, s.Live.Load(), s.Filled())
	}
}

// lateKeeper keeps a root, and may need a segment. Of its segments the next ones take nothing, since a copy is late.
type lateKeeper struct {
	store.Keeper
	mem   *store.MemStore
	late  int
	needs bool
	away  error // what becomes of a root
}

func (k *lateKeeper) SegmentSize() int                      { return k.mem.SegmentSize() }
func (k *lateKeeper) SetRoot(context.Context, []byte) error { return k.away }
func (k *lateKeeper) Wants() bool                           { return false }
func (k *lateKeeper) Needs() bool                           { return k.needs }
func (k *lateKeeper) Alloc(ctx context.Context) (store.Segment, error) {
	seg, err := k.mem.Alloc(ctx)
	return &lateSegment{seg, k}, err
}

type lateSegment struct {
	store.Segment
	k *lateKeeper
}

func (s *lateSegment) Write(ctx context.Context, p []byte, off int) error {
	if s.k.late > 0 {
		s.k.late--
		return store.ErrSealed
	}
	return s.Segment.Write(ctx, p, off)
}

// newKept makes a log that is kept, in a store with so many segments.
func newKept(segments int) (*Log, *lateKeeper) {
	k := &lateKeeper{mem: store.NewMemStore(store.MinSegmentSize, segments)}
	f := new(Log)
	f.Init(k, func() {})
	f.keeping.keeper, f.keeping.due = k, make(chan struct{}, 1)
	return f, k
}

// TestACheckpointGoesOnBehindLateCopies, in a full store, too, where what they have closed is all the room that there is; but not for ever.
func TestACheckpointGoesOnBehindLateCopies(t *testing.T) {
	for _, c := range []struct {
		segments, late int
		fails          bool
	}{{8, 3, false}, {1, 3, false}, {1, 1000, true}} {
		f, k := newKept(c.segments)
		k.late = c.late
		free, err := f.Commit(t.Context(), make([]byte, 100), nil, 0, 8)
		if (err != nil) != c.fails || c.fails && !errors.Is(err, store.ErrStoreFull) {
			t.Errorf("%+v: the checkpoint: %v", c, err)
		}
		for _, s := range free {
			if err := s.Free(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if n := k.mem.Lent(); n != len(f.keeping.parts) {
			t.Errorf("%+v: %d segments are lent, want %d, which the checkpoint is in", c, n, len(f.keeping.parts))
		}
	}
}

// TestAKeeperLeavesTheLeastForTheNextCheckpoint, however often it needs a segment.
func TestAKeeperLeavesTheLeastForTheNextCheckpoint(t *testing.T) {
	f, k := newKept(16)
	if err := f.Reserve(t.Context(), 7, 7); err != nil {
		t.Fatal(err)
	}
	k.needs = true
	gave := 0
	for range 10 {
		free, err := f.Commit(t.Context(), make([]byte, 100), nil, 4, 7)
		if err != nil {
			t.Fatal(err)
		}
		gave += len(free)
	}
	if n := f.Reserved(); n != 4 || gave == 0 {
		t.Errorf("%d segments are left for the next checkpoint, and %d were given, want 4 and some", n, gave)
	}
}

// TestPagesDoNotWaitForSpareSegmentsForData, as they did when a heap was opened again and no data was to be written: it then could settle no words, and had
// no memory for a checkpoint. Where far memory is short, data still goes first.
func TestPagesDoNotWaitForSpareSegmentsForData(t *testing.T) {
	for _, c := range []struct{ room, spares, pages int }{{4, 2, 1}, {3, 2, 1}, {2, 2, 0}, {1, 1, 0}} {
		f, _ := newKept(c.room)
		f.count = 8 // two spare segments are for data
		pages := 0
		if _, err := f.BorrowForPages(t.Context(), SettlePages); err == nil {
			pages = 1
		} else if !errors.Is(err, store.ErrStoreFull) {
			t.Fatal(err)
		}
		if len(f.spare) != c.spares || pages != c.pages {
			t.Errorf("of %d segments %d are spare ones for data, and %d are for pages, want %d and %d", c.room, len(f.spare), pages, c.spares, c.pages)
		}
	}
}

// TestSegmentsForPagesComeBackWithACheckpoint, since where the store is full there are no others: without them nothing could be settled any more.
func TestSegmentsForPagesComeBackWithACheckpoint(t *testing.T) {
	f, k := newKept(16)
	f.KeepForPages(2, 0)
	borrowed := func() (segs []store.Segment) {
		for {
			s, err := f.BorrowForPages(t.Context(), CleanPages)
			if errors.Is(err, store.ErrStoreFull) {
				return segs
			}
			if err != nil {
				t.Fatal(err)
			}
			segs = append(segs, s)
		}
	}
	if err := f.Reserve(t.Context(), 4, 4); err != nil {
		t.Fatal(err)
	}
	pages := borrowed() // a heap that has nothing else takes what there is
	if len(pages) != 12 || k.mem.Lent() != 16 {
		t.Fatalf("%d segments for pages, %d are lent, want 12, and all 16", len(pages), k.mem.Lent())
	}
	f.count = len(pages)
	for _, s := range pages { // they have died
		f.keeping.waiting = append(f.keeping.waiting, Kept{seg: s})
	}
	if _, err := f.Commit(t.Context(), make([]byte, 100), nil, 5, 7); err != nil {
		t.Fatal(err)
	}
	if n := f.Reserved(); n < 5 {
		t.Errorf("%d segments are left for the next checkpoint, want 5 before any is for pages", n)
	}
	if again := borrowed(); len(again) != 2 {
		t.Errorf("%d segments are for pages after the checkpoint, want 2", len(again))
	}
}

// TestTheLastSegmentsForPagesAreLeftToWhatIsUrgent: settling leaves some to the cleaning of pages, and both leave the last ones to a heap that has no
// memory for a checkpoint otherwise. Whoever finds none asks for a checkpoint, if that gives segments back.
func TestTheLastSegmentsForPagesAreLeftToWhatIsUrgent(t *testing.T) {
	for _, c := range []struct {
		use   PageUse
		takes int
	}{{SettlePages, 8 - 3 - cleaningPages}, {CleanPages, 8 - 3}, {UrgentPages, 8}} {
		f, _ := newKept(8)
		f.count = 1
		f.spare = make([]store.Segment, 1) // there are enough for data
		f.KeepForPages(8, 3)
		if err := f.Reserve(t.Context(), 0, 0); err != nil {
			t.Fatal(err)
		}
		took := 0
		for ; took <= 8; took++ {
			if _, err := f.BorrowForPages(t.Context(), c.use); errors.Is(err, store.ErrStoreFull) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if took != c.takes {
			t.Errorf("%d takes %d of 8 spare segments, want %d", c.use, took, c.takes)
		}
		if !f.LacksPages() {
			t.Errorf("after %d has taken all that it may, pages lack nothing", c.use)
		}
		if !f.Starved() {
			t.Errorf("when %d finds no segment, no checkpoint is due", c.use)
		}
	}
}

// TestPagesHaveTheirSegmentsBeforeDataHasTheLast, when data is borrowed for, and when a heap is opened again. The least that a checkpoint takes goes
// first, and what more it may take, last.
func TestPagesHaveTheirSegmentsBeforeDataHasTheLast(t *testing.T) {
	f, _ := newKept(16)
	f.KeepForPages(4, 2)
	n := 0
	for ; n < 17; n++ {
		if _, err := f.Borrow(t.Context()); errors.Is(err, store.ErrStoreFull) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if len(f.paged) != 4 || n+len(f.spare)+len(f.paged) != 16 {
		t.Errorf("of 16 segments data has %d, %d are spare, and %d are for pages, want 4", n, len(f.spare), len(f.paged))
	}
	if f.LacksPages() {
		t.Error("pages lack segments, and all of them are there")
	}
	for _, c := range []struct{ room, reserved, pages int }{{3, 3, 0}, {5, 4, 1}, {8, 4, 4}, {10, 6, 4}, {16, 7, 4}} {
		f, _ := newKept(c.room)
		f.KeepForPages(4, 2)
		if err := f.Reserve(t.Context(), 4, 7); err != nil {
			t.Fatal(err)
		}
		if f.Reserved() != c.reserved || len(f.paged) != c.pages {
			t.Errorf("of %d segments %d are reserved and %d are for pages, want %d and %d", c.room, f.Reserved(), len(f.paged), c.reserved, c.pages)
		}
	}
}

// TestAPartThatIsBeingMendedIsNotWrittenTo by the checkpoint after the next, and can be used again afterwards.
func TestAPartThatIsBeingMendedIsNotWrittenTo(t *testing.T) {
	f, _ := newKept(16)
	commit := func() {
		t.Helper()
		free, err := f.Commit(t.Context(), make([]byte, 100), nil, 0, 2)
		if err != nil || len(free) > 0 {
			t.Fatalf("the checkpoint: %v, and %d segments are to be given back, want none", err, len(free))
		}
	}
	commit()
	seg := f.keeping.parts[0]
	_, pin := f.pinPart(seg)
	if pin == nil {
		t.Fatal("the part of the last checkpoint is not found")
	}
	for range 3 {
		commit()
		if _, again := f.pinPart(seg); again != nil || slices.Contains(f.keeping.spares, seg) {
			t.Fatal("a segment is used again while it is being mended")
		}
	}
	pin.Unpin()
	if !slices.Contains(f.keeping.spares, seg) {
		t.Error("a segment that was mended is not used again")
	}
}
