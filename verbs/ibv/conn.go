//go:build ibverbs

package ibv

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"polder/verbs"
	"polder/verbs/internal/endpoint"
)

// Built reports whether this program was built with RDMA.
const Built = true

const (
	// outboxMost is how many bytes of frames may wait for the peer to take
	// them. There is little to say about each queue pair.
	outboxMost = 1 << 20
	// linger is how long a closed connection waits for what it sent last to
	// be taken.
	linger = time.Second
)

var (
	errPeerClosed = errors.New("connection closed by the peer")
	errSilent     = errors.New("the peer is silent")
	errOutboxFull = errors.New("the peer does not read what it is sent")
	errNoListener = errors.New("this end does not listen")
	errAnswered   = fmt.Errorf("the request has been answered before: %w", verbs.ErrInvalid)
)

// conn implements verbs.Conn: a stream connection over which queue pairs are
// joined, and that says which end has gone.
type conn struct {
	dev      *device
	nc       net.Conn // TCP or TLS
	cfg      Config
	requests *endpoint.Requests // nil at the end that dialled
	here     ownAddress
	there    address

	out        outbox
	heard      atomic.Uint64 // how many frames have come, for keepalive
	ending     atomic.Bool
	err        error         // immutable once down is closed
	graceful   bool          // immutable once down is closed
	down       chan struct{} // closed when the connection begins to end
	done       chan struct{} // closed when its queue pairs are in the error state
	readerDone chan struct{}

	mu          sync.Mutex
	over        bool                // guarded by mu: no queue pair joins any more
	nextRequest uint32              // guarded by mu
	joining     map[uint32]*joining // guarded by mu: calls of Connect that wait
	qps         map[uint32]joined   // guarded by mu: by the number at this end
}

// joining is a call of Connect that waits for its answer.
type joining struct {
	qp     *qp
	psn    uint32
	answer chan answer // holds one
}

type answer struct {
	private []byte
	err     error
}

// joined is a queue pair that has been connected over the connection.
type joined struct {
	qp   *qp
	peer uint32
}

// Dial connects dev to the listener at addr (host:port).
func Dial(ctx context.Context, dev verbs.Device, addr string, cfg Config) (verbs.Conn, error) {
	c, err := dial(ctx, dev, addr, cfg)
	if err != nil {
		return nil, fmt.Errorf("cannot dial %s: %w", addr, err)
	}
	return c, nil
}

func dial(ctx context.Context, dev verbs.Device, addr string, cfg Config) (*conn, error) {
	d, err := ours(dev)
	if err != nil {
		return nil, err
	}
	if cfg, err = normalized(cfg); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.HandshakeTimeout)
	defer cancel()
	nc, err := cfg.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	c, err := establish(ctx, d, nc, cfg, nil, endpoint.Anybody)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}

// normalized returns cfg with its defaults filled in, or says what is wrong.
func normalized(cfg Config) (Config, error) {
	if cfg.KeepAlive == 0 {
		cfg.KeepAlive = DefaultKeepAlive
	}
	return cfg.Normalized()
}

// establish does the handshake on nc and, if it is admitted, starts a connection.
// The caller closes nc if it fails.
func establish(ctx context.Context, d *device, nc net.Conn, cfg Config, requests *endpoint.Requests, admit endpoint.Admit) (*conn, error) {
	c := &conn{
		dev: d, nc: nc, cfg: cfg, requests: requests,
		out:        outbox{wake: make(chan struct{}, 1)},
		down:       make(chan struct{}),
		done:       make(chan struct{}),
		readerDone: make(chan struct{}),
		joining:    make(map[uint32]*joining),
		qps:        make(map[uint32]joined),
	}
	var err error
	if c.here, err = d.address(nc.LocalAddr().String()); err != nil {
		return nil, err
	}
	hello := func() (err error) {
		c.there, err = exchangeHello(nc, c.here.address)
		return err
	}
	if err := endpoint.Shake(ctx, nc, hello); err != nil {
		return nil, err
	}
	leave, err := admit()
	if err != nil {
		return nil, err
	}
	remove, err := d.ends.Add(c)
	if err != nil {
		leave()
		return nil, err
	}
	go c.read()
	go func() {
		c.write()
		<-c.readerDone
		leave()
		remove()
	}()
	return c, nil
}

