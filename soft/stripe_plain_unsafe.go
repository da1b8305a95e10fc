//go:build amd64 && !race

package soft

import (
	"sync/atomic"
	"unsafe"
)

// unlock lets a stripe go of which the state was v before it was locked, and
// counts a write. It is a plain store: nobody else changes the state of a
// locked stripe. That is outside Go's memory model, and holds because amd64
// makes stores visible in their order, and because the compiler moves none
// across another to memory that it does not know. An atomic store would wait
// until what was written has reached the cache.
func (p *stripe) unlock(v uint64) { *(*uint64)(unsafe.Pointer(p)) = v + stripeWrite }

// putHint stores a word that nobody relies on, in its order among other stores
// but without waiting until it has reached the cache: where words lie all over
// memory, that wait is most of what an atomic store takes.
func putHint(p *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(p)) = v }
