//go:build !amd64

package soft

import "sync/atomic"

// loadFence keeps the loads before it from being satisfied after the loads
// that follow: an atomic read-modify-write releases and acquires.
func loadFence() {
	var x atomic.Uint32
	x.Add(1)
}
