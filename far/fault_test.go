package far

import (
	"fmt"
	"testing"

	"polder/far/bytemap"
	"polder/far/heap"
	"polder/internal/buddy"
)

// tiny is a layout so small that a few hundred kilobytes of entries go through
// everything that a heap does. Keys must not be longer than a kilobyte.
var tiny = layout{
	Sizes: heap.Sizes{
		SegSize: 16 << 10,
		Staging: 16 << 10,
		Fetch:   2 * buddy.MaxBuf,
		Logs:    (12*16 + 8*4) << 10,
		Open:    1,
	},
	shards: 8,
}

const (
	tinySegment = 32 << 10 // of its store
	tinyPiece   = 2 << 10  // of a large value in it
)

// notWithLeaves skips a test that counts reads, or has no memory for leaves, in builds with the tag settle, where every
// map has them.
func notWithLeaves(t *testing.T) {
	t.Helper()
	if bytemap.SettleEarly {
		t.Skip("leaves are read, too")
	}
}

// openEarly makes a heap that the test closes, which settles words as soon as a table of a page is full.
func openEarly(t testing.TB, store heap.Store, local int64) (*Heap, *ByteMap) {
	t.Helper()
	lay := tiny
	lay.Logs, lay.early = max(lay.Logs, local), true
	h, err := newHeap(store, Config{Local: lay.Local(), MaxValue: 1 << 20}, lay)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h, h.NewByteMap("test")
}

// growLeaves sets keys of m until some words of theirs are in leaves.
func growLeaves(t *testing.T, h *Heap, m *ByteMap) {
	t.Helper()
	for i := 0; h.Stats().LeavesFar == 0; i++ {
		if i == 100_000 {
			t.Error("no words go far")
			return
		}
		mustSet(t, m, fmt.Append(nil, "leaf", i), nil)
	}
}

// evacuateBy makes every entry of m far by filling another map.
func evacuateBy(t *testing.T, m, other *ByteMap) {
	t.Helper()
	for local := true; local; {
		local = false
		for cursor := uint64(0); ; {
			next, err := m.Scan(t.Context(), cursor, func(key []byte, _ Entry) {
				_, _, err := m.Stat(NoWait, key)
				local = local || err == nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if cursor = next; next == 0 {
				break
			}
		}
		for j := range 600 {
			mustSet(t, other, key(j), value(uint64(j), 1000))
		}
	}
}

// newTinyHeap makes a heap whose logs hold local bytes.
func newTinyHeap(t testing.TB, store heap.Store, local int64) (*Heap, *ByteMap) {
	t.Helper()
	h, m := openTiny(t, store, local)
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h, m
}

// openTiny makes a heap that the caller closes.
func openTiny(t interface{ Fatal(...any) }, store heap.Store, local int64) (*Heap, *ByteMap) {
	lay := tiny
	lay.Logs = max(lay.Logs, local)
	cfg := Config{Local: lay.Local(), MaxValue: 1 << 20}
	h, err := newHeap(store, cfg, lay)
	if err != nil {
		t.Fatal(err)
	}
	return h, h.NewByteMap("test")
}
