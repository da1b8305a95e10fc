package remote

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"polder/far"
	"polder/far/store"
	"polder/internal/invariants"
	"polder/internal/offload"
	"polder/memnode"
	"polder/memnode/component"
	"polder/pool"
	"polder/pool/pooltest"
)

// trip is an element of which fields are looked at.
type trip struct {
	id    uint64
	miles float32
	zone  int16
	fare  float64
	_     [32]byte
}

// lends is a node that lends memory, some of it for components unless that is 0.
func lends(components int64) memnode.Config {
	return memnode.Config{
		Lend: 64<<20 + components, ChunkSize: 1 << 20,
		Components: component.Config{Memory: components, ClientMemory: components, Time: time.Minute},
	}
}

// newFarHeap makes a heap of 4 MiB over s.
func newFarHeap(t testing.TB, s far.Store) *far.Heap {
	t.Helper()
	h, err := far.NewHeap(s, far.Config{Local: far.MinLocal})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// computed is how many objects of h's the store has looked through.
func computed(h *far.Heap) (n uint64) {
	for _, st := range h.Stats().Classes { // freed ones, too
		n += st.Computed
	}
	return n
}

// setups are nodes that compute, one whose memory is mapped, and one that does not compute.
var setups = []struct {
	name       string
	setup      pooltest.Setup
	components int64
	nodes      int
}{
	{"over inproc", pooltest.Inproc, 16 << 20, 2},
	{"over TCP", pooltest.TCP, 16 << 20, 1},
	{"over SHM", pooltest.SHM, 0, 1},
	{"by reading, from a node that does not compute", pooltest.Inproc, 0, 1},
}

// TestAStructureComputesWhatASliceDoes: the same questions to a vector of structs and to an array of numbers, most of them
// far, some local, dirty, or never used, and to plain slices.
func TestAStructureComputesWhatASliceDoes(t *testing.T) {
	for _, c := range setups {
		if invariants.Enabled && c.components == 0 {
			continue // it takes long; "make plain" has it
		}
		t.Run(c.name, func(t *testing.T) {
			cfgs := make([]memnode.Config, c.nodes)
			for i := range cfgs {
				cfgs[i] = lends(c.components)
			}
			h := newFarHeap(t, NewStore(pooltest.NewCluster(t, c.setup, cfgs...).Open(pool.Config{}).Pool))
			rounds := 2
			if c.components == 0 {
				rounds = 1 // reading takes longer
			}
			vectorComputes(t, h, rounds)
			arrayComputes(t, h)
			mapComputes(t, h, c.components > 0 || c.setup.Name == pooltest.SHM.Name)
			// Over SHM the memory is mapped here, which needs no component.
			if here := c.components > 0 || c.setup.Name == pooltest.SHM.Name; here != (computed(h) > 0) {
				t.Errorf("the store has looked through %d objects, want some: %v", computed(h), here)
			}
		})
	}
}

func vectorComputes(t *testing.T, h *far.Heap, rounds int) {
	ctx, r := t.Context(), rand.New(rand.NewPCG(1, 2))
	v, err := far.NewVector[trip](h, far.StructureConfig{Name: "trips"})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Free()
	model := make([]trip, 80_001) // of which the last object has but a few
	for i := range model {
		// Quarters, whose sums are exact in whatever order.
		model[i] = trip{id: uint64(i), miles: float32(r.IntN(80)) / 4, zone: int16(r.IntN(200) - 100), fare: float64(r.IntN(400)) / 4}
	}
	if err := v.Append(ctx, model...); err != nil {
		t.Fatal(err)
	}
	miles := far.FieldOf(func(t *trip) *float32 { return &t.miles })
	zone := far.FieldOf(func(t *trip) *int16 { return &t.zone })
	fare := far.FieldOf(func(t *trip) *float64 { return &t.fare })
	for round := range rounds {
		for range 100 { // some become dirty
			i := r.IntN(len(model))
			model[i].fare += 100
			if err := v.Set(ctx, i, model[i]); err != nil {
				t.Fatal(err)
			}
		}
		i, j := r.IntN(1000), len(model)-r.IntN(3000)
		for what, c := range map[string]struct {
			conditions []far.Condition[trip]
			counts     func(i int, x trip) bool
		}{
			"all":             {nil, func(int, trip) bool { return true }},
			"far away":        {[]far.Condition[trip]{miles.Is(far.IfGreater, 15)}, func(_ int, x trip) bool { return x.miles > 15 }},
			"near, in a part": {[]far.Condition[trip]{zone.Is(far.IfGreaterOrEqual, -20), zone.Is(far.IfLess, 20), far.Within[trip](i, j)}, func(k int, x trip) bool { return x.zone >= -20 && x.zone < 20 && k >= i && k < j }},
			"nothing":         {[]far.Condition[trip]{fare.Is(far.IfLess, 0)}, func(int, trip) bool { return false }},
		} {
			var want far.Summary[float64]
			var indices []int
			for k, x := range model {
				if !c.counts(k, x) {
					continue
				}
				if want.Count++; want.Count == 1 {
					want.Min, want.Max = x.fare, x.fare
				}
				want.SumFloat += x.fare
				want.Min, want.Max = min(want.Min, x.fare), max(want.Max, x.fare)
				indices = append(indices, k)
			}
			if got, err := far.Aggregate(ctx, v, fare, c.conditions...); err != nil || got != want {
				t.Fatalf("round %d, %s: got %+v, %v, want %+v", round, what, got, err, want)
			}
			if got, err := far.Count(ctx, v, c.conditions...); err != nil || got != want.Count {
				t.Fatalf("round %d, %s: counted %d, %v, want %d", round, what, got, err, want.Count)
			}
			if round > 0 {
				continue
			}
			var found []int
			for k, err := range far.Filter(ctx, v, c.conditions...) {
				if err != nil {
					t.Fatal(err)
				}
				found = append(found, k)
			}
			if !slices.Equal(found, indices) {
				t.Fatalf("round %d, %s: got %d indices, want %d", round, what, len(found), len(indices))
			}
		}
	}
	for i := range far.Filter(ctx, v) { // who has enough ends it
		if i == 10 {
			break
		}
	}
}

func arrayComputes(t *testing.T, h *far.Heap) {
	ctx := t.Context()
	model := make([]int64, 3<<18+5)
	a, err := far.NewArray[int64](ctx, h, len(model), far.StructureConfig{Name: "numbers"})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Free()
	for i := range model[:len(model)*3/4] { // the others were never used
		model[i] = int64(i) * 7 % 1001
	}
	if err := a.Write(ctx, model[:len(model)*3/4], 0); err != nil {
		t.Fatal(err)
	}
	x := far.Itself[int64]()
	var want far.Summary[int64]
	var zeros, indices []int
	for i, v := range model {
		if v == 0 {
			zeros = append(zeros, i)
		}
		if v > 1 && v < 500 {
			indices = append(indices, i)
		}
		want.SumInt += v
		want.Max = max(want.Max, v)
	}
	want.Count = len(model)
	if got, err := far.Aggregate(ctx, a, x); err != nil || got != want {
		t.Fatalf("got %+v, %v, want %+v", got, err, want)
	}
	for _, c := range []struct {
		want       []int
		conditions []far.Condition[int64]
	}{
		{zeros, []far.Condition[int64]{x.Is(far.IfEqual, 0)}},
		{indices, []far.Condition[int64]{x.Is(far.IfGreater, 1), x.Is(far.IfLess, 500)}},
	} {
		var found []int
		for i, err := range far.Filter(ctx, a, c.conditions...) {
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, i)
		}
		if !slices.Equal(found, c.want) {
			t.Fatalf("got %d indices, want %d", len(found), len(c.want))
		}
	}
}

