package soft

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"
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
	saved := func(weight float64) float64 {
		h := open(t, 32)
		h.curve.init(256 << 20)
		p := newPool(t, h, PoolConfig[int, [1000]byte]{
			Weight:  weight,
			Rebuild: func(context.Context, int) (v [1000]byte, err error) { return v, nil },
		})
		for i := range 40000 {
			k := i % 1000
			if _, ok := p.Get(k); !ok { // as if it had been rebuilt within a millisecond
				if err := p.put(k, [1000]byte{}, time.Millisecond, 0, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
		return h.curve.interval(1, 40000).At(64 << 20)
	}
	if one, four := saved(1), saved(4); four < 3.8*one || four > 4.2*one {
		t.Errorf("with a weight of 4, %.1f s are saved, with 1, %.1f", four, one)
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
