package shm

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"polder/internal/arena"
	"polder/internal/fdpass"
	"polder/verbs"
	"polder/verbs/softnic"
)

// batchSize is the most packets that are handed to the engine at once.
const batchSize = 256

var (
	errPeerClosed = errors.New("connection closed by the peer")
	errAnswered   = fmt.Errorf("the request has been answered before: %w", verbs.ErrInvalid)
)

// conn implements verbs.Conn, softdev.LinkDriver and softdev.Flusher.
type conn struct {
	dev           *device
	sock          *fdpass.Conn
	link          softnic.Link
	listener      *listener // nil at the end that dialled
	local, remote string
	out           *outbox
	stopped       func() // counts the connection out

	// The watcher's.
	memory  chan *arena.Memfd     // holds what the peer has passed
	passed  atomic.Bool           // memory was passed
	lost    atomic.Pointer[error] // the socket's end
	watched chan struct{}         // closed when the watcher has ended

	// The reader's.
	in      *inbox
	packets []softnic.Packet // a batch
	given   int              // how many of packets the engine has taken
	next    func() (*softnic.Packet, bool)
	news    func() bool

	reqMu       sync.Mutex
	nextRequest uint32              // guarded by reqMu
	joining     map[uint32]*joining // guarded by reqMu: calls of Connect that wait

	ending atomic.Bool
	err    error         // immutable once down is closed
	down   chan struct{} // closed when the connection begins to end
	done   chan struct{} // closed when its queue pairs are in the error state
}

func newConn(d *device, sock *fdpass.Conn, r *region, l *listener) *conn {
	c := &conn{
		dev: d, sock: sock, listener: l,
		out: newOutbox(r), in: newInbox(r.in),
		packets: make([]softnic.Packet, 0, batchSize),
		memory:  make(chan *arena.Memfd, 1),
		watched: make(chan struct{}),
		joining: make(map[uint32]*joining),
		down:    make(chan struct{}),
		done:    make(chan struct{}),
	}
	c.next = c.nextPacket
	c.news = func() bool {
		return c.in.pending() || c.ending.Load() || c.lost.Load() != nil || c.out.needy()
	}
	return c
}

// start starts the connection's goroutines.
func (c *conn) start() {
	go c.watch()
	go func() {
		c.read()
		<-c.done
		<-c.watched
		c.out.unmap()
		select {
		case m := <-c.memory: // nobody wanted it
			m.Close()
		default:
		}
		if c.listener != nil {
			<-c.listener.places
		}
		c.stopped()
	}()
}

// Send implements softdev.LinkDriver. The device's lock is held.
func (c *conn) Send(p *softnic.Packet) { c.out.addPacket(p) }

// Ready implements softdev.LinkDriver. The device's lock is held.
func (c *conn) Ready() bool { return c.out.ready() }

// Flush implements softdev.Flusher. No lock is held.
func (c *conn) Flush() {
	if err := c.out.flush(); err != nil {
		c.fail(err)
	}
}

// read is the reader. It ends when the connection does.
func (c *conn) read() {
	for !c.ending.Load() {
		lost := c.lost.Load() // before the ring is looked at for the last time
		switch {
		case c.in.pending():
			if err := c.handle(); err != nil {
				c.fail(err)
			}
		case lost != nil:
			err := *lost
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF // there was no BYE
			}
			c.fail(fmt.Errorf("connection lost: %w", err))
		case c.out.needy():
			if c.out.relieve() {
				c.dev.Resume(c.link)
			}
			c.Flush()
		default:
			c.out.region.own.wait(c.news)
		}
	}
}

// handle handles all records that are in the ring.
//
// Hot path: it takes the device's lock once per batch, and flushes once.
func (c *conn) handle() error {
	b, err := c.in.take()
	if err != nil {
		return err
	}
	c.out.consumed()
	for len(b) > 0 {
		var t recordType
		var body []byte
		c.packets = c.packets[:0]
		for len(b) > 0 && len(c.packets) < batchSize {
			if t, body, b, err = nextRecord(b); err != nil || t != recordPacket {
				break
			}
			c.packets = c.packets[:len(c.packets)+1]
			if err = c.packets[len(c.packets)-1].Decode(body); err != nil {
				c.packets = c.packets[:len(c.packets)-1]
				break
			}
		}
		// On an error the packets before it stand.
		if len(c.packets) > 0 {
			c.given = 0
			c.dev.Deliver(c.link, c.next)
		}
		if err == nil && t != recordPacket {
			err = c.handleControl(t, body)
		}
		if err != nil {
			return err
		}
	}
	c.Flush()
	return nil
}

// nextPacket gives the engine the packets of the batch.
func (c *conn) nextPacket() (*softnic.Packet, bool) {
	if c.given == len(c.packets) {
		return nil, false
	}
	c.given++
	return &c.packets[c.given-1], true
}

// fail ends the connection because of err.
func (c *conn) fail(err error) { c.end(err, false) }

// end takes the connection down, if nobody has yet: its queue pairs go to the
// error state, then Done is closed, and the goroutines end in their own time.
func (c *conn) end(err error, bye bool) {
	if c.ending.Swap(true) {
		return // perhaps called from within the call that does it
	}
	c.reqMu.Lock()
	c.err = err
	waiting := c.joining
	c.joining = nil
	close(c.down)
	c.reqMu.Unlock()

	c.out.close(bye)
	c.sock.Close()
	c.dev.RemoveLink(c.link)
	for _, j := range waiting {
		j.answer <- answer{err: c.closedErr()}
	}
	close(c.done)
}

// closedErr says why the connection is down.
//
// Preconditions: c.down is closed.
func (c *conn) closedErr() error {
	if errors.Is(c.err, verbs.ErrClosed) {
		return c.err
	}
	return fmt.Errorf("%w: %w", verbs.ErrClosed, c.err)
}

// Done implements verbs.Conn.
func (c *conn) Done() <-chan struct{} { return c.done }

// Err implements verbs.Conn.
func (c *conn) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// LocalAddr implements verbs.Conn.
func (c *conn) LocalAddr() string { return c.local }

// RemoteAddr implements verbs.Conn: the socket's address, or which process has
// dialled.
func (c *conn) RemoteAddr() string { return c.remote }

// Close implements verbs.Conn. It may be called from a completion handler.
func (c *conn) Close() error {
	c.end(verbs.ErrClosed, true)
	return nil
}
