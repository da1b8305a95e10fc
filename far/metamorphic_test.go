package far_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"polder/far"
	"polder/far/copies"
	"polder/far/remote"
	"polder/far/store"
	"polder/internal/invariants"
	"polder/internal/offload"
	"polder/memnode"
	"polder/memnode/component"
	"polder/pool"
	"polder/pool/pooltest"
)

var errFault = errors.New("injected")

// flaky is a store that fails now and then, and loses segments when it is told to.
type flaky struct {
	far.Store
	faults atomic.Int64 // of 1000 operations
	hits   atomic.Int64
	loses  bool // segments are lost by lose, and not with what Store lends

	mu   sync.Mutex
	segs map[*flakySegment]bool // that lose may take, under mu
}

func (f *flaky) fault() bool {
	if rand.Int64N(1000) >= f.faults.Load() {
		return false
	}
	f.hits.Add(1)
	return true
}

func (f *flaky) Alloc(ctx context.Context) (far.Segment, error) {
	if f.fault() {
		return nil, errFault
	}
	inner, err := f.Store.Alloc(ctx)
	if err != nil {
		return nil, err
	}
	s := &flakySegment{Segment: inner, f: f, lost: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.segs == nil {
		f.segs = map[*flakySegment]bool{}
	}
	f.segs[s] = true
	return s, nil
}

// lose loses a segment, whichever it is.
func (f *flaky) lose() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.segs {
		delete(f.segs, s)
		close(s.lost)
		_ = s.Segment.Free(context.Background()) // as a node's memory goes with it
		return
	}
}

func (f *flaky) Read(ctx context.Context, ops []far.ReadOp) {
	inner := make([]far.ReadOp, len(ops))
	for i, op := range ops {
		inner[i] = far.ReadOp{Seg: op.Seg.(*flakySegment).Segment, Off: op.Off, Buf: op.Buf}
	}
	f.Store.Read(ctx, inner)
	for i := range ops {
		if ops[i].Err = inner[i].Err; ops[i].Err == nil && (f.fault() || ops[i].Seg.(*flakySegment).isLost()) {
			ops[i].Err = errFault
		}
		if f.fault() {
			ops[i].Buf[rand.IntN(len(ops[i].Buf))] ^= 1 << rand.IntN(8)
		}
	}
}

// flakyComputer is a flaky store that computes, and now and then does not.
type flakyComputer struct {
	*flaky
	computer store.Computer
}

func (f *flakyComputer) Scan(ctx context.Context, q *offload.Scan, o store.Objects, parts []store.ScanPart, a *offload.Aggregate) {
	inner := slices.Clone(parts)
	for i := range inner {
		inner[i].Seg = parts[i].Seg.(*flakySegment).Segment
	}
	f.computer.Scan(ctx, q, o, inner, a)
	for i := range parts {
		p := &parts[i]
		if p.Err = inner[i].Err; p.Err == nil && p.Out != nil && f.fault() {
			p.Err = errFault
			clear(p.Out)
		}
	}
}

type flakySegment struct {
	far.Segment
	f    *flaky
	lost chan struct{}
}

func (s *flakySegment) isLost() bool {
	select {
	case <-s.lost:
		return true
	default:
		return false
	}
}

func (s *flakySegment) Write(ctx context.Context, p []byte, off int) error {
	if s.f.fault() || s.isLost() {
		return errFault
	}
	return s.Segment.Write(ctx, p, off)
}

func (s *flakySegment) Free(ctx context.Context) error {
	s.f.mu.Lock()
	delete(s.f.segs, s)
	lost := s.isLost()
	s.f.mu.Unlock()
	if lost {
		return nil
	}
	return s.Segment.Free(ctx)
}

func (s *flakySegment) Lost() <-chan struct{} {
	if s.f.loses {
		return s.lost
	}
	return s.Segment.Lost()
}

// kind is what befalls the far memory of a program.
type kind string

