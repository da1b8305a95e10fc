//go:build !race

// What these tests look at is counted by one goroutine, in millions of accesses.

package soft

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

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
				_, _, _ = storeCell(h, a.cells.id, uint64(i), &a.cells.list[i], bytesOf(&v), cost, false, 0)
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
				_, _, _ = storeCell(h, p.t.id, p.ref, p.cell, bytesOf(&v), cost, false, 0)
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
				if err := p.put(k, [1000]byte{}, took, 0, nil); err != nil {
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

// twoCaches runs two caches in virtual time, a second a round, under the policy
// that a coordinator has by default: the first asks for much more than half of
// the memory, the second for little; both store what they missed, at no cost that
// they say. It returns what each has in the end, and what part of the first one's
// last reads were misses.
func twoCaches(t *testing.T) (memory [2]int64, misses float64) {
	t.Helper()
	const total, reads = 128 << 20, 12000
	keys := [2]uint64{20000, 1000} // of 4 KiB and a bit
	var heaps [2]*Heap
	var maps [2]*Map[uint64, [4000]byte]
	var accesses [2]uint64
	for i := range heaps {
		h, err := Open(Config{Budget: total / 2, Max: total})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Close() })
		h.curve.init(total)
		heaps[i], maps[i] = h, newMap[uint64, [4000]byte](t, h)
	}
	r := rand.New(rand.NewPCG(1, 1))
	p := &policy.Curves{}
	for second := range 12 {
		apps := make([]policy.App, len(heaps))
		for i, h := range heaps {
			missed := 0
			for range reads {
				k := r.Uint64N(keys[i])
				accesses[i]++
				if _, ok := maps[i].Get(k); !ok {
					missed++
					if err := maps[i].Set(k, [4000]byte{}); err != nil {
						t.Fatal(err)
					}
				}
			}
			if i == 0 {
				misses = float64(missed) / reads
			}
			apps[i] = policy.App{ID: uint64(i + 1), Weight: 1, Memory: h.Budget(), Used: h.Budget(),
				Min: MinBudget, Max: total, Curve: h.curve.interval(1, accesses[i])}
		}
		for i, n := range p.Divide(time.Duration(second)*time.Second, total, apps) {
			memory[i] = n
			if err := heaps[i].SetBudget(n / SegmentSize * SegmentSize); err != nil {
				t.Fatal(err)
			}
		}
	}
	return memory, misses
}

func TestCachesThatSayNothingOfCostsAreDividedForByTheirHits(t *testing.T) {
	memory, misses := twoCaches(t)
	if memory[0] < 80<<20 || misses > 0.08 {
		t.Errorf("a cache that could use 80 MiB has %d, and misses %.0f %% of its reads; one that could use 4 has %d",
			memory[0]>>20, 100*misses, memory[1]>>20)
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
