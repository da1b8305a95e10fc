package cm

import (
	"fmt"
	"sync/atomic"

	"polder/verbs"
)

// request implements endpoint.Request.
type request struct {
	conn     *Conn
	id, qpn  uint32
	private  []byte
	answered atomic.Bool
}

func (r *request) Conn() verbs.Conn { return r.conn.self }

func (r *request) Private() []byte { return r.private }

// Void implements endpoint.Request.
func (r *request) Void() bool {
	select {
	case <-r.conn.down:
		return true
	default:
		return false
	}
}

func (r *request) Accept(qp verbs.QP, private []byte) error {
	if err := r.accept(qp, private); err != nil {
		return fmt.Errorf("cannot accept a queue pair from %s: %w", r.conn.self.RemoteAddr(), err)
	}
	return nil
}

func (r *request) accept(qp verbs.QP, private []byte) error {
	if err := checkPrivate(private); err != nil {
		return err
	}
	qpn, err := r.conn.dev.QPNum(qp)
	if err != nil {
		return err
	}
	if r.answered.Swap(true) {
		return errAnswered
	}
	message := Append(nil, r.id, qpn, private)
	var full error
	err = r.conn.dev.ConnectQP(qp, r.conn.id, r.qpn, func() { full = r.conn.self.Put(Accept, message) })
	if err != nil {
		r.reject(err.Error())
		return err
	}
	if full != nil {
		r.conn.self.Fail(full)
	}
	r.conn.self.Flush()
	return nil
}

func (r *request) Reject(reason string) error {
	if r.answered.Swap(true) {
		return fmt.Errorf("cannot reject a queue pair from %s: %w", r.conn.self.RemoteAddr(), errAnswered)
	}
	r.reject(reason)
	return nil
}

func (r *request) reject(reason string) {
	reason = reason[:min(len(reason), MaxReason)]
	r.conn.say(Reject, Append(nil, r.id, 0, []byte(reason)))
}
