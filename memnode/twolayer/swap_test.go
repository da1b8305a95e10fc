package twolayer

import (
	"bytes"
	"testing"
)

// With Swap, nothing else changes the metadata: a device could undo it.
func TestSwapIsAllThatWrites(t *testing.T) {
	table := newTable(t, 4<<20, 4096)
	const user = 3
	set := func(at uint64, v uint64) { table.word(at).Store(v) }
	set(table.SectionAt(0), uint64(table.Section(0).Opened(0, user)))
	set(table.SpanAt(0), uint64(table.Span(0).Allocated(0, 0, user, 0)))
	set(table.SectionAt(1), uint64(table.Section(1).Allocated(4, SpanClass, user, 0)))
	set(table.CapAt(ChunkLayer, 0), uint64(MakeCap(5, 6)))
	set(table.CapAt(SpanLayer, SectionChunks+4*SpanChunks), uint64(MakeCap(7, 8)))

	shadow, swaps, failed := bytes.Clone(table.mem), 0, false
	table.Swap = func(at, old, new uint64) bool {
		if !bytes.Equal(shadow, table.mem) {
			t.Error("something was written without Swap")
		}
		// Every third swap is lost to somebody else.
		if swaps++; swaps%3 == 1 {
			failed = true
			return false
		}
		ok := table.word(at).CompareAndSwap(old, new)
		copy(shadow, table.mem)
		return ok
	}
	var has []Extent
	table.Owned(user, func(x Extent) { has = append(has, x) })
	if len(has) != 2 {
		t.Fatalf("the user has %v, want a chunk and a span", has)
	}
	for _, x := range has {
		table.Release(user, x, func(string) {})
	}
	for _, c := range []struct {
		layer int
		chunk uint32
	}{{ChunkLayer, 0}, {SpanLayer, SectionChunks + 4*SpanChunks}} {
		if !table.Cap(c.layer, c.chunk).IsSwapped() {
			t.Errorf("the key of chunk %d is not swapped", c.chunk)
		}
		table.SetCap(c.layer, c.chunk, MakeCap(9, 10))
	}
	for table.CloseIdle(0, func(string) {}) == 0 { // the first is lost
	}
	if !bytes.Equal(shadow, table.mem) {
		t.Error("something was written without Swap")
	}
	if !failed || table.Allocated() != 0 || table.Frees(0) != 1 || table.Frees(1) != 1 {
		t.Errorf("%d chunks are allocated, %d and %d frees counted, want 0, 1 and 1", table.Allocated(), table.Frees(0), table.Frees(1))
	}
	if _, err := table.Count(); err != nil {
		t.Error(err)
	}
}
