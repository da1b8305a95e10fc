package shm

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"polder/internal/arena"
	"polder/internal/fdpass"
	"polder/verbs"
	"polder/verbs/internal/cm"
	"polder/verbs/softnic"
)

// batchSize is the most packets that are handed to the engine at once.
const batchSize = 256

var errPeerClosed = errors.New("connection closed by the peer")

// conn implements cm.Link.
type conn struct {
	cm.Conn
	dev           *device
	sock          *fdpass.Conn
	accepted      bool // not dialled
	local, remote string
	out           *outbox
	stopped       func() // counts the connection out

	// The watcher's.
	memory  chan *arena.Memfd     // holds what the peer has passed
	passed  atomic.Int32          // how often memory was
	lost    atomic.Pointer[error] // the socket's end
	watched chan struct{}         // closed when the watcher has ended

	// The reader's.
	in      *inbox
	packets []softnic.Packet // a batch
	given   int              // how many of packets the engine has taken
	next    func() (*softnic.Packet, bool)
	news    func() bool
}

func newConn(d *device, sock *fdpass.Conn, r *region, accepted bool) *conn {
	c := &conn{
		dev: d, sock: sock, accepted: accepted,
		out: newOutbox(r), in: newInbox(r.in),
		packets: make([]softnic.Packet, 0, batchSize),
		memory:  make(chan *arena.Memfd, maxMemories),
		watched: make(chan struct{}),
	}
	c.next = c.nextPacket
	c.news = func() bool {
		return c.in.pending() || c.Ending() || c.lost.Load() != nil || c.out.needy()
	}
	return c
}

// start starts the connection's goroutines.
func (c *conn) start() {
	go c.watch()
	go func() {
		c.read()
		<-c.Done()
		<-c.watched
		c.out.unmap()
		closeAll(c.memory) // nobody wanted it
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
		c.Fail(err)
	}
}

// read is the reader. It ends when the connection does.
func (c *conn) read() {
	for !c.Ending() {
		lost := c.lost.Load() // before the ring is looked at for the last time
		switch {
		case c.in.pending():
			if err := c.handle(); err != nil {
				c.Fail(err)
			}
		case lost != nil:
			err := *lost
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF // there was no BYE
			}
			c.Fail(fmt.Errorf("connection lost: %w", err))
		case c.out.needy():
			if c.out.relieve() {
				c.dev.Resume(c.ID())
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
			c.dev.Deliver(c.ID(), c.next)
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

// Fail implements cm.Link.
func (c *conn) Fail(err error) { c.end(err, false) }

func (c *conn) end(err error, bye bool) {
	c.End(err, bye, func() {
		c.out.close(bye)
		c.sock.Close()
	})
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
