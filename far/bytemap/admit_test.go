package bytemap

import (
	"testing"

	"polder/far/heap"
)

func isLocal(m *Map, k []byte) bool {
	_, err := m.Get(heap.NoWait, k, nil)
	return err == nil
}

// Local memory that is full of what was used is not given up for what is read once.
func TestWhatIsReadOnceDisplacesNothing(t *testing.T) {
	notWithLeaves(t)
	h, m := newTinyHeap(t, heap.NewMemStore(tinySegment, 4000), 400<<10)
	const n, hot = 12_000, 300
	keys := cold(t, m, n, 100)
	locals := func() (n int) {
		for _, k := range keys[:hot] {
			if isLocal(m, k) {
				n++
			}
		}
		return n
	}
	for round := 0; locals() < hot; round++ { // not at once, since there has to be room
		if round == 2000 {
			t.Fatalf("of %d entries that are used again and again %d are local", hot, locals())
		}
		for i, k := range keys[:hot] {
			mustGet(t, m, k, value(uint64(i), 100))
		}
	}
	before := h.Stats().EvacuatedSegments
	for i := hot; i < n; i++ {
		mustGet(t, m, keys[i], value(uint64(i), 100))
	}
	if n := locals(); n < hot*9/10 {
		t.Errorf("of %d entries that were used again and again %d are local after a scan", hot, n)
	}
	segments := uint64(n-hot) * uint64(entrySize(len(keys[0]), 100)) / uint64(h.core.Logs.SegSize)
	if got := h.Stats().EvacuatedSegments - before; got > segments/3 {
		t.Errorf("a scan of %d segments evacuated %d", segments, got)
	}
}

func TestWhatIsReadTwiceIsKept(t *testing.T) {
	notWithLeaves(t)
	h, m := newTinyHeap(t, heap.NewMemStore(tinySegment, 4000), 400<<10)
	keys := cold(t, m, 12_000, 100)
	if h.core.Logs.Roomy() { // everything is kept as long as it costs nothing
		t.Fatal("12,000 entries leave room")
	}
	first := h.Stats().Fetches
	for range 3 {
		for i, k := range keys[:20] {
			mustGet(t, m, k, value(uint64(i), 100))
		}
	}
	for i, k := range keys[:20] {
		if !isLocal(m, k) {
			t.Errorf("key %d was read three times and is not local", i)
		}
	}
	if got := h.Stats().Fetches - first; got > 40 {
		t.Errorf("20 keys were fetched %d times, want twice each at the most", got)
	}
}

func TestEverythingIsKeptWhileThereIsRoom(t *testing.T) {
	h, m := newTinyHeap(t, heap.NewMemStore(tinySegment, 4000), 400<<10)
	keys := cold(t, m, 6000, 100)
	for _, k := range keys[1000:] {
		if _, err := m.Delete(t.Context(), k); err != nil {
			t.Fatal(err)
		}
	}
	// Not at once, since the evacuator makes one segment of many.
	for range 2000 {
		before := h.Stats().Fetches
		for i, k := range keys[:1000] {
			mustGet(t, m, k, value(uint64(i), 100))
		}
		if h.Stats().Fetches == before {
			return
		}
	}
	t.Error("of 1000 entries that have room some are fetched again and again")
}