const (
	peace  kind = "nothing happens"
	faults kind = "operations fail and bytes are damaged"
	losses kind = "segments are lost"
	cuts   kind = "connections are cut"
	kills  kind = "nodes are killed and come back"
	damage kind = "one of two copies is damaged"
)

// damaged is a store that often reads other bytes than were written.
type damaged struct {
	far.Store
	hits *atomic.Int64
}

func (d damaged) Read(ctx context.Context, ops []far.ReadOp) {
	d.Store.Read(ctx, ops)
	for _, op := range ops {
		if rand.IntN(4) == 0 {
			d.hits.Add(1)
			op.Buf[rand.IntN(len(op.Buf))] ^= 1 << rand.IntN(8)
		}
	}
}

// newDamaged is far memory of which a copy of every segment is damaged.
func newDamaged(t *testing.T, hits *atomic.Int64) far.Store {
	var places []copies.Place
	for _, name := range []string{"good", "damaged"} {
		places = append(places, copies.Place{Name: name, Store: far.NewMemStore(32<<10, 1<<10)})
	}
	places[1].Store = damaged{places[1].Store, hits}
	s, err := copies.Open(copies.Config{Places: places, Late: time.Minute}) // or the good one may count as silent
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// trouble is what befalls a program.
type trouble struct {
	kind     kind
	far      far.Store // over store, unless its kind is damage
	store    *flaky
	computes bool        // it has segments in one piece
	lost     atomic.Bool // some far memory may have been lost
	strike   func(n int) // makes the trouble, for the n-th time
}

// excuses reports whether an operation that failed may be tried again.
func (tr *trouble) excuses(err error) bool {
	var corrupt *far.CorruptError
	switch tr.kind {
	case faults:
		return errors.Is(err, errFault) || errors.As(err, &corrupt)
	case cuts, kills: // until there is a connection again
		return errors.Is(err, pool.ErrNodeGone) || errors.Is(err, pool.ErrTimeout)
	}
	return false // a lost segment is not in the way of others
}

// newWorld makes far memory over s, nil for this process's own, and what befalls
// it.
func newWorld(t *testing.T, s *pooltest.Setup, k kind) *trouble {
	tr := &trouble{kind: k, strike: func(int) {}}
	switch {
	case s == nil && k == damage:
		tr.store = new(flaky)
		tr.far = newDamaged(t, &tr.store.hits)
	case s == nil:
		tr.store = &flaky{Store: far.NewMemStore(32<<10, 1<<10), loses: k == losses}
		tr.far = tr.store
	default:
		chunk := far.MinSegmentSize
		if s.Name == pooltest.Sim.Name {
			chunk /= 2 // segments are in two pieces, and so are read
		} else {
			tr.computes = true
		}
		cfg := memnode.Config{
			Lend: 256<<16 + 8<<20, ChunkSize: chunk,
			Components: component.Config{Memory: 8 << 20, ClientMemory: 8 << 20, Time: time.Minute},
		}
		c := pooltest.NewCluster(t, *s, cfg, cfg)
		client := c.Open(pool.Config{})
		tr.store = &flaky{Store: remote.NewStore(client.Pool)}
		tr.far = &flakyComputer{tr.store, tr.store.Store.(store.Computer)}
		switch k {
		case cuts:
			tr.strike = func(n int) { client.Cut(c.Nodes[n%2]) }
		case kills:
			tr.strike = func(n int) {
				if n%16 == 0 {
					tr.lost.Store(true)
					c.Nodes[n/16%2].Crash()
					c.Nodes[n/16%2].Start()
				}
			}
		}
	}
	if k == losses {
		tr.strike = func(int) {
			tr.lost.Store(true)
			tr.store.lose()
		}
	}
	return tr
}

// The same random program has the results of Go's own structures, whatever the
// data are kept in, however little of them is local, and whatever befalls what is
// far; except that what was lost is said to be.
func TestEveryStructureIsAsItsLocalCounterpart(t *testing.T) {
	t.Parallel()
	var soak time.Duration
	if d, err := time.ParseDuration(os.Getenv("TEST_SOAK")); err == nil {
		soak = d / 24 // there are 48, two at a time
	}
	for _, over := range []*pooltest.Setup{nil, &pooltest.Inproc, &pooltest.TCP, &pooltest.Sim} {
		name := "memory"
		if over != nil {
			name = over.Name
		}
		// The data of two programs are some 7 MiB; a segment is 16 KiB.
		for _, local := range []struct{ percent, segments int }{{5, 36}, {20, 88}, {100, 600}} {
			kinds := []kind{peace, faults, losses, damage}
			switch {
			case over != nil && soak > 0:
				kinds = []kind{peace, faults, cuts, kills}
			case over != nil && local.percent == 5:
				kinds = []kind{faults, cuts}
			case over != nil && local.percent == 20:
				kinds = []kind{peace, faults, kills}
			case over != nil:
				kinds = []kind{faults}
			}
			if invariants.Enabled && soak == 0 { // every trouble and every store once: "make plain" has them all
				kinds = nil
				if k, ok := map[string]kind{"memory/5": damage, "memory/20": losses, "inproc/20": kills, "tcp/5": cuts, "sim/20": faults}[fmt.Sprintf("%s/%d", name, local.percent)]; ok {
					kinds = []kind{k}
				}
			}
			for _, k := range kinds {
				t.Run(fmt.Sprintf("%s/%d%% local/%s", name, local.percent, k), func(t *testing.T) {
					t.Parallel()
					play(t, newWorld(t, over, k), local.segments, local.percent == 20, soak)
				})
			}
		}
	}
}

func play(t *testing.T, tr *trouble, segments int, early bool, soak time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+soak)
	defer cancel()
	h := far.OpenTiny(t, tr.far, segments, early)
	seed := uint64(1)
	if soak > 0 {
		seed = rand.Uint64() | 1
	}
	t.Logf("seed %d", seed)
	players := []*player{newPlayer(t, ctx, h, tr, seed), newPlayer(t, ctx, h, tr, seed+1)}
	both := func(fn func(p *player)) {
		var wg sync.WaitGroup
		for _, p := range players {
			wg.Go(func() { fn(p) })
		}
		if wg.Wait(); t.Failed() {
			t.FailNow()
		}
	}
	both((*player).fill)
	if tr.kind == faults {
		tr.store.faults.Store(30)
	}
	steps, ended := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ended)
		n := 0
		for range steps {
			tr.strike(n)
			n++
		}
	}()
	peaceful := sync.OnceFunc(func() {
		close(steps)
		<-ended
	})
	defer peaceful() // of a test that fails, too: nodes must not come back while they are stopped for good
	end, rounds := time.Now().Add(soak), 60
	if invariants.Enabled {
		rounds = 20
	}
	both(func(p *player) {
		for round := 0; (round < rounds || time.Now().Before(end)) && !t.Failed(); round++ {
			select {
			case steps <- struct{}{}:
			default: // it is still at the last one
			}
			p.step(round)
		}
	})
	peaceful()
	tr.store.faults.Store(0) // a walk through everything would hardly ever get through
	both((*player).finish)
	st := h.Stats()
	lost := players[0].losses + players[1].losses
	computed := uint64(0)
	for _, c := range st.Classes {
		computed += c.Computed
	}
	t.Logf("%d fetches, %d corrupt, %d objects computed; %d operations met what was lost, %d entries were", st.Fetches, st.Corrupt, computed, lost, st.Lost)
	if tr.computes && segments < 100 && (tr.kind == peace || tr.kind == cuts) && computed == 0 {
		t.Error("the store has computed nothing")
	}
	if st.Pointers != 0 && lost == 0 {
		t.Errorf("%d pointers are left", st.Pointers)
	}
	if segments < 100 && (st.Fetches == 0 || (tr.kind == faults || tr.kind == damage) && tr.store.hits.Load() == 0 ||
		(tr.kind == losses || tr.kind == kills) && lost == 0) {
		t.Errorf("the test tested nothing: %d faults, %+v", tr.store.hits.Load(), st)
	}
}
