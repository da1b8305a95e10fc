package pool

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"polder/pool/manager"
	"polder/verbs"
)

// accessDepth is the most operations in flight on an access queue pair.
const accessDepth = 512

// busy is how many operations must be in flight for a caller to let others run
// before it rings the doorbell. It halves the cost of an operation over tcp
// when there are many callers, and would add latency if there were few.
const busy = 8

// A queue pair serves its requests in order, so what has been posted is ahead of
// whatever comes. Pieces that somebody waits for go before bulk (Op.Bulk) that is
// still queued, and of bulk only so many bytes are in flight as keep the wire busy: a
// read on a miss beside bulk writes waits for bulkWindow bytes, not for all of them.
// Every bulkTurn other pieces, one of bulk has its turn. Once bulkWindow bytes are
// in flight, bulk waits until half of them have landed, so that more than
// one piece goes out with a system call.
const (
	bulkWindow = 256 << 10
	bulkTurn   = 64
)

// A link is one connection to a node, with its access queue pair. It is made
// by the node's keeper and never comes back once it is dead.
type link struct {
	node    *node
	conn    verbs.Conn
	qps     []manager.Poster // by path: queue pairs, or what the manager has in their place
	cq      verbs.CQ
	session manager.Session // set once, before anybody else sees the link

	verifier manager.Verifier // session, if it is one
	mapped   sync.RWMutex     // held for reading while memory of session's is accessed in place

	broke chan struct{} // closed by node.linkBroke
	dead  atomic.Bool   // nothing is accepted any more

	mu        sync.Mutex
	prompt    pieceQueue // not yet posted: pieces that somebody waits for
	bulk      pieceQueue // not yet posted, the others
	progress  uint64     // completions so far
	promptRun int        // pieces of prompt posted since the last of bulk
	bulkBytes int        // in flight in pieces of bulk
	bulkFull  bool       // they wait until that is half of bulkWindow
	flying    []*piece   // by slot; the slot is the work request's id
	slots     []uint16   // free slots
	posting   bool       // somebody is in post, and will take what is queued

	components *portAttempt // guarded by mu: where components are called, once somebody has

	batches [manager.MaxPaths][]verbs.SendWR // by path; they belong to whoever set posting
	taken   [manager.MaxPaths][]*piece       // the pieces of the batches

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
	}
	for i := range depth {
		l.slots = append(l.slots, uint16(depth-1-i))
	}
	var err error
	if l.cq, err = p.dev.CreateCQ(verbs.CQInit{Depth: depth, Handler: l.complete}); err != nil {
		return nil, err
	}
	return l, nil
}

// access makes the queue pair of the next path. All complete into one queue.
func (l *link) access() (verbs.QP, error) {
	if len(l.qps) == manager.MaxPaths {
		return nil, fmt.Errorf("cannot create more than %d access queue pairs", manager.MaxPaths)
	}
	depth := len(l.flying)
	qp, err := l.node.pool.pd.CreateQP(verbs.QPInit{
		SendCQ: l.cq, RecvCQ: l.cq, SendDepth: depth, RecvDepth: 1, OnEvent: l.event,
	})
	if err != nil {
		return nil, err
	}
	l.through(qp)
	return qp, nil
}

// through makes p the next path.
//
// Preconditions: there are fewer than manager.MaxPaths.
func (l *link) through(p manager.Poster) {
	depth := len(l.flying)
	l.batches[len(l.qps)] = make([]verbs.SendWR, 0, depth)
	l.taken[len(l.qps)] = make([]*piece, 0, depth)
	l.qps = append(l.qps, p)
}

// path is which queue pair a piece of chunk id goes over: what somebody waits for
// over the first, and bulk over the others, where it is in nobody's way (OneSidedMW,
// section 4.1).
func (l *link) path(id uint32, bulk bool) int {
	if !bulk || len(l.qps) == 1 {
		return 0
	}
	return 1 + int(id)%(len(l.qps)-1)
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
			if p.bulk {
				l.bulk.push(p)
			} else {
				l.prompt.push(p)
			}
		}
	}
	l.mu.Unlock()
	l.post()
}

// post rings the doorbell for as much of the queue as there are slots for.
// While one caller is at it, what others queue goes out with its next round.
func (l *link) post() {
	l.mu.Lock()
	if l.posting || l.prompt.empty() && l.bulk.empty() {
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
		for i := range l.qps {
			l.batches[i], l.taken[i] = l.batches[i][:0], l.taken[i][:0]
		}
		any := false
		for p := l.next(); p != nil; p = l.next() {
			slot := l.slots[len(l.slots)-1]
			l.slots = l.slots[:len(l.slots)-1]
			l.flying[slot] = p
			p.posted = true
			l.batches[p.path] = append(l.batches[p.path], p.request(uint64(slot)))
			l.taken[p.path] = append(l.taken[p.path], p)
			any = true
		}
		if !any {
			break
		}
		l.mu.Unlock()
		var err error
		for i, qp := range l.qps {
			if len(l.batches[i]) == 0 {
				continue
			}
			if err = qp.PostSend(l.batches[i]...); err != nil {
				l.refused(i)
				break
			}
		}
		l.mu.Lock()
		if err != nil {
			break
		}
	}
	l.posting = false
	l.mu.Unlock()
}

