package softnic

import "polder/verbs"

// responder is the half of a queue pair that serves its peer's requests.
type responder struct {
	expPSN uint32 // of the next request packet

	// What it owes the peer, in the order of PSNs: responses, then a Nak or
	// else an Ack.
	responses fifo[response]
	nak       nak
	ackOwed   bool
	ackPSN    uint32
	unacked   int // QPConfig.LazyAcks: packets of SENDs whose Ack waits for the next packet to be sent

	deaf bool // an RNR Nak was sent: the peer will give up
	msg  recvMsg
}

// response is a response that has not been sent, or not entirely.
type response struct {
	psn    uint32
	atomic bool
	alloc  bool       // to be executed when the answer is sent
	rkey   verbs.RKey // READ
	addr   uint64     // READ: of what is left
	left   uint32     // READ, ALLOC: bytes
	whole  uint32     // READ: bytes in all
	value  uint64     // atomic
}

type nak struct {
	owed   bool
	psn    uint32
	status verbs.Status
}

// recvMsg is a SEND or WRITE of which not all packets have arrived.
type recvMsg struct {
	kind   Kind // KindSend, KindWrite, or 0: none
	length uint32
	left   uint32
	addr   uint64     // WRITE: of what is left
	rkey   verbs.RKey // WRITE
	id     uint64     // SEND: of the receive
	cursor cursor     // SEND
}

func (r *responder) owes() bool { return r.responses.len() > 0 || r.nak.owed || r.ackOwed }

// drop forgets what is owed.
func (r *responder) drop() {
	r.responses.clear()
	r.nak = nak{}
	r.acked()
}

// acked notes that everything up to ackPSN has been acknowledged, or never will
// be.
func (r *responder) acked() { r.ackOwed, r.unacked = false, 0 }

// Receive handles a packet that arrived over a link. Its memory effects are
// there when Receive returns; what it makes the NIC send, Run sends. Neither
// p nor its payload is kept.
func (n *NIC) Receive(id Link, p *Packet) {
	n.counters.PacketsReceived++
	n.counters.PayloadReceived += uint64(len(p.Payload))
	q := n.qps.get(p.DestQP)
	if q == nil || q.state != verbs.StateRTS || q.link.id != id {
		n.counters.PacketsDropped++
		return
	}
	switch p.Kind {
	case KindSend, KindWrite, KindMore, KindRead, KindCmpSwap, KindFetchAdd, KindMaskedAdd, KindAlloc, KindFree:
		n.request(q, p)
	case KindReadResp, KindAtomicResp, KindAck, KindNak:
		n.response(q, p)
	case KindDown:
		n.peerGone(q)
	default:
		n.counters.PacketsDropped++
	}
	q.check()
}

// request handles a packet of a request of q's peer.
func (n *NIC) request(q *qp, p *Packet) {
	r := &q.rsp
	if r.deaf {
		n.counters.PacketsDropped++
		return
	}
	if p.PSN != r.expPSN || len(p.Payload) > MaxPayload || p.Length > n.cfg.MaxMsgSize ||
		(p.Kind == KindMore) != (r.msg.kind != 0) {
		n.refuse(q, p.PSN, verbs.StatusRemInvReqErr)
		return
	}
	r.expPSN = (r.expPSN + 1) & psnMask
	switch p.Kind {
	case KindSend:
		if n.beginReceive(q, p) {
			n.store(q, p)
		}
	case KindWrite:
		if p.Length > 0 && n.remote(q, p.RKey, p.Addr, uint64(p.Length), verbs.AccessRemoteWrite) == nil {
			n.refuse(q, p.PSN, verbs.StatusRemAccessErr)
			return
		}
		m := &r.msg
		m.kind, m.length, m.left = KindWrite, p.Length, p.Length
		m.addr, m.rkey = p.Addr, p.RKey
		n.store(q, p)
	case KindMore:
		n.store(q, p)
	case KindFree:
		n.free(q, p)
	default:
		n.queueResponse(q, p)
	}
}

