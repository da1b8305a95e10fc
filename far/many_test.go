package far

import (
	"context"
	"polder/far/heap"
	"polder/internal/invariants"
	"testing"
)

func TestReadsOfWhatIsFarMakeNoGarbage(t *testing.T) {
	notWithLeaves(t)
	if invariants.Enabled {
		return // the race detector allocates
	}
	h, m := newTinyHeap(t, heap.NewMemStore(tinySegment, 400), 400<<10)
	ints := newMap(t, h, MapConfig[uint64, [64]byte]{})
	var keys [][]byte
	for i := range 4000 {
		mustSet(t, m, key(i), value(uint64(i), 100))
		keys = append(keys, key(i))
	}
	for i := range uint64(4000) {
		if err := ints.Set(t.Context(), i, [64]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
	}
	ctx := context.Background()
	buf := make([]byte, 0, 200)
	at := 0
	next := func(n int) [][]byte {
		if at += n; at+n > len(keys) {
			at = 0
		}
		return keys[at : at+n]
	}
	before := h.Stats()
	for name, c := range map[string]struct {
		most float64
		fn   func()
	}{
		"Get":        {0.5, func() { m.Get(ctx, next(1)[0], buf) }},
		"Get of Map": {0.5, func() { ints.Get(ctx, uint64(at)); next(1) }},
		"64 by GetMany": {8, func() { // for all of them together, some more where the evacuator is held up
			m.GetMany(ctx, next(64), func(_ int, e Entry, err error) { buf = append(buf[:0], e.Value...) })
		}},
	} {
		c.fn()
		if n := testing.AllocsPerRun(1000, c.fn); n > c.most {
			t.Errorf("%s: %v allocations, want %v at the most", name, n, c.most)
		}
	}
	if n := h.Stats().Fetches - before.Fetches; n < 3000 {
		t.Errorf("%d fetches: too little was far", n)
	}
}
