package softnic

import (
	"fmt"

	"polder/verbs"
)

// cq is a completion queue.
type cq struct {
	num           uint32
	depth         int
	ignoreOverrun bool
	overrun       bool // nothing is added any more
	refs          int  // send and receive queues that complete into it
	queue         fifo[verbs.WC]
	successes     uint64 // ever added with StatusSuccess: what WAIT compares with
	waiters       []*qp  // suspended in a WAIT
}

// CreateCQ creates a completion queue.
func (n *NIC) CreateCQ(depth int, ignoreOverrun bool) (uint32, error) {
	if depth < 1 || depth > n.cfg.MaxCQDepth {
		return 0, fmt.Errorf("cannot create a CQ: depth %d is not between 1 and %d: %w", depth, n.cfg.MaxCQDepth, verbs.ErrInvalid)
	}
	c := &cq{depth: depth, ignoreOverrun: ignoreOverrun}
	num, ok := n.cqs.add(c)
	if !ok {
		return 0, fmt.Errorf("cannot create a CQ: %w", verbs.ErrNoResources)
	}
	c.num = num
	return num, nil
}

// DestroyCQ destroys a completion queue that no queue pair uses.
func (n *NIC) DestroyCQ(num uint32) error {
	c := n.cqs.get(num)
	if c == nil {
		return fmt.Errorf("cannot destroy CQ %d: no such CQ: %w", num, verbs.ErrInvalid)
	}
	if c.refs > 0 {
		return fmt.Errorf("cannot destroy CQ %d: %d queues complete into it: %w", num, c.refs, verbs.ErrBusy)
	}
	for len(c.waiters) > 0 { // their WAIT will find no CQ
		n.wake(c)
	}
	n.cqs.remove(num)
	return nil
}

// CQLen returns how many completions can be polled.
func (n *NIC) CQLen(num uint32) int {
	if c := n.cqs.get(num); c != nil {
		return c.queue.len()
	}
	return 0
}

// Poll moves up to len(wc) completions into wc, oldest first.
func (n *NIC) Poll(num uint32, wc []verbs.WC) int {
	c := n.cqs.get(num)
	if c == nil {
		return 0
	}
	k := min(len(wc), c.queue.len())
	for i := range wc[:k] {
		wc[i] = *c.queue.front()
		c.queue.pop()
	}
	return k
}

// complete adds wc to c and wakes the waiters.
func (n *NIC) complete(c *cq, wc verbs.WC) {
	if c.overrun {
		return
	}
	if c.queue.len() == c.depth {
		if !c.ignoreOverrun {
			c.overrun = true
			n.overrun = append(n.overrun, c)
			return
		}
		c.queue.pop()
	}
	*c.queue.push() = wc
	n.counters.Completions++
	if wc.Status == verbs.StatusSuccess {
		c.successes++
		if len(c.waiters) > 0 {
			n.wake(c)
		}
	}
	n.out.Completion(c.num)
}

// wake lets every queue that WAITs for c look again.
func (n *NIC) wake(c *cq) {
	for i, q := range c.waiters {
		c.waiters[i] = nil
		q.waiting = nil
		n.schedule(q)
	}
	c.waiters = c.waiters[:0]
}

// await suspends q until c has another success.
//
// Preconditions: q waits for nothing.
func (n *NIC) await(q *qp, c *cq) {
	q.waiting = c
	c.waiters = append(c.waiters, q)
}

func (n *NIC) stopWaiting(q *qp) {
	c := q.waiting
	if c == nil {
		return
	}
	q.waiting = nil
	for i, w := range c.waiters {
		if w == q {
			c.waiters = append(c.waiters[:i], c.waiters[i+1:]...)
			return
		}
	}
}

// failOverrun takes the queue pairs of overrun CQs to the error state.
func (n *NIC) failOverrun() {
	for len(n.overrun) > 0 {
		c := n.overrun[0]
		n.overrun = n.overrun[1:]
		for _, q := range n.qps.items {
			if q != nil && (q.sendCQ == c || q.recvCQ == c) && q.state != verbs.StateError {
				n.out.Event(verbs.AsyncEvent{Type: verbs.EventCQErr, QPN: q.num, CQN: c.num})
				n.fail(q, verbs.StatusWRFlushErr)
			}
		}
	}
	n.overrun = nil
}
