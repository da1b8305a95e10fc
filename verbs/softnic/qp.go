package softnic

import (
	"fmt"

	"polder/verbs"
)

// qp is a queue pair.
type qp struct {
	num   uint32
	pd    *domain
	state verbs.State

	link   *link  // nil until connected
	remote uint32 // the peer's number

	sendCQ, recvCQ *cq
	sq, rq         ring
	windows        *region // of type 2B, bound to this queue pair
	alloc          *lease  // what the peer may allocate, or nil
	lazyAcks       bool

	// In the run queue, on the link's list, in a CQ's list of waiters.
	nextRun  *qp
	queued   bool
	blocked  bool
	waiting  *cq
	downOwed bool

	req requester
	rsp responder
}

// hasWork reports whether serving q again at once may make sense.
func (q *qp) hasWork() bool {
	if q.rsp.owes() {
		return true
	}
	return q.state == verbs.StateRTS && q.waiting == nil && !q.req.halted &&
		(q.req.msg.active || q.sq.next < q.sq.limit())
}

// QPConfig configures a queue pair.
type QPConfig struct {
	PD             uint32
	SendCQ, RecvCQ uint32
	SendDepth      int // 0: nothing can be posted
	RecvDepth      int
	ManagedSend    bool
	ManagedRecv    bool
	SendRing       verbs.RKey // of an MR; 0: memory of the NIC's own
	RecvRing       verbs.RKey
	// LazyAcks makes the NIC acknowledge SENDs together with what is posted next, or else once eight packets of SENDs
	// are unacknowledged.
	LazyAcks bool
}

// CreateQP creates a queue pair in verbs.StateReset and returns its number.
func (n *NIC) CreateQP(c QPConfig) (uint32, error) {
	q := &qp{pd: n.pds.get(c.PD), sendCQ: n.cqs.get(c.SendCQ), recvCQ: n.cqs.get(c.RecvCQ), lazyAcks: c.LazyAcks}
	if q.pd == nil || q.sendCQ == nil || q.recvCQ == nil {
		return 0, fmt.Errorf("cannot create a QP: no such protection domain or CQ: %w", verbs.ErrInvalid)
	}
	if err := n.initRing(&q.sq, q.pd, c.SendDepth, c.ManagedSend, c.SendRing); err != nil {
		return 0, fmt.Errorf("cannot create a QP's send queue: %w", err)
	}
	if err := n.initRing(&q.rq, q.pd, c.RecvDepth, c.ManagedRecv, c.RecvRing); err != nil {
		return 0, fmt.Errorf("cannot create a QP's receive queue: %w", err)
	}
	num, ok := n.qps.add(q)
	if !ok {
		return 0, fmt.Errorf("cannot create a QP: %w", verbs.ErrNoResources)
	}
	q.num = num
	q.req.slots = make([]slot, q.sq.depth)
	q.pd.refs++
	q.sendCQ.refs++
	q.recvCQ.refs++
	for _, r := range []*ring{&q.sq, &q.rq} {
		if r.mr != nil {
			r.mr.refs++
		}
	}
	return num, nil
}

func (n *NIC) initRing(r *ring, pd *domain, depth int, managed bool, mr verbs.RKey) error {
	if depth < 0 || depth > n.cfg.MaxQPDepth {
		return fmt.Errorf("depth %d is not between 0 and %d: %w", depth, n.cfg.MaxQPDepth, verbs.ErrInvalid)
	}
	if managed && depth == 0 {
		return fmt.Errorf("a managed queue needs a depth: %w", verbs.ErrInvalid)
	}
	r.depth, r.managed = uint64(depth), managed
	if depth&(depth-1) == 0 && depth > 0 {
		r.mask = r.depth - 1
	}
	size := depth * verbs.WQESize
	if n.cfg.Prefetch {
		r.fetched = make([]byte, size)
	}
	if mr == 0 {
		r.mem = make([]byte, size)
		return nil
	}
	g := n.keys.get(mr)
	switch {
	case g == nil || g.window != 0 || g.pd != pd:
		return fmt.Errorf("ring %v: no such region in the protection domain: %w", mr, verbs.ErrInvalid)
	case len(g.mem) < size:
		return fmt.Errorf("ring %v: region of %d bytes, not at least %d: %w", mr, len(g.mem), size, verbs.ErrInvalid)
	}
	r.mem, r.mr = g.mem[:size:size], g
	return nil
}

