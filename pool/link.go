package pool

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"polder/pool/mech"
	"polder/verbs"
)

// accessDepth is the most operations in flight on an access queue pair.
const accessDepth = 512

// busy is how many operations must be in flight for a caller to let others run
// before it rings the doorbell. It halves the cost of an operation over tcp
// when there are many callers, and would add latency if there were few.
const busy = 8

// A link is one connection to a node, with its access queue pair. It is made
// by the node's keeper and never comes back once it is dead.
type link struct {
	node    *node
	conn    verbs.Conn
	qp      verbs.QP
	cq      verbs.CQ
	session mech.Session // set once, before anybody else sees the link

	broke    chan struct{} // closed by node.linkBroke
	dead     atomic.Bool   // nothing is accepted any more
	progress atomic.Int64  // completions so far

	mu      sync.Mutex
	queue   pieceQueue // not yet posted
	flying  []*piece   // by slot; the slot is the work request's id
	slots   []uint16   // free slots
	posting bool       // somebody is in post, and will take what is queued

	batch []verbs.SendWR // belongs to whoever set posting
	taken []*piece       // the pieces of batch

	pollMu   sync.Mutex // serialises completion handlers
	wcs      [64]verbs.WC
	finished [64]*piece
}

// newLink creates the queues of a link over conn.
func newLink(n *node, conn verbs.Conn) (*link, error) {
	p := n.pool
	depth := min(accessDepth, p.dev.Attr().MaxQPDepth)
	l := &link{
		node: n, conn: conn, broke: make(chan struct{}),
		flying: make([]*piece, depth),
		batch:  make([]verbs.SendWR, 0, depth), taken: make([]*piece, 0, depth),
	}
	for i := range depth {
		l.slots = append(l.slots, uint16(depth-1-i))
	}
	var err error
	if l.cq, err = p.dev.CreateCQ(verbs.CQInit{Depth: depth, Handler: l.complete}); err != nil {
		return nil, err
	}
	l.qp, err = p.pd.CreateQP(verbs.QPInit{
		SendCQ: l.cq, RecvCQ: l.cq, SendDepth: depth, RecvDepth: 1, OnEvent: l.event,
	})
	if err != nil {
		l.cq.Close()
		return nil, err
	}
	return l, nil
}

// event is the access queue pair's event handler. Whatever happens to it, it
// is of no use afterwards.
func (l *link) event(e verbs.AsyncEvent) {
	if e.Type != verbs.EventCommEstablish {
		l.node.linkBroke(l)
	}
}

// submit queues those of the call's pieces that are ready for this link, and
// sees that they are posted.
func (l *link) submit(pieces []piece) {
	l.mu.Lock()
	if l.dead.Load() {
		l.mu.Unlock()
		for i := range pieces {
			if p := &pieces[i]; p.state == pieceReady && p.link == l {
				p.state = pieceFlying
				p.finish(verbs.StatusWRFlushErr)
			}
		}
		return
	}
	for i := range pieces {
		if p := &pieces[i]; p.state == pieceReady && p.link == l {
			p.state = pieceFlying
			l.queue.push(p)
		}
	}
	l.mu.Unlock()
	l.post()
}

// post rings the doorbell for as much of the queue as there are slots for.
// While one caller is at it, what others queue goes out with its next round.
func (l *link) post() {
	l.mu.Lock()
	if l.posting || l.queue.empty() {
		l.mu.Unlock()
		return
	}
	l.posting = true
	if len(l.flying)-len(l.slots) >= busy {
		// Those whom the last completions have woken are about to
		// post: one system call for all of them.
		l.mu.Unlock()
		runtime.Gosched()
		l.mu.Lock()
	}
	for !l.dead.Load() {
		l.batch, l.taken = l.batch[:0], l.taken[:0]
		for !l.queue.empty() && len(l.slots) > 0 {
			p := l.queue.pop()
			slot := l.slots[len(l.slots)-1]
			l.slots = l.slots[:len(l.slots)-1]
			l.flying[slot] = p
			p.posted = true
			l.batch = append(l.batch, p.request(uint64(slot)))
			l.taken = append(l.taken, p)
		}
		if len(l.batch) == 0 {
			break
		}
		l.mu.Unlock()
		err := l.qp.PostSend(l.batch...)
		if err != nil {
			l.refused()
		}
		l.mu.Lock()
		if err != nil {
			break
		}
	}
	l.posting = false
	l.mu.Unlock()
}

