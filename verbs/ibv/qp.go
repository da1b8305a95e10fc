//go:build ibverbs

package ibv

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"polder/verbs"
)

// qp implements verbs.QP over a reliable-connected queue pair of the device's.
//
// Every request has a place in a ring, from when it is posted until it has
// completed and everything before it has. The device completes requests in
// order, and only where it is asked to; the ring knows what its answer says
// about those before. Requests that the device does not get (because they are
// wrong, the queue pair has failed, or another queue pair executes them) take
// their turn in the same ring.
//
// Locks, from outer to inner: post; a completion queue's mu; ctl.
type qp struct {
	pd             *pd
	num            uint32
	serial         uint32
	init           verbs.QPInit
	sendCQ, recvCQ *cq
	hw             hwQP

	state  atomic.Uint32 // verbs.State; StateRTS turns to StateError when somebody notices
	raised atomic.Uint32 // bits: types of event that have been raised

	post    sync.Mutex // one poster at a time
	closed  bool       // guarded by post
	gated   bool       // guarded by post: the peer is not ready; requests wait
	failing bool       // guarded by post: an earlier request is sure to fail
	holds   bool       // guarded by post: a request that waits to be given to the device is held
	quiet   int        // guarded by post: requests since the last that asked for a completion
	batch   []hwWR     // guarded by post: put together, to be posted
	waiting []hwWR     // guarded by post: behind the gate
	rbatch  []hwRR     // guarded by post
	plan    []planned  // guarded by post
	region  *mr        // guarded by post: that regionOf returned

	send ring
	recv ring
	room atomic.Int32 // for requests of other queue pairs'

	ended   chan struct{} // closed when close has done its work
	ctl     sync.Mutex    // the device's object: not destroyed while it is held
	gone    bool          // guarded by ctl
	claimed bool          // guarded by ctl: being connected
	conn    *conn         // guarded by ctl

	windowsMu sync.Mutex
	windows   map[*mw]struct{} // guarded by windowsMu: of type 2B, whose owner this is
}

// ring is the requests of a queue that have not completed. The poster fills it at tail, with post held; everything
// else belongs to the holder of the completion queue's mu.
type ring struct {
	slots []slot // a power of two
	mask  uint32
	tail  atomic.Uint32 // exclusive
	head  uint32        // everything before it has completed
	acked uint32        // everything before it that the device was given has been executed
	used  atomic.Int32  // of the places that the program has
	depth int32         // the places that the program has
}

func newRing(depth, extra int) ring {
	n := 1 << bits.Len(uint(depth+extra-1))
	return ring{slots: make([]slot, n), mask: uint32(n - 1), depth: int32(depth)}
}

func (r *ring) at(i uint32) *slot { return &r.slots[i&r.mask] }

// slot is a request in a ring.
type slot struct {
	id       uint64
	bytes    uint32
	op       verbs.Opcode
	status   verbs.Status
	signaled bool
	done     bool
	foreign  bool // the device was not given it
	hidden   bool // a relayed request, posted to another queue pair
	held     bool // a type 1 bind: the provider has not returned, and may not have noted its key yet
	sound    bool // a receive: its memory may be written
	bind     *binding
	relay    relay // hidden: whose it is
}

// binding is what a BIND_MW or LOCAL_INV does to the driver's tables.
type binding struct {
	mw       *mw
	mr       *mr // nil: it unbinds
	key, old verbs.RKey
	previous *qp  // the owner, if it fails
	revoked  bool // its window was unbound another way
}

// relayRoom is how many requests of other queue pairs' a queue pair has room
// for: a batch of binds, and to spare.
const relayRoom = 128

// CreateQP implements verbs.PD.
func (p *pd) CreateQP(init verbs.QPInit) (verbs.QP, error) {
	q, err := p.createQP(init)
	if err != nil {
		return nil, fmt.Errorf("cannot create a QP: %w", err)
	}
	return q, nil
}

