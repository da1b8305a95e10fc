package maru

import (
	"net"
	"sync/atomic"
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
	// catchUp is how long after a stall what came during it may still be read.
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

// earliest returns the earliest moment at which bytes may have come that a read has
// returned at now, if that read was blocked since t.
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

// arrivals is a connection that remembers, for the bytes that were read last, since
// when they may have been there.
type arrivals struct {
	conn   net.Conn
	stalls *stalls
	latest time.Time
	before func() error // called before each read: what must not wait for it

	empty time.Duration // when the socket was last seen empty
	heard atomic.Int64  // when something was last read, since stalls.began
}

// Read implements io.Reader.
func (a *arrivals) Read(p []byte) (int, error) {
	if err := a.before(); err != nil {
		return 0, err
	}
	from := time.Since(a.stalls.began)
	n, err := a.conn.Read(p)
	now := time.Since(a.stalls.began)
	came := a.empty // it was there already
	if now-from > 20*time.Microsecond {
		came = max(came, a.stalls.earliest(max(from, a.empty), now)) // it was waited for
	}
	a.latest = a.stalls.began.Add(came)
	if n < len(p) {
		a.empty = now
	}
	a.heard.Store(int64(now))
	return n, err
}