// beginReceive takes the next receive for a SEND.
func (n *NIC) beginReceive(q *qp, p *Packet) bool {
	if q.rq.next == q.rq.limit() {
		q.rsp.nak = nak{owed: true, psn: p.PSN, status: verbs.StatusRNRRetryExcErr}
		q.rsp.acked()
		q.rsp.deaf = true
		n.schedule(q)
		return false
	}
	var w wqe
	q.rq.read(q.rq.next, &w)
	sgl, status := n.readSGL(n.sgl[:0], q.pd, &q.rq, q.rq.next, &w)
	q.rq.next++
	q.rq.done = q.rq.next
	answer := verbs.StatusRemOpErr
	switch {
	case status != verbs.StatusSuccess:
	case w.op != verbs.OpRecv || !w.flags.Valid():
		status = verbs.StatusLocQPOpErr
	case sglLength(sgl) < uint64(p.Length):
		status, answer = verbs.StatusLocLenErr, verbs.StatusRemInvReqErr
	case !n.checkSGL(q.pd, sgl, verbs.AccessLocalWrite):
		status = verbs.StatusLocProtErr
	}
	if status != verbs.StatusSuccess {
		n.complete(q.recvCQ, verbs.WC{ID: w.id, Status: status, Op: verbs.OpRecv, QPN: q.num})
		n.refuse(q, p.PSN, answer)
		return false
	}
	m := &q.rsp.msg
	m.kind, m.length, m.left, m.id = KindSend, p.Length, p.Length, w.id
	m.cursor.set(sgl)
	return true
}

// store stores a packet's part of the message that is arriving.
func (n *NIC) store(q *qp, p *Packet) {
	m := &q.rsp.msg
	size := uint32(len(p.Payload))
	if size > m.left || size == 0 && m.left > 0 {
		n.refuse(q, p.PSN, verbs.StatusRemInvReqErr)
		return
	}
	if m.kind == KindSend {
		if !n.scatter(q.pd, &m.cursor, p.Payload) {
			m.kind = 0
			n.complete(q.recvCQ, verbs.WC{ID: m.id, Status: verbs.StatusLocProtErr, Op: verbs.OpRecv, QPN: q.num})
			n.refuse(q, p.PSN, verbs.StatusRemOpErr)
			return
		}
	} else if size > 0 {
		// Checked for every packet: the right may have been taken back.
		mem := n.remote(q, m.rkey, m.addr, uint64(size), verbs.AccessRemoteWrite)
		if mem == nil {
			n.refuse(q, p.PSN, verbs.StatusRemAccessErr)
			return
		}
		move(mem, p.Payload)
		m.addr += uint64(size)
	}
	m.left -= size
	n.stored(q, p.PSN)
	if m.left == 0 {
		if m.kind == KindSend {
			n.complete(q.recvCQ, verbs.WC{ID: m.id, Op: verbs.OpRecv, QPN: q.num, ByteLen: m.length})
		}
		m.kind = 0
	}
}

// lazyLimit is how many packets of SENDs, less one, a queue pair with
// QPConfig.LazyAcks leaves unacknowledged.
const lazyLimit = 8

// stored sees that the packet of a PSN, which has been stored, is
// acknowledged.
func (n *NIC) stored(q *qp, psn uint32) {
	r := &q.rsp
	r.ackPSN = psn
	if q.lazyAcks && r.msg.kind == KindSend {
		if r.unacked++; r.unacked < lazyLimit {
			return
		}
	}
	r.ackOwed = true
	n.schedule(q)
}

