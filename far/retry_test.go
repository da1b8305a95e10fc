package far

import (
	"testing"
	"testing/synctest"
	"time"
)

// However late the evacuator comes to look, a store that has failed is tried
// again while there is too little room, since those who wait wake it once only.
func TestFailedStoreIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h Heap
		if err := h.logs.init(1<<20, 1<<20, 0, 64<<10, 1); err != nil {
			t.Fatal(err)
		}
		defer h.logs.mapping.Close()
		h.far.failed(errInjected)
		if d, ok := h.retryIn(); !ok || d > maxBackoff {
			t.Errorf("with room, just after a failure: %v, %v, want a short wait", d, ok)
		}
		h.far.retry = time.Now().Add(-time.Second)
		if d, ok := h.retryIn(); ok {
			t.Errorf("with room, long after a failure: a wait of %v, want none", d)
		}
		for h.logs.satisfied() {
			h.logs.take(forEvacuator, entries)
		}
		if d, ok := h.retryIn(); !ok || d > maxBackoff {
			t.Errorf("without room, long after a failure: %v, %v, want a short wait", d, ok)
		}
		h.far.failed(ErrStoreFull)
		if d, ok := h.retryIn(); ok {
			t.Errorf("with a full store: a wait of %v, want none: the janitor wakes the evacuator", d)
		}
	})
}

// Segments that a store does not take back at once are offered again.
func TestSegmentsAreGivenBackInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaultStore(tinySegment, 1000)
		h, m := newTinyHeap(t, store, 0)
		fillTiny(t, m, 1000)
		store.failFree.Store(true)
		m.Clear()
		time.Sleep(time.Second)
		store.failFree.Store(false)
		time.Sleep(time.Second)
		// The open segment and the spare one are all that is kept.
		if s := h.Stats(); store.Lent() > 3 || s.Unreturned != 0 {
			t.Errorf("%d segments are still lent, %d are given up, want at most 3, and none", store.Lent(), s.Unreturned)
		}
	})
}
