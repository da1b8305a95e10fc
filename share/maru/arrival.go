package maru

import (
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// A request that has waited too long in the socket must be refused, since its sender
// may have given up. The kernel does not tell when a request came, so this file finds
// a bound:
//
//   - It came after the socket was last seen empty.
//   - If a goroutine was blocked in a read when it came, it came just now, unless the
//     whole process was stopped in between. A clock that beats every 50 ms notices
//     that.

// stalls knows when this process has last been kept from running.
type stalls struct {
	beat       atomic.Int64 // when the last beat was, since began
	from, till atomic.Int64 // the last stall, since began
	began      time.Time
}

const (
	beatEvery = 50 * time.Millisecond
	// stalled is how long a beat may be late before it counts as a stall.
	stalled = 300 * time.Millisecond
	// catchUp is for how long after a stall a read may still return what came during the stall.
	catchUp = time.Second
)

func newStalls() *stalls { return &stalls{began: time.Now()} }

func (s *stalls) run(done <-chan struct{}) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		s.pulse(time.Since(s.began))
		select {
		case <-done:
			return
		case <-tick.C:
		}
	}
}

func (s *stalls) pulse(now time.Duration) {
	if last := time.Duration(s.beat.Load()); now-last > stalled {
		s.from.Store(int64(last))
		s.till.Store(int64(now))
	}
	s.beat.Store(int64(now))
}

// earliest returns the earliest moment at which bytes may have come, if the read that has returned them at now was
// blocked since t.
func (s *stalls) earliest(t, now time.Duration) time.Duration {
	beat, from, till := time.Duration(s.beat.Load()), time.Duration(s.from.Load()), time.Duration(s.till.Load())
	switch {
	case now-beat > stalled:
		return max(t, beat)
	case t < till && now-till < catchUp:
		return max(t, from)
	}
	return now
}

// arrivals is a connection that remembers the earliest moment at which the bytes that were read last may have come.
type arrivals struct {
	conn   net.Conn
	raw    syscall.RawConn // conn's; nil if it is no socket: then waiting proves nothing
	stalls *stalls
	latest time.Time
	before func() error // called before each read, for what must not wait until it ends

	empty time.Duration // when the socket was last seen empty
	heard atomic.Int64  // when something was last read, since stalls.began
}

func newArrivals(conn net.Conn, watch *stalls) *arrivals {
	a := &arrivals{conn: conn, stalls: watch, empty: time.Since(watch.began)}
	if sc, ok := conn.(syscall.Conn); ok {
		a.raw, _ = sc.SyscallConn() // it fails only if the connection is closed
	}
	return a
}

// Read implements io.Reader.
func (a *arrivals) Read(p []byte) (n int, err error) {
	if err := a.before(); err != nil {
		return 0, err
	}
	came, looked := a.empty, time.Since(a.stalls.began)
	if a.raw == nil {
		n, err = a.conn.Read(p)
	} else {
		n, came, looked, err = a.read(p)
	}
	a.latest = a.stalls.began.Add(came)
	if n < len(p) {
		a.empty = looked
	}
	a.heard.Store(int64(time.Since(a.stalls.began)))
	return n, err
}

// read reads from the socket. It also returns came, the earliest moment at which what it has read may have come, and
// looked, when it looked at the socket for that. How long a read takes does not tell whether it has waited: a process
// that has just been stopped is slow at everything. That the socket was empty at first does tell.
func (a *arrivals) read(p []byte) (n int, came, looked time.Duration, err error) {
	came = a.empty
	var since time.Duration
	waited := false
	failed := a.raw.Read(func(fd uintptr) bool {
		for {
			looked = time.Since(a.stalls.began)
			if n, err = syscall.Read(int(fd), p); err != syscall.EINTR {
				break
			}
		}
		if err == syscall.EAGAIN {
			waited, since = true, looked
			return false
		}
		return true
	})
	if waited {
		came = max(came, a.stalls.earliest(since, time.Since(a.stalls.began)))
	}
	n = max(n, 0)
	switch {
	case failed != nil: // such as a deadline
		return 0, came, looked, failed
	case err != nil:
		return 0, came, looked, &net.OpError{Op: "read", Net: a.conn.LocalAddr().Network(), Source: a.conn.LocalAddr(), Addr: a.conn.RemoteAddr(), Err: os.NewSyscallError("read", err)}
	case n == 0 && len(p) > 0:
		return 0, came, looked, io.EOF
	}
	return n, came, looked, nil
}
