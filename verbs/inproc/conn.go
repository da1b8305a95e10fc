package inproc

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"polder/verbs"
	"polder/verbs/internal/softdev"
	"polder/verbs/softnic"
)

var errPeerClosed = errors.New("the peer closed the connection")

// conn is one end of a connection, a verbs.Conn.
type conn struct {
	End
	peer   *conn
	listen *listener // of the peer; nil at the accepting end
	local  string
	remote string
	*fate
}

// fate is how a connection ends; both ends share it.
type fate struct {
	done chan struct{} // closed when it is over, and its links are gone

	mu      sync.Mutex
	closer  *conn    // guarded by mu: who closed it
	cancels []func() // guarded by mu: take back the devices' hooks
}

// wire is the LinkDriver of one end.
type wire struct{ to *End }

func (w wire) Send(p *softnic.Packet) { w.to.Device.DeliverLocked(w.to.Link, p) }
func (w wire) Ready() bool            { return true }

// carry returns the driver of a connection's end.
func (f *Fabric) carry(from, to *End) softdev.LinkDriver {
	if f.carrier == nil {
		return wire{to: to}
	}
	return f.carrier(from, to)
}

// join connects d to a listener's device.
func (f *Fabric) join(d *softdev.Device, l *listener) (*conn, error) {
	end := &fate{done: make(chan struct{})}
	a := &conn{End: End{Device: d}, listen: l, local: d.Attr().Name, remote: l.name, fate: end}
	b := &conn{End: End{Device: l.dev}, local: l.name, remote: a.local, fate: end}
	a.peer, b.peer = b, a
	var err error
	if a.Link, err = a.Device.AddLink(f.carry(&a.End, &b.End)); err != nil {
		return nil, err
	}
	if b.Link, err = b.Device.AddLink(f.carry(&b.End, &a.End)); err != nil {
		a.Device.RemoveLink(a.Link)
		return nil, err
	}
	for _, c := range []*conn{a, b} {
		end.onClose(c.Device.OnClose(func() { c.Close() }))
	}
	return a, nil
}

// onClose has cancel called when the connection is over.
func (f *fate) onClose(cancel func()) {
	f.mu.Lock()
	over := f.closer != nil
	if !over {
		f.cancels = append(f.cancels, cancel)
	}
	f.mu.Unlock()
	if over {
		cancel()
	}
}

// Close ends the connection; the queue pairs of both ends go to the error
// state.
func (c *conn) Close() error {
	c.mu.Lock()
	if c.closer != nil {
		c.mu.Unlock()
		<-c.done
		return nil
	}
	c.closer = c
	cancels := c.cancels
	c.cancels = nil
	c.mu.Unlock()
	c.Device.RemoveLink(c.Link)
	c.peer.Device.RemoveLink(c.peer.Link)
	close(c.done)
	for _, cancel := range cancels {
		cancel()
	}
	return nil
}

func (c *conn) Done() <-chan struct{} { return c.done }

func (c *conn) Err() error {
	select {
	case <-c.done:
	default:
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closer == c {
		return verbs.ErrClosed
	}
	return errPeerClosed
}

func (c *conn) LocalAddr() string  { return c.local }
func (c *conn) RemoteAddr() string { return c.remote }

// Connect joins qp to one that the peer's listener provides.
func (c *conn) Connect(ctx context.Context, qp verbs.QP, private []byte) ([]byte, error) {
	reply, err := c.connect(ctx, qp, private)
	if err != nil {
		return nil, fmt.Errorf("cannot connect a QP to %q: %w", c.remote, err)
	}
	return reply, nil
}

func (c *conn) connect(ctx context.Context, qp verbs.QP, private []byte) ([]byte, error) {
	switch {
	case len(private) > verbs.MaxPrivateData:
		return nil, fmt.Errorf("%d bytes of private data, not at most %d: %w", len(private), verbs.MaxPrivateData, verbs.ErrInvalid)
	case c.listen == nil:
		return nil, &verbs.RejectError{Reason: "the peer does not listen"}
	}
	if _, err := c.Device.QPNum(qp); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r := &request{from: c, qp: qp, private: append([]byte(nil), private...), over: make(chan struct{})}
	select {
	case c.listen.requests <- r:
	case <-c.listen.done:
		r.finish(errListenerClosed, nil)
	case <-c.done:
		r.finish(c.Err(), nil)
	case <-ctx.Done():
		r.finish(ctx.Err(), nil)
	}
	select {
	case <-r.over:
	case <-c.listen.done:
		r.finish(errListenerClosed, nil)
	case <-c.done:
		r.finish(c.Err(), nil)
	case <-ctx.Done():
		r.finish(ctx.Err(), nil)
	}
	<-r.over
	return r.reply, r.err
}

var errListenerClosed = &verbs.RejectError{Reason: "the listener was closed"}

// request is a verbs.ConnRequest.
type request struct {
	from    *conn // the requester's end
	qp      verbs.QP
	private []byte

	mu    sync.Mutex
	over  chan struct{} // closed, with mu held, when it is answered or given up
	err   error         // set before over is closed
	reply []byte        // set before over is closed
}

var errAnswered = fmt.Errorf("the request was answered already, or the requester gave up: %w", verbs.ErrBadState)

func (r *request) isOver() bool {
	select {
	case <-r.over:
		return true
	default:
		return false
	}
}

// finish ends the request unless that has happened. join, if set, is what
// must succeed for a success; it is called with mu held.
func (r *request) finish(err error, join func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isOver() {
		return errAnswered
	}
	if join != nil {
		if err := join(); err != nil {
			return err
		}
	}
	r.err = err
	close(r.over)
	return nil
}

func (r *request) Conn() verbs.Conn { return r.from.peer }
func (r *request) Private() []byte  { return r.private }

// Accept joins qp to the requester's. If that fails, the request can still be
// accepted with another queue pair, or rejected.
func (r *request) Accept(qp verbs.QP, private []byte) error {
	if len(private) > verbs.MaxPrivateData {
		return fmt.Errorf("cannot accept: %d bytes of private data, not at most %d: %w", len(private), verbs.MaxPrivateData, verbs.ErrInvalid)
	}
	err := r.finish(nil, func() error {
		to := r.from.peer
		r.reply = append([]byte(nil), private...)
		return to.Device.ConnectPair(qp, to.Link, r.from.Device, r.qp, r.from.Link)
	})
	if err != nil {
		return fmt.Errorf("cannot accept a QP: %w", err)
	}
	return nil
}

// Reject refuses the request.
func (r *request) Reject(reason string) error {
	if err := r.finish(&verbs.RejectError{Reason: reason}, nil); err != nil {
		return fmt.Errorf("cannot reject: %w", err)
	}
	return nil
}
