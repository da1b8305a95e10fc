package nbd

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"polder/far"
	"polder/pages"
)

// conn is a client that has chosen the export.
type conn struct {
	session
	s        *Server
	volume   *pages.Volume
	nc       net.Conn
	in       *bufio.Reader
	stopping atomic.Bool
	free     chan *buffer   // for requests that are not under way
	waiting  sync.WaitGroup // requests that wait for far memory

	mu  sync.Mutex    // held for a whole reply, or a whole chunk of a reply
	out *bufio.Writer // guarded by mu
	err error         // why nothing more can be sent; guarded by mu
}

// buffer is the memory for a request.
type buffer struct {
	header []byte // of replies
	data   []byte // grows as needed, to piece at most
}

// size returns n bytes of the buffer.
func (b *buffer) size(n int) []byte {
	if cap(b.data) < n {
		b.data = make([]byte, min(max(n, 2*cap(b.data)), piece))
	}
	return b.data[:n]
}

func newConn(s *Server, nc net.Conn, chosen session) *conn {
	c := &conn{session: chosen, s: s, volume: s.cfg.Volume, nc: nc, in: bufio.NewReaderSize(nc, 16<<10), out: bufio.NewWriterSize(nc, 16<<10), free: make(chan *buffer, atATime)}
	for range atATime {
		b := new(buffer)
		if s.cfg.Ahead {
			b.size(piece)
		}
		c.free <- b
	}
	return c
}

// stop makes the connection end when the requests that have come are answered.
func (c *conn) stop() {
	c.stopping.Store(true)
	_ = c.nc.SetReadDeadline(time.Unix(1, 0)) // it fails only if the connection is closed already
}

// readBy sets the deadline for reading.
func (c *conn) readBy(t time.Time) {
	_ = c.nc.SetReadDeadline(t) // if it fails, so will reading
	if c.stopping.Load() {
		c.stop()
	}
}

// hangUp ends the connection now. It does not take leave: with TLS that would mean to wait.
func (c *conn) hangUp() {
	nc := c.nc
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	_ = nc.Close()
}

// errGone: the client ended the connection in good order.
var errGone = errors.New("the client has gone")

// serve serves requests until the client goes, which is no error, or until the connection must end.
func (c *conn) serve() error {
	var err error
	for err == nil {
		err = c.next()
	}
	c.waiting.Wait()
	c.mu.Lock()
	c.flush()
	if err == errGone || c.stopping.Load() {
		err = nil
	}
	err = errors.Join(err, c.err)
	c.mu.Unlock()
	c.hangUp()
	return err
}

// next reads a request, and answers it, or starts a goroutine that does if it must wait for far memory.
func (c *conn) next() error {
	if c.in.Buffered() < requestSize {
		c.flushIdle() // send what is due before waiting for the client
	}
	b, err := c.in.Peek(requestSize)
	if err != nil {
		if errors.Is(err, io.EOF) && len(b) == 0 || errors.Is(err, net.ErrClosed) {
			return errGone
		}
		return err
	}
	r, ok := decodeRequest(b)
	if !ok {
		return errors.New("what it sends is not NBD")
	}
	if _, err := c.in.Discard(requestSize); err != nil {
		return err
	}
	if r.kind == cmdDisconnect {
		return errGone
	}
	buf := <-c.free
	if r.kind == cmdWrite {
		return c.write(r, buf)
	}
	later, err := c.execute(r, false, buf)
	if !later {
		c.free <- buf
		return err
	}
	c.waiting.Go(func() {
		if _, err := c.execute(r, true, buf); err != nil {
			c.hangUp()
		}
		c.mu.Lock()
		c.flush()
		c.mu.Unlock()
		c.free <- buf
	})
	return nil
}

var errLate = errors.New("far memory has not answered in time")

// try calls fn with the time that a piece of a request may wait for far memory or, if wait is false, with far.NoWait.
func (c *conn) try(wait bool, fn func(ctx context.Context) error) error {
	if !wait {
		return fn(far.NoWait)
	}
	ctx, cancel := context.WithTimeoutCause(c.s.ctx, c.s.cfg.Timeout, errLate)
	defer cancel()
	return fn(ctx)
}

// each calls fn for one part of a request after the other, each of at most most bytes, until one fails. It reports
// later if the request must be tried again with wait set.
func (c *conn) each(r request, most int64, wait bool, fn func(ctx context.Context, off, n int64) error) (e errno, later bool) {
	off, end := int64(r.off), int64(r.off)+int64(r.length)
	if !wait && end-off > most {
		return ok, true
	}
	for ; off < end && e == ok && !later; off += most {
		e, later = c.errnoOf(c.try(wait, func(ctx context.Context) error { return fn(ctx, off, min(most, end-off)) }))
	}
	return e, later
}

