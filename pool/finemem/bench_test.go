package finemem_test

import (
	"testing"

	"polder/pool/finemem"
)

// The fast paths, of memory that nobody else has touched, do not allocate.
func TestAllocatorDoesNotAllocate(t *testing.T) {
	r := newRig(t, 8<<20, 4096)
	a := r.allocator(1, finemem.Spread, nil)
	held := make([]finemem.Block, 0, 20)
	round := func() {
		for range cap(held) {
			b, err := a.Alloc(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, b)
		}
		for _, b := range held {
			if err := a.Free(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		held = held[:0]
		if err := r.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		round()
	}
	if n := testing.AllocsPerRun(20, round); n > 0 {
		t.Errorf("%d allocations and frees allocate %v times", cap(held), n)
	}
}

// BenchmarkAllocFree is one user's, who has the memory to himself.
func BenchmarkAllocFree(b *testing.B) {
	r := newRig(b, 64<<20, 4096)
	a := r.allocator(1, finemem.Spread, nil)
	held := make([]finemem.Block, 0, 1000)
	for b.Loop() {
		block, err := a.Alloc(b.Context(), 0)
		if err != nil {
			b.Fatal(err)
		}
		if held = append(held, block); len(held) == cap(held) {
			for _, block := range held {
				if err := a.Free(b.Context(), block); err != nil {
					b.Fatal(err)
				}
			}
			held = held[:0]
		}
	}
	s := a.Stats()
	b.ReportMetric(float64(s.Retries)/float64(s.Allocs), "retries/op")
}