// next takes the piece to be posted next out of its queue, or returns nil if
// there is none or it must wait for a completion. Those whose callers have given
// up are dropped: nothing is posted after its time, when the caller may have
// gone on.
//
// Preconditions: l.mu is held.
func (l *link) next() *piece {
	for len(l.slots) > 0 {
		var p *piece
		bulk := !l.bulk.empty() && l.bulkFits(l.bulk.front().n)
		switch {
		case bulk && (l.prompt.empty() || l.promptRun >= bulkTurn):
			p = l.bulk.pop()
			l.promptRun = 0
		case !l.prompt.empty():
			p = l.prompt.pop()
			l.promptRun++
		default:
			return nil
		}
		if p.call.fate.Load() != 0 {
			p.finish(verbs.StatusWRFlushErr)
			continue
		}
		if p.bulk {
			l.bulkBytes += p.n
		}
		return p
	}
	return nil
}

// bulkFits reports whether a piece of bulk of n bytes may be posted.
//
// Preconditions: l.mu is held.
func (l *link) bulkFits(n int) bool {
	if l.bulkFull && l.bulkBytes > bulkWindow/2 {
		return false
	}
	l.bulkFull = l.bulkBytes > 0 && l.bulkBytes+n > bulkWindow
	return !l.bulkFull
}

// refused gives up on the link because the batches from the path first on could
// not be posted.
func (l *link) refused(first int) {
	l.mu.Lock()
	var ours []*piece
	for i := first; i < len(l.qps); i++ {
		for k, p := range l.taken[i] {
			if slot := l.batches[i][k].ID; l.flying[slot] == p { // not close's already
				l.flying[slot] = nil
				p.posted = false
				ours = append(ours, p)
			}
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
		l.land(n)
	}
	l.pollMu.Unlock()
	l.post()
}

// completed takes completions that do not come from the queue.
func (l *link) completed(wcs []verbs.WC) {
	l.pollMu.Lock()
	for len(wcs) > 0 {
		n := copy(l.wcs[:], wcs)
		wcs = wcs[n:]
		l.land(n)
	}
	l.pollMu.Unlock()
	l.post()
}

// land takes the first n completions of l.wcs.
//
// Preconditions: l.pollMu is held.
func (l *link) land(n int) {
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
		if p.bulk {
			l.bulkBytes -= p.n
		}
		l.finished[k], l.wcs[k] = p, l.wcs[i]
		k++
	}
	l.progress += uint64(k)
	l.mu.Unlock()
	if l.verifier != nil && !l.verifier.Valid() {
		for i := range k {
			l.wcs[i].Status = verbs.StatusWRFlushErr
		}
		l.node.linkBroke(l)
	}
	for i, p := range l.finished[:k] {
		p.finish(l.wcs[i].Status)
	}
	clear(l.finished[:k])
}

// kill stops the link from accepting anything and fails what was not posted.
// What was posted fails by itself, or in close.
func (l *link) kill() {
	l.mu.Lock()
	l.dead.Store(true)
	var queued []*piece
	for _, q := range []*pieceQueue{&l.prompt, &l.bulk} {
		for !q.empty() {
			queued = append(queued, q.pop())
		}
	}
	l.mu.Unlock()
	for _, p := range queued {
		p.finish(verbs.StatusWRFlushErr)
	}
}

// watch returns when the link is dead, or ctx ends. It retires the link when
// there are operations in flight and none completes for the time given: the
// node has hung, and a new connection must show whether it is still there.
func (l *link) watch(ctx context.Context, patience time.Duration) {
	const looks = 4
	tick := time.NewTicker(max(patience/looks, time.Millisecond))
	defer tick.Stop()
	var seen uint64
	for still := 0; ; {
		select {
		case <-l.broke:
			return
		case <-l.conn.Done():
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		l.mu.Lock()
		if l.progress != seen || len(l.slots) == len(l.flying) {
			seen, still = l.progress, 0
		} else {
			still++
		}
		l.mu.Unlock()
		if still > looks {
			l.node.log.Warn("memory node hangs")
			l.node.linkBroke(l)
			return
		}
	}
}

// ground ends what is in flight on a dead link. When it returns, the device
// has let go of every block.
func (l *link) ground() {
	for _, qp := range l.qps {
		qp.Close()
	}
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
		// Whoever accesses its memory has not seen that the link is dead.
		l.mapped.Lock()
		l.session.Close()
		l.mapped.Unlock()
	}
	l.conn.Close()
	l.closePort()
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

func (q *pieceQueue) front() *piece { return q.ring[q.head] }

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
// to 1 s, less up to a half at random, so that a node's clients do not all come
// back at the same instant.
type backoff time.Duration

func (b *backoff) next() time.Duration {
	d := min(max(2*time.Duration(*b), 10*time.Millisecond), time.Second)
	*b = backoff(d)
	return d - rand.N(d/2)
}
