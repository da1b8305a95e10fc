package origin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"polder/resp/clientmem"
	"polder/resp/proto"
)

const (
	firstInput = 4 << 10  // room for commands, to begin with
	flushAt    = 64 << 10 // bytes of replies or commands from which on they are sent at once
	ahead      = 256      // keys of a pipeline that are fetched together
)

var errRefused = errors.New("ERR this is a cache: replicas connect to the origin itself")

// client is a client's connection. A field belongs to the goroutine that reads commands, unless its comment says
// otherwise.
type client struct {
	s   *Server
	t   *tracker
	out *output
	mem *clientmem.Account

	conn   net.Conn
	parser proto.Parser
	in     []byte // what has come
	at     int    // how many bytes of in are done
	local  []byte // replies from the cache that wait to go out
	value  []byte // the last value looked up

	back  net.Conn  // the client's own connection to the origin, nil until it needs one
	fwd   []byte    // commands to the origin that wait to go out
	tried time.Time // when connecting to the origin failed last
	why   error     // why it failed
	plain bool      // everything is passed on, and replies are no longer matched with commands
	relay sync.WaitGroup

	// state belongs to the goroutine that reads replies while replies are outstanding, and otherwise to the goroutine
	// that reads commands.
	state       state
	outstanding atomic.Int64
	dirty       atomic.Bool // since plain was set, commands may have changed values

	mu       sync.Mutex
	answered sync.Cond // when sent has become empty, or over was set
	sent     []passed  // commands whose replies are outstanding, in order; guarded by mu
	over     bool      // no more replies come; guarded by mu
	gone     bool      // hangUp was called; guarded by mu
}

func newClient(s *Server, conn net.Conn) *client {
	c := &client{s: s, t: s.tracker, conn: conn, out: newOutput(conn, s.cfg.OutputLimit, s.cfg.WriteTimeout), mem: s.cfg.ClientMemory.Join()}
	c.parser.Limits = proto.Limits{MaxBulk: s.cfg.MaxValue, MaxArgs: 1 << 20, MaxInline: 64 << 10}
	c.answered.L = &c.mu
	c.state.proto = 2
	c.mem.HangUp = c.hangUp
	return c
}

// hangUp ends the client. Any goroutine may call it.
func (c *client) hangUp() {
	c.mu.Lock()
	c.gone = true
	if c.back != nil {
		clientmem.HangUp(c.back)
	}
	c.mu.Unlock()
	clientmem.HangUp(c.conn)
}

// run serves the client until it has gone. It returns when all goroutines of the client have ended.
func (c *client) run() error {
	err := c.commands()
	if c.back != nil {
		if errors.Is(err, io.EOF) && c.outstanding.Load() > 0 {
			// The client has closed its sending side: it waits for replies, or has gone. The origin sees the same,
			// and decides.
			if half, ok := c.back.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite()
				_ = c.back.SetReadDeadline(time.Now().Add(c.s.cfg.WriteTimeout))
				c.relay.Wait()
			}
		}
		_ = c.back.Close()
		c.relay.Wait()
	}
	c.out.wait()
	_ = c.conn.Close()
	c.out.wait()
	c.parser.Forget()
	clientmem.Free(c.in)
	c.mem.Leave()
	return err
}

// commands reads commands and has them answered.
func (c *client) commands() error {
	for {
		args, n, err := c.parser.Next(c.in[c.at:])
		switch {
		case err != nil:
			return errors.Join(err, c.say("ERR "+err.Error()))
		case n == 0:
			if err := c.flush(); err != nil {
				return err
			}
			if err := c.fill(); err != nil {
				return err
			}
			continue
		case args != nil:
			if err := c.command(args, c.in[c.at:c.at+n]); err != nil {
				return err
			}
		}
		c.at += n
	}
}

// fill reads more commands. It moves an incomplete command to the front of in.
func (c *client) fill() error {
	c.in = c.in[:copy(c.in, c.in[c.at:])]
	c.at = 0
	if len(c.in) > 2*c.s.cfg.MaxValue+1<<20 {
		return errors.New("a command is too long")
	}
	switch missing := c.parser.Missing(len(c.in)); {
	case len(c.in) == 0 && (cap(c.in) == 0 || cap(c.in) >= flushAt):
		c.parser.Release()
		clientmem.Free(c.in)
		c.in = make([]byte, 0, firstInput)
	case len(c.in) == cap(c.in) || missing > cap(c.in)-len(c.in) && cap(c.in)-len(c.in) < len(c.in):
		c.parser.Forget()
		c.in = clientmem.Grow(c.in, 2*cap(c.in)) // at most twice what has come: announcing bytes costs nothing
	}
	if !c.mem.Hold(cap(c.in) + cap(c.fwd) + cap(c.local) + cap(c.value) + c.out.held() + c.awaited()) {
		return errors.New("clients hold too much, and this one most")
	}
	limit := time.Time{}
	if d := c.s.cfg.IdleTimeout; d > 0 && c.outstanding.Load() == 0 {
		limit = time.Now().Add(d)
	}
	if err := c.conn.SetReadDeadline(limit); err != nil {
		return err
	}
	n, err := c.conn.Read(c.in[len(c.in):cap(c.in)])
	c.in = c.in[:len(c.in)+n]
	if n > 0 {
		return nil
	}
	return err
}