// refused gives up on the link because the batch could not be posted.
func (l *link) refused() {
	l.mu.Lock()
	ours := l.taken[:0]
	for i, p := range l.taken {
		if slot := l.batch[i].ID; l.flying[slot] == p { // not close's already
			l.flying[slot] = nil
			p.posted = false
			ours = append(ours, p)
		}
	}
	l.mu.Unlock()
	l.node.linkBroke(l)
	for _, p := range ours {
		p.finish(verbs.StatusWRFlushErr)
	}
}

// complete is the completion handler.
func (l *link) complete(cq verbs.CQ) {
	l.pollMu.Lock()
	for {
		n := cq.Poll(l.wcs[:])
		if n == 0 {
			break
		}
		k := 0
		l.mu.Lock()
		for i := range n {
			slot := l.wcs[i].ID
			p := l.flying[slot]
			if p == nil {
				continue
			}
			l.flying[slot] = nil
			l.slots = append(l.slots, uint16(slot))
			l.finished[k], l.wcs[k] = p, l.wcs[i]
			k++
		}
		l.mu.Unlock()
		l.progress.Add(int64(k))
		for i, p := range l.finished[:k] {
			p.finish(l.wcs[i].Status)
		}
		clear(l.finished[:k])
	}
	l.pollMu.Unlock()
	l.post()
}

// kill stops the link from accepting anything and fails what was not posted.
// What was posted fails by itself, or in close.
func (l *link) kill() {
	l.mu.Lock()
	l.dead.Store(true)
	var queued []*piece
	for !l.queue.empty() {
		queued = append(queued, l.queue.pop())
	}
	l.mu.Unlock()
	for _, p := range queued {
		p.finish(verbs.StatusWRFlushErr)
	}
}

// ground ends what is in flight on a dead link. When it returns, the device
// has let go of every block.
func (l *link) ground() {
	l.qp.Close()
	l.mu.Lock()
	var left []*piece
	for slot, p := range l.flying {
		if p != nil {
			l.flying[slot] = nil
			left = append(left, p)
		}
	}
	l.mu.Unlock()
	for _, p := range left {
		p.finish(verbs.StatusWRFlushErr)
	}
}

// close disconnects a dead link and releases what it holds of the device.
func (l *link) close() {
	if l.session != nil {
		l.session.Close()
	}
	l.conn.Close()
	l.ground()
	l.cq.Close()
}

// pieceQueue is a FIFO queue in a ring that grows. What it holds is bounded by
// the slab.
type pieceQueue struct {
	ring       []*piece
	head, size int
}

func (q *pieceQueue) empty() bool { return q.size == 0 }

func (q *pieceQueue) push(p *piece) {
	if q.size == len(q.ring) {
		ring := make([]*piece, max(64, 2*len(q.ring)))
		n := copy(ring, q.ring[q.head:])
		copy(ring[n:], q.ring[:q.head])
		q.ring, q.head = ring, 0
	}
	q.ring[(q.head+q.size)&(len(q.ring)-1)] = p
	q.size++
}

func (q *pieceQueue) pop() *piece {
	p := q.ring[q.head]
	q.ring[q.head] = nil
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.size--
	return p
}

// backoff is the wait before the next attempt to connect: it doubles from 10 ms
// to 1 s.
type backoff time.Duration

func (b *backoff) next() time.Duration {
	d := min(max(2*time.Duration(*b), 10*time.Millisecond), time.Second)
	*b = backoff(d)
	return d
}
