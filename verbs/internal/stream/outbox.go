package stream

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"polder/internal/brief"
	"polder/verbs/softnic"
)

const (
	// readyLimit is how much may wait in an outbox before the engine has to
	// stop emitting packets.
	readyLimit = 256 << 10
	// outboxLimit is how much may wait in all. Only answers that the engine
	// does not hold back can get there: pongs, rejections. A peer that asks
	// for so many and reads none is cut off.
	outboxLimit = 1 << 20
	// inlineLimit is how much one flush writes before it leaves the rest to
	// the writer, so that a poster is not made to work for others for ever.
	inlineLimit = 4 << 20
	// writeChunk is how much the writer writes under one deadline.
	writeChunk = 64 << 10
)

// Who writes an outbox to the wire.
type outboxState uint8

const (
	outboxIdle   outboxState = iota // nobody
	outboxInline                    // a goroutine inside flush
	outboxWriter                    // the connection's writer, which has been woken
)

var (
	errOutboxFull = errors.New("the peer asks for more than it reads")
	errStalled    = errors.New("the peer has stopped reading")
)

// An outbox holds frames until they are written: a buffer that is filled
// while another is on its way.
//
// Frames are added under the device's lock or without it. They are written
// with no lock held, by one goroutine at a time, which keeps their order.
type outbox struct {
	conn  net.Conn
	raw   *brief.Conn // to be written without blocking; nil with TLS
	stall time.Duration
	wake  chan struct{} // holds one token: the writer is to look

	waiting atomic.Int64 // bytes in pending and being written; changed under mu

	mu      sync.Mutex
	pending []byte      // guarded by mu: frames that nobody has taken to write
	spare   []byte      // guarded by mu: empty, to become pending
	rest    []byte      // guarded by mu: left to the writer by a flush; nil if nothing
	sent    int         // guarded by mu: how much of rest has been written
	number  uint32      // guarded by mu: of the next frame
	state   outboxState // guarded by mu
	starved bool        // guarded by mu: the engine waits to be resumed
	files   []*os.File  // guarded by mu: to be sent with the next bytes, by the writer
	closed  bool        // guarded by mu: nothing is added any more
}

// addPacket adds a packet.
func (o *outbox) addPacket(p *softnic.Packet) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	start := len(o.pending)
	b := p.AppendHeader(beginFrame(o.pending))
	// The checksum is of the copy: the memory may change under it.
	o.pending = append(b, p.Payload...)
	endFrame(o.pending, start, framePacket, o.number)
	o.number++
	o.waiting.Add(int64(len(o.pending) - start))
}

// add adds a frame of another type, with a file if there is one, which it owns. It
// fails only if the peer leaves too many unread.
func (o *outbox) add(t frameType, body []byte, file ...*os.File) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || len(o.pending) > outboxLimit {
		closeAll(file)
		if o.closed {
			return nil
		}
		return errOutboxFull
	}
	start := len(o.pending)
	o.pending = append(beginFrame(o.pending), body...)
	endFrame(o.pending, start, t, o.number)
	o.number++
	o.waiting.Add(int64(len(o.pending) - start))
	o.files = append(o.files, file...)
	return nil
}