// check finds what is wrong with a request.
func (c *conn) check(r request) errno {
	size := uint64(c.volume.Size())
	known := uint16(flagFUA)
	switch r.kind {
	case cmdRead:
		known |= flagDF
	case cmdWrite:
	case cmdTrim, cmdCache:
	case cmdWriteZeroes:
		known |= flagNoHole | flagFastZero
	case cmdBlockStatus:
		known |= flagReqOne
		if !c.meta {
			return einval
		}
	case cmdFlush:
		return ok
	default:
		return einval
	}
	changes := r.kind == cmdWrite || r.kind == cmdTrim || r.kind == cmdWriteZeroes
	switch {
	case changes && c.s.cfg.ReadOnly:
		return eperm
	case r.flags&^known != 0, r.length == 0:
		return einval
	case (r.kind == cmdRead || r.kind == cmdWrite) && r.length > maxRequest:
		return einval
	case r.off > size || uint64(r.length) > size-r.off:
		if changes {
			return enospc
		}
		return einval
	case r.flags&flagDF != 0 && r.length > piece:
		return eoverflow
	}
	return ok
}

// execute executes and answers a request other than WRITE. Without wait it does not wait for far memory, but may
// report that it must be called again with wait. An error ends the connection.
func (c *conn) execute(r request, wait bool, buf *buffer) (later bool, err error) {
	e := c.check(r)
	if e == ok {
		switch r.kind {
		case cmdRead:
			if !wait {
				c.s.readAhead(int64(r.off), int64(r.length))
			}
			if later, err = c.read(r, wait, buf); !later {
				c.count(r.kind)
			}
			return later, err
		case cmdFlush:
			if !c.volume.Kept() {
				break
			}
			if !wait {
				return true, nil
			}
			e = c.sync()
		case cmdTrim, cmdWriteZeroes:
			if c.stays(r) && !wait {
				return true, nil
			}
			if e, later = c.each(r, atOnce, wait, c.volume.Discard); e == ok && c.stays(r) {
				e = c.sync()
			}
		case cmdCache:
			if !wait {
				return true, nil
			}
			e, later = c.each(r, piece, wait, c.volume.Prefetch)
		case cmdBlockStatus:
			c.count(r.kind)
			return false, c.status(r, buf)
		}
	}
	if later {
		return true, nil
	}
	c.count(r.kind)
	return false, c.answer(r, e, buf)
}

// stays reports whether what r changes must outlive the server before r is answered.
func (c *conn) stays(r request) bool { return r.flags&flagFUA != 0 && c.volume.Kept() }

// sync makes what was written outlive the server, if the volume does.
func (c *conn) sync() errno {
	e, _ := c.errnoOf(c.try(true, c.volume.Sync))
	return e
}

func (c *conn) count(kind uint16) {
	if int(kind) < len(c.s.stats.requests) {
		c.s.stats.requests[kind].Add(1)
	}
}

// errnoOf is what the client is told of err. later means that the operation must be tried again with time to wait.
func (c *conn) errnoOf(err error) (e errno, later bool) {
	switch {
	case err == nil:
		return ok, false
	case err == far.ErrWouldBlock:
		return eio, true
	case errors.Is(err, far.ErrFull):
		e = enospc
	case errors.Is(err, ErrClosed), errors.Is(err, far.ErrClosed):
		e = eshutdown
	default:
		e = eio
	}
	c.s.stats.failed.Add(1)
	c.s.cfg.Logger.Warn("a request of the block device failed", "why", err)
	return e, false
}

// write serves a WRITE. What is longer than a piece is written as it comes. If the last piece has to wait, a
// goroutine writes it, so that the next request can be read.
func (c *conn) write(r request, buf *buffer) error {
	e := c.check(r)
	if r.length > maxRequest {
		return fmt.Errorf("it writes %d bytes at once, and was told that %d are the most", r.length, maxRequest)
	}
	c.count(r.kind)
	c.s.stats.bytesIn.Add(int64(r.length))
	for left, off := int(r.length), int64(r.off); left > 0; {
		p := buf.size(min(left, piece))
		if err := c.payload(p); err != nil {
			return err
		}
		left -= len(p)
		if e != ok {
			continue
		}
		put := func(ctx context.Context) error { return c.volume.Write(ctx, p, off) }
		err := c.try(false, put)
		if left == 0 && (err == far.ErrWouldBlock || err == nil && c.stays(r)) {
			c.waiting.Go(func() {
				if err != nil {
					e, _ = c.errnoOf(c.try(true, put))
				}
				if e == ok && c.stays(r) {
					e = c.sync()
				}
				if err := c.answer(r, e, buf); err != nil {
					c.hangUp()
				}
				c.mu.Lock()
				c.flush()
				c.mu.Unlock()
				c.free <- buf
			})
			return nil
		}
		if err == far.ErrWouldBlock {
			err = c.try(true, put)
		}
		e, _ = c.errnoOf(err)
		off += int64(len(p))
	}
	err := c.answer(r, e, buf)
	c.free <- buf
	return err
}

// payload reads the data that follows a request's header, within Config.Stall.
func (c *conn) payload(p []byte) error {
	wait := c.in.Buffered() < len(p)
	if wait {
		c.flushIdle()
		c.readBy(time.Now().Add(c.s.cfg.Stall))
	}
	if _, err := io.ReadFull(c.in, p); err != nil {
		return fmt.Errorf("cannot read what it writes: %w", err)
	}
	if wait {
		c.readBy(time.Time{})
	}
	return nil
}

