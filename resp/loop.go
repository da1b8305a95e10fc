package resp

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"polder/resp/clientmem"
)

const (
	loopEvents = 256
	readSize   = 256 << 10
)

// loop is an event loop: one goroutine that reads, runs and answers the commands of many clients. When a command has
// to wait, start makes another goroutine the loop; the first goroutine ends when it has served that command's client.
type loop struct {
	srv  *Server
	ep   int // epoll
	wake int // eventfd

	sleeping atomic.Bool // it blocks in epoll_wait, or is about to
	stopping atomic.Bool
	evicting atomic.Bool // a client of the loop is to be disconnected
	resuming atomic.Bool // paused clients are to be looked at again

	mu    sync.Mutex
	inbox []*conn // conns that are new or come back; guarded by mu
	fed   []*conn // conns whose feeds have something to send; guarded by mu
	gone  bool    // no goroutine is the loop any more; guarded by mu

	// The rest belongs to the goroutine that is the loop.
	work  []*conn   // taken from inbox
	conns []*conn   // by file descriptor
	count int       // entries of conns that are not nil
	away  int       // entries of conns that are away: see conn
	timed time.Time // when tick last looked at the clients
	brief bool      // the kernel has epoll_pwait2, and other goroutines have a P: see sleep
}

// workspace is the memory of a goroutine that is or was a loop.
type workspace struct {
	events   []unix.EpollEvent
	in, out  []byte
	replies  []deferred // to be written at the end of the round
	scratch  []byte     // of the session that runs
	scratch2 []byte
	now      time.Time // of the round
	detached bool
}

// deferred is a reply, out[from:to] of a workspace, that is written at the end of the loop's round, in a row with the
// round's other replies. A client program that the first reply wakes up then finds the other replies there, too, when
// it gets to run, and sends more commands at once.
type deferred struct {
	c        *conn
	from, to int
}

const (
	maxDefer    = 8 << 10   // longest reply that is deferred
	maxDeferred = 128 << 10 // most bytes that are deferred
	maxKept     = 2 << 20   // longest buffer of replies that a loop keeps
)

// defers reports whether a reply of n bytes to c is to be deferred.
func (w *workspace) defers(c *conn, n int) bool {
	return n > 0 && n <= maxDefer && len(w.out) < maxDeferred && len(c.pend) == 0 && !w.detached
}

// flush writes the deferred replies.
func (l *loop) flush(w *workspace) {
	if len(w.replies) == 0 {
		return
	}
	out := w.out
	for i, r := range w.replies {
		if r.c.s.shown() {
			r.c.send(out[r.from:r.to], false)
		} else {
			r.c.end = true
		}
		if r.c.end || len(r.c.pend) > 0 {
			l.after(r.c, w)
		}
		w.replies[i].c = nil
	}
	w.replies = w.replies[:0]
}

// endRound flushes and makes w's buffer empty again.
func (l *loop) endRound(w *workspace) {
	l.flush(w)
	if cap(w.out) > maxKept {
		w.out = make([]byte, 0, 2*flushAt)
	}
	w.out = w.out[:0]
}

func newWorkspace() *workspace {
	return &workspace{
		events: make([]unix.EpollEvent, loopEvents),
		in:     make([]byte, readSize),
		out:    make([]byte, 0, 2*flushAt),
	}
}

func newLoop(srv *Server) (*loop, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(ep)
		return nil, err
	}
	l := &loop{srv: srv, ep: ep, wake: wake, timed: time.Now(), brief: runtime.GOMAXPROCS(0) > srv.cfg.Loops}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wake)}); err != nil {
		l.free()
		return nil, err
	}
	return l, nil
}

// free closes what the loop holds. No goroutine may be the loop any more.
func (l *loop) free() {
	unix.Close(l.ep)
	unix.Close(l.wake)
}

// start makes a new goroutine the loop, with the memory w.
func (l *loop) start(w *workspace) {
	l.srv.wg.Add(1)
	go func() {
		defer l.srv.wg.Done()
		l.run(w)
	}()
}

func (l *loop) stop() {
	l.stopping.Store(true)
	l.rouse()
}

func (l *loop) rouse() {
	if l.sleeping.Swap(false) {
		one := [8]byte{1}
		unix.Write(l.wake, one[:])
	}
}

// give gives c to the loop, which serves it from now on. If the loop has ended, c is closed.
func (l *loop) give(c *conn) {
	l.mu.Lock()
	gone := l.gone
	if !gone {
		l.inbox = append(l.inbox, c)
	}
	l.mu.Unlock()
	if gone {
		unix.Close(c.fd)
		c.free()
		l.srv.forget(c.s)
		return
	}
	l.rouse()
}

