package soft

import (
	"runtime"
	"testing"
)

// TestAsManyMayWriteAsThereAreProcessors, also in the smallest heap, and in one that has become as small: segments
// that are open cannot be evicted.
func TestAsManyMayWriteAsThereAreProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(16))
	for _, segments := range []int{minSegments, 4 * minSegments} {
		h := open(t, segments)
		write := func() {
			t.Helper()
			for i := range h.append {
				a := &h.append[i]
				a.mu.Lock()
				_, err := h.placeIn(a, segYoung, header{size: 64}, make([]byte, 64))
				a.mu.Unlock()
				if err != nil {
					t.Errorf("log %d of %d of a heap of %d bytes: %v", i+1, len(h.append), h.Budget(), err)
				}
			}
		}
		write()
		if err := h.SetBudget(MinBudget); err != nil || h.Budget() != MinBudget {
			t.Errorf("a heap of %d segments shrinks to %d bytes: %v, want %d", segments, h.Budget(), err, int64(MinBudget))
		}
		for range 3 {
			write()
		}
	}
}
