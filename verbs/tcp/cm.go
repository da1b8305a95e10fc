package tcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"polder/verbs"
)

// Connection management joins queue pairs over a connection, with frames whose
// bodies begin with two little-endian words:
//
//	CONNECT  u32 request, u32 queue pair of the requester   private data
//	ACCEPT   u32 request, u32 queue pair of the acceptor    private data
//	REJECT   u32 request, u32 0                             reason, UTF-8
//
// Requests are numbered by the requester. An ACCEPT comes before the first
// packet of the acceptor's queue pair. A requester that has given up tells an
// acceptor so with a DOWN packet.
const (
	cmHeader  = 8
	maxReason = 1 << 10
)

var (
	errCM         = errors.New("malformed connection management frame")
	errNoListener = errors.New("this end does not listen")
)

func appendCM(b []byte, request, qpn uint32, data []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, request)
	b = binary.LittleEndian.AppendUint32(b, qpn)
	return append(b, data...)
}

// decodeCM takes apart a connection management frame. Data aliases body.
func decodeCM(t frameType, body []byte) (request, qpn uint32, data []byte, err error) {
	limit := verbs.MaxPrivateData
	if t == frameReject {
		limit = maxReason
	}
	if len(body) < cmHeader || len(body) > cmHeader+limit {
		return 0, 0, nil, fmt.Errorf("cannot decode a frame of type %d and %d bytes: %w", t, len(body), errCM)
	}
	request = binary.LittleEndian.Uint32(body)
	qpn = binary.LittleEndian.Uint32(body[4:])
	if qpn >= 1<<24 || t == frameReject && qpn != 0 {
		return 0, 0, nil, fmt.Errorf("cannot decode a frame of type %d: queue pair %d: %w", t, qpn, errCM)
	}
	return request, qpn, body[cmHeader:], nil
}

// joining is a call of Connect that waits for its answer.
type joining struct {
	qp     verbs.QP
	answer chan answer // holds one
}

type answer struct {
	private []byte
	err     error
}

// Connect implements verbs.Conn.
func (c *conn) Connect(ctx context.Context, qp verbs.QP, private []byte) ([]byte, error) {
	reply, err := c.connect(ctx, qp, private)
	if err != nil {
		return nil, fmt.Errorf("cannot connect a queue pair to %s: %w", c.RemoteAddr(), err)
	}
	return reply, nil
}

func (c *conn) connect(ctx context.Context, qp verbs.QP, private []byte) ([]byte, error) {
	if err := checkPrivate(private); err != nil {
		return nil, err
	}
	qpn, err := c.dev.QPNum(qp)
	if err != nil {
		return nil, err
	}
	j := &joining{qp: qp, answer: make(chan answer, 1)}
	c.reqMu.Lock()
	select {
	case <-c.down:
		c.reqMu.Unlock()
		return nil, c.closedErr()
	default:
	}
	id := c.nextRequest
	c.nextRequest++
	c.joining[id] = j
	c.reqMu.Unlock()

	c.control(frameConnect, appendCM(nil, id, qpn, private))
	select {
	case a := <-j.answer:
		return a.private, a.err
	case <-ctx.Done():
	}
	if c.takeJoining(id) == nil {
		a := <-j.answer // it has come after all
		return a.private, a.err
	}
	return nil, ctx.Err()
}

func checkPrivate(private []byte) error {
	if len(private) > verbs.MaxPrivateData {
		return fmt.Errorf("%d bytes of private data exceed %d: %w", len(private), verbs.MaxPrivateData, verbs.ErrInvalid)
	}
	return nil
}

// takeJoining returns the waiting call of the given number, once.
func (c *conn) takeJoining(id uint32) *joining {
	c.reqMu.Lock()
	defer c.reqMu.Unlock()
	j := c.joining[id]
	delete(c.joining, id)
	return j
}

// control sends a frame of connection management, or a ping.
func (c *conn) control(t frameType, body []byte) {
	if err := c.out.add(t, body); err != nil {
		c.fail(err)
		return
	}
	c.Flush()
}

// handleControl handles a frame that is not a packet, in the reader, which
// flushes when it has handled all it has.
func (c *conn) handleControl(t frameType, body []byte) error {
	switch t {
	case framePing:
		return c.out.add(framePong, nil)
	case framePong:
		return nil // that it came is all that it says
	case frameBye:
		return errPeerClosed
	}
	id, qpn, data, err := decodeCM(t, body)
	if err != nil {
		return err
	}
	switch t {
	case frameConnect:
		return c.handleConnect(id, qpn, data)
	case frameAccept:
		c.handleAccept(id, qpn, data)
	case frameReject:
		if j := c.takeJoining(id); j != nil {
			j.answer <- answer{err: &verbs.RejectError{Reason: string(data)}}
		}
	}
	return nil
}

func (c *conn) handleConnect(id, qpn uint32, private []byte) error {
	refusal := errNoListener
	if c.listener != nil {
		refusal = c.listener.Offer(&connRequest{conn: c, id: id, qpn: qpn, private: append([]byte(nil), private...)})
	}
	if refusal != nil {
		return c.out.add(frameReject, appendCM(nil, id, 0, []byte(refusal.Error())))
	}
	return nil
}

// handleAccept connects the local queue pair, in the reader, so that it is
// done before the packets behind the frame are looked at.
func (c *conn) handleAccept(id, qpn uint32, private []byte) {
	j := c.takeJoining(id)
	if j == nil { // given up
		c.dev.Disconnect(c.link, qpn)
		return
	}
	if err := c.dev.ConnectQP(j.qp, c.link, qpn, nil); err != nil {
		c.dev.Disconnect(c.link, qpn)
		j.answer <- answer{err: err}
		return
	}
	j.answer <- answer{private: append([]byte(nil), private...)}
}

// connRequest implements verbs.ConnRequest.
type connRequest struct {
	conn     *conn
	id, qpn  uint32
	private  []byte
	answered onlyOnce
}

func (r *connRequest) Conn() verbs.Conn { return r.conn }

// Void implements endpoint.Request.
func (r *connRequest) Void() bool {
	select {
	case <-r.conn.down:
		return true
	default:
		return false
	}
}

func (r *connRequest) Private() []byte { return r.private }

func (r *connRequest) Accept(qp verbs.QP, private []byte) error {
	if err := r.accept(qp, private); err != nil {
		return fmt.Errorf("cannot accept a queue pair from %s: %w", r.conn.RemoteAddr(), err)
	}
	return nil
}

func (r *connRequest) accept(qp verbs.QP, private []byte) error {
	if err := checkPrivate(private); err != nil {
		return err
	}
	qpn, err := r.conn.dev.QPNum(qp)
	if err != nil {
		return err
	}
	if !r.answered.first() {
		return errAnswered
	}
	frame := appendCM(nil, r.id, qpn, private)
	var full error
	err = r.conn.dev.ConnectQP(qp, r.conn.link, r.qpn, func() {
		full = r.conn.out.add(frameAccept, frame)
	})
	if err != nil {
		r.reject(err.Error())
		return err
	}
	if full != nil {
		r.conn.fail(full)
	}
	r.conn.Flush()
	return nil
}

func (r *connRequest) Reject(reason string) error {
	if !r.answered.first() {
		return fmt.Errorf("cannot reject a queue pair from %s: %w", r.conn.RemoteAddr(), errAnswered)
	}
	r.reject(reason)
	return nil
}

func (r *connRequest) reject(reason string) {
	reason = reason[:min(len(reason), maxReason)]
	r.conn.control(frameReject, appendCM(nil, r.id, 0, []byte(reason)))
}