// adopt takes over a connection if it is a plain socket, and reports whether it has. In is what the client has sent
// already.
func (l *loop) adopt(nc net.Conn, s *session, in []byte) bool {
	switch nc.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return false
	}
	raw, err := nc.(syscall.Conn).SyscallConn()
	if err != nil {
		return false
	}
	fd := -1
	raw.Control(func(old uintptr) {
		// A copy of the descriptor, which Go's own poller does not know.
		fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err != nil || fd < 0 {
		return false
	}
	nc.Close()
	c := &conn{l: l, fd: fd, s: s, away: true}
	if len(in) > 0 {
		c.buf = clientmem.Copy(in)
	}
	s.OnWait, s.fed = c.beforeWait, c.fed
	s.onKill(c.hangUp)
	l.give(c)
	return true
}

// run is the loop, until it stops or another goroutine takes over.
func (l *loop) run(w *workspace) {
	for {
		w.now = time.Now()
		if !l.takeBack(w) || !l.tick() {
			return
		}
		n := sysPoll(l.ep, w.events)
		if n == 0 {
			n = l.sleep(w.events)
		}
		began := time.Now()
		for i := range n {
			ev := &w.events[i]
			if int(ev.Fd) == l.wake {
				var b [8]byte
				unix.Read(l.wake, b[:])
				continue
			}
			if int(ev.Fd) >= len(l.conns) || l.conns[ev.Fd] == nil {
				continue
			}
			if !l.handle(l.conns[ev.Fd], ev.Events, w) {
				return
			}
			l.relieve(w)
		}
		l.endRound(w)
		if n > 0 {
			l.srv.stats.rounds.Observe(time.Since(began).Seconds())
		}
	}
}

// briefly is how long a loop waits for events while it keeps its P, before it waits in a call that the scheduler
// knows of. Under load the next events come sooner.
const briefly = 100 * time.Microsecond

// sleep waits for events.
func (l *loop) sleep(events []unix.EpollEvent) int {
	l.sleeping.Store(true)
	defer l.sleeping.Store(false)
	l.mu.Lock()
	idle := len(l.inbox) == 0 && len(l.fed) == 0 && !l.evicting.Load() && !l.resuming.Load()
	l.mu.Unlock()
	if !idle || l.stopping.Load() && l.count == 0 {
		return 0
	}
	if l.brief && l.away == 0 {
		ts := unix.NsecToTimespec(int64(briefly))
		var n int
		if n, l.brief = sysPollBriefly(l.ep, events, &ts); n > 0 {
			return n
		}
	}
	n, err := unix.EpollWait(l.ep, events, 1000)
	if err != nil {
		return 0
	}
	return n
}

// handle serves a socket that is ready. It reports false if this goroutine is no longer the loop.
func (l *loop) handle(c *conn, events uint32, w *workspace) bool {
	if c.away {
		// takeBack will look at it when it comes back.
		l.arm(c, 0)
		return true
	}
	if events&unix.EPOLLOUT != 0 {
		full := c.full
		c.drain()
		if full {
			c.goOn(w)
			return l.after(c, w)
		}
	}
	if events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR) != 0 && !c.end && !c.full && !c.paused && c.linger.IsZero() {
		c.read(w)
	} else if events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		c.end = true
	}
	return l.after(c, w)
}

// after decides what is done with c once it has been served: it is closed, given to the fetcher, or watched by epoll.
// It reports false if this goroutine is no longer the loop.
func (l *loop) after(c *conn, w *workspace) bool {
	c.hold()
	if w.detached {
		// Another goroutine is the loop now. It gets c back, at once or, if a later command blocked, from the
		// fetcher.
		c.detached = false
		if c.fetch && !c.end {
			c.fetch = false
			c.s.fetchAt().fetches.submit(c)
		} else {
			l.give(c)
		}
		return false
	}
	switch {
	case c.end:
		l.close(c)
	case c.fetch:
		c.fetch, c.away = false, true
		l.away++
		c.s.fetchAt().fetches.submit(c)
	case c.full, !c.linger.IsZero():
		l.arm(c, unix.EPOLLOUT)
	case c.paused && len(c.pend) > 0:
		l.arm(c, unix.EPOLLOUT)
	case c.paused:
		l.arm(c, unix.EPOLLPRI) // only for errors, which epoll always reports
	case len(c.pend) > 0:
		l.arm(c, unix.EPOLLIN|unix.EPOLLOUT)
	default:
		l.arm(c, unix.EPOLLIN)
	}
	return true
}

