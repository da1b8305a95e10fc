package pool

import (
	"fmt"
	"runtime"
	"sync"

	"polder/pool/manager"
	"polder/verbs"
)

// accessDepth is the most operations in flight in a group.
const accessDepth = 512

// busy is how many operations must be in flight for a caller to let others run
// before it rings the doorbell. It halves the cost of an operation over tcp
// when there are many callers, and would add latency if there were few.
const busy = 8

// A queue pair serves its requests in order, so a piece waits for everything that was posted before it. Pieces that
// somebody waits for are posted before bulk (Op.Bulk) that is still queued, and only as many bytes of bulk are in
// flight as keep the wire busy: a read on a miss beside bulk writes waits for bulkWindow bytes, not for all of them.
// After every bulkTurn other pieces, one piece of bulk has its turn. Once bulkWindow bytes are in flight, bulk waits
// until half of them have landed, so that more than one piece goes out with a system call. Groups share the wire, and
// so they share the window.
const (
	bulkWindow = 256 << 10
	bulkTurn   = 64
)

// A group is a set of access queue pairs of a link over which the same chunks are reached: one for pieces that
// somebody waits for, and others for bulk. Groups have nothing in common but the connection, so callers that use
// chunks of different groups do not wait for each other's lock, doorbell, or completions. Operations on a chunk go
// over the queue pairs of its group only.
type group struct {
	link *link
	qps  []manager.Poster // by path: queue pairs, or what the manager uses in their place
	cq   verbs.CQ

	mu        sync.Mutex
	prompt    pieceQueue // not yet posted: pieces that somebody waits for
	bulk      pieceQueue // not yet posted: pieces of bulk
	progress  uint64     // completions so far
	promptRun int        // pieces of prompt posted since the last piece of bulk
	bulkBytes int        // bytes in flight in pieces of bulk
	bulkMost  int        // the most that bulkBytes may be
	bulkFull  bool       // bulk waits until bulkBytes has fallen to half of bulkMost
	flying    []*piece   // by slot; the slot is the work request's id
	slots     []uint16   // free slots
	posting   bool       // somebody is in post, and will also post what is queued now

	batches [manager.MaxPaths][]verbs.SendWR // by path; they belong to whoever set posting
	taken   [manager.MaxPaths][]*piece       // the pieces of the batches

	pollMu   sync.Mutex // serialises completion handlers
	wcs      [64]verbs.WC
	finished [64]*piece
}

// newGroup creates a group of a link.
func newGroup(l *link) (*group, error) {
	dev := l.node.fabric.dev
	depth := min(accessDepth, dev.Attr().MaxQPDepth)
	g := &group{link: l, flying: make([]*piece, depth), bulkMost: max(bulkWindow/l.node.pool.cfg.Groups, maxBlock)}
	for i := range depth {
		g.slots = append(g.slots, uint16(depth-1-i))
	}
	var err error
	if g.cq, err = dev.CreateCQ(verbs.CQInit{Depth: depth, Handler: g.complete}); err != nil {
		return nil, err
	}
	return g, nil
}

// access makes the queue pair of the next path. All queue pairs of the group complete into g.cq.
func (g *group) access() (verbs.QP, error) {
	if len(g.qps) == manager.MaxPaths {
		return nil, fmt.Errorf("cannot create more than %d access queue pairs in a group", manager.MaxPaths)
	}
	depth := len(g.flying)
	qp, err := g.link.node.fabric.pd.CreateQP(verbs.QPInit{
		SendCQ: g.cq, RecvCQ: g.cq, SendDepth: depth, RecvDepth: 1, OnEvent: g.link.event,
	})
	if err != nil {
		return nil, err
	}
	g.through(qp)
	return qp, nil
}

// through makes p the next path.
//
// Preconditions: there are fewer than manager.MaxPaths.
func (g *group) through(p manager.Poster) {
	depth := len(g.flying)
	g.batches[len(g.qps)] = make([]verbs.SendWR, 0, depth)
	g.taken[len(g.qps)] = make([]*piece, 0, depth)
	g.qps = append(g.qps, p)
}

// path is the path that a piece of chunk id takes: the first if somebody waits for the piece, and one of the others
// for bulk, which is in nobody's way there (OneSidedMW, section 4.1).
func (g *group) path(id uint32, bulk bool) int {
	if !bulk || len(g.qps) == 1 {
		return 0
	}
	return 1 + int(id)%(len(g.qps)-1)
}

// submit queues the pieces that are ready for this group, and sees to it that they are posted.
func (g *group) submit(pieces []piece) {
	g.mu.Lock()
	if g.link.dead.Load() {
		g.mu.Unlock()
		for i := range pieces {
			if p := &pieces[i]; p.state == pieceReady && p.group == g {
				p.state = pieceFlying
				p.finish(verbs.StatusWRFlushErr)
			}
		}
		return
	}
	for i := range pieces {
		if p := &pieces[i]; p.state == pieceReady && p.group == g {
			p.state = pieceFlying
			if p.bulk {
				g.bulk.push(p)
			} else {
				g.prompt.push(p)
			}
		}
	}
	g.mu.Unlock()
	g.post()
}

