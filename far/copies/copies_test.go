package copies_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"polder/far"
	"polder/far/copies"
	"polder/far/store"
	"polder/internal/invariants"
)

const segmentSize = far.MinSegmentSize

// A lender is a place that can be stopped, cut off, killed and made to lie.
type lender struct {
	name, zone string

	mu       sync.Mutex
	store    *far.MemStore
	stopped  chan struct{} // closed when it goes on; nil while it does
	down     bool
	leaving  bool
	idle     bool
	delay    time.Duration
	full     bool // it lends nothing
	mute     bool // it does what it is asked, but one answer of eight is lost
	answers  int
	segments map[*lent]bool
	wrong    error // what it was asked for that nobody may ask for
}

type lent struct {
	l *lender
	store.Segment
	lost chan struct{}
	once sync.Once

	unheard bool // it was given back, but the answer was lost; guarded by l.mu

	bad int // the byte that is damaged, or -1; guarded by l.mu

	may, dropped, told bool // it may vanish, has, and the store was told so; guarded by l.mu
}

var _ copies.Vanisher = (*lent)(nil)

func (g *lent) MayVanish(ctx context.Context) error {
	if err := g.l.ready(ctx); err != nil {
		return err
	}
	g.l.mu.Lock()
	defer g.l.mu.Unlock()
	g.use("permitted to vanish")
	g.may = true
	return nil
}

func (g *lent) MustStay(ctx context.Context) (bool, error) {
	if err := g.l.ready(ctx); err != nil {
		return false, err
	}
	g.l.mu.Lock()
	defer g.l.mu.Unlock()
	g.use("to stay")
	g.may = false
	return !g.dropped, nil
}

func (g *lent) Vanished() bool {
	g.l.mu.Lock()
	defer g.l.mu.Unlock()
	return g.dropped && g.told
}

// drop has the place drop what may vanish, and returns how many segments that were. Nobody knows before tell.
func (l *lender) drop() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for g := range l.segments {
		if g.may && !g.dropped {
			g.dropped = true
			clear(g.Segment.(*store.MemSegment).Mem)
			n++
		}
	}
	return n
}

func (l *lender) tell() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for g := range l.segments {
		g.told = true
	}
}

func newLender(name, zone string, segments int) *lender {
	return &lender{name: name, zone: zone, store: far.NewMemStore(segmentSize, segments), segments: make(map[*lent]bool)}
}

func (l *lender) place() copies.Place {
	return copies.Place{Name: l.name, Zone: func() string { l.mu.Lock(); defer l.mu.Unlock(); return l.zone }, Store: l, State: func() copies.State {
		l.mu.Lock()
		defer l.mu.Unlock()
		return copies.State{Usable: !l.down, Leaving: l.leaving, Idle: l.idle, Space: int64(l.store.Most()-l.store.Lent()) * segmentSize}
	}}
}

var errDown = errors.New("the place is down")

// ready waits as the place makes its callers do.
func (l *lender) ready(ctx context.Context) error {
	for {
		l.mu.Lock()
		down, stopped, delay := l.down, l.stopped, l.delay
		l.mu.Unlock()
		switch {
		case down:
			return errDown
		case stopped != nil:
			select {
			case <-stopped:
				continue
			case <-time.After(2 * time.Second):
				return context.DeadlineExceeded
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		case delay > 0:
			select {
			case <-time.After(delay):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return ctx.Err()
	}
}

func (l *lender) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped == nil {
		l.stopped = make(chan struct{})
	}
}

func (l *lender) goOn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down, l.leaving, l.full, l.mute, l.delay = false, false, false, false, 0
	if l.stopped != nil {
		close(l.stopped)
		l.stopped = nil
	}
}

func (l *lender) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
}

// kill has the place lose all that it has. It is there again at once, empty.
func (l *lender) kill() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for g := range l.segments {
		g.once.Do(func() { close(g.lost) })
		_ = g.Segment.Free(context.Background())
	}
	clear(l.segments)
}

// damage changes a bit of each segment, until undo is called, which changes it back where it has not been overwritten.
func (l *lender) damage(r *rand.Rand) (undo func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for g := range l.segments {
		g.bad = r.IntN(segmentSize)
		g.Segment.(*store.MemSegment).Mem[g.bad] ^= 1
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for g := range l.segments {
			if g.bad >= 0 {
				g.Segment.(*store.MemSegment).Mem[g.bad] ^= 1
				g.bad = -1
			}
		}
	}
}

func (l *lender) setDelay(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = d
}

func (l *lender) set(flag *bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*flag = true
}

func (l *lender) SegmentSize() int { return segmentSize }

