//go:build ibverbs

package ibv

import "polder/verbs"

// completed takes one of the device's completions.
//
// Preconditions: the completion queue's mu is held.
func (q *qp) completed(w *hwWC) {
	place, status := uint32(w.id), hwStatus(uint16(w.status))
	r := &q.send
	if uint64(w.id)&recvBit != 0 {
		r = &q.recv
	}
	if int32(place-r.acked) < 0 {
		return // it has been refused
	}
	// The device completes in order: what comes before was a success that it
	// was not asked to tell of.
	for i := r.acked; i != place+1; i++ {
		if s := r.at(i); !s.foreign {
			s.done = true
		}
	}
	r.acked = place + 1
	s := r.at(place)
	if r == &q.recv {
		s.status, s.bytes = q.recvStatus(status, s), uint32(w.length)
		q.advanceRecv()
		return
	}
	s.status = q.sendStatus(status, s.op)
	q.advance()
}

// recvStatus is what the status of a receive means on this device.
func (q *qp) recvStatus(s verbs.Status, was *slot) verbs.Status {
	switch {
	case s != verbs.StatusLocQPOpErr || !q.pd.d.quirks.ReceiveStatus:
		return s
	case was.sound:
		return verbs.StatusLocLenErr
	}
	return verbs.StatusLocProtErr
}

// sendStatus is what the status of another request means on this device.
func (q *qp) sendStatus(s verbs.Status, op verbs.Opcode) verbs.Status {
	if s == verbs.StatusLocQPOpErr && q.pd.d.quirks.ProtectionStatus && op != verbs.OpBindMW && op != verbs.OpLocalInv {
		return verbs.StatusLocProtErr
	}
	return s
}

// advance completes requests whose turn it is.
//
// Preconditions: the send queue's completion queue's mu is held.
func (q *qp) advance() {
	c := q.sendCQ
	for r := &q.send; r.head != r.tail.Load(); r.head++ {
		s := r.at(r.head)
		if !s.done || s.held {
			return
		}
		if s.bind != nil {
			s.bind.executed(q, s.status)
			s.bind = nil
		}
		if s.status != verbs.StatusSuccess {
			q.failed(s.status)
		}
		switch {
		case s.relay.q != nil:
			c.relays--
			q.room.Add(1)
			c.results = append(c.results, result{s.relay, c, s.status})
			s.relay = relay{}
		case s.hidden:
		default:
			if s.signaled || s.status != verbs.StatusSuccess {
				wc := verbs.WC{ID: s.id, Status: s.status, QPN: q.num}
				if s.status == verbs.StatusSuccess {
					wc.Op, wc.ByteLen = s.op, s.bytes
				}
				c.push(wc)
			}
			r.used.Add(-1)
		}
	}
}

// advanceRecv is advance for the receive queue.
func (q *qp) advanceRecv() {
	c := q.recvCQ
	for r := &q.recv; r.head != r.tail.Load(); r.head++ {
		s := r.at(r.head)
		if !s.done {
			return
		}
		wc := verbs.WC{ID: s.id, Status: s.status, QPN: q.num}
		if s.status == verbs.StatusSuccess {
			wc.Op, wc.ByteLen = verbs.OpRecv, s.bytes
		} else {
			q.toError()
		}
		c.push(wc)
		r.used.Add(-1)
	}
}

// failed takes the queue pair to the error state after a request that failed,
// and tells whom it concerns.
func (q *qp) failed(s verbs.Status) {
	if !q.toError() {
		return
	}
	switch s {
	case verbs.StatusLocLenErr, verbs.StatusLocQPOpErr, verbs.StatusLocProtErr,
		verbs.StatusMWBindErr, verbs.StatusLocAccessErr, verbs.StatusFatalErr:
		q.raise(verbs.EventQPFatal)
	}
	q.ctl.Lock()
	c := q.conn
	q.ctl.Unlock()
	if c != nil {
		c.qpFailed(q, s)
	}
}
