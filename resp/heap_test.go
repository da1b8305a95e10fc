package resp

import (
	"testing"

	"polder/far"
)

// newHeap makes a heap with a local budget, over plenty of memory in this
// process. Who uses it closes it.
func newHeap(t testing.TB, local int64) *far.Heap {
	t.Helper()
	h, err := far.NewHeap(far.NewMemStore(1<<20, 1<<10), far.Config{Local: local})
	if err != nil {
		t.Fatal(err)
	}
	return h
}