// mapComputes asks a map the same as Go's, of which most is far, and most of the index, too.
func mapComputes(t *testing.T, h *far.Heap, computes bool) {
	ctx, r := t.Context(), rand.New(rand.NewPCG(3, 4))
	m, err := far.NewMap(h, far.MapConfig[uint64, trip]{Name: "trips by id"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()
	model := map[uint64]trip{}
	const n = 30_000
	set := func(id uint64) {
		x := trip{id: id, zone: int16(r.IntN(200) - 100), fare: float64(r.IntN(400)) / 4}
		if err := m.Set(ctx, id, x); err != nil {
			t.Fatal(err)
		}
		model[id] = x
	}
	for i := range uint64(200) { // that will have expired, or not
		x, ttl := trip{id: n + i, fare: 1000}, time.Hour
		if i%2 == 0 {
			ttl = time.Nanosecond
		} else {
			model[n+i] = x
		}
		if err := m.SetTTL(ctx, n+i, x, ttl); err != nil {
			t.Fatal(err)
		}
	}
	for id := range uint64(n) {
		set(id)
	}
	for range 300 { // some become dirty, and some go
		set(r.Uint64N(n))
		id := r.Uint64N(n)
		if _, err := m.Delete(ctx, id); err != nil {
			t.Fatal(err)
		}
		delete(model, id)
	}
	fare := far.FieldOf(func(t *trip) *float64 { return &t.fare })
	zone := far.FieldOf(func(t *trip) *int16 { return &t.zone })
	var all, some far.Summary[float64]
	for _, x := range model {
		for s, counts := range map[*far.Summary[float64]]bool{&all: true, &some: x.zone < 20} {
			if !counts {
				continue
			}
			if s.Count++; s.Count == 1 {
				s.Min, s.Max = x.fare, x.fare
			}
			s.SumFloat += x.fare
			s.Min, s.Max = min(s.Min, x.fare), max(s.Max, x.fare)
		}
	}
	if got, err := far.Aggregate(ctx, m, fare); err != nil || got != all {
		t.Fatalf("got %+v, %v, want %+v", got, err, all)
	}
	if got, err := far.Aggregate(ctx, m, fare, zone.Is(far.IfLess, 20)); err != nil || got != some {
		t.Fatalf("got %+v, %v, want %+v", got, err, some)
	}
	if got, err := far.Count(ctx, m, zone.Is(far.IfLess, 20)); err != nil || got != some.Count {
		t.Fatalf("counted %d, %v, want %d", got, err, some.Count)
	}
	if st := m.Stats(); computes != (st.Computed > n) {
		t.Errorf("the store has looked through %d entries of %d, three times, want most: %v", st.Computed, n, computes)
	}
}

func TestWhatCannotBeComputedSaysSo(t *testing.T) {
	h := newFarHeap(t, far.NewMemStore(1<<20, 16))
	v, err := far.NewVector[trip](h, far.StructureConfig{})
	if err != nil {
		t.Fatal(err)
	}
	other := new(float64)
	elsewhere := far.FieldOf(func(*trip) *float64 { return other })
	if _, err := far.Aggregate(t.Context(), v, elsewhere); err == nil {
		t.Error("a field that is not in the element was added up")
	}
	if _, err := far.Count(t.Context(), v, elsewhere.Is(far.IfLess, 0)); err == nil {
		t.Error("a field that is not in the element was compared")
	}
	fare := far.FieldOf(func(t *trip) *float64 { return &t.fare })
	if _, err := far.Count(t.Context(), v, fare.Is(far.IfGreaterOrEqual+1, 0)); err == nil {
		t.Error("an unknown comparison was taken")
	}
	if _, err := far.Count(t.Context(), v, far.Within[trip](5, 4)); err == nil {
		t.Error("a range that ends before it begins was taken")
	}
	m, err := far.NewMap(h, far.MapConfig[int, trip]{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := far.Count(t.Context(), m, far.Within[trip](0, 4)); err == nil {
		t.Error("a range of a map was taken")
	}
	texts, err := far.NewMap(h, far.MapConfig[int, string]{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := far.Count(t.Context(), texts); err == nil {
		t.Error("strings were counted")
	}
	many := slices.Repeat([]far.Condition[trip]{fare.Is(far.IfLess, 0)}, 9)
	var last error
	for _, err := range far.Filter(t.Context(), v, many...) {
		last = err
	}
	if last == nil {
		t.Error("nine conditions were taken")
	}
}

// TestASumCountsEveryElementOnce: elements only grow, so a sum that counts each as it was at some time in
// between is between the sums before and after.
func TestASumCountsEveryElementOnce(t *testing.T) {
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.SHM} {
		t.Run("over "+s.Name, func(t *testing.T) {
			h := newFarHeap(t, NewStore(pooltest.NewCluster(t, s, lends(16<<20)).Open(pool.Config{}).Pool))
			const n = 3 << 18
			a, err := far.NewArray[int64](t.Context(), h, n, far.StructureConfig{})
			if err != nil {
				t.Fatal(err)
			}
			ones := make([]int64, n)
			for i := range ones {
				ones[i] = 1
			}
			if err := a.Write(t.Context(), ones, 0); err != nil {
				t.Fatal(err)
			}
			// An element is written by one goroutine only, which counts before and after it writes.
			var begun, ended atomic.Int64
			var wg sync.WaitGroup
			const writers = 2
			for id := range writers {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(id), 9))
					for range 1500 {
						i := r.IntN(n/writers)*writers + id
						v, err := a.Get(context.Background(), i)
						if err == nil {
							begun.Add(1)
							err = a.Set(context.Background(), i, v+1)
							ended.Add(1)
						}
						if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			for range 4 {
				least := n + ended.Load()
				got, err := far.Aggregate(t.Context(), a, far.Itself[int64]())
				most := n + begun.Load()
				if err != nil || got.Count != n || got.SumInt < least || got.SumInt > most {
					t.Errorf("got %+v, %v, want %d elements and a sum from %d to %d", got, err, n, least, most)
					break
				}
			}
			wg.Wait()
			if got, err := far.Aggregate(t.Context(), a, far.Itself[int64]()); err != nil || got.SumInt != n+ended.Load() {
				t.Errorf("got %+v, %v, want a sum of %d", got, err, n+ended.Load())
			}
			if computed(h) == 0 {
				t.Error("the store has looked through nothing")
			}
		})
	}
}

// TestASumOfAMapCountsEveryEntryOnce: the same of a map, whose entries go far and come back meanwhile.
func TestASumOfAMapCountsEveryEntryOnce(t *testing.T) {
	h := newFarHeap(t, NewStore(pooltest.NewCluster(t, pooltest.Inproc, lends(16<<20)).Open(pool.Config{}).Pool))
	m, err := far.NewMap(h, far.MapConfig[uint64, [8]int64]{})
	if err != nil {
		t.Fatal(err)
	}
	const n = 30_000
	for i := range uint64(n) {
		if err := m.Set(t.Context(), i, [8]int64{1}); err != nil {
			t.Fatal(err)
		}
	}
	field := far.FieldOf(func(v *[8]int64) *int64 { return &v[0] })
	var begun, ended atomic.Int64
	var wg sync.WaitGroup
	for id := range uint64(2) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(id, 9))
			for range 1500 {
				begun.Add(1)
				err := m.Update(context.Background(), r.Uint64N(n), func(v [8]int64, _ bool) ([8]int64, bool) {
					v[0]++
					return v, true
				})
				if ended.Add(1); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 3 {
		least := n + ended.Load()
		got, err := far.Aggregate(t.Context(), m, field)
		if most := n + begun.Load(); err != nil || got.Count != n || got.SumInt < least || got.SumInt > most {
			t.Errorf("got %+v, %v, want %d entries and a sum from %d to %d", got, err, n, least, most)
			break
		}
	}
	wg.Wait()
	if got, err := far.Aggregate(t.Context(), m, field); err != nil || got.SumInt != n+ended.Load() {
		t.Errorf("got %+v, %v, want a sum of %d", got, err, n+ended.Load())
	}
}

// TestASumOfANodeThatDiesIsRightOrFails: every answer is the right one, or says that elements are lost.
func TestASumOfANodeThatDiesIsRightOrFails(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.TCP, lends(16<<20))
	h := newFarHeap(t, NewStore(c.Open(pool.Config{}).Pool))
	const n = 3 << 18
	a, err := far.NewArray[int64](t.Context(), h, n, far.StructureConfig{})
	if err != nil {
		t.Fatal(err)
	}
	model := make([]int64, n)
	for i := range model {
		model[i] = int64(i)
	}
	if err := a.Write(t.Context(), model, 0); err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{})
	var once sync.Once
	died := make(chan struct{})
	go func() {
		defer close(died)
		<-asked
		c.Nodes[0].Crash()
		c.Nodes[0].Start()
	}()
	for lost := false; !lost; {
		got, err := far.Aggregate(t.Context(), a, far.Itself[int64]())
		once.Do(func() { close(asked) })
		switch {
		case err == nil && got.SumInt != int64(n)*(n-1)/2:
			t.Fatalf("got the sum %d, want %d", got.SumInt, int64(n)*(n-1)/2)
		case err != nil:
			lost = errors.As(err, new(*far.LostError))
		}
		if t.Context().Err() != nil {
			t.Fatal("nothing was lost")
		}
	}
	<-died
}

// TestANodeWhoseConnectionWasLostIsAskedAgain: that the connection broke while the node made its component is no reason to
// have it compute nothing for a while.
func TestANodeWhoseConnectionWasLostIsAskedAgain(t *testing.T) {
	slow := filepath.Join(t.TempDir(), "slow")
	t.Setenv("POLDER_TEST_SLOW", slow)
	if err := os.WriteFile(slow, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := pooltest.NewCluster(t, pooltest.TCP, lends(16<<20))
	client := c.Open(pool.Config{})
	h := newFarHeap(t, NewStore(client.Pool))
	const n = 3 << 18
	a, err := far.NewArray[int64](t.Context(), h, n, far.StructureConfig{})
	if err == nil {
		err = a.Write(t.Context(), make([]int64, n), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	cut := make(chan struct{})
	go func() {
		defer close(cut)
		for !t.Failed() { // until the node has begun
			if _, err := os.Stat(slow); err != nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		client.Cut(c.Nodes[0])
	}()
	count := func() {
		if got, err := far.Count(t.Context(), a); err != nil || got != n {
			t.Errorf("counted %d, %v, want %d", got, err, n)
		}
	}
	count()
	<-cut
	if count(); computed(h) == 0 {
		t.Error("the node has computed nothing")
	}
}

// grabbing is a store that remembers its segments.
type grabbing struct {
	store.Computer
	mu   sync.Mutex
	segs []far.Segment // guarded by mu
}

func (g *grabbing) Alloc(ctx context.Context) (far.Segment, error) {
	s, err := g.Computer.Alloc(ctx)
	if err == nil {
		g.mu.Lock()
		g.segs = append(g.segs, s)
		g.mu.Unlock()
	}
	return s, err
}

// TestBytesThatAreNotRightAreNotAddedUp: the node finds it out, or this process where the memory is mapped; and whoever asked is
// told as who reads is.
func TestBytesThatAreNotRightAreNotAddedUp(t *testing.T) {
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.SHM} {
		t.Run("over "+s.Name, func(t *testing.T) {
			g := &grabbing{Computer: NewStore(pooltest.NewCluster(t, s, lends(16<<20)).Open(pool.Config{}).Pool).(store.Computer)}
			h := newFarHeap(t, g)
			const n = 1 << 20
			a, err := far.NewArray[int64](t.Context(), h, n, far.StructureConfig{})
			if err != nil {
				t.Fatal(err)
			}
			if err := a.Write(t.Context(), make([]int64, n), 0); err != nil {
				t.Fatal(err)
			}
			x := far.Itself[int64]()
			if got, err := far.Aggregate(t.Context(), a, x); err != nil || got.Count != n {
				t.Fatalf("got %+v, %v, want %d elements", got, err, n)
			}
			g.mu.Lock()
			segs := slices.Clone(g.segs)
			g.mu.Unlock()
			for _, s := range segs[:2] { // which the heap fills first
				for off := 4 << 10; off < 1<<20; off += 64 << 10 {
					if err := s.Write(t.Context(), []byte("wrong"), off); err != nil {
						t.Fatal(err)
					}
				}
			}
			var corrupt *far.CorruptError
			if got, err := far.Aggregate(t.Context(), a, x); !errors.As(err, &corrupt) {
				t.Errorf("got %+v, %v, want a CorruptError", got, err)
			}
			var last error
			for _, err := range far.Filter(t.Context(), a, x.Is(far.IfNotEqual, 0)) {
				last = err
			}
			if !errors.As(last, &corrupt) {
				t.Errorf("filtering: got %v, want a CorruptError", last)
			}
		})
	}
}

// holding is a store whose second Scan does not end by itself.
type holding struct {
	store.Computer
	scans atomic.Int32
	begun chan struct{} // closed when the second one has begun
}

func (s *holding) Scan(ctx context.Context, q *offload.Scan, o store.Objects, parts []store.ScanPart, a *offload.Aggregate) {
	if s.scans.Add(1) == 2 {
		close(s.begun)
		<-ctx.Done()
	}
	s.Computer.Scan(ctx, q, o, parts, a)
}

// TestTheStoreLooksThroughTheNextWindowWhileALoopRuns: and who breaks out of the loop has the store's answer no longer
// waited for.
func TestTheStoreLooksThroughTheNextWindowWhileALoopRuns(t *testing.T) {
	s := &holding{
		Computer: NewStore(pooltest.NewCluster(t, pooltest.SHM, lends(0)).Open(pool.Config{}).Pool).(store.Computer),
		begun:    make(chan struct{}),
	}
	h := newFarHeap(t, s)
	const n = 2 << 20
	a, err := far.NewArray[int64](t.Context(), h, n, far.StructureConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Write(t.Context(), make([]int64, n), 0); err != nil {
		t.Fatal(err)
	}
	for _, err := range far.Filter(t.Context(), a) {
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-s.begun:
		case <-time.After(20 * time.Second):
			t.Error("the store was not asked to look through the next window before the loop ran")
		}
		break
	}
	if got := s.scans.Load(); got != 2 {
		t.Errorf("the store was asked %d times, want 2", got)
	}
}
