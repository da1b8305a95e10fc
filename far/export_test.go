package far

import "testing"

// OpenTiny makes a heap of which the logs are segments of 16 KiB.
func OpenTiny(t testing.TB, store Store, segments int) *Heap { return openObjects(t, store, segments) }
