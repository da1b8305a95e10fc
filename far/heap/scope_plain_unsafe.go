//go:build amd64 && !race

package heap

import (
	"sync/atomic"

	"polder/internal/arena"
	"polder/internal/invariants"
)

// Entering and leaving a scope are plain stores here: the evacuator's membarrier(2) is what orders them. That is
// outside Go's memory model, and holds because amd64 orders stores among themselves, and loads with the stores that
// follow them, and because the compiler neither drops stores to memory that it does not know nor moves loads of such
// memory across them.

// Enter opens the scope. It never fails. While local memory is so scarce that those who are in a scope need all that is
// left, it waits for the evacuator, for a bounded time; in a scope that is open already it does not.
func (s *Scope) Enter() {
	e := atomic.LoadInt64(s.epoch)
	if s.open == 0 && e >= 0 {
		s.open = e
	} else {
		s.enterSlow()
	}
}

// Leave closes the scope: nothing that was dereferenced in it may be used any more.
func (s *Scope) Leave() {
	if s.extra != 0 || invariants.Enabled {
		s.leaveSlow()
		return
	}
	s.open = 0
}

func (s *Scope) isOpen() bool { return s.open != 0 }

// asymmetric says that mutators leave the fences to the evacuator, so that
// without membarrier(2) they have to take the slow path.
const asymmetric = true

// Fence makes every store that a mutator did before it visible here, and
// every store done here visible to what mutators load after it.
func Fence() error { return arena.Membarrier() }
