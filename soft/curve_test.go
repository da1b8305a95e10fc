//go:build !race

// What these tests look at is counted by one goroutine, in millions of accesses.

package soft

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"polder/codec"
	"polder/soft/policy"
)

func TestTheCurveKnowsWhatMoreMemoryWouldSave(t *testing.T) {
	h := open(t, 8)
	h.curve.init(256 << 20)
	m := newMap[uint64, [1000]byte](t, h)
	const keys = 60000 // about 60 MiB, of which 16 fit
	r := rand.New(rand.NewPCG(1, 1))
	accesses := 0
	for range 6 * keys {
		k := r.Uint64N(keys)
		accesses++
		if _, ok := m.Get(k); !ok {
			if err := m.SetCost(k, [1000]byte{}, time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := h.curve.interval(1, uint64(accesses))
	now, all := c.At(h.Budget()), c.At(80<<20)
	if all < 3*now {
		t.Errorf("80 MiB would save %.1f s, what there is saves %.1f: want several times more", all, now)
	}
	if want := 0.001 * float64(accesses); all < 0.7*want || all > 1.3*want {
		t.Errorf("80 MiB would save %.1f s, want about %.1f", all, want)
	}
}

// TestTheCurveKnowsArraysAndPointersToo: uniform reads of n values that took a
// millisecond each, of which a quarter fit.
func TestTheCurveKnowsArraysAndPointersToo(t *testing.T) {
	const n, reads = 60000, 180000
	value := func(context.Context, int) ([1000]byte, error) { return [1000]byte{}, nil }
	for _, c := range []struct {
		name string
		// prepare returns what reads value i, and what says that value i took so
		// long to rebuild.
		prepare func(h *Heap) (read func(i int) bool, rebuild func(i int, cost uint8))
	}{
		{"array", func(h *Heap) (func(int) bool, func(int, uint8)) {
			a, err := NewArray(h, n, value)
			if err != nil {
				t.Fatal(err)
			}
			var v [1000]byte
			return func(i int) bool { return a.Load(i, &v) }, func(i int, cost uint8) {
				_, _, _ = storeCell(h, a.cells.id, uint64(i), &a.cells.list[i], codec.Bytes(&v), cost, false, 0)
				h.rebuiltCell(a.cells.id, uint64(i), len(v), cost)
			}
		}},
		{"pointers", func(h *Heap) (func(int) bool, func(int, uint8)) {
			pool := newPointers[[1000]byte](t, h, value)
			ptrs := make([]Ptr[[1000]byte], n)
			for i := range ptrs {
				if err := pool.Init(&ptrs[i], [1000]byte{}); err != nil {
					t.Fatal(err)
				}
			}
			var v [1000]byte
			return func(i int) bool { return ptrs[i].Load(&v) }, func(i int, cost uint8) {
				p := &ptrs[i]
				_, _, _ = storeCell(h, p.t.id, p.ref, p.cell, codec.Bytes(&v), cost, false, 0)
				h.rebuiltCell(p.t.id, p.ref, len(v), cost)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := open(t, 8)
			h.curve.init(256 << 20)
			read, rebuild := c.prepare(h)
			r := rand.New(rand.NewPCG(1, 1))
			for range reads {
				if i := r.IntN(n); !read(i) {
					rebuild(i, costClass(time.Millisecond))
				}
			}
			curve := h.curve.interval(1, 0)
			now, all := curve.At(h.Budget()), curve.At(80<<20)
			if all < 2.5*now {
				t.Errorf("80 MiB would save %.1f s, what there is saves %.1f: want several times more", all, now)
			}
			if want := 0.001 * reads; all < 0.7*want || all > 1.3*want {
				t.Errorf("80 MiB would save %.1f s, want about %.1f", all, want)
			}
		})
	}
}

func TestAPoolsWeightCountsInTheCurve(t *testing.T) {
	saved := func(weight float64, took time.Duration) float64 {
		h := open(t, 32)
		h.curve.init(256 << 20)
		p := newPool(t, h, PoolConfig[int, [1000]byte]{
			Weight:  weight,
			Rebuild: func(context.Context, int) (v [1000]byte, err error) { return v, nil },
		})
		for i := range 40000 {
			k := i % 1000
			if _, ok := p.Get(k); !ok { // as if it had been rebuilt within so long, or was put
				if err := p.put(k, &[1000]byte{}, took, 0, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
		return h.curve.interval(1, 40000).At(64 << 20)
	}
	for _, took := range []time.Duration{time.Millisecond, 0} {
		if one, four := saved(1, took), saved(4, took); one < 30 || four < 3.8*one || four > 4.2*one {
			t.Errorf("of values that took %v, with a weight of 4, %.1f s are saved, with 1, %.1f", took, four, one)
		}
	}
}

func TestTheCurveKnowsQueuesToo(t *testing.T) {
	h := open(t, 48) // so nothing vanishes, and what rebuilding takes stays as it is said to be
	h.curve.init(256 << 20)
	q, err := NewQueue(h, 1<<16, func(context.Context, uint64) ([]byte, error) { return make([]byte, 1000), nil })
	if err != nil {
		t.Fatal(err)
	}
	q.cost.Store(uint32(costClass(time.Millisecond)))
	const waiting, values = 40000, 160000 // about 40 MiB wait at a time
	for i := range values {
		if _, ok, err := q.Push(make([]byte, 1000)); !ok || err != nil {
			t.Fatalf("Push: %v, %v", ok, err)
		}
		if i >= waiting {
			if _, ok, err := q.Pop(t.Context()); !ok || err != nil {
				t.Fatalf("Pop: %v, %v", ok, err)
			}
		}
	}
	curve := h.curve.interval(1, 0)
	less, all := curve.At(20<<20), curve.At(80<<20)
	if want := 0.001 * (values - waiting); all < 0.7*want || all > 1.3*want {
		t.Errorf("80 MiB would save %.1f s, want about %.1f", all, want)
	}
	if less > all/10 {
		t.Errorf("20 MiB would save %.1f s, 80 MiB %.1f: want next to nothing of what waits longer", less, all)
	}
}

// caches are heaps that share memory in virtual time, a second a round, under the policy
// that a coordinator has by default. What is missed is stored, at no cost that anybody says.
type caches struct {
	t      *testing.T
	heaps  []*Heap
	maps   []*Map[uint64, [4000]byte]
	missed []float64 // part of the last second's reads
	policy policy.Curves
	r      *rand.Rand
}

const sharedByCaches = 128 << 20

func newCaches(t *testing.T, n int) *caches {
	t.Helper()
	c := &caches{t: t, missed: make([]float64, n), r: rand.New(rand.NewPCG(1, 1))}
	for range n {
		h, err := Open(Config{Budget: sharedByCaches / int64(n) / SegmentSize * SegmentSize, Max: sharedByCaches})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Close() })
		h.curve.init(sharedByCaches)
		c.heaps, c.maps = append(c.heaps, h), append(c.maps, newMap[uint64, [4000]byte](t, h))
	}
	return c
}

// load is what a cache is asked for in a second: reads of some of its keys, which take
// 4 KiB and a bit each.
type load struct {
	reads int
	keys  uint64
}

// second lets each cache be asked for its load, and divides the memory.
func (c *caches) second(now time.Duration, loads ...load) {
	c.t.Helper()
	apps := make([]policy.App, len(c.heaps))
	for i, h := range c.heaps {
		missed := 0
		for range loads[i].reads {
			k := c.r.Uint64N(loads[i].keys)
			if _, ok := c.maps[i].Get(k); !ok {
				missed++
				if err := c.maps[i].Set(k, [4000]byte{}); err != nil {
					c.t.Fatal(err)
				}
			}
		}
		c.missed[i] = float64(missed) / max(float64(loads[i].reads), 1)
		apps[i] = policy.App{ID: uint64(i + 1), Weight: 1, Memory: h.Budget(), Used: h.Budget(),
			Min: MinBudget, Max: sharedByCaches, Curve: h.needs(1, h.Stats())}
	}
	for i, n := range c.policy.Divide(now, sharedByCaches, apps) {
		if err := c.heaps[i].SetBudget(n / SegmentSize * SegmentSize); err != nil {
			c.t.Fatal(err)
		}
	}
}

func TestCachesThatSayNothingOfCostsAreDividedForByTheirHits(t *testing.T) {
	c := newCaches(t, 2)
	for s := range 12 {
		c.second(time.Duration(s)*time.Second, load{12000, 20000}, load{12000, 1000})
	}
	if a, b := c.heaps[0].Budget(), c.heaps[1].Budget(); a < 80<<20 || c.missed[0] > 0.08 {
		t.Errorf("a cache that could use 80 MiB has %d, and misses %.0f %% of its reads; one that could use 4 has %d", a>>20, 100*c.missed[0], b>>20)
	}
}

// TestMemoryFollowsTheLoadWithinThirtySeconds: one cache is asked for more than half of
// the memory, the other hardly at all; then it is the other way round, and back.
func TestMemoryFollowsTheLoadWithinThirtySeconds(t *testing.T) {
	const change = 30
	c := newCaches(t, 2)
	busy, idle := load{6000, 20000}, load{5, 20000}
	for s := range 3 * change {
		loads := [2]load{idle, idle}
		loads[s/change%2] = busy
		c.second(time.Duration(s)*time.Second, loads[:]...)
		if s%change != change-1 {
			continue
		}
		hot := s / change % 2
		if a, b := c.heaps[hot].Budget(), c.heaps[1-hot].Budget(); c.missed[hot] > 0.05 || b > 48<<20 {
			t.Errorf("after change %d the busy cache misses %.1f %% of its reads with %d MiB, and the idle one has %d", s/change, 100*c.missed[hot], a>>20, b>>20)
		}
	}
}

// TestAHeapThatNobodyAsksAnyMoreNeedsNoMemory: half a minute after its last read.
func TestAHeapThatNobodyAsksAnyMoreNeedsNoMemory(t *testing.T) {
	h := open(t, 16)
	h.curve.init(256 << 20)
	m := newMap[int, [1000]byte](t, h)
	next := 0
	saved := func(reads int) float64 {
		for range reads {
			next++
			if _, ok := m.Get(next % 20000); !ok {
				if err := m.Set(next%20000, [1000]byte{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		return h.needs(1, h.Stats()).At(64 << 20)
	}
	var busy, idle float64
	for range 20 {
		busy = saved(5000)
	}
	for range 30 {
		idle = saved(0)
	}
	if busy < 4 || idle > busy/20 {
		t.Errorf("64 MiB would save %.2f s in a second while 5000 reads came in it, and %.2f half a minute later: want about 5, and next to nothing", busy, idle)
	}
}

func TestStoresThatNobodyAskedForSaveNothing(t *testing.T) {
	h := open(t, 16)
	h.curve.init(256 << 20)
	m := newMap[int, [1000]byte](t, h)
	for k := range 20000 {
		if err := m.Set(k, [1000]byte{}); err != nil {
			t.Fatal(err)
		}
	}
	if c := h.curve.interval(1, 0); c.At(256<<20) > 0.01 {
		t.Errorf("the stores of a cache that is never read are said to save %v s", c.At(256<<20))
	}
}

// TestWhatIsNotSaidCostsWhatTheHeapsReconstructorsTake: a map beside a pool.
func TestWhatIsNotSaidCostsWhatTheHeapsReconstructorsTake(t *testing.T) {
	h := open(t, 16)
	for _, want := range []time.Duration{time.Millisecond, 40 * time.Microsecond} {
		if got := h.curve.seconds(unknownCost); got < 0.99*want.Seconds() || got > 1.01*want.Seconds() {
			t.Errorf("a value of which nothing is said costs %v s, want %v", got, want)
		}
		h.rebuilt(120*time.Microsecond, 3)
	}
	if got := h.curve.seconds(costClass(0)); got > 2e-9 {
		t.Errorf("a value that was said to cost nothing costs %v s", got)
	}
}
