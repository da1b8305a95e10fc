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
// A dead bit says that the slot which named the object that begins at that
// granule names something else, or is about to: the object is not written any
// more. Who overwrites an object in place holds the lock of the stripe in which
// the object begins, and the count of writes grows when he lets it go: the lock
// and the count are a sequence lock. Nobody takes another lock while he holds
// one, or blocks.
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
	order.StoreFence() // who sees what we write sees the lock
	return true
}

// unlock lets a stripe go of which the state was v before it was locked, and
// counts a write. Nobody else changes the state of a locked stripe.
func (p *stripe) unlock(v uint64) { order.Store(&p.Uint64, v+stripeWrite) }

// idle waits until nobody holds the lock and returns the state.
func (p *stripe) idle() uint64 {
	for {
		if v := p.Load(); v&stripeLocked == 0 {
			return v
		}
		runtime.Gosched() // he who holds it may have been preempted
	}
}

// markDead says that the slot that names w is about to name something else:
// when it returns, the object will not be written in place any more. If w's
// segment has begun a new life since the caller looked, an object of that life
// may be marked in its place: it is lost, which soft memory may be.
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

// revive forgets which objects of a segment were dead, and waits for whoever
// overwrites one in place. The segment's generation has been raised since
// there were any; so who takes a lock from now on finds that his word is of an
// earlier life, and writes nothing.
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
