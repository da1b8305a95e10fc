package softnic

import "polder/verbs"

// A Task is one turn of a queue pair of a paced NIC: the next packet it owes,
// or the next request of its send queue.
type Task struct{ q *qp }

// QPN is the number of the queue pair.
func (t Task) QPN() uint32 { return t.q.num }

// Work is what a turn would do.
type Work struct {
	Packet   Kind         // the packet it owes its peer; 0: it executes a request
	Op       verbs.Opcode // of the request
	Managed  bool         // the request is of a managed queue
	More     bool         // it goes on with a message or response of which a part was sent
	Loopback bool
	Parks    bool   // the request is a WAIT that has to wait
	Index    uint64 // of the request, in its queue
	Bytes    uint32 // payload that it reads from memory
	Addr     uint64 // KindAtomicResp: of the word
}

// Pace hands the NIC's turns to f instead of letting Run take them: a clock
// model takes them, with Step, when their time has come. f is called from
// inside the NIC's methods, must not call the NIC back, and gets a queue pair's
// next task only after it has stepped the last.
//
// Preconditions: there are no queue pairs yet.
func (n *NIC) Pace(f func(Task)) { n.pacer = f }

// Peek tells what Step would do now. It reports false if that is nothing that
// takes time: there is no work after all, or it has to wait.
func (n *NIC) Peek(t Task) (Work, bool) {
	q := t.q
	w := Work{Loopback: q.link != nil && q.link.id == Loopback}
	r := &q.rsp
	switch {
	case q.downOwed:
		w.Packet = KindDown
	case r.responses.len() > 0:
		e := r.responses.front()
		w.Packet, w.Addr = KindAtomicResp, e.addr
		if !e.atomic {
			w.Packet, w.Bytes, w.More = KindReadResp, min(e.left, uint32(n.cfg.MTU)), e.left != e.whole
		}
	case r.nak.owed:
		w.Packet = KindNak
	case r.ackOwed:
		w.Packet = KindAck
	default:
		return w, n.peekSend(q, &w)
	}
	return w, true
}

// peekSend completes w if q's send queue can go on.
func (n *NIC) peekSend(q *qp, w *Work) bool {
	if q.state != verbs.StateRTS || q.req.halted || q.blocked {
		return false
	}
	w.Managed, w.Index = q.sq.managed, q.sq.next
	if m := &q.req.msg; m.active {
		w.Op, w.Bytes, w.More = m.op, min(m.left, uint32(n.cfg.MTU)), true
		return true
	}
	if q.sq.next == q.sq.limit() || q.sq.next-q.sq.done >= q.sq.depth {
		return false
	}
	var e wqe
	q.sq.read(q.sq.next, &e)
	if e.flags&verbs.SendFence != 0 && q.req.reads.len() > 0 {
		return false
	}
	w.Op = e.op
	switch e.op {
	case verbs.OpSend, verbs.OpWrite:
		sgl, _ := n.readSGL(n.sgl[:0], q.pd, &q.sq, q.sq.next, &e)
		w.Bytes = uint32(min(sglLength(sgl), uint64(n.cfg.MTU)))
	case verbs.OpRead, verbs.OpCmpSwap, verbs.OpFetchAdd:
		return q.req.reads.len() < MaxRdAtom
	case verbs.OpWait:
		c := n.cqs.get(e.qpn)
		w.Parks = c != nil && c.successes < e.addr
		return !w.Parks || q.waiting != c
	}
	return true
}

// Ahead copies the entries of the send queue that come next into b, as many as
// b has room for and as may be executed, and returns how many bytes that is.
func (t Task) Ahead(b []byte) (size int) {
	r := &t.q.sq
	if r.mem == nil {
		return 0 // it has been destroyed
	}
	for i := r.next; i != r.limit() && size+verbs.WQESize <= len(b); i++ {
		size += copy(b[size:], r.entry(i))
	}
	return size
}

// Step takes a turn: it sends one packet or executes one request.
func (n *NIC) Step(t Task) {
	t.q.queued = false
	n.serve(t.q, 1)
	if len(n.overrun) > 0 {
		n.failOverrun()
	}
}
