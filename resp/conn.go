package resp

import (
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/brief"
	"polder/resp/clientmem"
	"polder/resp/feed"
)

// conn is a client of an event loop. It belongs to the loop's goroutine. While it is away it belongs to another
// goroutine: a fetcher's, or the one that was the loop until this client's command had to wait.
type conn struct {
	l  *loop
	fd int
	s  *session

	buf  []byte // input left over; nil if none
	pend []byte // replies that the socket did not take; nil if none
	sent int    // bytes of pend that have been sent since

	paused bool // the session is to be run again when the server's pause is over

	full  bool      // pend has reached the limit: no commands until it is sent
	taken int       // if full, bytes that the socket took since moved
	moved time.Time // if full, when the client last made progress (clientmem.Progress)

	work     *workspace // that of the goroutine which runs c's input, while it does
	detached bool       // the goroutine that runs c's input is no longer the loop
	end      bool       // to be closed
	linger   time.Time  // to be closed once pend is sent, at this time at the latest
	fetch    bool       // to be given to the fetcher

	// The rest always belongs to the loop.
	away  bool   // it belongs to another goroutine
	armed uint32 // events that epoll watches for
}

func (c *conn) session() *session { return c.s }

// resume gives c back to its loop.
func (c *conn) resume() { c.l.give(c) }

// beforeWait hands the loop to another goroutine. The session calls it before it blocks. Args are the arguments of
// the command if its handler does not run yet, and nil if it does.
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

// moveOut returns a new workspace that takes over the buffers of c's workspace. What they hold of c's input and
// replies it copies to memory of c's own, so that a client that waits holds little: thousands may wait for a node
// that does not answer.
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

// hold accounts for the memory that c holds. If all clients hold too much, the loop closes c or another client, but
// only later (relieve, evict): now a reply of c's may still be deferred.
func (c *conn) hold() { c.s.mem.Hold(cap(c.buf) + cap(c.pend) + c.s.footprint()) }

// hangUp has the loop close c, which has been evicted or killed. Any goroutine may
// call it.
func (c *conn) hangUp() {
	c.l.evicting.Store(true)
	c.l.rouse()
}

// fed has the loop send what the feed of c's session has. Any goroutine may call it.
func (c *conn) fed(*feed.Feed) {
	c.l.mu.Lock()
	c.l.fed = append(c.l.fed, c)
	c.l.mu.Unlock()
	c.l.rouse()
}

// sendFeed sends what the client's feed has: lines of MONITOR, messages of channels. A client that has too many
// replies to read (c.full) is disconnected.
//
// Preconditions: no reply to c waits for the end of a round.
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

// read reads what the socket has and runs it. Only the goroutine that is the loop may call it.
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
	s.letGo() // the loop sends what the feed has after the replies of the round
	w.out, w.scratch, w.scratch2 = s.Out, s.Scratch, s.Scratch2
	s.Out, s.Scratch, s.Scratch2 = nil, nil, nil
	c.work = nil
}

// free frees all that c holds. The socket is closed.
func (c *conn) free() {
	c.s.parser.Forget()
	c.freeInput()
	clientmem.Free(c.pend)
	c.pend = nil
}

// freeInput frees c's input.
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

// ownInput copies input to a buffer of c's own. C has no such buffer yet.
func (c *conn) ownInput(in []byte) {
	c.buf = clientmem.Copy(in)
	c.s.in = c.buf
}

// send writes replies, and keeps in pend what the socket does not take. If own is set, out belongs to c: send frees
// it, or makes it pend without a copy.
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

// finish has c closed once its pending replies have been sent, or when linger has passed.
func (c *conn) finish() {
	if len(c.pend) == 0 {
		c.end = true
	} else if c.linger.IsZero() {
		c.linger = time.Now().Add(linger)
	}
}
