package resp

import (
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/brief"
	"polder/resp/clientmem"
	"polder/resp/feed"
)

// conn is a client of an event loop. It belongs to the loop's goroutine, and
// while it is away to another one: a fetcher, or what was the loop's goroutine
// until the client's command had to wait.
type conn struct {
	l  *loop
	fd int
	s  *session

	buf  []byte // input left over; nil if none
	pend []byte // replies that the socket did not take; nil if none
	sent int    // of these, bytes sent since

	paused bool // the session is to be run again when the server's pause is over

	full  bool      // pend has reached the limit: no commands until it is sent
	taken int       // if full, bytes that the socket took since moved
	moved time.Time // if full, when the client last made progress (clientmem.Progress)

	work     *workspace // of the goroutine that it belongs to, while that runs its input
	detached bool       // the goroutine is a loop's no more
	end      bool       // to be closed
	linger   time.Time  // to be closed once pend is sent, at this time at the latest
	fetch    bool       // to be given to the fetcher

	// The rest belongs to the loop always.
	away  bool   // see above
	armed uint32 // events that epoll watches for
}

func (c *conn) session() *session { return c.s }

// resume gives c back to its loop.
func (c *conn) resume() { c.l.give(c) }

// beforeWait is called by the session before it blocks: the loop goes on in
// another goroutine. Args are the arguments of the command if that does not run
// yet.
func (c *conn) beforeWait(args [][]byte) {
	if c.detached {
		return
	}
	c.l.flush(c.work) // others need not wait for c
	c.detached, c.away = true, true
	c.l.away++
	c.l.srv.stats.handovers.Add(1)
	c.work.detached = true
	if args == nil {
		c.l.start(newWorkspace())
	} else {
		c.l.start(c.moveOut())
	}
}

// moveOut makes room in c's workspace: it returns one with its buffers, and leaves
// c what is c's of them, in memory of its own. Thousands of clients may wait for a
// node that does not answer.
func (c *conn) moveOut() *workspace {
	s, w := c.s, c.work
	next := &workspace{
		events: w.events, in: w.in, replies: w.replies[:0],
		scratch: s.Scratch[:0], scratch2: s.Scratch2[:0],
	}
	w.events, w.in, w.replies = nil, nil, nil
	out, base := s.Out[s.Base:], s.Base
	large := s.TakeLarge()
	if large != nil {
		out, base = large, 0
	}
	next.out = s.Out[:0]
	s.Out, s.Mark, s.Base = append([]byte(nil), out...), s.Mark-base, 0
	clientmem.Free(large)
	s.Scratch, s.Scratch2 = nil, nil
	if c.buf == nil {
		c.ownInput(s.in)
		s.parser.Moved(s.in)
	}
	c.hold()
	return next
}

// hold accounts for the memory that c holds. If that is too much the loop closes
// c, or another one, before its next round: now a reply of c's may still wait to
// be written.
func (c *conn) hold() { c.s.mem.Hold(cap(c.buf) + cap(c.pend) + c.s.footprint()) }

// hangUp has the loop close c, which has been evicted or killed. Any goroutine may
// call it.
func (c *conn) hangUp() {
	c.l.evicting.Store(true)
	c.l.rouse()
}

// fed has the loop send what its session's feed has. Any goroutine may call it.
func (c *conn) fed(*feed.Feed) {
	c.l.mu.Lock()
	c.l.fed = append(c.l.fed, c)
	c.l.mu.Unlock()
	c.l.rouse()
}

// sendFeed sends what the client is to see as a monitor. One that does not read
// the lines is disconnected.
//
// Preconditions: no reply waits for the end of a round.
func (c *conn) sendFeed() {
	f := c.s.news
	if f == nil || c.end {
		return
	}
	if lines := f.Take(); len(lines) > 0 {
		if c.full {
			c.s.drop()
			c.end = true
		} else {
			c.send(lines, true)
			return
		}
		clientmem.Free(lines)
	}
}

// read reads what the socket has and runs it. It must be the loop's goroutine.
func (c *conn) read(w *workspace) {
	dst := w.in
	if c.buf != nil {
		c.buf = c.s.grow(c.buf)
		dst = c.buf[len(c.buf):cap(c.buf)]
	}
	n, errno := brief.Recv(uintptr(c.fd), dst)
	switch {
	case errno == unix.EAGAIN || errno == unix.EINTR:
		return
	case errno != 0:
		c.end = true
		return
	case n == 0:
		c.finish()
		return
	}
	c.s.info.heard(w.now)
	if c.buf != nil {
		c.buf = c.buf[:len(c.buf)+n]
		c.s.in = c.buf
	} else {
		c.s.in = dst[:n]
	}
	c.process(w)
}

