package daemon

import (
	"testing"

	"polder/far"
)

// TestPartitionsStayWithinTheBudget: those that are open leave room for those that are being opened, and get it when they have gone.
func TestPartitionsStayWithinTheBudget(t *testing.T) {
	const local, partitions = 64 << 20, 8
	s := &shared{least: local / partitions, open: map[int]*sharedPart{}}
	s.cfg.Local = local
	for number := range 2 {
		h, err := far.NewHeap(far.NewMemStore(1<<20, 64), far.Config{Local: s.least, MaxLocal: local})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Close() })
		s.open[number] = &sharedPart{m: memory{heap: h}}
	}
	for _, c := range []struct {
		opening int
		want    int64
	}{{0, local / 2}, {1, local / 3}, {2, local / 4}, {6, s.least}, {14, s.least}, {0, local / 2}} {
		s.opening = c.opening
		if err := s.divide(t.Context()); err != nil {
			t.Fatal(err)
		}
		for number, part := range s.open {
			if got := part.m.heap.Local(); got != c.want {
				t.Errorf("while %d are being opened: partition %d has %d bytes, want %d", c.opening, number, got, c.want)
			}
		}
	}
}