// ready reports whether there is room for another packet. If not, whoever
// makes room resumes the engine.
func (o *outbox) ready() bool {
	if o.waiting.Load() < readyLimit {
		return true // fast path
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.waiting.Load() < readyLimit {
		return true
	}
	o.starved = true
	return false
}

// close lets nothing more be added, after a BYE if bye is set, and wakes the writer.
func (o *outbox) close(bye bool) {
	if bye {
		_ = o.add(frameBye, nil) // if there is no room, the peer does without
	}
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.wakeWriter()
}

func (o *outbox) wakeWriter() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// flush sends what is pending, unless another goroutine is doing so, or leaves it to the writer. It calls resume when
// the engine may go on; resume may call flush.
//
// Hot path: this is one system call per batch.
func (o *outbox) flush(resume func()) error {
	o.mu.Lock()
	if o.state != outboxIdle || len(o.pending) == 0 {
		o.mu.Unlock()
		return nil
	}
	if o.raw == nil {
		o.leaveToWriter()
		return nil
	}
	o.state = outboxInline
	for budget := inlineLimit; len(o.pending) > 0; {
		if budget <= 0 || len(o.files) > 0 {
			o.leaveToWriter()
			return nil
		}
		buf := o.take()
		o.mu.Unlock()
		n, err := o.raw.TryWrite(buf)
		o.mu.Lock()
		if err != nil {
			o.state = outboxIdle
			o.mu.Unlock()
			o.wakeWriter()
			return fmt.Errorf("cannot write: %w", err)
		}
		if n < len(buf) {
			o.rest, o.sent = buf, n
			o.leaveToWriter()
			return nil
		}
		o.written(buf, resume)
		budget -= n
	}
	o.state = outboxIdle
	closed := o.closed
	o.mu.Unlock()
	if closed {
		o.wakeWriter() // the writer waits to see the end
	}
	return nil
}

// leaveToWriter ends a flush.
//
// Preconditions: o.mu is held; it is not afterwards.
func (o *outbox) leaveToWriter() {
	o.state = outboxWriter
	o.mu.Unlock()
	o.wakeWriter()
}

// take takes what is pending, to be written.
//
// Preconditions: o.mu is held, and the caller is the one who writes.
func (o *outbox) take() []byte {
	buf := o.pending
	o.pending, o.spare = o.spare, nil
	return buf
}

// written gives back a buffer whose bytes have been written, and resumes the
// engine if it waits for that.
//
// Preconditions: o.mu is held, and is again afterwards; in between it may be
// released.
func (o *outbox) written(buf []byte, resume func()) {
	o.spare = buf[:0]
	o.waiting.Add(-int64(len(buf)))
	if o.starved {
		o.starved = false
		o.mu.Unlock()
		resume()
		o.mu.Lock()
	}
}

// drain is the writer's part of flush: it writes all there is, blocking. It
// reports whether the outbox is closed and empty.
func (o *outbox) drain(resume func()) (end bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state == outboxInline {
		return false, nil // the goroutine that is flushing wakes the writer if need be
	}
	o.state = outboxWriter
	for o.rest != nil || len(o.pending) > 0 {
		buf, sent := o.rest, o.sent
		if o.rest = nil; buf == nil {
			buf, sent = o.take(), 0
		}
		files := o.files
		o.files = nil
		o.mu.Unlock()
		err = o.write(buf[sent:], files)
		o.mu.Lock()
		if err != nil {
			o.state = outboxIdle
			return false, err
		}
		o.written(buf, resume)
	}
	o.state = outboxIdle
	return o.closed, nil
}

// write writes all of buf, with the files, which it closes, and gives up when the
// peer takes none of it for the stall timeout.
func (o *outbox) write(buf []byte, files []*os.File) error {
	defer o.conn.SetWriteDeadline(time.Time{})
	defer closeAll(files)
	for len(buf) > 0 {
		if err := o.conn.SetWriteDeadline(time.Now().Add(o.stall)); err != nil {
			return fmt.Errorf("cannot write: %w", err)
		}
		part := buf[:min(len(buf), writeChunk)]
		var n int
		var err error
		if len(files) > 0 {
			n, err = writeFiles(o.raw.Socket.(filesWriter), part, files)
		} else {
			n, err = o.conn.Write(part)
		}
		if n > 0 {
			files = nil // they are sent with the first byte; the deferred call has its own copy
		}
		buf = buf[n:]
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("cannot write for %v: %w", o.stall, errStalled)
		}
		if err != nil {
			return fmt.Errorf("cannot write: %w", err)
		}
	}
	return nil
}