// passedSize is about how many bytes a command that was passed on takes until it is answered.
const passedSize = 128

// awaited is about how many bytes the commands that are not answered yet take.
func (c *client) awaited() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cap(c.sent) * passedSize
}

// flush sends the replies and commands that wait to go out.
func (c *client) flush() error {
	if err := c.flushLocal(); err != nil || len(c.fwd) == 0 {
		return err
	}
	err := c.forward(c.fwd)
	if c.fwd = c.fwd[:0]; cap(c.fwd) > flushAt {
		c.fwd = nil
	}
	return err
}

func (c *client) flushLocal() error {
	if len(c.local) == 0 {
		return nil
	}
	err := c.out.write(c.local, nil)
	if c.local = c.local[:0]; cap(c.local) > flushAt {
		c.local = nil
	}
	if cap(c.value) > flushAt {
		c.value = nil
	}
	return err
}

func (c *client) forward(b []byte) error {
	if err := c.back.SetWriteDeadline(time.Now().Add(c.s.cfg.WriteTimeout)); err != nil {
		return err
	}
	if _, err := c.back.Write(b); err != nil {
		return fmt.Errorf("cannot pass on a command: %w", err)
	}
	return nil
}

// say sends the client an error after the replies that are outstanding. The client is to be disconnected then.
func (c *client) say(text string) error {
	if err := c.flush(); err != nil {
		return err
	}
	defer time.AfterFunc(c.s.cfg.Timeout, func() {
		c.mu.Lock()
		c.over = true
		c.answered.Broadcast()
		c.mu.Unlock()
	}).Stop()
	c.mu.Lock()
	for len(c.sent) > 0 && !c.over {
		c.answered.Wait()
	}
	late := len(c.sent) > 0
	c.mu.Unlock()
	if late {
		return nil // the client may be in the midst of a reply
	}
	return c.out.write(proto.AppendError(nil, text), nil)
}

// command has a command answered. Raw is the command as it came.
func (c *client) command(args [][]byte, raw []byte) error {
	r := ruleOf(args)
	if !c.plain {
		switch r.op {
		case opRefused:
			return errors.Join(errRefused, c.say(errRefused.Error()))
		case opGet, opMGet, opExists, opStrLen, opGetRange:
			// Nothing is outstanding: what this client has sent before has taken effect.
			if c.outstanding.Load() == 0 && c.state.reads(&c.s.cfg.URL) && c.read(r.op, args, len(raw)) {
				if len(c.local) >= flushAt {
					return c.flushLocal()
				}
				return nil
			}
		}
	}
	c.t.stats.passed.Add(1)
	if c.back == nil {
		if err := c.connect(); err != nil {
			c.local = proto.AppendError(c.local, "ERR the origin cannot be reached: "+oneLine(err))
			return c.flushLocal()
		}
	}
	if err := c.flushLocal(); err != nil {
		return err
	}
	c.await(r, args)
	if len(c.fwd)+len(raw) >= flushAt {
		if err := c.flush(); err != nil {
			return err
		}
	}
	if len(raw) >= flushAt {
		return c.forward(raw)
	}
	c.fwd = append(c.fwd, raw...)
	return nil
}

// await notes, before a command is passed on, what its reply will mean.
func (c *client) await(r rule, args [][]byte) {
	if r.op == opRaw || c.plain && r.op != opListen && r.op != opQuiet {
		c.dirty.Store(true)
	}
	if c.plain {
		return
	}
	c.plain = r.op == opRaw || r.op == opListen
	p := r.expect(args)
	c.mu.Lock()
	c.sent = append(c.sent, p)
	c.mu.Unlock()
	c.outstanding.Add(1)
}

// retry is how long, after connecting to the origin has failed, further commands fail likewise, such as those of a
// pipeline.
const retry = 100 * time.Millisecond

// connect makes the client's own connection to the origin.
func (c *client) connect() error {
	if c.why != nil && time.Since(c.tried) < retry {
		return c.why
	}
	err := c.dial()
	c.tried, c.why = time.Now(), err
	return err
}

func (c *client) dial() error {
	ctx, cancel := context.WithTimeout(c.s.ctx, c.s.cfg.Timeout)
	defer cancel()
	back, err := c.s.cfg.dial(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	if c.gone {
		err = net.ErrClosed
	} else {
		c.back = back
	}
	c.mu.Unlock()
	if err != nil {
		return errors.Join(err, back.Close())
	}
	c.relay.Go(func() {
		err := c.replies()
		c.mu.Lock()
		c.over = true
		c.answered.Broadcast()
		c.mu.Unlock()
		c.out.wait()
		_ = c.conn.Close() // the origin has closed its side, too
		if !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.EOF) {
			c.s.cfg.Logger.Debug("the origin has left a client", "remote", c.conn.RemoteAddr(), "error", err)
		}
	})
	return nil
}