// read answers a READ: with one read if all of it is local and fits the buffer, otherwise piece by piece.
func (c *conn) read(r request, wait bool, buf *buffer) (later bool, err error) {
	if !wait && r.length > piece {
		return true, nil
	}
	for off, end := int64(r.off), int64(r.off)+int64(r.length); off < end; {
		n, memory := c.volume.Extent(off, end)
		if memory || !c.structured || r.flags&flagDF != 0 || n < end-off && !wait {
			n, memory = min(end-off, piece), true
		}
		var p []byte
		if memory {
			p = buf.size(int(n))
			switch e, later := c.errnoOf(c.try(wait, func(ctx context.Context) error { return c.volume.Read(ctx, p, off) })); {
			case later:
				return true, nil // nothing was sent yet: without wait there is only one piece
			case e != ok && off > int64(r.off) && !c.structured:
				return false, errors.New("the rest of what it reads cannot be had, and nothing else can be said in between")
			case e != ok:
				return false, c.answer(r, e, buf)
			}
		}
		if err := c.part(r, off, n, p, buf); err != nil {
			return false, err
		}
		off += n
	}
	return false, nil
}

// part sends the n bytes at off, which are p, or zeros if p is nil.
func (c *conn) part(r request, off, n int64, p []byte, buf *buffer) error {
	b, be := buf.header[:0], binary.BigEndian
	flags := uint16(0)
	if off+n == int64(r.off)+int64(r.length) {
		flags = chunkDone
	}
	switch {
	case c.structured && p == nil:
		b = chunkHeader(b, r.cookie, flags, chunkHole, 12)
		b = be.AppendUint64(b, uint64(off))
		b = be.AppendUint32(b, uint32(n))
	case c.structured:
		b = chunkHeader(b, r.cookie, flags, chunkData, 8+len(p))
		b = be.AppendUint64(b, uint64(off))
	case off == int64(r.off):
		b = simpleReply(b, r.cookie, ok)
	}
	buf.header = b
	c.s.stats.bytesOut.Add(int64(len(p)))
	return c.send(b, p)
}

// status answers a BLOCK_STATUS. It describes only as many extents as a client asks for at once; the client asks for
// the rest.
func (c *conn) status(r request, buf *buffer) error {
	be := binary.BigEndian
	b := be.AppendUint32(buf.size(piece)[:0], metaID)
	for off, end := int64(r.off), int64(r.off)+int64(r.length); off < end && len(b) < 8<<10; {
		n, memory := c.volume.Extent(off, end)
		b = be.AppendUint32(b, uint32(n))
		if memory {
			b = be.AppendUint32(b, 0)
		} else {
			b = be.AppendUint32(b, stateHole|stateZero)
		}
		if off += n; r.flags&flagReqOne != 0 {
			break
		}
	}
	buf.header = chunkHeader(buf.header[:0], r.cookie, chunkDone, chunkStatus, len(b))
	return c.send(buf.header, b)
}

// answer sends a reply without data.
func (c *conn) answer(r request, e errno, buf *buffer) error {
	b := buf.header[:0]
	switch {
	case !c.structured:
		b = simpleReply(b, r.cookie, e)
	case e == ok:
		b = chunkHeader(b, r.cookie, chunkDone, chunkNone, 0)
	default:
		b = chunkHeader(b, r.cookie, chunkDone, chunkError, 6)
		b = binary.BigEndian.AppendUint32(b, uint32(e))
		b = append(b, 0, 0) // the length of the error message, which is empty
	}
	buf.header = b
	return c.send(b, nil)
}

// send puts a header and its data into the buffer. They are sent by flush at the latest.
func (c *conn) send(header, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return errGone
	}
	if len(header)+len(data) > c.out.Available() {
		c.takeTime()
	}
	_, err := c.out.Write(header)
	if err == nil {
		_, err = c.out.Write(data)
	}
	return c.failed(err)
}

// flush sends what is in the buffer.
//
// Preconditions: c.mu is held.
func (c *conn) flush() {
	if c.err == nil && c.out.Buffered() > 0 {
		c.takeTime()
		_ = c.failed(c.out.Flush()) // c.err keeps the error
	}
}

// flushIdle sends what is in the buffer, unless a goroutine is sending a reply: that goroutine flushes when the reply
// is complete.
func (c *conn) flushIdle() {
	if c.mu.TryLock() {
		c.flush()
		c.mu.Unlock()
	}
}

// takeTime sets the deadline by which the client must take what is sent now.
func (c *conn) takeTime() {
	_ = c.nc.SetWriteDeadline(time.Now().Add(c.s.cfg.Stall)) // if it fails, so will writing
}

// failed ends the connection if err, of sending, is not nil.
//
// Preconditions: c.mu is held.
func (c *conn) failed(err error) error {
	if err == nil {
		return nil
	}
	c.err = fmt.Errorf("cannot send a reply: %w", err)
	c.hangUp() // the reader of requests notices
	return errGone
}
