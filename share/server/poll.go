package server

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"polder/internal/failpoint"
	"polder/share/internal/shm"
	"polder/share/internal/wire"

	"golang.org/x/sys/unix"
)

// The way by mailbox. If a client's requests follow one another closely, the daemon takes them from memory shared
// with it: most of the cost of a small request is that the two sides wake one another. One goroutine polls the
// mailboxes of all busy clients. It gives a mailbox up when nothing has come for Options.Poll, and sleeps when it has
// none. So a daemon at rest costs nothing, and one client costs at most that time of one processor after each of its
// requests.
//
// Polling has to pay. A mailbox that was given up after few requests is polled again only when a longer run of
// requests has come by the socket. Pausing the poller when it is kept from running was tried, too: on processors that
// are saturated, puts took longer.
//
// It is worth its lines also where blobs are large: to register one of 1 MiB takes 14
// µs by mailbox and 60 to 90 by the socket, beside some 50 for copying it (polder
// bench share, "put 1MiB" and "put 1MiB by the socket").
//
// A mailbox carries the same messages as the socket, with the same checks. The
// records of all requests that are found at once are written together.

// postable are the operations that may come by mailbox: no descriptor comes
// with the answer, and they take little time.
const postable = 1<<wire.Put | 1<<wire.Lookup | 1<<wire.Exists | 1<<wire.Delete | 1<<wire.Pin | 1<<wire.Unpin | 1<<wire.Unref

// maxPolled bounds the mailboxes that are polled at the same time.
const maxPolled = 64

const (
	// quickRequests is how many requests must follow one another closely, by the socket, before a client counts as
	// busy; the number doubles, up to mostQuickRequests, each time that polling did not pay because it has found
	// fewer than payRequests requests.
	quickRequests     = 2
	mostQuickRequests = 64
	payRequests       = 4
)

// mailbox is the daemon's side of one client's mailbox.
type mailbox struct {
	box    *shm.Mailbox
	conn   conn         // carries its requests
	last   atomic.Int64 // when the last request by the socket was answered, since Server.started
	quick  atomic.Int32 // requests that have followed one another closely
	need   atomic.Int32 // how many have to do so before it is polled
	polled atomic.Bool
	gone   atomic.Bool // the session has ended, or has another mailbox

	// Slots whose request waits for the disk: nothing new is taken from them.
	waiting [shm.Posts]atomic.Bool

	// The poller's.
	until time.Time // when it is given up
	found int       // requests since it was polled
}

func newMailbox(box *shm.Mailbox, c conn) *mailbox {
	m := &mailbox{box: box, conn: c}
	m.need.Store(quickRequests)
	return m
}

// setMailbox gives the session a mailbox, or none if m is nil.
//
// Preconditions: Server.mu is held.
func (ss *session) setMailbox(m *mailbox) {
	if old := ss.box.Swap(m); old != nil {
		old.close()
	}
}

// close ends the use of a mailbox.
func (m *mailbox) close() {
	m.gone.Store(true)
	m.box.Close()
}

// poller polls the mailboxes of busy clients.
type poller struct {
	s     *Server
	limit time.Duration // 0 if nothing is ever polled
	count atomic.Int32  // mailboxes polled, or about to be
	wake  chan struct{}
	fresh atomic.Bool // joining is not empty

	mu      sync.Mutex // guards joining; taken last
	joining []*mailbox

	// The poller goroutine's.
	boxes []*mailbox
	buf   [shm.MaxPost]byte
	taken []posted
}

// posted is a request that has been carried out and not answered.
type posted struct {
	m    *mailbox
	slot int
	need need
}

func newPoller(s *Server, limit time.Duration) *poller {
	if runtime.GOMAXPROCS(0) == 1 {
		limit = 0 // the client could not run while it is waited for
	}
	return &poller{s: s, limit: max(limit, 0), wake: make(chan struct{}, 1)}
}

// asked tells that a request of a client has come by the socket, and answered
// that it was answered.
func (p *poller) asked(m *mailbox) {
	if m == nil || p.limit == 0 || m.polled.Load() {
		return
	}
	if now := time.Since(p.s.started); now-time.Duration(m.last.Load()) > p.limit {
		m.quick.Store(0)
	} else if m.quick.Add(1) >= m.need.Load() {
		p.join(m)
	}
}

func (p *poller) answered(m *mailbox) {
	if m != nil && p.limit != 0 {
		m.last.Store(int64(time.Since(p.s.started)))
	}
}

