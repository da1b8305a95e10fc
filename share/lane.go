package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"polder/internal/fdpass"
	"polder/share/internal/wire"
)

// lane is a connection that carries one request at a time.
type lane struct {
	conn  *fdpass.Conn
	epoch uint64 // of the attachment that it belongs to
	spent bool   // a cancelled call may yet set a deadline, and end the next call
	req   wire.Writer
}

// request is what a call sends and what it does with the answer.
type request struct {
	op    string
	key   string
	again bool // doing it twice is as good as once
	fds   bool // descriptors may come with the answer
	short bool // it may go by mailbox

	build func(wire.Writer) wire.Writer
	parse func(r *wire.Reader, files []*os.File, repeated bool) error
}

// call sends a request on some lane and reads the answer. If the daemon is
// restarting or does not answer, it waits as long as the client's patience lasts.
func (c *Client) call(ctx context.Context, q request) error {
	if err := c.tryCall(ctx, q); err != nil {
		return &OpError{Op: q.op, Key: q.key, Err: err}
	}
	return nil
}

func (c *Client) tryCall(ctx context.Context, q request) error {
	var until time.Time
	for repeated := false; ; repeated = true {
		if err := ctx.Err(); err != nil {
			return err
		}
		switch o, err := c.post(ctx, q, repeated); { // fast path
		case o == answered:
			return err
		case o == lost && !q.again:
			return fmt.Errorf("%w: %w", ErrUncertain, err)
		case o == lost:
			repeated = true
		}
		if until.IsZero() {
			until = time.Now().Add(c.cfg.Patience)
		}
		l, err := c.takeLane(ctx, until)
		if err != nil {
			return err
		}
		outcome, err := c.exchange(ctx, l, q, repeated, until)
		if outcome == answered {
			c.putLane(l)
			return err
		}
		l.conn.Close()
		c.dropLane()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !q.again && outcome == lost {
			return fmt.Errorf("%w: %w", ErrUncertain, err)
		}
		c.brokenLane(l.epoch)
		if !time.Now().Before(until) {
			return c.impatient()
		}
	}
}

// impatient is the error of a wait that has lasted too long.
func (c *Client) impatient() error {
	return fmt.Errorf("%w: it has not answered for %v", ErrUnavailable, c.cfg.Patience)
}

// outcome is what has become of a request. A lane is of no more use unless the
// request was answered.
type outcome int

const (
	answered outcome = iota
	unsent           // the daemon has not got it
	lost             // the daemon may have got it
)

// exchange sends one request and reads its answer.
func (c *Client) exchange(ctx context.Context, l *lane, q request, repeated bool, until time.Time) (o outcome, err error) {
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(until) {
		until = deadline
	}
	if err := l.conn.SetDeadline(until); err != nil {
		return unsent, err
	}
	if ctx.Done() != nil { // slow path: the wait has to be interruptible
		stop := context.AfterFunc(ctx, func() { l.conn.SetDeadline(time.Unix(1, 0)) })
		defer func() { l.spent = !stop() }()
	}
	l.req = q.build(l.req[:0])
	if err := l.conn.Send(l.req); err != nil {
		if errors.Is(err, fdpass.ErrTooLarge) {
			return answered, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		return unsent, err
	}
	var r wire.Reader
	var files []*os.File
	if q.fds {
		var msg []byte
		if msg, files, err = l.conn.RecvFDs(); err != nil {
			return lost, err
		}
		defer fdpass.CloseAll(files)
		r.Reset(msg)
	} else {
		msg, err := l.conn.Recv()
		if err != nil {
			return lost, err
		}
		defer l.conn.Done()
		r.Reset(msg)
	}
	return answered, c.parse(&r, q, files, repeated)
}

// takeLane returns an idle lane, or a new one.
func (c *Client) takeLane(ctx context.Context, until time.Time) (*lane, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, ErrClosed
		}
		if c.err != nil {
			c.mu.Unlock()
			return nil, c.err
		}
		if !c.attached {
			wait := c.changed
			c.mu.Unlock()
			if err := c.await(ctx, wait, until); err != nil {
				return nil, err
			}
			continue
		}
		if n := len(c.idle); n > 0 {
			l := c.idle[n-1]
			c.idle = c.idle[:n-1]
			c.mu.Unlock()
			if l.epoch != c.epoch.Load() {
				l.conn.Close()
				c.dropLane()
				continue
			}
			return l, nil
		}
		if c.lanes >= maxLanes {
			c.waiting++
			c.mu.Unlock()
			if err := c.await(ctx, c.laneFree, until); err != nil {
				// A lane that was offered to this call goes to the next.
				c.mu.Lock()
				if c.waiting > 0 {
					c.waiting--
				}
				c.mu.Unlock()
				return nil, err
			}
			continue
		}
		c.lanes++
		tok, epoch := c.token, c.epoch.Load()
		c.mu.Unlock()
		l, err := c.dialLane(tok, epoch, until)
		if err == nil {
			return l, nil
		}
		c.dropLane()
		if !time.Now().Before(until) {
			err = c.impatient()
		}
		if errors.Is(err, ErrDenied) || errors.Is(err, ErrBusy) || errors.Is(err, ErrInvalid) {
			return nil, err
		}
		c.brokenLane(epoch)
		if !time.Now().Before(until) {
			return nil, err
		}
	}
}