// arm has epoll watch c for events. If events is 0 it takes c out of epoll.
func (l *loop) arm(c *conn, events uint32) {
	if c.armed == events {
		return
	}
	op := unix.EPOLL_CTL_MOD
	switch {
	case c.armed == 0:
		op = unix.EPOLL_CTL_ADD
	case events == 0:
		op = unix.EPOLL_CTL_DEL
	}
	err := unix.EpollCtl(l.ep, op, c.fd, &unix.EpollEvent{Events: events, Fd: int32(c.fd)})
	if err != nil && events != 0 {
		l.srv.cfg.Logger.Error("cannot watch a client's socket", "err", err)
		c.armed = 0
		l.close(c)
		return
	}
	c.armed = events
}

// relieve is called between two clients. It closes those that are to be disconnected, so that what they hold is freed
// before the next client is read.
func (l *loop) relieve(w *workspace) {
	if l.evicting.Load() {
		l.flush(w)
		l.evict()
	}
}

// evict closes the clients that hold too much or are killed. Those that are away
// are closed when they come back.
//
// Preconditions: no reply waits for the end of a round.
func (l *loop) evict() {
	if !l.evicting.Load() {
		return
	}
	l.evicting.Store(false)
	for _, c := range l.conns {
		if c != nil && !c.away && c.s.doomed() {
			l.close(c)
		}
	}
}

// feed sends clients what their feeds have. Clients that are away get it when they come back.
//
// Preconditions: no reply waits for the end of a round.
func (l *loop) feed(w *workspace) {
	l.mu.Lock()
	fed := l.fed
	l.fed = nil
	l.mu.Unlock()
	for _, c := range fed {
		if c.fd < len(l.conns) && l.conns[c.fd] == c && !c.away {
			c.sendFeed()
			l.after(c, w)
		}
	}
}

// resume runs the input of the clients that wait for the end of a pause; some may have to go on waiting. It reports
// false if this goroutine is no longer the loop.
func (l *loop) resume(w *workspace) bool {
	if !l.resuming.Swap(false) {
		return true
	}
	for _, c := range l.conns {
		if c == nil || c.away || !c.paused {
			continue
		}
		c.goOn(w)
		if !l.after(c, w) {
			l.resuming.Store(true) // for the goroutine that is the loop now
			l.rouse()
			return false
		}
	}
	return true
}

// takeBack serves the connections that are new or come back, after evict, feed and resume. It reports false if this
// goroutine is no longer the loop.
func (l *loop) takeBack(w *workspace) bool {
	l.evict()
	l.feed(w)
	if !l.resume(w) {
		return false
	}
	l.mu.Lock()
	if len(l.inbox) > 0 {
		l.work = append(l.work, l.inbox...)
		clear(l.inbox)
		l.inbox = l.inbox[:0]
	}
	l.mu.Unlock()
	for len(l.work) > 0 {
		c := l.work[len(l.work)-1]
		l.work = l.work[:len(l.work)-1]
		c.away = false
		if c.fd < len(l.conns) && l.conns[c.fd] == c {
			l.away--
		}
		for c.fd >= len(l.conns) {
			l.conns = append(l.conns, make([]*conn, c.fd+64)...)
		}
		if l.conns[c.fd] == nil {
			l.conns[c.fd] = c
			l.count++
		}
		if c.s.doomed() {
			l.close(c)
			continue
		}
		if len(c.pend) > 0 && !c.end {
			c.drain()
		}
		c.sendFeed()
		c.goOn(w)
		if !l.after(c, w) {
			return false
		}
		l.relieve(w)
	}
	l.endRound(w)
	return true
}

// tick closes, once a second, the clients that have been idle, have lingered or have read nothing for too long. When
// the server stops it closes all clients. It reports false when the loop is to end.
func (l *loop) tick() bool {
	stopping := l.stopping.Load()
	now := time.Now()
	if !stopping && now.Sub(l.timed) < time.Second {
		return true
	}
	l.timed = now
	idle := l.srv.idleTimeout()
	for _, c := range l.conns {
		switch {
		case c == nil || c.away:
		case stopping:
			l.close(c)
		case !c.linger.IsZero() && now.After(c.linger):
			l.close(c)
		case c.full && now.Sub(c.moved) > clientmem.Window:
			c.s.drop()
			l.close(c)
		case idle > 0 && !c.full && !c.paused && !c.s.listens() && c.s.info.idle(now) > idle:
			l.srv.stats.idleDrops.Add(1)
			l.close(c)
		}
	}
	if !stopping || l.count > 0 {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = len(l.inbox) == 0
	return !l.gone
}

func (l *loop) close(c *conn) {
	l.conns[c.fd] = nil
	l.count--
	unix.Close(c.fd)
	c.free()
	l.srv.forget(c.s)
}

func cpuTimes() (system, user time.Duration) {
	var u unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Stime.Nano()), time.Duration(u.Utime.Nano())
}