func (p *pd) createQP(init verbs.QPInit) (*qp, error) {
	d := p.d
	send, ok1 := init.SendCQ.(*cq)
	recv, ok2 := init.RecvCQ.(*cq)
	switch most := d.attr.MaxQPDepth; {
	case !ok1 || !ok2 || send.d != d || recv.d != d:
		return nil, fmt.Errorf("both CQs must be of this device: %w", verbs.ErrInvalid)
	case init.SendDepth < 1 || init.SendDepth > most || init.RecvDepth < 1 || init.RecvDepth > most:
		return nil, fmt.Errorf("depths of %d and %d, want 1 to %d: %w", init.SendDepth, init.RecvDepth, most, verbs.ErrInvalid)
	case init.Managed || init.ManagedRecv || init.SendRing != nil || init.RecvRing != nil:
		return nil, fmt.Errorf("%s has no WAIT and ENABLE, which managed queues and queues in registered memory are for: %w", d.name, verbs.ErrInvalid)
	}
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer d.life.RUnlock()
	q := &qp{
		pd: p, init: init, sendCQ: send, recvCQ: recv, serial: d.serials.Add(1),
		send: newRing(init.SendDepth, init.SendDepth+relayRoom), recv: newRing(init.RecvDepth, 0),
		windows: make(map[*mw]struct{}), ended: make(chan struct{}),
	}
	if err := q.attach(); err != nil {
		p.leave()
		return nil, err
	}
	q.room.Store(relayRoom)
	var err error
	q.hw, err = hwCreateQP(p.hw, send.hw, recv.hw, init.SendDepth+relayRoom, init.RecvDepth, inlineMost)
	if err == nil {
		if err = q.hw.toInit(port); err != nil {
			q.hw.destroy()
		}
	}
	if err != nil {
		q.detach()
		p.leave()
		return nil, err
	}
	q.num = q.hw.num()
	d.mu.Lock()
	d.qps[q.num] = q
	d.mu.Unlock()
	return q, nil
}

// attach registers the queue pair with its completion queues; detach undoes that.
func (q *qp) attach() error {
	for i, c := range []*cq{q.sendCQ, q.recvCQ} {
		c.mu.Lock()
		closed := c.closed
		if !closed {
			c.users++
			c.qps[q.serial] = q
		}
		c.mu.Unlock()
		if closed {
			if i == 1 {
				q.detachFrom(q.sendCQ)
			}
			return fmt.Errorf("its CQ: %w", verbs.ErrClosed)
		}
	}
	return nil
}

func (q *qp) detach() {
	q.detachFrom(q.sendCQ)
	q.detachFrom(q.recvCQ)
}

func (q *qp) detachFrom(c *cq) {
	c.mu.Lock()
	c.users--
	delete(c.qps, q.serial)
	c.latest = nil
	c.mu.Unlock()
}

// Num implements verbs.QP.
func (q *qp) Num() uint32 { return q.num }

// State implements verbs.QP.
func (q *qp) State() verbs.State {
	s := verbs.State(q.state.Load())
	if s != verbs.StateRTS {
		return s
	}
	q.ctl.Lock()
	failed := !q.gone && q.hw.failed()
	q.ctl.Unlock()
	if failed {
		q.toError()
	}
	return verbs.State(q.state.Load())
}

// toError takes the queue pair to the error state, where the device flushes it.
// It reports whether it was not there.
func (q *qp) toError() bool {
	if verbs.State(q.state.Swap(uint32(verbs.StateError))) == verbs.StateError {
		return false
	}
	q.ctl.Lock()
	if !q.gone {
		_ = q.hw.toError() // it may be there by itself
	}
	q.ctl.Unlock()
	return true
}

// fail takes the queue pair to the error state and raises an event.
func (q *qp) fail(e verbs.EventType) {
	q.toError()
	q.raise(e)
}

// raise tells the program of an event, once per type.
func (q *qp) raise(e verbs.EventType) {
	if bit := uint32(1) << e; q.raised.Or(bit)&bit == 0 && q.init.OnEvent != nil {
		q.pd.d.tell.add(q.init.OnEvent, verbs.AsyncEvent{Type: e, QPN: q.num})
	}
}

// claim reserves the queue pair for being connected.
func (q *qp) claim() error {
	q.ctl.Lock()
	defer q.ctl.Unlock()
	s := verbs.State(q.state.Load())
	switch {
	case q.gone:
		return fmt.Errorf("cannot connect QP %d: %w", q.num, verbs.ErrClosed)
	case s != verbs.StateReset && s != verbs.StateInit:
		return fmt.Errorf("cannot connect QP %d in state %v: %w", q.num, s, verbs.ErrBadState)
	case q.claimed:
		return fmt.Errorf("QP %d is being connected already: %w", q.num, verbs.ErrBadState)
	}
	q.claimed = true
	return nil
}