// queueResponse executes an atomic, and notes what a READ or atomic is owed.
func (n *NIC) queueResponse(q *qp, p *Packet) {
	r := &q.rsp
	e := response{psn: p.PSN, rkey: p.RKey, addr: p.Addr}
	switch {
	case r.responses.len() >= MaxRdAtom || len(p.Payload) > 0:
		n.refuse(q, p.PSN, verbs.StatusRemInvReqErr)
		return
	case p.Kind == KindRead:
		if p.Length > 0 && n.remote(q, p.RKey, p.Addr, uint64(p.Length), verbs.AccessRemoteRead) == nil {
			n.refuse(q, p.PSN, verbs.StatusRemAccessErr)
			return
		}
		e.left, e.whole = p.Length, p.Length
	case p.Kind == KindAlloc:
		if q.alloc == nil || p.Length > verbs.AllocAnswerSize {
			n.refuse(q, p.PSN, verbs.StatusRemInvReqErr)
			return
		}
		e.alloc, e.left = true, p.Length
	case p.Addr%8 != 0:
		n.refuse(q, p.PSN, verbs.StatusRemInvReqErr)
		return
	default:
		mem := n.remote(q, p.RKey, p.Addr, 8, verbs.AccessRemoteAtomic)
		if mem == nil {
			n.refuse(q, p.PSN, verbs.StatusRemAccessErr)
			return
		}
		e.atomic = true
		switch p.Kind {
		case KindCmpSwap:
			e.value = compareSwap(word(mem), p.Compare, p.Swap)
		case KindMaskedAdd:
			e.value = maskedAdd(word(mem), p.Swap, p.Compare)
		default:
			e.value = fetchAdd(word(mem), p.Swap)
		}
	}
	*r.responses.push() = e
	n.schedule(q)
}

// refuse answers the request of a PSN with a Nak, after the responses that
// come before it, and takes q to the error state.
func (n *NIC) refuse(q *qp, psn uint32, status verbs.Status) {
	q.rsp.nak = nak{owed: true, psn: psn, status: status}
	q.rsp.acked()
	n.fail(q, verbs.StatusWRFlushErr)
	event := verbs.EventQPFatal
	switch status {
	case verbs.StatusRemAccessErr:
		event = verbs.EventQPAccessErr
		n.counters.AccessErrors++
	case verbs.StatusRemInvReqErr:
		event = verbs.EventQPReqErr
		n.counters.RequestErrors++
	}
	n.out.Event(verbs.AsyncEvent{Type: event, QPN: q.num})
}

// respond sends what q owes, up to budget packets, and reports how many.
func (n *NIC) respond(q *qp, budget int) (used int) {
	r := &q.rsp
	for r.owes() && used < budget {
		if q.blocked || !n.ready(q) {
			return used
		}
		used++
		p := &n.pkt
		switch {
		case r.responses.len() > 0:
			if !n.nextResponse(q, p) {
				continue
			}
		case r.nak.owed:
			*p = Packet{Kind: KindNak, PSN: r.nak.psn, Status: r.nak.status}
			r.nak.owed = false
		default:
			*p = Packet{Kind: KindAck, PSN: r.ackPSN}
			r.acked()
		}
		n.emit(q, p)
	}
	return used
}

// nextResponse makes p the next packet of the oldest response. It reports
// false, and queues a Nak instead, if the READ's right has been taken back.
func (n *NIC) nextResponse(q *qp, p *Packet) bool {
	r := &q.rsp
	e := r.responses.front()
	*p = Packet{Kind: KindAtomicResp, PSN: e.psn, Swap: e.value}
	if e.alloc {
		if q.state != verbs.StateRTS { // nobody would know of the chunk
			n.revoked(q, e.psn)
			return false
		}
		p.Kind, p.Swap = KindReadResp, 0
		p.Payload = n.allocate(q)[:e.left]
		e.left = 0
	} else if !e.atomic {
		p.Kind, p.Swap = KindReadResp, 0
		if size := min(e.left, uint32(n.cfg.MTU)); size > 0 {
			p.Payload = n.remote(q, e.rkey, e.addr, uint64(size), verbs.AccessRemoteRead)
			if p.Payload == nil {
				n.revoked(q, e.psn)
				return false
			}
			if e.whole == 8 && aligned(p.Payload) {
				loadWord(&n.word, p.Payload)
				p.Payload = n.word[:]
			}
			e.addr += uint64(size)
			e.left -= size
		}
	}
	if e.left == 0 {
		// The response acknowledges what came before it.
		if (r.ackPSN-e.psn)&psnMask > psnMask/2 {
			r.acked()
		}
		r.responses.pop()
	}
	return true
}

// revoked answers a READ whose right was taken back after it had been accepted.
func (n *NIC) revoked(q *qp, psn uint32) {
	q.rsp.responses.clear()
	if q.state == verbs.StateRTS {
		n.refuse(q, psn, verbs.StatusRemAccessErr)
		return
	}
	q.rsp.nak = nak{owed: true, psn: psn, status: verbs.StatusRemAccessErr}
}
