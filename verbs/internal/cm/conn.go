package cm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"polder/verbs"
	"polder/verbs/internal/endpoint"
	"polder/verbs/internal/softdev"
	"polder/verbs/softnic"
)

// A Link is a driver's connection.
type Link interface {
	verbs.Conn
	softdev.LinkDriver
	softdev.Flusher
	// Put queues a message for the peer, which the next Flush sends.
	Put(t Type, body []byte) error
	// Fail ends the connection because of err.
	Fail(err error)
}

// Conn is what the connections of different drivers have in common; a driver's connection embeds it. It has the
// methods of verbs.Conn except Close and the addresses.
type Conn struct {
	dev      *softdev.Device
	self     Link
	id       softnic.Link
	requests *endpoint.Requests // nil at the end that dialled

	mu      sync.Mutex
	next    uint32              // guarded by mu
	joining map[uint32]*joining // guarded by mu: calls of Connect that wait

	ending   atomic.Bool
	graceful bool          // immutable once down is closed
	err      error         // immutable once down is closed
	down     chan struct{} // closed when the connection begins to end
	done     chan struct{} // closed when its queue pairs are in the error state
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

// Open sets up c, which self embeds, and adds it to the device. Connection requests of the peer go to requests, or
// are refused if that is nil.
func (c *Conn) Open(dev *softdev.Device, self Link, requests *endpoint.Requests) (err error) {
	c.dev, c.self, c.requests = dev, self, requests
	c.joining = make(map[uint32]*joining)
	c.down, c.done = make(chan struct{}), make(chan struct{})
	c.id, err = dev.AddLink(self)
	return err
}

// ID is what the device knows the connection as.
func (c *Conn) ID() softnic.Link { return c.id }

// Connect implements verbs.Conn.
func (c *Conn) Connect(ctx context.Context, qp verbs.QP, private []byte) ([]byte, error) {
	reply, err := c.connect(ctx, qp, private)
	if err != nil {
		return nil, fmt.Errorf("cannot connect a queue pair to %s: %w", c.self.RemoteAddr(), err)
	}
	return reply, nil
}

func (c *Conn) connect(ctx context.Context, qp verbs.QP, private []byte) ([]byte, error) {
	if err := checkPrivate(private); err != nil {
		return nil, err
	}
	qpn, err := c.dev.QPNum(qp)
	if err != nil {
		return nil, err
	}
	j := &joining{qp: qp, answer: make(chan answer, 1)}
	c.mu.Lock()
	select {
	case <-c.down:
		c.mu.Unlock()
		return nil, c.ClosedErr()
	default:
	}
	id := c.next
	c.next++
	c.joining[id] = j
	c.mu.Unlock()

	c.say(Connect, Append(nil, id, qpn, private))
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

// takeJoining returns the waiting call of the given number, once.
func (c *Conn) takeJoining(id uint32) *joining {
	c.mu.Lock()
	defer c.mu.Unlock()
	j := c.joining[id]
	delete(c.joining, id)
	return j
}

// say sends a message.
func (c *Conn) say(t Type, body []byte) {
	if err := c.self.Put(t, body); err != nil {
		c.self.Fail(err)
		return
	}
	c.self.Flush()
}

// Handle handles a message of the peer's, in the reader, which flushes when it has
// handled all it has. An error means that the connection must end.
func (c *Conn) Handle(t Type, body []byte) error {
	id, qpn, data, err := Decode(t, body)
	if err != nil {
		return err
	}
	switch t {
	case Connect:
		return c.handleConnect(id, qpn, data)
	case Accept:
		c.handleAccept(id, qpn, data)
	case Reject:
		if j := c.takeJoining(id); j != nil {
			j.answer <- answer{err: &verbs.RejectError{Reason: string(data)}}
		}
	}
	return nil
}

func (c *Conn) handleConnect(id, qpn uint32, private []byte) error {
	refusal := errNoListener
	if c.requests != nil {
		refusal = c.requests.Offer(&request{conn: c, id: id, qpn: qpn, private: append([]byte(nil), private...)})
	}
	if refusal != nil {
		return c.self.Put(Reject, Append(nil, id, 0, []byte(refusal.Error())))
	}
	return nil
}

// handleAccept connects the local queue pair, in the reader, so that it is
// done before the packets behind the message are looked at.
func (c *Conn) handleAccept(id, qpn uint32, private []byte) {
	j := c.takeJoining(id)
	if j == nil { // given up
		c.dev.Disconnect(c.id, qpn)
		return
	}
	if err := c.dev.ConnectQP(j.qp, c.id, qpn, nil); err != nil {
		c.dev.Disconnect(c.id, qpn)
		j.answer <- answer{err: err}
		return
	}
	j.answer <- answer{private: append([]byte(nil), private...)}
}

// End takes the connection down, if nobody has yet: stop has the driver stop
// sending, its queue pairs go to the error state, and then Done is closed.
func (c *Conn) End(err error, graceful bool, stop func()) {
	if c.ending.Swap(true) {
		return // perhaps called from within the call that does it
	}
	c.mu.Lock()
	c.err, c.graceful = err, graceful
	waiting := c.joining
	c.joining = nil
	close(c.down)
	c.mu.Unlock()

	stop()
	c.dev.RemoveLink(c.id)
	for _, j := range waiting {
		j.answer <- answer{err: c.ClosedErr()}
	}
	close(c.done)
}

// ClosedErr says why the connection is down.
//
// Preconditions: c.down is closed.
func (c *Conn) ClosedErr() error {
	if errors.Is(c.err, verbs.ErrClosed) {
		return c.err
	}
	return fmt.Errorf("%w: %w", verbs.ErrClosed, c.err)
}

// Down is closed when the connection begins to end.
func (c *Conn) Down() <-chan struct{} { return c.down }

// Graceful reports whether this end said goodbye.
//
// Preconditions: Down is closed.
func (c *Conn) Graceful() bool { return c.graceful }

// Done implements verbs.Conn.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err implements verbs.Conn.
func (c *Conn) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}