// join makes the poller poll a mailbox.
func (p *poller) join(m *mailbox) {
	if !m.polled.CompareAndSwap(false, true) {
		return
	}
	if p.count.Add(1) > maxPolled || !m.box.Use() {
		p.count.Add(-1)
		m.polled.Store(false)
		return
	}
	p.mu.Lock()
	p.joining = append(p.joining, m)
	p.mu.Unlock()
	p.fresh.Store(true)
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run polls until the server closes.
func (p *poller) run() {
	for idle := 0; p.s.ctx.Err() == nil; idle++ {
		if len(p.boxes) == 0 {
			select {
			case <-p.s.ctx.Done():
			case <-p.wake:
			}
		}
		if p.fresh.Load() {
			p.admit()
		}
		if p.poll() {
			idle = 0
		} else if idle%8 == 1 {
			// Let other processes run, the client that was answered first. Not runtime.Gosched, which would wake
			// another thread each time, to no purpose: it finds nothing to do.
			unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		}
	}
	p.admit()
	for _, m := range p.boxes {
		m.box.Attend(false)
		m.box.Close()
	}
}

// admit takes in the mailboxes that have joined.
func (p *poller) admit() {
	p.mu.Lock()
	joining := p.joining
	p.joining = nil
	p.fresh.Store(false)
	p.mu.Unlock()
	for _, m := range joining {
		m.until, m.found = time.Now().Add(p.limit), 0
		m.box.Attend(true)
		p.boxes = append(p.boxes, m)
	}
}

// poll looks at every mailbox once, and reports whether it has found anything.
func (p *poller) poll() bool {
	p.taken = p.taken[:0]
	now := time.Now()
	kept := p.boxes[:0]
	for _, m := range p.boxes {
		found := p.receive(m)
		switch {
		case found && !m.gone.Load():
			m.until = now.Add(p.limit)
			kept = append(kept, m)
		case m.gone.Load() || now.After(m.until):
			m.box.Attend(false)
			p.receive(m) // what was posted before the client saw that
			m.leave()
			p.count.Add(-1)
			defer m.box.Close()
		default:
			kept = append(kept, m)
		}
	}
	clear(p.boxes[len(kept):])
	p.boxes = kept
	if len(p.taken) == 0 { // fast path
		return false
	}
	p.answer()
	return true
}

// leave tells that the mailbox is polled no more.
func (m *mailbox) leave() {
	need := int32(quickRequests)
	if m.found < payRequests {
		need = min(2*m.need.Load(), mostQuickRequests)
	}
	m.need.Store(need)
	m.quick.Store(0)
	m.polled.Store(false)
}

// receive carries out what is in a mailbox.
func (p *poller) receive(m *mailbox) bool {
	found := false
	for slot := range shm.Posts {
		if m.waiting[slot].Load() {
			continue
		}
		msg, ok := m.box.Receive(slot, p.buf[:])
		if !ok {
			continue
		}
		found = true
		m.found++
		p.s.stats.posted.Add(1)
		failpoint.Hit("daemon.post-received")
		need := m.carryOut(msg)
		m.box.Write(slot, m.conn.out)
		p.taken = append(p.taken, posted{m, slot, need})
	}
	return found
}

// carryOut does what a message asks for. The answer is in m.conn.out.
func (m *mailbox) carryOut(msg []byte) need {
	c := &m.conn
	var err error
	if len(msg) == 0 || msg[0] > byte(wire.LastOp) || postable&(1<<msg[0]) == 0 {
		err = errNotPostable
	} else if err = c.handle(msg); err == nil && len(c.out) > shm.MaxPost {
		err = errNotPostable
	}
	if err != nil {
		c.out = c.errorReply(err)
		return need{}
	}
	return c.need
}

// answer commits what the requests that were taken rest on, and answers them.
func (p *poller) answer() {
	s := p.s
	var volatile need
	for _, t := range p.taken {
		if !t.need.sync {
			volatile.lsn = max(volatile.lsn, t.need.lsn)
		}
	}
	err := s.commitNeed(volatile)
	failpoint.Hit("daemon.post-committed")
	for _, t := range p.taken {
		if t.need.lsn != 0 && t.need.sync && t.m.box.Use() {
			// Slow path: the disk is waited for elsewhere.
			t.m.waiting[t.slot].Store(true)
			s.wg.Go(func() {
				defer t.m.box.Close()
				err := s.commitNeed(t.need)
				t.m.waiting[t.slot].Store(false)
				t.send(err)
				s.finish(false)
			})
			continue
		}
		t.send(err)
	}
	s.finishPages()
}

// send answers a request, given whether what it rests on is committed.
func (t posted) send(err error) {
	if err != nil && t.need.lsn != 0 {
		t.m.box.Write(t.slot, (&conn{}).errorReply(err))
	}
	t.m.box.Send(t.slot)
}
