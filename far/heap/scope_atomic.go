//go:build !amd64 || race

package heap

import (
	"sync/atomic"

	"polder/internal/invariants"
)

// Entering and leaving a scope are sequentially consistent stores here, so that the evacuator needs no fence.

// Enter opens the scope. It never fails. While local memory is so scarce that those who are in a scope need all that is
// left, it waits for the evacuator, for a bounded time; in a scope that is open already it does not.
func (s *Scope) Enter() {
	e := atomic.LoadInt64(s.epoch)
	if s.isOpen() || e < 0 {
		s.enterSlow()
		return
	}
	atomic.StoreInt64(&s.open, e)
}

// Leave closes the scope: nothing that was dereferenced in it may be used any more.
func (s *Scope) Leave() {
	if atomic.LoadUint32(&s.extra) != 0 || invariants.Enabled {
		s.leaveSlow()
		return
	}
	atomic.StoreInt64(&s.open, 0)
}

func (s *Scope) isOpen() bool { return atomic.LoadInt64(&s.open) != 0 }

// asymmetric says that mutators leave the fences to the evacuator.
const asymmetric = false

func Fence() error { return nil }