// maxLanes bounds the connections of a client, beside the one for notices.
const maxLanes = 8

func (c *Client) putLane(l *lane) {
	c.mu.Lock()
	if c.closed || l.spent || l.epoch != c.epoch.Load() {
		c.mu.Unlock()
		l.conn.Close()
		c.dropLane()
		return
	}
	c.idle = append(c.idle, l)
	c.offerLane()
	c.mu.Unlock()
}

// dropLane counts a lane out that is closed.
func (c *Client) dropLane() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lanes--
	c.offerLane()
}

// offerLane wakes one call that waits for a lane.
//
// Preconditions: c.mu is held.
func (c *Client) offerLane() {
	if c.waiting > 0 {
		c.waiting--
		select {
		case c.laneFree <- struct{}{}:
		default:
		}
	}
}

// brokenLane makes calls wait until the client is attached anew, if the lane that has failed belongs to the present
// attachment: it closes the connection for notices, too, so that watch attaches anew.
func (c *Client) brokenLane(epoch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.attached && epoch == c.epoch.Load() && !c.closed {
		c.attached = false
		c.watching.Close()
	}
}

// await waits for a change of the attachment, or for a lane. It fails at the time until, when the client's patience
// ends.
func (c *Client) await(ctx context.Context, changed <-chan struct{}, until time.Time) error {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return c.impatient()
	}
}

func (c *Client) dialLane(tok [16]byte, epoch uint64, until time.Time) (*lane, error) {
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	conn, err := fdpass.DialContext(ctx, c.cfg.Socket)
	if err != nil {
		return nil, err
	}
	l := &lane{conn: conn, epoch: epoch}
	l.req = helloMessage(wire.HelloLane, tok, c.cfg.Name, attachment{})
	if err = conn.SetDeadline(until); err == nil {
		err = conn.Send(l.req)
	}
	if err == nil {
		var msg []byte
		var files []*os.File
		if msg, files, err = conn.RecvFDs(); err == nil {
			fdpass.CloseAll(files)
			r := wire.Read(msg)
			if s := wire.Status(r.U8()); s != wire.OK {
				err = replyError(s, r.Rest())
			}
		}
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return l, nil
}

// attachment is what a client tells a daemon that may have forgotten it.
type attachment struct {
	refs  []uint32 // pages of views that hold no slot of the lease
	maps  []uint64 // regions of others that it maps
	owned []uint64 // regions of its own that it maps
}

func helloMessage(flags uint8, tok [16]byte, name string, a attachment) wire.Writer {
	b := wire.Writer(nil).U8(uint8(wire.Hello)).U16(wire.Version).U8(flags).Raw(tok[:]).String(name)
	b = b.U32(uint32(len(a.refs)))
	for _, p := range a.refs {
		b = b.U32(p)
	}
	for _, ids := range [][]uint64{a.maps, a.owned} {
		b = b.U32(uint32(len(ids)))
		for _, id := range ids {
			b = b.U64(id)
		}
	}
	return b
}
