package far

import (
	"testing"

	"polder/far/heap"
)

// OpenTiny makes a heap of which the logs are segments of 16 KiB.
func OpenTiny(t testing.TB, store heap.Store, segments int) *Heap {
	return openObjects(t, store, segments)
}
