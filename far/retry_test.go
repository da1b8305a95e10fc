package far

import (
	"polder/far/heap"
	"polder/far/store/storetest"
	"testing"
	"testing/synctest"
	"time"
)

// However late the evacuator comes to look, a store that has failed is tried
// again while there is too little room, since those who wait wake it once only.
func TestFailedStoreIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h Heap
		if err := h.core.Logs.Init(1<<20, 1<<20, 0, 64<<10, 1); err != nil {
			t.Fatal(err)
		}
		defer h.core.Logs.Mapping.Close()
		h.core.Far.Failed(storetest.ErrInjected)
		if d, ok := h.core.RetryIn(); !ok || d > heap.MaxBackoff {
			t.Errorf("with room, just after a failure: %v, %v, want a short wait", d, ok)
		}
		h.core.Far.Retry = time.Now().Add(-time.Second)
		if d, ok := h.core.RetryIn(); ok {
			t.Errorf("with room, long after a failure: a wait of %v, want none", d)
		}
		for h.core.Logs.Satisfied() {
			h.core.Logs.Take(heap.ForEvacuator, heap.Locked, -1)
		}
		if d, ok := h.core.RetryIn(); !ok || d > heap.MaxBackoff {
			t.Errorf("without room, long after a failure: %v, %v, want a short wait", d, ok)
		}
		h.core.Far.Failed(heap.ErrStoreFull)
		if d, ok := h.core.RetryIn(); ok {
			t.Errorf("with a full store: a wait of %v, want none: the janitor wakes the evacuator", d)
		}
	})
}
