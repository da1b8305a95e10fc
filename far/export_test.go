package far

import (
	"testing"

	"polder/far/heap"
)

// OpenTiny makes a heap of which the logs are segments of 16 KiB. With early set, words go far as soon as they may.
func OpenTiny(t testing.TB, store heap.Store, segments int, early bool) *Heap {
	lay := tiny
	lay.early = early
	return openObjectsWith(t, store, segments, lay)
}
