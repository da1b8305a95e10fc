package copies_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
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

// damageAt changes a bit of a byte of each segment.
func (l *lender) damageAt(off int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for g := range l.segments {
		g.Segment.(*store.MemSegment).Mem[off] ^= 1
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

// Start implements store.Starter.
func (g *lent) Start(ctx context.Context, p []byte, off int, landed func()) store.Flight {
	return start(ctx, g, p, off, landed)
}

func start(ctx context.Context, g store.Segment, p []byte, off int, landed func()) store.Flight {
	f := flight{make(chan error, 1), make(chan struct{})}
	go func() {
		err := g.Write(ctx, p, off)
		if f.err <- err; err == nil {
			close(f.well)
		}
		landed()
	}()
	return f
}

type flight struct {
	err  chan error // capacity 1
	well chan struct{}
}

func (f flight) Landed() bool {
	select {
	case <-f.well:
		return true
	default:
		return false
	}
}

// End waits until nobody reads what is written.
func (f flight) End(context.Context) error { return <-f.err }

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

// keys is how many keys a cluster has: about four times what is local, or one and a half times.
var keys = func() int {
	if invariants.Enabled {
		return 3000
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

func (l *lender) leave(yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leaving = yes
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
