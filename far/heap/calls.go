package heap

import (
	"sync/atomic"

	"polder/internal/processor"
)

// calls counts the calls that Close has to wait for. Counting is part of every
// miss, so each processor counts in a place of its own; they are added up only
// when the heap is being closed.
type calls struct {
	closed atomic.Bool
	idle   chan struct{} // closed when closed and none is under way
	ended  atomic.Bool   // idle is closed
	parts  [callParts]callPart
}

// callParts is a power of two.
const callParts = 16

type callPart struct {
	n atomic.Int64
	_ [120]byte // two cache lines, which are fetched together
}

func (c *calls) init() { c.idle = make(chan struct{}) }

func (c *calls) part() *atomic.Int64 { return &c.parts[processor.Number()&(callParts-1)].n }

// Begin is called by every call that leaves its shard's lock, so that Close
// can wait for it; end when it returns.
//
// Hot path: a miss begins and ends once.
func (h *Heap) Begin() error {
	c := &h.calls
	n := c.part()
	n.Add(1)
	if c.closed.Load() {
		n.Add(-1)
		c.settle()
		return ErrClosed
	}
	return nil
}

// End may run on another processor than begin: only the sum counts.
func (h *Heap) End() {
	c := &h.calls
	c.part().Add(-1)
	if c.closed.Load() {
		c.settle()
	}
}

// close keeps further calls from beginning. When none is under way, idle is
// closed.
func (c *calls) close() {
	c.closed.Store(true)
	c.settle()
}

// settle closes idle if no call is under way. All that began before closed was
// set are in the parts that it adds up, whether or not it sees that they have
// ended; one that began too late takes itself out of the part where it was
// counted. So the sum is never too small, and whoever ends last finds it 0.
//
// Preconditions: closed is set.
func (c *calls) settle() {
	sum := int64(0)
	for i := range c.parts {
		sum += c.parts[i].n.Load()
	}
	if sum == 0 && c.ended.CompareAndSwap(false, true) {
		close(c.idle)
	}
}
