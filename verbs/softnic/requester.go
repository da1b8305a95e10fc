package softnic

import "polder/verbs"

// requester is the half of a queue pair that executes its send queue.
type requester struct {
	slots   []slot // by index modulo the queue's depth: executed, not retired
	msg     sendMsg
	halted  bool       // a request failed locally: nothing after it is executed
	nextPSN uint32     // of the next request packet
	una     uint32     // oldest PSN that is not acknowledged
	reads   fifo[read] // READs and atomics without their (whole) response
}

// slot is a work request that has been executed but has not retired.
type slot struct {
	id     uint64
	psn    uint32 // of its last packet
	bytes  uint32 // for its completion
	op     verbs.Opcode
	flags  verbs.SendFlags
	state  slotState
	status verbs.Status // if slotFailed
}

type slotState uint8

const (
	slotSent   slotState = iota // SEND, WRITE: waits for an acknowledgement
	slotRead                    // READ, atomic: waits for its response
	slotDone                    // waits for those before it
	slotFailed                  // likewise
)

// sendMsg is a SEND or WRITE of which some packets have not been sent. It is
// the request at the ring's next index.
type sendMsg struct {
	active bool
	first  bool // nothing has been sent yet
	op     verbs.Opcode
	flags  verbs.SendFlags
	id     uint64
	addr   uint64
	rkey   verbs.RKey
	length uint32
	left   uint32
	cursor cursor
}

// read is a READ or atomic that waits for its response.
type read struct {
	psn    uint32
	left   uint32 // bytes that have not arrived
	atomic bool
	cursor cursor
}

// maxUnacked is the most request packets in flight: few enough that PSNs of
// 24 bits are never ambiguous.
const maxUnacked = 1 << 22

func (r *requester) slot(q *ring, index uint64) *slot {
	return &r.slots[q.offset(index)/verbs.WQESize]
}

// stop forgets everything, when the send queue has been flushed.
func (r *requester) stop() {
	r.msg.active, r.halted = false, true
	r.reads.clear()
}

// mayRequest reports whether q may send a request packet now. If not, an
// acknowledgement or Resume schedules it again.
func (n *NIC) mayRequest(q *qp) bool {
	return (q.req.nextPSN-q.req.una)&psnMask < maxUnacked && n.ready(q)
}

// execute runs q's send queue, up to budget packets or work requests, and
// reports how many there were.
func (n *NIC) execute(q *qp, budget int) (used int) {
	for used < budget && q.state == verbs.StateRTS && !q.req.halted && !q.blocked {
		switch {
		case q.req.msg.active:
			if !n.mayRequest(q) {
				return used
			}
			n.sendSegment(q)
		case q.sq.next == q.sq.limit() || q.sq.next-q.sq.done >= q.sq.depth:
			return used
		default:
			if !n.begin(q) {
				return used
			}
		}
		used++
	}
	return used
}

// begin executes the work request at the ring's next index, or reports false
// if that has to wait. It is read from the ring now, not earlier, and again
// if it had to wait: those before it may rewrite it.
func (n *NIC) begin(q *qp) bool {
	var w wqe
	q.sq.read(q.sq.next, &w)
	n.stopWaiting(q) // it may not be a WAIT any more
	if w.flags&verbs.SendFence != 0 && q.req.reads.len() > 0 {
		return false
	}
	status := verbs.StatusSuccess
	switch w.op {
	case verbs.OpNop:
	case verbs.OpSend, verbs.OpWrite:
		if !n.mayRequest(q) {
			return false
		}
		if status = n.beginMessage(q, &w); status == verbs.StatusSuccess {
			n.sendSegment(q)
			return true
		}
	case verbs.OpRead, verbs.OpCmpSwap, verbs.OpFetchAdd, verbs.OpMaskedFetchAdd, verbs.OpAlloc:
		if q.req.reads.len() >= MaxRdAtom || !n.mayRequest(q) {
			return false
		}
		if status = n.sendRead(q, &w); status == verbs.StatusSuccess {
			return true
		}
	case verbs.OpFree:
		if !n.mayRequest(q) {
			return false
		}
		if w.flags.Valid() {
			n.sendFree(q, &w)
			return true
		}
	case verbs.OpBindMW:
		if !n.bind(q, &w) {
			status = verbs.StatusMWBindErr
		}
	case verbs.OpLocalInv:
		if !n.invalidate(q, &w) {
			status = verbs.StatusMWBindErr
		}
	case verbs.OpWait:
		c := n.cqs.get(w.qpn)
		if c == nil {
			status = verbs.StatusLocQPOpErr
		} else if int64(c.successes) < int64(w.addr) {
			n.await(q, c)
			return false
		}
	case verbs.OpEnable, verbs.OpEnableRecv:
		status = n.executeEnable(q, &w)
	default:
		status = verbs.StatusLocQPOpErr
	}
	if !w.flags.Valid() {
		status = verbs.StatusLocQPOpErr
	}
	s := n.executed(q)
	*s = slot{id: w.id, op: w.op, flags: w.flags, state: slotDone}
	if status != verbs.StatusSuccess {
		s.state, s.status = slotFailed, status
		q.req.halted = true
	}
	n.retire(q)
	return true
}

// executed moves on to the next work request and returns the slot of this one.
func (n *NIC) executed(q *qp) *slot {
	n.counters.WorkRequests++
	s := q.req.slot(&q.sq, q.sq.next)
	q.sq.next++
	return s
}