func (l *lender) Alloc(ctx context.Context) (store.Segment, error) {
	if err := l.ready(ctx); err != nil {
		return nil, err
	}
	l.mu.Lock()
	full := l.full
	l.mu.Unlock()
	if full {
		return nil, store.ErrStoreFull
	}
	seg, err := l.store.Alloc(ctx)
	if err != nil {
		return nil, err
	}
	g := &lent{l: l, Segment: seg, lost: make(chan struct{}), bad: -1}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.segments[g] = true
	return g, nil
}

func (l *lender) Read(ctx context.Context, ops []store.ReadOp) {
	err := l.ready(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range ops {
		if ops[i].Err = err; err == nil {
			one := [1]store.ReadOp{ops[i]}
			one[0].Seg = ops[i].Seg.(*lent).Segment
			l.store.Read(ctx, one[:])
			ops[i].Err = one[0].Err
		}
	}
}

func (g *lent) Lost() <-chan struct{} { return g.lost }

func (g *lent) Write(ctx context.Context, p []byte, off int) error {
	if err := g.l.ready(ctx); err != nil {
		return err
	}
	g.l.mu.Lock()
	defer g.l.mu.Unlock()
	g.use("written")
	if off <= g.bad && g.bad < off+len(p) {
		g.bad = -1
	}
	return g.answer(g.Segment.Write(ctx, p, off))
}

var errUnheard = errors.New("the answer is lost")

// answer returns err, or that the answer is lost. l.mu must be held.
func (g *lent) answer(err error) error {
	if g.l.answers++; g.l.mute && g.l.answers%8 == 0 {
		g.unheard = true
		return errUnheard
	}
	return err
}

func (g *lent) Free(ctx context.Context) error {
	if err := g.l.ready(ctx); err != nil {
		return err
	}
	g.l.mu.Lock()
	defer g.l.mu.Unlock()
	if g.l.segments[g] {
		delete(g.l.segments, g)
		g.unheard = false // of what was written
		return g.answer(g.Segment.Free(ctx))
	}
	if g.unheard {
		g.unheard = false
		return g.answer(nil)
	}
	select {
	case <-g.lost:
	default:
		g.l.wrong = fmt.Errorf("%s was given back twice", g.Name())
	}
	return nil
}

// use notes a use of a segment that has been given back. l.mu must be held.
func (g *lent) use(what string) {
	if g.l.segments[g] {
		return
	}
	select {
	case <-g.lost:
	default:
		g.l.wrong = fmt.Errorf("%s was %s after it was given back", g.Name(), what)
	}
}

// A cluster is a heap over lenders.
type cluster struct {
	lenders []*lender
	store   *copies.Store
	heap    *far.Heap
	m       *far.ByteMap

	versions []int // what was last set of each key, which has one writer
}

// keys is how many keys a cluster has: about four times what is local, or twice.
var keys = func() int {
	if invariants.Enabled {
		return 4000
	}
	return 8000
}()

// newCluster makes a small heap over n lenders.
func newCluster(t *testing.T, n int, cfg copies.Config) *cluster {
	t.Helper()
	c := new(cluster)
	for i := range n {
		l := newLender(fmt.Sprint("node ", i), "", 1000)
		c.lenders = append(c.lenders, l)
		cfg.Places = append(cfg.Places, l.place())
	}
	var err error
	if c.store, err = copies.Open(cfg); err != nil {
		t.Fatal(err)
	}
	if c.heap, err = far.NewHeap(c.store, far.Config{Local: far.MinLocal}); err != nil {
		t.Fatal(err)
	}
	c.m = c.heap.NewByteMap("test")
	c.versions = make([]int, keys)
	t.Cleanup(func() {
		c.heap.Close()
		c.store.Close()
	})
	return c
}

// value is what key has in its n-th version.
func value(key, version int) []byte {
	r := rand.New(rand.NewPCG(uint64(key), uint64(version)))
	b := make([]byte, 504+r.IntN(375)*8)
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
	return b
}

func key(i int) []byte { return fmt.Appendf(nil, "key %d", i) }

// set sets the next version of a key.
func (c *cluster) set(t *testing.T, i int) {
	t.Helper()
	if err := c.m.Set(t.Context(), key(i), far.Entry{Value: value(i, c.versions[i]+1)}); err != nil {
		t.Fatalf("Set(%s): %v", key(i), err)
	}
	c.versions[i]++
}

// check checks what a key has.
func (c *cluster) check(t *testing.T, i int) {
	t.Helper()
	e, err := c.m.Get(t.Context(), key(i), nil)
	if err != nil || !bytes.Equal(e.Value, value(i, c.versions[i])) {
		t.Fatalf("Get(%s): %d bytes, %v, want version %d, of %d bytes", key(i), len(e.Value), err, c.versions[i], len(value(i, c.versions[i])))
	}
}

// fill sets all keys.
func (c *cluster) fill(t *testing.T) {
	t.Helper()
	for i := range keys {
		c.set(t, i)
	}
	if st := c.heap.Stats(); st.FarLive == 0 {
		t.Fatal("nothing is far")
	}
}

func (c *cluster) checkAll(t *testing.T) {
	t.Helper()
	for i := range keys {
		c.check(t, i)
	}
}

// healed waits until all segments have all their copies.
func (c *cluster) healed(t *testing.T, within time.Duration) {
	t.Helper()
	for end := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		st := c.store.Stats()
		if st.Endangered == 0 && st.Segments > 0 {
			well := 0
			for _, p := range st.Places {
				if p.State == "up" && p.Owed == 0 {
					well++
				}
			}
			if well == len(st.Places) {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("not healed within %v: %+v", within, st)
		}
	}
}

func inVirtualTime(t *testing.T, fn func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, fn)
}

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