// ConnectQP joins a queue pair to the one of number remote at the other end
// of a link, and takes it to verbs.StateRTS. On the link Loopback, remote is a
// queue pair of this NIC, to be connected likewise.
func (n *NIC) ConnectQP(num uint32, id Link, remote uint32) error {
	q := n.qps.get(num)
	switch {
	case q == nil:
		return fmt.Errorf("cannot connect QP %d: no such QP: %w", num, verbs.ErrInvalid)
	case q.state != verbs.StateReset && q.state != verbs.StateInit:
		return fmt.Errorf("cannot connect QP %d in state %v: %w", num, q.state, verbs.ErrBadState)
	case remote&^psnMask != 0:
		return fmt.Errorf("cannot connect QP %d to QP %#x: the number has more than 24 bits: %w", num, remote, verbs.ErrInvalid)
	}
	l := n.links[id]
	if l == nil {
		l = &link{id: id}
		n.links[id] = l
	}
	q.link, q.remote, q.state = l, remote, verbs.StateRTS
	n.out.Event(verbs.AsyncEvent{Type: verbs.EventCommEstablish, QPN: num})
	n.schedule(q)
	return nil
}

// QPState returns a queue pair's state.
func (n *NIC) QPState(num uint32) (verbs.State, error) {
	if q := n.qps.get(num); q != nil {
		return q.state, nil
	}
	return 0, fmt.Errorf("no QP %d: %w", num, verbs.ErrInvalid)
}

// DestroyQP destroys a queue pair. Its unfinished requests give no
// completion, its peer is told, and the windows of type 2B that are bound to
// it are invalidated.
func (n *NIC) DestroyQP(num uint32) error {
	q := n.qps.get(num)
	if q == nil {
		return fmt.Errorf("cannot destroy QP %d: no such QP: %w", num, verbs.ErrInvalid)
	}
	if q.state == verbs.StateRTS || q.rsp.nak.owed {
		q.downOwed = true
		n.schedule(q)
	}
	q.state = verbs.StateError
	q.req.stop()
	q.rsp.drop()
	q.rsp.msg.kind = 0
	q.sq.done = q.sq.next
	n.stopWaiting(q)
	for q.windows != nil {
		n.unbind(q.windows)
	}
	for _, r := range []*ring{&q.sq, &q.rq} {
		if r.mr != nil {
			r.mr.refs--
		}
		if r.spill != nil {
			n.removeRegion(r.spill)
		}
		r.mem, r.mr, r.spill = nil, nil, nil
	}
	if q.alloc != nil {
		q.alloc.from.refs--
		q.alloc = nil
	}
	q.pd.refs--
	q.sendCQ.refs--
	q.recvCQ.refs--
	n.qps.remove(num)
	return nil
}

// PostSend appends work requests to a send queue, all or none.
func (n *NIC) PostSend(num uint32, wrs []verbs.SendWR) error {
	q := n.qps.get(num)
	if q == nil {
		return fmt.Errorf("cannot post to QP %d: no such QP: %w", num, verbs.ErrInvalid)
	}
	for i := range wrs {
		if err := n.checkSend(&wrs[i]); err != nil {
			return fmt.Errorf("cannot post work request %d to QP %d: %w", i, num, err)
		}
	}
	switch q.state {
	case verbs.StateRTS:
	case verbs.StateError:
		for i := range wrs {
			n.complete(q.sendCQ, verbs.WC{ID: wrs[i].ID, Status: verbs.StatusWRFlushErr, Op: wrs[i].Op, QPN: num})
		}
		return nil
	default:
		return fmt.Errorf("cannot post to QP %d in state %v: %w", num, q.state, verbs.ErrBadState)
	}
	if !q.sq.room(len(wrs)) {
		return verbs.ErrQueueFull
	}
	if q.rsp.unacked > 0 {
		q.rsp.ackOwed = true
	}
	for i := range wrs {
		if err := n.writeSend(q, q.sq.posted+uint64(i), &wrs[i]); err != nil {
			return fmt.Errorf("cannot post work request %d to QP %d: %w", i, num, err)
		}
	}
	q.sq.posted += uint64(len(wrs))
	q.sq.prefetch()
	n.schedule(q)
	return nil
}