func (q *qp) unclaim() {
	q.ctl.Lock()
	q.claimed = false
	q.ctl.Unlock()
}

// connect takes a claimed queue pair to StateRTS. With gated, what is posted
// waits for open.
func (q *qp) connect(c *conn, here ownAddress, there address, psn, peer, peerPSN uint32, gated bool) error {
	q.post.Lock()
	q.gated = gated
	q.post.Unlock()
	q.ctl.Lock()
	defer q.ctl.Unlock()
	q.claimed = false
	if q.gone {
		return verbs.ErrClosed
	}
	if err := q.hw.toRTS(pathBetween(here, there, psn, peer, peerPSN)); err != nil {
		return err
	}
	q.conn = c
	for {
		s := q.state.Load()
		if verbs.State(s) == verbs.StateError {
			return verbs.ErrClosed
		}
		if q.state.CompareAndSwap(s, uint32(verbs.StateRTS)) {
			return nil
		}
	}
}

// Close implements verbs.QP.
func (q *qp) Close() error {
	if err := q.pd.d.closing(q.close); err != nil {
		return fmt.Errorf("cannot close QP %d: %w", q.num, err)
	}
	return nil
}

// close is Close.
//
// Preconditions: d.life is held, or the caller closes the device.
func (q *qp) close() error {
	q.post.Lock()
	if q.closed {
		q.post.Unlock()
		<-q.ended // by another caller, perhaps still at it
		return nil
	}
	q.closed = true
	q.post.Unlock()
	defer close(q.ended)

	// In the error state first, so that what relays there are is not executed
	// any more when their windows are taken away.
	q.toError()
	another := !q.pd.d.closed
	var failed error
	for _, w := range q.bound() {
		failed = errors.Join(failed, w.replace(another))
	}
	q.ignore()

	q.ctl.Lock()
	q.gone = true
	c := q.conn
	failed = errors.Join(failed, q.hw.destroy())
	q.ctl.Unlock()
	q.detach()
	for _, r := range q.orphans() {
		r.deliver(func(w *mw) error { return w.replace(another) })
	}
	if c != nil {
		c.qpClosed(q)
	}
	q.pd.d.mu.Lock()
	if q.pd.d.qps[q.num] == q {
		delete(q.pd.d.qps, q.num)
	}
	q.pd.d.mu.Unlock()
	q.pd.leave()
	return failed
}

// ignore makes the completion queues drop what the device says about the queue pair from now on.
func (q *qp) ignore() {
	for _, c := range []*cq{q.sendCQ, q.recvCQ} {
		c.mu.Lock()
		delete(c.qps, q.serial)
		c.latest = nil
		c.latest = nil
		c.mu.Unlock()
	}
}

// orphans lists the requests of other queue pairs' that will not complete.
func (q *qp) orphans() (list []result) {
	c := q.sendCQ
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := q.send.head; i != q.send.tail.Load(); i++ {
		if s := q.send.at(i); s.relay.q != nil {
			list = append(list, result{s.relay, c, verbs.StatusWRFlushErr})
			c.relays--
		}
	}
	return list
}

// bound lists the windows that are or will be bound to the queue pair.
func (q *qp) bound() []*mw {
	q.windowsMu.Lock()
	defer q.windowsMu.Unlock()
	list := make([]*mw, 0, len(q.windows))
	for w := range q.windows {
		list = append(list, w)
	}
	return list
}

// Fail implements verbs.QP.
func (q *qp) Fail() error {
	q.post.Lock()
	closed := q.closed
	q.post.Unlock()
	if closed {
		return verbs.ErrClosed
	}
	if q.toError() {
		q.ctl.Lock()
		c := q.conn
		q.ctl.Unlock()
		if c != nil {
			c.qpFailed(q, verbs.StatusWRFlushErr) // the device says nothing by itself
		}
	}
	return nil
}

// EnableSend implements verbs.QP: there are no managed queues.
func (q *qp) EnableSend(uint64) error { return q.unmanaged() }

// EnableRecv implements verbs.QP: there are no managed queues.
func (q *qp) EnableRecv(uint64) error { return q.unmanaged() }

func (q *qp) unmanaged() error {
	return fmt.Errorf("cannot enable QP %d: %s has no managed queues: %w", q.num, q.pd.d.name, verbs.ErrInvalid)
}
