package softnic

import (
	"encoding/binary"

	"polder/verbs"
)

// response handles a packet that answers a request of q's.
func (n *NIC) response(q *qp, p *Packet) {
	r := &q.req
	if (p.PSN-r.una)&psnMask >= (r.nextPSN-r.una)&psnMask {
		n.failLocal(q, verbs.StatusFatalErr) // answers nothing that was asked
		return
	}
	before := p.PSN // requests before it are done
	if p.Kind == KindAck {
		before = (p.PSN + 1) & psnMask
	}
	if !n.acknowledge(q, before) {
		n.failLocal(q, verbs.StatusFatalErr)
		return
	}
	if q.state != verbs.StateRTS {
		return // an earlier request had failed locally
	}
	switch p.Kind {
	case KindReadResp, KindAtomicResp:
		n.readResponse(q, p)
	case KindNak:
		status := p.Status
		if !nakStatus(status) {
			status = verbs.StatusFatalErr
		}
		n.failLocal(q, status)
		return
	}
	if q.sq.next != q.sq.limit() || r.msg.active {
		n.schedule(q)
	}
}

// acknowledge retires what precedes the PSN before. It reports false if that
// skips a READ or atomic.
func (n *NIC) acknowledge(q *qp, before uint32) bool {
	r := &q.req
	acked := (before - r.una) & psnMask
	for i := q.sq.done; i != q.sq.next; i++ {
		s := r.slot(&q.sq, i)
		if s.state >= slotDone {
			continue
		}
		if (s.psn-r.una)&psnMask >= acked {
			break
		}
		if s.state == slotRead {
			return false
		}
		s.state = slotDone
	}
	r.una = before
	n.retire(q)
	return true
}

// retire completes, in order, what is done.
func (n *NIC) retire(q *qp) {
	for q.sq.done != q.sq.next {
		s := q.req.slot(&q.sq, q.sq.done)
		switch s.state {
		case slotDone:
			q.sq.done++
			if s.flags&verbs.SendSignaled != 0 {
				n.complete(q.sendCQ, verbs.WC{ID: s.id, Op: s.op, QPN: q.num, ByteLen: s.bytes})
			}
		case slotFailed:
			n.failLocal(q, s.status)
			return
		default:
			return
		}
	}
}

// failLocal takes q to the error state because its oldest request failed.
func (n *NIC) failLocal(q *qp, status verbs.Status) {
	n.counters.LocalErrors++
	n.fail(q, status)
	n.out.Event(verbs.AsyncEvent{Type: verbs.EventQPFatal, QPN: q.num})
}

// readResponse stores what a READ or atomic brought. It is the oldest of q's
// requests, since those before it have been acknowledged.
func (n *NIC) readResponse(q *qp, p *Packet) {
	if q.req.reads.len() == 0 {
		n.failLocal(q, verbs.StatusFatalErr)
		return
	}
	r := q.req.reads.front()
	data := p.Payload
	if p.Kind == KindAtomicResp {
		binary.NativeEndian.PutUint64(n.word[:], p.Swap)
		data = n.word[:]
	}
	size := uint32(len(data))
	if r.psn != p.PSN || r.atomic != (p.Kind == KindAtomicResp) ||
		size > r.left || size == 0 && r.left > 0 {
		n.failLocal(q, verbs.StatusFatalErr)
		return
	}
	if !n.scatter(q.pd, &r.cursor, data) {
		n.failLocal(q, verbs.StatusLocProtErr)
		return
	}
	if r.left -= size; r.left > 0 {
		return
	}
	q.req.reads.pop()
	q.req.una = (p.PSN + 1) & psnMask
	q.req.slot(&q.sq, q.sq.done).state = slotDone
	n.retire(q)
}