// read handles what the peer says until the connection ends.
func (c *conn) read() {
	defer close(c.readerDone)
	r := bufio.NewReader(c.nc)
	for {
		m, err := readFrame(r)
		if err == nil {
			c.heard.Add(1)
			err = c.handle(m)
		} else {
			err = fmt.Errorf("connection lost: %w", err)
		}
		if err != nil {
			c.end(err, false)
			return
		}
	}
}

// write sends frames, and looks after the peer's silence, until the connection
// ends.
func (c *conn) write() {
	alive := time.NewTicker(c.cfg.KeepAlive)
	defer alive.Stop()
	var heard uint64 // as of the last tick
	silent := 0      // ticks without a sign of life
	for {
		select {
		case <-c.out.wake:
			if err := c.out.flush(c.nc, c.cfg.StallTimeout); err != nil {
				c.end(err, false)
			}
		case <-alive.C:
			if now := c.heard.Load(); now != heard {
				heard, silent = now, 0
				continue
			}
			if silent++; silent > endpoint.SilentIntervals {
				c.end(fmt.Errorf("nothing has come for %v, not even the answer to a ping: %w",
					endpoint.SilentIntervals*c.cfg.KeepAlive, errSilent), false)
				continue
			}
			c.send(message{typ: framePing})
		case <-c.down:
			if c.graceful {
				_ = c.out.flush(c.nc, linger) // the last words
			}
			c.nc.Close()
			return
		}
	}
}

// send queues a frame to be sent. It does not block, and may be called with any lock held but the outbox's.
func (c *conn) send(m message) {
	if !c.out.add(m) {
		go c.end(errOutboxFull, false)
	}
}

// end takes the connection down, if nobody has yet: its queue pairs go to the
// error state, then Done is closed, and the goroutines end in their own time.
func (c *conn) end(err error, graceful bool) {
	if c.ending.Swap(true) {
		return
	}
	if graceful {
		c.out.add(message{typ: frameBye})
	}
	c.mu.Lock()
	c.over = true
	waiting, qps := c.joining, c.qps
	c.joining, c.qps = nil, nil
	c.err, c.graceful = err, graceful
	close(c.down)
	c.mu.Unlock()
	// In the order in which they were made.
	bySerial := func(a, b joined) int { return cmp.Compare(a.qp.serial, b.qp.serial) }
	for _, j := range slices.SortedFunc(maps.Values(qps), bySerial) {
		j.qp.fail(verbs.EventDisconnected)
		j.qp.open()
	}
	for _, j := range waiting {
		j.qp.unclaim()
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
func (c *conn) LocalAddr() string { return c.nc.LocalAddr().String() }

// RemoteAddr implements verbs.Conn.
func (c *conn) RemoteAddr() string { return c.nc.RemoteAddr().String() }

// Close implements verbs.Conn. It may be called from a completion handler.
func (c *conn) Close() error {
	c.end(verbs.ErrClosed, true)
	return nil
}

// outbox is the frames that wait to be sent.
type outbox struct {
	wake chan struct{} // capacity 1

	mu    sync.Mutex
	bytes []byte // guarded by mu
	spare []byte // the writer's
}

// add appends a frame, or reports that there is no room.
func (o *outbox) add(m message) bool {
	o.mu.Lock()
	ok := len(o.bytes) < outboxMost
	if ok {
		o.bytes = appendFrame(o.bytes, m)
	}
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
	return ok
}

// flush writes what there is.
func (o *outbox) flush(nc net.Conn, patience time.Duration) error {
	o.mu.Lock()
	todo := o.bytes
	o.bytes, o.spare = o.spare[:0], todo
	o.mu.Unlock()
	if len(todo) == 0 {
		return nil
	}
	if err := nc.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return fmt.Errorf("cannot write: %w", err)
	}
	if _, err := nc.Write(todo); err != nil {
		return fmt.Errorf("cannot write: %w", err)
	}
	return nil
}