// goOn runs input that is left over, unless c has too many replies to read.
func (c *conn) goOn(w *workspace) {
	c.paused = false
	if c.buf != nil && !c.end && !c.full && c.linger.IsZero() {
		c.s.in = c.buf
		c.process(w)
	}
}

// process runs the session's input, and keeps what is left over. Short replies
// are written at the end of the loop's round.
func (c *conn) process(w *workspace) {
	c.work = w
	s := c.s
	s.Out, s.Base = w.out, len(w.out)
	s.Scratch, s.Scratch2 = w.scratch, w.scratch2
	for {
		st := s.run()
		large := s.TakeLarge()
		if large == nil && st == needInput && w.defers(c, len(s.Out)-s.Base) {
			w.replies = append(w.replies, deferred{c, s.Base, len(s.Out)})
			c.keepInput()
			break
		}
		if !s.shown() {
			clientmem.Free(large)
			c.end = true
		} else if large != nil {
			c.send(large, true)
		} else if len(s.Out) > s.Base {
			c.send(s.Out[s.Base:], false)
			s.Out = s.Out[:s.Base]
		}
		if c.end {
			break
		}
		if st == needFlush && !c.full {
			continue
		}
		if st == sessionEnd {
			c.finish()
			break
		}
		c.keepInput()
		c.fetch, c.paused = st == needFetch, st == needResume
		break
	}
	s.letGo() // the loop sends it when it has sent the replies of the round
	w.out, w.scratch, w.scratch2 = s.Out, s.Scratch, s.Scratch2
	s.Out, s.Scratch, s.Scratch2 = nil, nil, nil
	c.work = nil
}

// free forgets all that c holds. It is closed.
func (c *conn) free() {
	c.s.parser.Forget()
	c.freeInput()
	clientmem.Free(c.pend)
	c.pend = nil
}

// freeInput forgets c's input.
//
// Preconditions: nothing points into it; the parser has released it.
func (c *conn) freeInput() {
	clientmem.Free(c.buf)
	c.s.in, c.buf = nil, nil
}

// keepInput moves input that is left over to a buffer of c's own.
func (c *conn) keepInput() {
	in := c.s.in
	switch {
	case len(in) == 0:
		c.s.parser.Release()
		c.freeInput()
		return
	case c.buf != nil:
		c.buf = c.buf[:copy(c.buf, in)]
		c.s.in = c.buf
	default:
		c.ownInput(in)
	}
}

// ownInput copies input to a buffer of c's own, which it has not yet.
func (c *conn) ownInput(in []byte) {
	c.buf = clientmem.Copy(in)
	c.s.in = c.buf
}

// send writes replies, and keeps what the socket does not take. If own is set, out is c's
// to free, and so it is kept as it is.
func (c *conn) send(out []byte, own bool) {
	sent := 0
	if own {
		defer func() { clientmem.Free(out) }()
	}
	if len(c.pend) == 0 {
		var errno unix.Errno
		sent, errno = brief.Send(uintptr(c.fd), out)
		if errno != 0 && errno != unix.EAGAIN && errno != unix.EINTR {
			c.end = true
			return
		}
		if sent == len(out) {
			return
		}
	}
	if own && len(c.pend) == 0 {
		c.pend, c.sent, out = out, sent, c.pend
	} else {
		if c.sent > len(c.pend)/2 {
			c.pend = c.pend[:copy(c.pend, c.pend[c.sent:])]
			c.sent = 0
		}
		c.pend = clientmem.Append(c.pend, out[sent:])
	}
	if srv := c.l.srv; !c.full && len(c.pend)-c.sent > srv.cfg.ClientMemory.Allow(srv.cfg.OutputLimit) {
		c.full, c.taken, c.moved = true, 0, time.Now()
	}
	c.hold()
}

// drain writes what the socket did not take before.
func (c *conn) drain() {
	for c.sent < len(c.pend) {
		n, errno := brief.Send(uintptr(c.fd), c.pend[c.sent:])
		switch errno {
		case 0:
			c.sent += n
			if c.taken += n; c.full && c.taken >= clientmem.Progress {
				c.taken, c.moved = 0, time.Now()
			}
		case unix.EINTR:
		case unix.EAGAIN:
			return
		default:
			c.end = true
			return
		}
	}
	clientmem.Free(c.pend)
	c.pend, c.sent, c.full = nil, 0, false
	if !c.linger.IsZero() {
		c.end = true
	}
}

// finish closes c, after what is pending has been sent.
func (c *conn) finish() {
	if len(c.pend) == 0 {
		c.end = true
	} else if c.linger.IsZero() {
		c.linger = time.Now().Add(linger)
	}
}