func (n *NIC) executeEnable(q *qp, w *wqe) verbs.Status {
	target := n.qps.get(w.qpn)
	if w.qpn == 0 {
		target = q
	}
	if target == nil || target.pd != q.pd {
		return verbs.StatusLocQPOpErr
	}
	r := &target.sq
	if w.op == verbs.OpEnableRecv {
		r = &target.rq
	}
	if !r.managed {
		return verbs.StatusLocQPOpErr
	}
	n.enable(target, r, w.addr)
	return verbs.StatusSuccess
}

// beginMessage makes a SEND or WRITE the message that is being sent.
func (n *NIC) beginMessage(q *qp, w *wqe) verbs.Status {
	sgl, status := n.readSGL(n.sgl[:0], q.pd, &q.sq, q.sq.next, w)
	length := sglLength(sgl)
	switch {
	case status != verbs.StatusSuccess:
		return status
	case !w.flags.Valid():
		return verbs.StatusLocQPOpErr
	case length > uint64(n.cfg.MaxMsgSize):
		return verbs.StatusLocLenErr
	case !n.checkSGL(q.pd, sgl, 0):
		return verbs.StatusLocProtErr
	}
	m := &q.req.msg
	m.active, m.first = true, true
	m.op, m.flags, m.id = w.op, w.flags, w.id
	m.addr, m.rkey = w.addr, w.rkey
	m.length, m.left = uint32(length), uint32(length)
	m.cursor.set(sgl)
	return verbs.StatusSuccess
}

// sendSegment sends the next packet of the message.
func (n *NIC) sendSegment(q *qp) {
	m := &q.req.msg
	size := min(m.left, uint32(n.cfg.MTU))
	payload, ok := n.gather(q.pd, &m.cursor, size)
	if !ok {
		m.active = false
		*n.executed(q) = slot{id: m.id, op: m.op, flags: m.flags, state: slotFailed, status: verbs.StatusLocProtErr}
		q.req.halted = true
		n.retire(q)
		return
	}
	p := &n.pkt
	*p = Packet{Kind: KindMore, PSN: q.req.nextPSN, Payload: payload}
	if m.first {
		p.Kind, p.Length = KindSend, m.length
		if m.op == verbs.OpWrite {
			p.Kind, p.Addr, p.RKey = KindWrite, m.addr, m.rkey
		}
	}
	m.first = false
	m.left -= size
	if m.left == 0 {
		m.active = false
		*n.executed(q) = slot{id: m.id, op: m.op, flags: m.flags, state: slotSent, psn: p.PSN}
	}
	q.req.nextPSN = (q.req.nextPSN + 1) & psnMask
	n.emit(q, p)
}

// sendRead sends the request of a READ or atomic.
func (n *NIC) sendRead(q *qp, w *wqe) verbs.Status {
	sgl, status := n.readSGL(n.sgl[:0], q.pd, &q.sq, q.sq.next, w)
	length := sglLength(sgl)
	atomic := w.op != verbs.OpRead && w.op != verbs.OpAlloc
	switch {
	case status != verbs.StatusSuccess:
		return status
	case !w.flags.Valid():
		return verbs.StatusLocQPOpErr
	case atomic && (w.numSGE != 1 || w.flags&verbs.SendSGLIndirect != 0):
		return verbs.StatusLocQPOpErr
	case atomic && length != 8, length > uint64(n.cfg.MaxMsgSize),
		w.op == verbs.OpAlloc && length > verbs.AllocAnswerSize:
		return verbs.StatusLocLenErr
	case !n.checkSGL(q.pd, sgl, verbs.AccessLocalWrite):
		return verbs.StatusLocProtErr
	}
	psn := q.req.nextPSN
	q.req.nextPSN = (psn + 1) & psnMask
	r := q.req.reads.push()
	r.psn, r.left, r.atomic = psn, uint32(length), atomic
	r.cursor.set(sgl)
	*n.executed(q) = slot{id: w.id, op: w.op, flags: w.flags, state: slotRead, psn: psn, bytes: uint32(length)}

	p := &n.pkt
	*p = Packet{Kind: KindRead, PSN: psn, Addr: w.addr, RKey: w.rkey}
	switch w.op {
	case verbs.OpRead:
		p.Length = uint32(length)
	case verbs.OpCmpSwap:
		p.Kind, p.Compare, p.Swap = KindCmpSwap, w.compare, w.swap
	case verbs.OpFetchAdd:
		p.Kind, p.Swap = KindFetchAdd, w.swap
	case verbs.OpMaskedFetchAdd:
		p.Kind, p.Compare, p.Swap = KindMaskedAdd, w.compare, w.swap
	case verbs.OpAlloc:
		*p = Packet{Kind: KindAlloc, PSN: psn, Length: uint32(length)}
	}
	n.emit(q, p)
	return verbs.StatusSuccess
}

// sendFree sends a FREE, which like a WRITE is acknowledged.
func (n *NIC) sendFree(q *qp, w *wqe) {
	psn := q.req.nextPSN
	q.req.nextPSN = (psn + 1) & psnMask
	*n.executed(q) = slot{id: w.id, op: w.op, flags: w.flags, state: slotSent, psn: psn}
	p := &n.pkt
	*p = Packet{Kind: KindFree, PSN: psn, Addr: w.addr}
	n.emit(q, p)
}
