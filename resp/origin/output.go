package origin

import (
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// output has what a client has yet to read. A caller of write writes as much as the connection takes at once. The
// rest is kept, up to about limit bytes, and a goroutine writes it (drain), which lives until all is written. Beyond
// the limit, callers of write wait. A client that takes nothing for the time patience is disconnected.
type output struct {
	conn     net.Conn
	raw      syscall.RawConn // nil if the connection cannot be written without waiting, as with TLS
	limit    int
	patience time.Duration

	mu    sync.Mutex
	moved sync.Cond // signals that buf has become empty, or that err was set
	buf   []byte    // guarded by mu
	busy  bool      // guarded by mu: drain runs
	err   error     // guarded by mu
}

func newOutput(conn net.Conn, limit int, patience time.Duration) *output {
	o := &output{conn: conn, limit: limit, patience: patience}
	o.moved.L = &o.mu
	if c, ok := conn.(syscall.Conn); ok {
		o.raw, _ = c.SyscallConn()
	}
	return o
}

// write sends p, or keeps it to be sent. Just before, when no other call of write can come between, it calls first
// unless that is nil.
func (o *output) write(p []byte, first func()) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.err == nil && o.busy && len(o.buf) >= o.limit {
		o.moved.Wait() // drain has a deadline
	}
	if o.err != nil {
		return o.err
	}
	if first != nil {
		first()
	}
	if !o.busy {
		if p = p[o.try(p):]; len(p) == 0 {
			return nil
		}
		o.busy = true
		go o.drain()
	}
	o.buf = append(o.buf, p...)
	return nil
}

// try writes as much of p as the connection takes without waiting, and returns how many bytes that is.
func (o *output) try(p []byte) (n int) {
	if o.raw == nil {
		return 0
	}
	_ = o.raw.Write(func(fd uintptr) bool {
		n, _ = unix.Write(int(fd), p)
		return true
	})
	return max(0, n) // drain will get an error again
}

func (o *output) drain() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.buf) > 0 && o.err == nil {
		b := o.buf
		o.buf = nil
		o.moved.Broadcast()
		o.mu.Unlock()
		err := o.send(b)
		o.mu.Lock()
		if err != nil {
			o.err = err
			_ = o.conn.Close()
		}
	}
	o.busy, o.buf = false, nil
	o.moved.Broadcast()
}

// send writes b in pieces, each with a deadline.
func (o *output) send(b []byte) error {
	for len(b) > 0 {
		piece := b[:min(len(b), 64<<10)]
		if err := o.conn.SetWriteDeadline(time.Now().Add(o.patience)); err != nil {
			return err
		}
		if _, err := o.conn.Write(piece); err != nil {
			return err
		}
		b = b[len(piece):]
	}
	return o.conn.SetWriteDeadline(time.Time{}) // try needs the connection without a deadline
}

// wait returns when everything has been written, or can no longer be.
func (o *output) wait() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.busy {
		o.moved.Wait()
	}
}

// held is how many bytes of memory the kept output takes.
func (o *output) held() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return cap(o.buf)
}
