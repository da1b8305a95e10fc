// Package calls counts calls that are under way, so that what they use can be closed once they have ended.
package calls

import (
	"sync/atomic"

	"polder/internal/processor"
)

// Calls counts the calls that have to end before something is closed. Every call may be counted, so each processor
// counts in a place of its own, and the places are added up only when it is being closed. New makes a Calls; any
// number of goroutines may use it.
type Calls struct {
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

// New returns a count of none.
func New() *Calls { return &Calls{idle: make(chan struct{})} }

func (c *Calls) part() *atomic.Int64 { return &c.parts[processor.Number()&(callParts-1)].n }

// Begin counts a call until End is called. It returns false if Close was called before.
func (c *Calls) Begin() bool {
	n := c.part()
	n.Add(1)
	if c.closed.Load() {
		n.Add(-1)
		c.settle()
		return false
	}
	return true
}

// End may run on another processor than Begin: only the sum counts.
func (c *Calls) End() {
	c.part().Add(-1)
	if c.closed.Load() {
		c.settle()
	}
}

// Close keeps further calls from beginning. It returns a channel that is closed when no call is under way any more.
func (c *Calls) Close() <-chan struct{} {
	c.closed.Store(true)
	c.settle()
	return c.idle
}

// settle closes idle if no call is under way. Every call that began before closed was set is in the parts that settle
// adds up, whether or not settle sees that it has ended. A call that began too late subtracts itself from the part in
// which it was counted. So the sum is never too small, and the goroutine that ends the last call finds it 0.
//
// Preconditions: closed is set.
func (c *Calls) settle() {
	sum := int64(0)
	for i := range c.parts {
		sum += c.parts[i].n.Load()
	}
	if sum == 0 && c.ended.CompareAndSwap(false, true) {
		close(c.idle)
	}
}
