package softnic

import "polder/verbs"

// A Task is a queue pair of a paced NIC that has something to do: to respond to
// its peer, or to execute a request, or both, which hardware does side by side.
type Task struct{ q *qp }

// QPN is the number of the queue pair.
func (t Task) QPN() uint32 { return t.q.num }

// Owed is the next packet that a queue pair owes its peer.
type Owed struct {
	Packet Kind   // 0: it owes nothing
	More   bool   // it goes on with a response of which a part was sent
	Bytes  uint32 // payload that it reads from memory
	Addr   uint64 // KindAtomicResp: of the word
}

// Next is the next request of a queue pair's send queue, or the next packet of
// one.
type Next struct {
	Ready   bool // there is one, and it need not wait
	Op      verbs.Opcode
	Managed bool   // it is a managed queue's
	Peer    uint32 // in loopback: the queue pair that it goes to
	More    bool   // it is a message of which a part was sent
	Parks   bool   // it is a WAIT that will have to wait
	Index   uint64 // in its queue
	Bytes   uint32 // payload that it reads from memory
}

// Pace makes the NIC call f for each queue pair that has something to do, instead of letting Run do it. A model with
// a clock then does it, with Respond and Execute, when its time has come. f is called from inside the NIC's methods
// and must not call the NIC back. It is not called again for a queue pair before Peek.
//
// Preconditions: there are no queue pairs yet.
func (n *NIC) Pace(f func(Task)) { n.pacer = f }

// Peek tells what Respond and Execute would do now.
func (n *NIC) Peek(t Task) (o Owed, next Next) {
	q := t.q
	q.queued = false
	r := &q.rsp
	switch {
	case q.downOwed:
		o.Packet = KindDown
	case q.blocked:
	case r.responses.len() > 0:
		e := r.responses.front()
		o.Packet, o.Addr = KindAtomicResp, e.addr
		if !e.atomic {
			o.Packet, o.Bytes, o.More = KindReadResp, min(e.left, uint32(n.cfg.MTU)), e.left != e.whole
		}
	case r.nak.owed:
		o.Packet = KindNak
	case r.ackOwed:
		o.Packet = KindAck
	}
	next.Ready = n.peekSend(q, &next)
	return o, next
}

// peekSend completes w if q's send queue can go on.
func (n *NIC) peekSend(q *qp, w *Next) bool {
	if q.state != verbs.StateRTS || q.req.halted || q.blocked || (q.req.nextPSN-q.req.una)&psnMask >= maxUnacked {
		return false
	}
	w.Managed, w.Index = q.sq.managed, q.sq.next
	if q.link.id == Loopback {
		w.Peer = q.remote
	}
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

// Respond sends one packet that the queue pair owes. Peek again afterwards.
func (n *NIC) Respond(t Task) {
	q := t.q
	q.queued = true // so that the pacer is not told of q meanwhile
	if q.downOwed {
		q.downOwed = false
		n.emit(q, &Packet{Kind: KindDown})
	} else {
		n.respond(q, 1)
	}
	n.paced(q)
}

// Execute executes one request, or sends one packet of one. Peek again
// afterwards.
func (n *NIC) Execute(t Task) {
	t.q.queued = true
	n.execute(t.q, 1)
	n.paced(t.q)
}

func (n *NIC) paced(q *qp) {
	q.queued = false
	q.check()
	if len(n.overrun) > 0 {
		n.failOverrun()
	}
}
