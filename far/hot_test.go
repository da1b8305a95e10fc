package far

import (
	"math"
	"testing"

	"polder/far/heap"
)

// TestStatsTellHotFromCold: what was read after it was stored is hot, and what was
// only stored is not, in maps and behind pointers.
func TestStatsTellHotFromCold(t *testing.T) {
	h, m := newTestHeap(t, heap.NewMemStore(1<<20, 64), Config{Local: 16 << 20})
	const n, size = 6000, 1000
	for i := range n {
		if err := m.Set(t.Context(), key(i), Entry{Value: value(uint64(i), size)}); err != nil {
			t.Fatal(err)
		}
	}
	// Stats looks at a random sample, so that its estimate is off by 0.05 in one run
	// of thirty. What this tells apart lies 0.16 and more from each other.
	const margin = 0.13
	near := func(what string, want float64) {
		t.Helper()
		s := h.Stats()
		if got := float64(s.LocalHot) / float64(s.LocalLive); math.Abs(got-want) > margin {
			t.Errorf("%s: %d of %d bytes are said to be hot, %.2f of them, want %.2f", what, s.LocalHot, s.LocalLive, got, want)
		}
	}
	near("nothing was read", 0)
	for i := range n / 2 {
		if _, err := m.Get(t.Context(), key(i), nil); err != nil {
			t.Fatal(err)
		}
	}
	near("half of the entries were read", 0.5)

	c, err := NewClass[[1000]byte](h, ClassConfig{Name: "objects"})
	if err != nil {
		t.Fatal(err)
	}
	for range n / 2 {
		p, err := c.New(t.Context(), [1000]byte{})
		if err != nil {
			t.Fatal(err)
		}
		s := h.NewScope()
		s.Enter()
		p.Deref(s)
		s.Leave()
		s.Close()
	}
	near("objects came to them, all of which were used", 2.0/3)
}
