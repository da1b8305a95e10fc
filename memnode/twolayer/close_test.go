package twolayer

import "testing"

// The node closes spans without allocations, repairs those that are half open or
// half closed, and leaves alone what is used, or what a swapped key may open.
func TestCloseIdle(t *testing.T) {
	table := newTable(t, 2<<20, 4096)
	const user = 3
	section := func() Section { return table.Section(0) }
	set := func(at uint64, v uint64) { table.word(at).Store(v) }
	open := func(i int) {
		set(table.SectionAt(0), uint64(section().Opened(i, user)))
		set(table.SpanAt(uint32(i)), uint64(table.Span(uint32(i)).Allocated(0, 0, user, 0)))
		table.flush(table.spanHeader(uint32(i)))
	}
	free := func(i int) { set(table.SpanAt(uint32(i)), uint64(table.Span(uint32(i)).Freed(0, 0, user, 0))) }

	open(0) // used
	open(1) // idle
	free(1)
	set(table.SectionAt(0), uint64(section().Opened(2, user))) // its opener is gone, or slow
	open(3)                                                    // idle, and its key is swapped
	free(3)
	table.SetCap(ChunkLayer, 3*SpanChunks, MakeCap(5, 0))
	set(table.SectionAt(0), uint64(section().Allocated(4, SpanClass, user, 0))) // used as a whole
	slow := table.Span(2)

	if n := table.CloseIdle(0, func(string) {}); n != 2 {
		t.Errorf("%d spans were closed, want 2", n)
	}
	for i, want := range []State{InUse, Empty, Empty, InUse, Full} {
		if got := section().State(i); got != want {
			t.Errorf("span %d: state %d, want %d", i, got, want)
		}
	}
	if table.Span(2) == slow {
		t.Error("a slow opener could still open the span that was repaired")
	}
	table.SetCap(ChunkLayer, 3*SpanChunks, MakeCap(5, 6))
	if n := table.CloseIdle(0, func(string) {}); n != 1 || section().State(3) != Empty {
		t.Errorf("%d spans were closed when the key had been replaced, want 1", n)
	}
	if _, err := table.Count(); err != nil {
		t.Error(err)
	}
}
