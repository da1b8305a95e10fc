//go:build amd64 && !race

package soft

import "unsafe"

// unlock lets a stripe go of which the state was v before it was locked, and
// counts a write. It is a plain store: nobody else changes the state of a
// locked stripe. That is outside Go's memory model, and holds because amd64
// makes stores visible in their order, and because the compiler moves none
// across another to memory that it does not know. An atomic store would wait
// until what was written has reached the cache.
func (p *stripe) unlock(v uint64) { *(*uint64)(unsafe.Pointer(p)) = v + stripeWrite }