// post rings the doorbell for as much of the queue as there are slots for. While one caller is in post, what others
// queue goes out with its next doorbell.
func (g *group) post() {
	g.mu.Lock()
	if g.posting || g.prompt.empty() && g.bulk.empty() {
		g.mu.Unlock()
		return
	}
	g.posting = true
	if len(g.flying)-len(g.slots) >= busy {
		// Callers that the last completions have woken are about to queue more: post all of it with one system call.
		g.mu.Unlock()
		runtime.Gosched()
		g.mu.Lock()
	}
	for !g.link.dead.Load() {
		for i := range g.qps {
			g.batches[i], g.taken[i] = g.batches[i][:0], g.taken[i][:0]
		}
		any := false
		for p := g.next(); p != nil; p = g.next() {
			slot := g.slots[len(g.slots)-1]
			g.slots = g.slots[:len(g.slots)-1]
			g.flying[slot] = p
			p.posted = true
			g.batches[p.path] = append(g.batches[p.path], p.request(uint64(slot)))
			g.taken[p.path] = append(g.taken[p.path], p)
			any = true
		}
		if !any {
			break
		}
		g.mu.Unlock()
		var err error
		for i, qp := range g.qps {
			if len(g.batches[i]) == 0 {
				continue
			}
			if err = qp.PostSend(g.batches[i]...); err != nil {
				g.refused(i)
				break
			}
		}
		g.mu.Lock()
		if err != nil {
			break
		}
	}
	g.posting = false
	g.mu.Unlock()
}

// next takes the piece to be posted next out of its queue. It returns nil if there is none, or if that piece must
// wait for a completion. It drops pieces whose callers have given up: nothing is posted after its time, when the
// caller may have gone on.
//
// Preconditions: g.mu is held.
func (g *group) next() *piece {
	for len(g.slots) > 0 {
		var p *piece
		bulk := !g.bulk.empty() && g.bulkFits(g.bulk.front().n)
		switch {
		case bulk && (g.prompt.empty() || g.promptRun >= bulkTurn):
			p = g.bulk.pop()
			g.promptRun = 0
		case !g.prompt.empty():
			p = g.prompt.pop()
			g.promptRun++
		default:
			return nil
		}
		if p.call.fate.Load() != 0 {
			p.finish(verbs.StatusWRFlushErr)
			continue
		}
		if p.bulk {
			g.bulkBytes += p.n
		}
		return p
	}
	return nil
}

// bulkFits reports whether a piece of bulk of n bytes may be posted now.
//
// Preconditions: g.mu is held.
func (g *group) bulkFits(n int) bool {
	if g.bulkFull && g.bulkBytes > g.bulkMost/2 {
		return false
	}
	g.bulkFull = g.bulkBytes > 0 && g.bulkBytes+n > g.bulkMost
	return !g.bulkFull
}

// refused gives up on the link because the batches of path first and of those behind it could not be posted.
func (g *group) refused(first int) {
	g.mu.Lock()
	var ours []*piece
	for i := first; i < len(g.qps); i++ {
		for k, p := range g.taken[i] {
			if slot := g.batches[i][k].ID; g.flying[slot] == p { // ground has not taken it already
				g.flying[slot] = nil
				p.posted = false
				ours = append(ours, p)
			}
		}
	}
	g.mu.Unlock()
	g.link.node.linkBroke(g.link)
	for _, p := range ours {
		p.finish(verbs.StatusWRFlushErr)
	}
}

// complete is the completion handler.
func (g *group) complete(cq verbs.CQ) {
	g.pollMu.Lock()
	for {
		n := cq.Poll(g.wcs[:])
		if n == 0 {
			break
		}
		g.land(n)
	}
	g.pollMu.Unlock()
	g.post()
}

// completed takes completions that do not come from g.cq.
func (g *group) completed(wcs []verbs.WC) {
	g.pollMu.Lock()
	for len(wcs) > 0 {
		n := copy(g.wcs[:], wcs)
		wcs = wcs[n:]
		g.land(n)
	}
	g.pollMu.Unlock()
	g.post()
}

// land takes the first n completions of g.wcs.
//
// Preconditions: g.pollMu is held.
func (g *group) land(n int) {
	k := 0
	g.mu.Lock()
	for i := range n {
		slot := g.wcs[i].ID
		p := g.flying[slot]
		if p == nil {
			continue
		}
		g.flying[slot] = nil
		g.slots = append(g.slots, uint16(slot))
		if p.bulk {
			g.bulkBytes -= p.n
		}
		g.finished[k], g.wcs[k] = p, g.wcs[i]
		k++
	}
	g.progress += uint64(k)
	g.mu.Unlock()
	if g.link.verifier != nil && !g.link.verifier.Valid() {
		for i := range k {
			g.wcs[i].Status = verbs.StatusWRFlushErr
		}
		g.link.node.linkBroke(g.link)
	}
	for i, p := range g.finished[:k] {
		p.finish(g.wcs[i].Status)
	}
	clear(g.finished[:k])
}

// kill fails the pieces that were not posted. Those that were posted fail by themselves, or in ground.
//
// Preconditions: the link is dead.
func (g *group) kill() {
	g.mu.Lock()
	var queued []*piece
	for _, q := range []*pieceQueue{&g.prompt, &g.bulk} {
		for !q.empty() {
			queued = append(queued, q.pop())
		}
	}
	g.mu.Unlock()
	for _, p := range queued {
		p.finish(verbs.StatusWRFlushErr)
	}
}

// state is how many operations have completed, and whether any is in flight.
func (g *group) state() (progress uint64, flying bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.progress, len(g.slots) < len(g.flying)
}

// ground ends the pieces that are in flight on a dead link. When it returns, the device uses none of their blocks any
// more.
func (g *group) ground() {
	for _, qp := range g.qps {
		qp.Close()
	}
	g.mu.Lock()
	var left []*piece
	for slot, p := range g.flying {
		if p != nil {
			g.flying[slot] = nil
			left = append(left, p)
		}
	}
	g.mu.Unlock()
	for _, p := range left {
		p.finish(verbs.StatusWRFlushErr)
	}
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
