package soft

import (
	"runtime"
	"sync/atomic"

	"polder/soft/internal/order"
)

// A stripe is 1 KiB of a segment: the 32 granules that share a state word.
// State words lie beside the segments, in ordinary memory that cannot vanish.
//
//	63         33    32     31       0
//	+------------+--------+-----------+
//	| writes     | locked | dead bits |
//	+------------+--------+-----------+
//
// The dead bit of a granule says that the slot that named the object which begins there names something else, or is
// about to: the object is not written any more. Whoever overwrites an object in place holds the lock of the stripe in
// which the object begins. Unlocking adds one to the count of writes: the lock and the count are a sequence lock. The
// holder of a stripe's lock takes no other lock and does not block.
type stripe struct{ atomic.Uint64 }

const (
	stripeGranules = 32
	stripesPerSeg  = segGranules / stripeGranules

	stripeDead   = 1<<stripeGranules - 1
	stripeLocked = 1 << stripeGranules
	stripeWrite  = 2 << stripeGranules
)

// stripeOf returns the stripe in which an object begins.
func (s *store) stripeOf(w word) *stripe {
	return &s.stripes[w.segment()*stripesPerSeg+w.granule()/stripeGranules]
}

// deadBit is an object's bit in the state of its stripe.
func (w word) deadBit() uint64 { return 1 << (w.granule() % stripeGranules) }

// sameWrites reports whether nobody has overwritten anything in the stripe
// between two loads of its state. For a write to be overlooked there would
// have to be 2,147,483,648 of them in this KiB meanwhile.
func sameWrites(before, after uint64) bool { return (before^after)>>stripeGranules == 0 }

// tryLock locks a stripe of which the state was seen to be v.
func (p *stripe) tryLock(v uint64) bool {
	if v&stripeLocked != 0 || !p.CompareAndSwap(v, v|stripeLocked) {
		return false
	}
	order.StoreFence() // whoever sees what we write sees the lock
	return true
}

// unlock unlocks a stripe whose state was v before it was locked, and counts a write. Nobody else changes the state
// of a locked stripe.
func (p *stripe) unlock(v uint64) { order.Store(&p.Uint64, v+stripeWrite) }

// idle waits until nobody holds the lock and returns the state.
func (p *stripe) idle() uint64 {
	for {
		if v := p.Load(); v&stripeLocked == 0 {
			return v
		}
		runtime.Gosched() // the holder may have been preempted
	}
}

// markDead sets the dead bit of w's object, whose slot is about to name something else. Once markDead has returned,
// the object is not written in place any more. If w's segment begins a new life meanwhile, markDead may mark an
// object of that life instead: that object is evicted early, as soft memory may be.
func (s *store) markDead(w word) {
	if !w.alive(s.ctl.Generation(w.segment())) {
		return
	}
	p := s.stripeOf(w)
	for {
		v := p.idle()
		if v&w.deadBit() != 0 || p.CompareAndSwap(v, v|w.deadBit()) {
			return
		}
	}
}

func (s *store) isDead(w word) bool { return s.stripeOf(w).Load()&w.deadBit() != 0 }

// revive clears a segment's dead bits, and waits for everybody who still overwrites an object in place. The segment's
// generation has been raised since it held objects; so a writer that takes a lock from now on finds that its word is
// of an earlier life, and writes nothing.
//
// Preconditions: the segment is empty and not open.
func (s *store) revive(seg uint32) {
	for i := range stripesPerSeg {
		p := &s.stripes[seg*stripesPerSeg+uint32(i)]
		for {
			v := p.idle()
			if v&stripeDead == 0 || p.CompareAndSwap(v, v&^stripeDead) {
				break
			}
		}
	}
}