func (l *lender) leave(yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leaving = yes
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
		c.lenders[0].cut()
		time.Sleep(30 * time.Second)
		if st := c.store.Stats(); st.Endangered != 0 || st.Repaired == 0 {
			t.Errorf("%d segments are endangered 30 s after a place has gone, want none", st.Endangered)
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
		c.checkAll(t)
		c.healed(t, time.Minute)
		if st := c.store.Stats(); st.Condemned == 0 || c.heap.Stats().Corrupt == 0 || st.Lost != 0 {
			t.Errorf("got %+v, want copies condemned", st)
		}
		for i := range keys { // the cleaner finds the others
			c.set(t, i)
		}
		c.checkAll(t)
	})
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

// TestWhatFaultsDoToACluster: places stop, are cut off, lose everything, are slow and lie, at random, but no more than one of
// them destroys something before what it had is repaired. With odd seeds two of them lend what is idle, and drop what they may. Nothing is
// lost, and in the end all is well.
func TestWhatFaultsDoToACluster(t *testing.T) {
	seeds, rounds := 8, 40
	if invariants.Enabled { // "make plain" has them all
		seeds, rounds = 2, 10
	}
	if os.Getenv("TEST_SOAK") != "" {
		seeds = 400
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { inVirtualTime(t, func(t *testing.T) { faults(t, uint64(seed), rounds) }) })
	}
}

func faults(t *testing.T, seed uint64, rounds int) {
	places, kinds := 5, 8
	if seed%2 == 1 {
		places, kinds = 6, 10
	}
	c := newCluster(t, places, copies.Config{})
	for _, l := range c.lenders[4:] {
		l.idle = seed%2 == 1
	}
	c.fill(t)
	c.healed(t, time.Minute)
	r := rand.New(rand.NewPCG(seed, 1))
	work := func(n int) {
		for range n {
			if i := r.IntN(keys); r.IntN(3) == 0 {
				c.set(t, i)
			} else {
				c.check(t, i)
			}
			if r.IntN(20) == 0 {
				time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
			}
		}
	}
	raw := &rawWriter{store: c.store, r: r}
	for range rounds {
		if r.IntN(2) == 0 { // what takes no time is hardly ever met by something else
			for _, l := range c.lenders {
				l.setDelay(time.Duration(1+r.IntN(200)) * time.Microsecond)
			}
		}
		l := c.lenders[r.IntN(len(c.lenders))]
		undo, away := func() {}, false
		switch r.IntN(kinds) {
		case 8, 9:
			for _, l := range c.lenders[4:] {
				l.drop()
			}
			if r.IntN(2) == 0 { // one of those that count goes at the same time
				c.lenders[r.IntN(4)].kill()
			}
		case 0:
			l.stop()
			away = true
		case 1:
			l.cut()
			away = true
		case 2:
			l.kill()
		case 3:
			l.setDelay(time.Duration(r.IntN(40)) * time.Millisecond)
		case 4:
			undo = l.damage(r)
		case 5:
			l.set(&l.full)
		case 6:
			l.set(&l.mute)
		case 7:
			l.leave(true)
		}
		work(300)
		raw.step(t)
		if r.IntN(3) == 0 {
			time.Sleep(time.Duration(r.IntN(20)) * time.Second)
			work(300)
			raw.step(t)
		}
		if away && r.IntN(3) == 0 { // the others make up for it
			time.Sleep(time.Minute)
			if st := c.store.Stats(); st.Endangered != 0 {
				t.Errorf("%d segments are endangered when %s has been away for a minute", st.Endangered, l.name)
			}
		}
		undo() // since nobody looks for what is not read
		for _, l := range c.lenders {
			l.goOn()
			l.tell()
		}
		c.healed(t, 2*time.Minute)
		time.Sleep(time.Second)
		if kinds > 8 {
			time.Sleep(10 * time.Second) // spare copies are made, too
		}
		c.kept(t, c.store.Stats().Segments)
	}
	c.checkAll(t)
	if st := c.store.Stats(); st.Lost != 0 || c.heap.Stats().Lost != 0 {
		t.Errorf("%d segments, %d entries are lost: %+v", st.Lost, c.heap.Stats().Lost, st)
	}
	c.heap.Close()
	raw.free(t)
	time.Sleep(time.Minute)
	c.kept(t, 0)
	c.store.Close()
}

