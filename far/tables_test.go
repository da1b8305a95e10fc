package far

import (
	"testing"

	"polder/far/heap"
	"polder/internal/invariants"
)

// When the budget becomes smaller, tables that have more than their share of it do, too, however much that is; what they knew
// is known by leaves, and everything is found. A budget that cannot be leaves everything as it was.
func TestTablesBecomeSmallerWithTheBudget(t *testing.T) {
	t.Parallel()
	if invariants.Enabled {
		return // one goroutine does much; "make plain" runs it
	}
	const most, least, entries = 16 << 20, 5 << 20, 1 << 18
	h, err := NewHeap(NewMemStore(1<<20, 256), Config{Local: most})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	ctx := t.Context()
	m := h.NewByteMap("test")
	for n := range entries {
		if err := m.Set(ctx, key(n), Entry{Value: value(uint64(n), 24)}); err != nil {
			t.Fatal(err)
		}
	}
	tables := func() int64 { return h.Stats().Lines[heap.Tables] }
	if n := tables(); n < most/5 {
		t.Fatalf("tables take %d bytes, want more than what a small budget would have for them", n)
	}
	for _, impossible := range []int64{0, 1 << 20} {
		before := h.Local()
		if err := h.SetLocal(ctx, impossible); err == nil || h.Local() != before {
			t.Fatalf("a budget of %d bytes is set: %v, and it is %d, and was %d", impossible, err, h.Local(), before)
		}
	}
	for _, budget := range []int64{most / 2, least} {
		if err := h.SetLocal(ctx, budget); err != nil {
			t.Fatal(err)
		}
		if n := tables(); n > max(budget/5, budget/2)*5/4 {
			t.Errorf("tables take %d bytes of a budget of %d", n, budget)
		}
		for n := 0; n < entries; n += 97 {
			if e, err := m.Get(ctx, key(n), nil); err != nil || string(e.Value) != string(value(uint64(n), 24)) {
				t.Fatalf("key %d with a budget of %d: %q, %v", n, budget, e.Value, err)
			}
		}
		if err := m.Set(ctx, []byte("new"), Entry{Value: []byte("value")}); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.SetLocal(ctx, most); err != nil {
		t.Error(err)
	}
}

// Where pointers have taken their part of the budget, tables stay smaller, so that more find room beside a map
// that has more entries than local memory has room for the words of.
func TestTablesLeaveRoomForPointers(t *testing.T) {
	t.Parallel()
	if invariants.Enabled {
		return // one goroutine does much; "make plain" runs it
	}
	const local, pointers, entries = 16 << 20, 1 << 18, 1 << 19
	h, err := NewHeap(NewMemStore(1<<20, 256), Config{Local: local})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	ctx := t.Context()
	array := func() {
		t.Helper()
		if _, err := NewArray[int64](ctx, h, pointers, StructureConfig{Group: 1}); err != nil {
			t.Fatal(err)
		}
	}
	array()
	m := h.NewByteMap("test")
	for n := range entries {
		if err := m.Set(ctx, key(n), Entry{Value: []byte("v")}); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		array()
	}
}