// PostRecv appends buffers to a receive queue, all or none.
func (n *NIC) PostRecv(num uint32, wrs []verbs.RecvWR) error {
	q := n.qps.get(num)
	if q == nil {
		return fmt.Errorf("cannot post to QP %d: no such QP: %w", num, verbs.ErrInvalid)
	}
	for i := range wrs {
		if len(wrs[i].SGL) > n.cfg.MaxSGE {
			return fmt.Errorf("cannot post receive %d to QP %d: %d SGEs, not at most %d: %w",
				i, num, len(wrs[i].SGL), n.cfg.MaxSGE, verbs.ErrInvalid)
		}
	}
	if q.state == verbs.StateError {
		for i := range wrs {
			n.complete(q.recvCQ, verbs.WC{ID: wrs[i].ID, Status: verbs.StatusWRFlushErr, Op: verbs.OpRecv, QPN: num})
		}
		return nil
	}
	if !q.rq.room(len(wrs)) {
		return verbs.ErrQueueFull
	}
	for i := range wrs {
		if err := n.writeRecv(q, q.rq.posted+uint64(i), &wrs[i]); err != nil {
			return fmt.Errorf("cannot post receive %d to QP %d: %w", i, num, err)
		}
	}
	q.rq.posted += uint64(len(wrs))
	q.rq.prefetch()
	if q.state == verbs.StateReset {
		q.state = verbs.StateInit
	}
	return nil
}

// EnableSend lets a managed send queue execute up to index, exclusive.
func (n *NIC) EnableSend(num uint32, index uint64) error {
	q := n.qps.get(num)
	if q == nil || !q.sq.managed {
		return fmt.Errorf("cannot enable QP %d: no such QP with a managed send queue: %w", num, verbs.ErrInvalid)
	}
	n.enable(q, &q.sq, index)
	return nil
}

// EnableRecv lets a managed receive queue be consumed up to index, exclusive.
func (n *NIC) EnableRecv(num uint32, index uint64) error {
	q := n.qps.get(num)
	if q == nil || !q.rq.managed {
		return fmt.Errorf("cannot enable QP %d: no such QP with a managed receive queue: %w", num, verbs.ErrInvalid)
	}
	n.enable(q, &q.rq, index)
	return nil
}

func (n *NIC) enable(q *qp, r *ring, index uint64) {
	if index > r.enabled {
		r.enabled = index
		r.prefetch()
		n.schedule(q)
	}
}

// FailQP takes a queue pair to the error state, where everything unfinished is flushed.
func (n *NIC) FailQP(num uint32) error {
	q := n.qps.get(num)
	if q == nil {
		return fmt.Errorf("cannot have QP %d fail: no such QP: %w", num, verbs.ErrInvalid)
	}
	n.fail(q, verbs.StatusWRFlushErr)
	return nil
}

// fail takes q to the error state: everything unfinished completes, the
// oldest executed send request with status first, all else flushed. The peer
// is told, by a Nak if one is owed.
func (n *NIC) fail(q *qp, first verbs.Status) {
	if q.state == verbs.StateError {
		return
	}
	q.state = verbs.StateError
	n.stopWaiting(q)
	if !q.rsp.nak.owed {
		q.rsp.drop()
		q.downOwed = q.link != nil
	}
	n.schedule(q)
	n.flushSend(q, first)
	n.flushRecv(q)
}

// peerGone takes q to the error state because its peer is not there any more.
func (n *NIC) peerGone(q *qp) {
	q.rsp.drop()
	q.downOwed = false
	if q.state != verbs.StateError {
		n.fail(q, verbs.StatusRetryExcErr)
		q.downOwed = false
		n.out.Event(verbs.AsyncEvent{Type: verbs.EventDisconnected, QPN: q.num})
	}
}

func (n *NIC) flushSend(q *qp, status verbs.Status) {
	r := &q.sq
	r.posted = max(r.posted, r.next)
	for i := r.done; i != r.posted; i++ {
		wc := verbs.WC{Status: verbs.StatusWRFlushErr, QPN: q.num}
		switch {
		case i < r.next:
			s := q.req.slot(r, i)
			wc.ID, wc.Op, wc.Status = s.id, s.op, status
		case i == r.next && q.req.msg.active:
			wc.ID, wc.Op, wc.Status = q.req.msg.id, q.req.msg.op, status
		default:
			wc.ID, wc.Op = r.id(i), verbs.Opcode(r.entry(i)[verbs.WQEOpcode])
		}
		status = verbs.StatusWRFlushErr
		n.complete(q.sendCQ, wc)
	}
	r.next, r.done = r.posted, r.posted
	q.req.stop()
}

func (n *NIC) flushRecv(q *qp) {
	r := &q.rq
	flush := func(id uint64) {
		n.complete(q.recvCQ, verbs.WC{ID: id, Status: verbs.StatusWRFlushErr, Op: verbs.OpRecv, QPN: q.num})
	}
	if q.rsp.msg.kind == KindSend { // being received into
		flush(q.rsp.msg.id)
	}
	q.rsp.msg.kind = 0
	r.posted = max(r.posted, r.next)
	for ; r.next != r.posted; r.next++ {
		flush(r.id(r.next))
	}
	r.done = r.next
}