// A rawWriter writes to segments of a store without a heap, which would not go on with one that was sealed.
type rawWriter struct {
	store *copies.Store
	r     *rand.Rand
	open  []rawSegment
}

type rawSegment struct {
	store.Segment
	has    []byte // what was acknowledged
	sealed bool
}

// step writes to each segment and checks what is in it, and gives some back and borrows others.
func (w *rawWriter) step(t *testing.T) {
	t.Helper()
	for len(w.open) < 8 {
		g, err := w.store.Alloc(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w.open = append(w.open, rawSegment{Segment: g})
	}
	for i := range w.open {
		g := &w.open[i]
		for range w.r.IntN(3) {
			b := value(w.r.IntN(keys), 0)
			if len(g.has)+len(b) > segmentSize {
				break
			}
			switch err := g.Write(t.Context(), b, len(g.has)); {
			case err == nil && g.sealed:
				t.Fatalf("%s was written to after it had been sealed", g.Name())
			case err == nil:
				g.has = append(g.has, b...)
			default:
				g.sealed = true
			}
		}
		if len(g.has) == 0 {
			continue
		}
		op := [1]store.ReadOp{{Seg: g.Segment, Buf: make([]byte, len(g.has))}}
		good := func() bool { return bytes.Equal(op[0].Buf, g.has) }
		w.store.Read(t.Context(), op[:])
		if (op[0].Err != nil || !good()) && !w.store.Reread(t.Context(), op[0], good) {
			t.Fatalf("%s has not got what was written to it: %v", g.Name(), op[0].Err)
		}
	}
	if i := w.r.IntN(len(w.open)); w.r.IntN(2) == 0 {
		if err := w.open[i].Free(t.Context()); err != nil {
			t.Error(err)
		}
		w.open = append(w.open[:i], w.open[i+1:]...)
	}
}

func (w *rawWriter) free(t *testing.T) {
	t.Helper()
	for i := range w.open {
		if err := w.open[i].Free(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// kept checks that each segment has its copies, at places of their own, and that no place keeps anything else.
func (c *cluster) kept(t *testing.T, segments int) {
	t.Helper()
	st := c.store.Stats()
	if st.Segments != segments {
		t.Errorf("there are %d segments, want %d", st.Segments, segments)
	}
	all := 0
	defer func() {
		if all != segments*copies.DefaultCopies+st.Spares {
			t.Errorf("%d segments have %d copies, of which %d may vanish", segments, all, st.Spares)
		}
	}()
	for i, l := range c.lenders {
		l.mu.Lock()
		all += len(l.segments)
		if l.wrong != nil {
			t.Error(l.wrong)
		}
		if n := len(l.segments); st.Places[i].Copies != n {
			t.Errorf("%s has lent %d segments, of which %d are known", l.name, n, st.Places[i].Copies)
		}
		l.mu.Unlock()
	}
}

// pair is a store over two places.
func pair(t *testing.T) (*copies.Store, *lender, *lender) {
	t.Helper()
	a, b := newLender("a", "", 100), newLender("b", "", 100)
	s, err := copies.Open(copies.Config{Places: []copies.Place{a.place(), b.place()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, a, b
}

func alloc(t *testing.T, s *copies.Store) store.Segment {
	t.Helper()
	g, err := s.Alloc(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return g
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
	again *atomic.Int64 // segments that were begun anew after that
}

type sealed struct {
	store.Segment
	s      *sealer
	writes atomic.Int64
	begun  atomic.Int64 // writes at its beginning
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
	again := off == 0 && g.begun.Add(1) > 1
	if n := g.writes.Add(1); n > 3 {
		if again && n > 4 {
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
		t.Errorf("%d segments were begun anew although they had taken all they can", n)
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
