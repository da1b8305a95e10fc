//go:build !amd64

package order

import "sync/atomic"

// LoadFence keeps the loads before it from being satisfied after the loads
// that follow: an atomic read-modify-write releases and acquires.
func LoadFence() {
	var x atomic.Uint32
	x.Add(1)
}

// StoreFence keeps the stores after it from being seen before the atomic operation that precedes it. Without it, a
// compare-and-swap that the processor makes of a load and a store may be seen after the stores that follow it.
func StoreFence() { LoadFence() }
