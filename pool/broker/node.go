package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"polder/internal/failpoint"
	"polder/memnode/wire"
	"polder/pool/finemem"
	"polder/pool/manager"
	"polder/verbs"
)

// extent is a block without its keys.
type extent struct {
	first uint32
	class int
}

// A node is a memory node as the broker sees it. Its keeper is the goroutine that connects to it, and that shows it
// that the broker is alive.
type node struct {
	b    *Broker
	cfg  Node
	log  *slog.Logger
	lost chan *link    // capacity 1: tells the keeper of a link that does not work
	debt chan struct{} // capacity 1: tells the keeper that its link has late blocks

	beats, resumes, allocs, frees, orphans counter

	mu     sync.Mutex
	link   *link                             // nil: the node cannot be reached
	cause  error                             // why link is nil
	resume wire.Session                      // the broker's session at the node
	epoch  uint64                            // changes when the node has forgotten everything
	info   manager.Info                      // what the node told when it was last connected
	least  int                               // class of the node's chunks
	space  wire.Space                        // as far as is known
	blocks map[*app]map[uint32]finemem.Block // what applications have, by first chunk
	owed   map[extent]struct{}               // blocks that are to be freed; they may have been freed already
}

// link is a session over one connection.
type link struct {
	conn    verbs.Conn
	cq      verbs.CQ
	access  verbs.QP
	session *finemem.Session
	late    []finemem.Block // owed blocks whose turn did not come in time; the keeper frees them; guarded by node.mu
}

func newNode(b *Broker, cfg Node) *node {
	return &node{
		b: b, cfg: cfg, log: b.cfg.Logger.With("node", cfg.Addr), lost: make(chan *link, 1), debt: make(chan struct{}, 1),
		cause:  errors.New("not connected yet"),
		blocks: make(map[*app]map[uint32]finemem.Block),
		owed:   make(map[extent]struct{}),
	}
}

// Waits between two attempts to connect.
const (
	minWait = 10 * time.Millisecond
	maxWait = time.Second
)

// keep is the keeper: it connects, and connects again, until ctx ends. It calls tried, if that is not nil, when the
// first attempt has ended.
func (n *node) keep(ctx context.Context, tried func()) {
	wait := minWait
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		l, err := n.connect(ctx)
		if err == nil {
			n.log.Info("memory node connected", "peer", l.conn.RemoteAddr())
			wait = minWait
		}
		if tried != nil {
			tried()
			tried = nil
		}
		if err == nil {
			err = n.watch(ctx, l)
			n.drop(l, err)
			l.close()
		} else {
			n.drop(nil, err)
		}
		if ctx.Err() != nil {
			return
		}
		n.log.Warn("memory node gone", "error", err)
		pause.Reset(wait - rand.N(wait/2))
		wait = min(2*wait, maxWait)
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
	}
}

// watch shows the node that the broker is alive until the link is of no use, and returns the reason.
func (n *node) watch(ctx context.Context, l *link) error {
	beat := time.NewTicker(n.b.cfg.Heartbeat)
	defer beat.Stop()
	select {
	case <-n.lost: // a report of an earlier link
	default:
	}
	for {
		if err := n.beat(ctx, l); err != nil {
			return fmt.Errorf("cannot show that the broker is alive: %w", err)
		}
		select {
		case <-beat.C:
		case <-l.conn.Done():
			return l.conn.Err()
		case broken := <-n.lost:
			if broken == l {
				return errors.New("an operation failed")
			}
		case <-n.debt:
			n.payLate(ctx, l)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (n *node) beat(ctx context.Context, l *link) error {
	ctx, cancel := context.WithTimeoutCause(ctx, n.b.cfg.Timeout, errTimeout)
	defer cancel()
	err := l.session.Beat(ctx)
	if err == nil {
		n.beats.Add(1)
	}
	return err
}

// broke tells the keeper that an operation on l has failed.
func (n *node) broke(l *link) {
	select {
	case n.lost <- l:
	default: // another report waits already
	}
}

// drop retires l, and makes requests fail because of err.
func (n *node) drop(l *link, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.link == l {
		n.link, n.cause = nil, err
	}
}

func (l *link) close() {
	if l.session != nil {
		l.session.Close()
	}
	l.conn.Close()
	if l.access != nil {
		l.access.Close()
	}
	l.cq.Close()
}

// connect makes a link, and brings the broker's books up to date with the node.
func (n *node) connect(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, n.b.cfg.Timeout, errTimeout)
	defer cancel()
	conn, err := n.cfg.Dial(ctx)
	if err != nil {
		return nil, err
	}
	l := &link{conn: conn}
	if l.cq, err = n.b.cfg.Device.CreateCQ(verbs.CQInit{Depth: 1}); err != nil {
		conn.Close()
		return nil, err
	}
	n.mu.Lock()
	resume := n.resume
	n.mu.Unlock()
	m := finemem.Manager{Policy: n.b.cfg.Policy, Secret: n.b.cfg.Secret}
	s, err := m.Attach(ctx, manager.Link{
		Device: n.b.cfg.Device, PD: n.b.pd, Conn: conn, Resume: resume, Cluster: n.b.cfg.Cluster,
		// The node expects an access queue pair, but nobody uses it.
		Access: func() (verbs.QP, error) {
			l.access, err = n.b.pd.CreateQP(verbs.QPInit{SendCQ: l.cq, RecvCQ: l.cq, SendDepth: 1, RecvDepth: 1})
			return l.access, err
		},
	})
	if err == nil {
		l.session = s.(*finemem.Session)
		err = n.settle(ctx, l)
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// settle makes l the node's link. It frees what belongs to the broker according to the node and to no application.
// What the node has forgotten is lost.
func (n *node) settle(ctx context.Context, l *link) error {
	info := l.session.Info()
	var owned []manager.Grant
	if info.Resumed {
		var err error
		if owned, err = l.session.Owned(ctx); err != nil {
			return fmt.Errorf("cannot resume the session: %w", err)
		}
	}
	return l.session.Do(ctx, func(a *finemem.Allocator) error {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.resume, n.info, n.least, n.space = info.Session, info, a.Layout().Least, l.session.Space()
		if info.Resumed {
			n.resumes.Add(1)
		} else {
			n.forget()
		}
		todo := n.unknown(a, owned)
		for _, e := range todo {
			n.space.Budget += 1 << (e.class - n.least)
		}
		for clear(n.owed); len(todo) > 0; clear(n.owed) {
			n.mu.Unlock()
			err := n.clean(ctx, a, todo)
			n.mu.Lock()
			if err != nil {
				for _, e := range todo {
					n.owed[e] = struct{}{}
				}
				return err
			}
			todo = slices.Collect(maps.Keys(n.owed)) // those that applications have returned meanwhile
		}
		n.link, n.cause = l, nil
		return nil
	})
}

// clean frees extents that belong to no application.
func (n *node) clean(ctx context.Context, a *finemem.Allocator, todo []extent) error {
	for _, e := range todo {
		if err := a.Free(ctx, a.Adopt(e.first, e.class)); err != nil {
			return fmt.Errorf("cannot free what nobody has: %w", err)
		}
		n.frees.Add(1)
	}
	return nil
}

// forget begins a new epoch, in which no application has anything.
//
// Preconditions: n.mu is held.
func (n *node) forget() {
	n.epoch = rand.Uint64() | 1
	for a, blocks := range n.blocks {
		for _, b := range blocks {
			n.b.giveBack(a, n.bytes(b.Class))
		}
	}
	clear(n.blocks)
	clear(n.owed)
}

// unknown returns what the broker owns and no application has: what is owed, and what an operation has left that may
// have been under way. There is at most one such operation.
//
// Preconditions: n.mu is held.
func (n *node) unknown(a *finemem.Allocator, owned []manager.Grant) (todo []extent) {
	left := make(map[uint32]bool, len(owned))
	for _, g := range owned {
		for i := range g.Chunks {
			left[g.Chunk+uint32(i)] = true
		}
	}
	chunks := func(e extent) (first, end uint32) {
		first = e.first >> n.least
		return first, first + 1<<(e.class-n.least)
	}
	// takes takes e out of left, if all of it is in left.
	takes := func(e extent) bool {
		first, end := chunks(e)
		for c := first; c < end; c++ {
			if !left[c] {
				return false
			}
		}
		for c := first; c < end; c++ {
			delete(left, c)
		}
		return true
	}
	for app, blocks := range n.blocks {
		for first, b := range blocks {
			if takes(extent{first, b.Class}) {
				blocks[first] = a.Adopt(first, b.Class)
			} else {
				// The node has taken it back.
				delete(blocks, first)
				n.b.giveBack(app, n.bytes(b.Class))
			}
		}
	}
	for e := range n.owed {
		if takes(e) {
			todo = append(todo, e)
		}
	}
	if len(left) == 0 {
		return todo
	}
	least := ^uint32(0)
	for c := range left {
		least = min(least, c)
	}
	size := len(left)
	e := extent{least << n.least, n.least + bits.Len(uint(size)) - 1}
	if size&(size-1) == 0 && e.first&(1<<e.class-1) == 0 && takes(e) {
		return append(todo, e)
	}
	n.orphans.Add(uint64(size))
	n.log.Warn("the node says that the broker has chunks that it does not know; they come back with its end", "chunks", size)
	return todo
}

// bytes is the size in bytes of a block of a class.
//
// Preconditions: n.mu is held.
func (n *node) bytes(class int) int64 { return int64(n.info.ChunkSize) << (class - n.least) }

// session is the number by which an application names its standing with n in this epoch. Its requests must carry the
// number. It is different for every application.
//
// Preconditions: n.mu is held.
func (n *node) session(a *app) uint64 { return n.epoch ^ a.nonce }

// attach answers opAttach.
func (n *node) attach(a *app, out *answer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.link == nil {
		out.status = statusDown
		return
	}
	out.session, out.least = n.session(a), uint8(n.least)
	out.chunk, out.chunks = uint64(n.info.ChunkSize), uint32(n.info.Chunks)
	out.grace = uint32(n.info.Grace.Milliseconds())
	n.says(a, out)
}

// says puts into the answer how much is left.
//
// Preconditions: n.mu is held.
func (n *node) says(a *app, out *answer) {
	out.free = n.space.Free
	left := int64(n.space.Budget)
	if quota := n.b.left(a); quota >= 0 {
		left = min(left, quota/int64(n.info.ChunkSize))
	}
	out.budget = uint32(left)
}

// current returns the link for a request of a's in a session.
//
// Preconditions: n.mu is held.
func (n *node) current(a *app, session uint64) (*link, status) {
	switch {
	case n.epoch == 0 || session != n.session(a):
		return nil, statusStale
	case n.link == nil:
		return nil, statusDown
	}
	return n.link, statusOK
}

// alloc answers opAlloc.
func (n *node) alloc(ctx context.Context, a *app, r *request, out *answer) {
	class := int(r.class)
	n.mu.Lock()
	l, s := n.current(a, r.session)
	if s == statusOK && class < n.least {
		s = statusBad
	}
	if s != statusOK {
		n.mu.Unlock()
		out.status = s
		return
	}
	chunks, size := uint32(1)<<(class-n.least), n.bytes(class)
	if chunks > n.space.Budget || !n.b.take(a, size) {
		n.mu.Unlock()
		out.status = statusBudget
		return
	}
	n.space.Budget -= chunks
	n.mu.Unlock()

	err := l.session.Do(ctx, func(al *finemem.Allocator) error {
		b, err := al.Alloc(ctx, class)
		if err != nil {
			return err
		}
		failpoint.Hit(StepAllocated)
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.blocks[a] == nil {
			n.blocks[a] = make(map[uint32]finemem.Block)
		}
		n.blocks[a][b.First] = b
		n.space.Free -= min(n.space.Free, chunks)
		out.first, out.addr = b.First, b.Addr
		for i := range b.Keys() {
			out.keys = append(out.keys, b.Key(i))
		}
		return nil
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil {
		if n.link == l { // otherwise the next link has brought new numbers
			n.space.Budget += chunks
		}
		n.b.giveBack(a, size)
		out.status = n.failed(l, err)
		if out.status == statusNoMemory {
			n.space.Free = 0
		}
		return
	}
	n.allocs.Add(1)
	out.session = r.session
	n.says(a, out)
}

// failed is the status to answer when an operation on l has failed.
func (n *node) failed(l *link, err error) status {
	switch {
	case errors.Is(err, manager.ErrNoMemory):
		return statusNoMemory
	case !outOfTime(err): // after a timeout the allocator undoes the operation

		n.broke(l)
	}
	return statusDown
}

// outOfTime reports whether err is the error of a request's context.
func outOfTime(err error) bool { return errors.Is(err, errTimeout) || errors.Is(err, context.Canceled) }

// free answers opFree. Once it has found that the block is a's, the block will be freed, sooner or later.
func (n *node) free(ctx context.Context, a *app, r *request, out *answer) {
	n.mu.Lock()
	l, s := n.current(a, r.session)
	if s == statusStale {
		n.mu.Unlock()
		out.status = s
		return
	}
	b, ok := n.blocks[a][r.first]
	if !ok || b.Class != int(r.class) {
		n.mu.Unlock()
		out.status = statusNotOwner
		return
	}
	delete(n.blocks[a], r.first)
	n.owe(a, b)
	n.mu.Unlock()
	if l != nil {
		n.pay(ctx, l, b)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	out.session = r.session
	n.says(a, out)
}

// owe takes b out of a's account and notes that it is to be freed.
//
// Preconditions: n.mu is held.
func (n *node) owe(a *app, b finemem.Block) {
	n.owed[extent{b.First, b.Class}] = struct{}{}
	n.space.Budget += 1 << (b.Class - n.least)
	n.b.giveBack(a, n.bytes(b.Class))
}

// pay frees b over l. If b's turn does not come in time, the keeper frees b. If l fails, the next link does.
func (n *node) pay(ctx context.Context, l *link, b finemem.Block) {
	err := l.session.Do(ctx, func(al *finemem.Allocator) error {
		failpoint.Hit(StepFree)
		if err := al.Free(ctx, b); err != nil && !outOfTime(err) {
			return err
		}
		// After a timeout the allocator frees b before it does anything else.
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.owed, extent{b.First, b.Class})
		n.space.Free += 1 << (b.Class - n.least)
		n.frees.Add(1)
		return nil
	})
	switch {
	case err == nil:
	case outOfTime(err):
		n.later(l, b)
	default:
		n.broke(l)
	}
}

// later has the keeper free blocks over l.
func (n *node) later(l *link, blocks ...finemem.Block) {
	n.mu.Lock()
	l.late = append(l.late, blocks...)
	n.mu.Unlock()
	select {
	case n.debt <- struct{}{}:
	default: // the keeper is about to look
	}
}

// payLate frees what others could not free over l in time.
func (n *node) payLate(ctx context.Context, l *link) {
	ctx, cancel := context.WithTimeoutCause(ctx, n.b.cfg.Timeout, errTimeout)
	defer cancel()
	n.mu.Lock()
	late := l.late
	l.late = nil
	n.mu.Unlock()
	for _, b := range late {
		n.pay(ctx, l, b)
	}
}

// leave frees everything that a has.
func (n *node) leave(ctx context.Context, a *app) {
	n.mu.Lock()
	l := n.link
	blocks := slices.Collect(maps.Values(n.blocks[a]))
	delete(n.blocks, a)
	for _, b := range blocks {
		n.owe(a, b)
	}
	n.mu.Unlock()
	for i, b := range blocks {
		if l == nil || l.conn.Err() != nil || ctx.Err() != nil {
			break // the next link frees the rest, unless the broker ends
		}
		one, cancel := context.WithTimeoutCause(ctx, n.b.cfg.Timeout, errTimeout)
		failpoint.Hit(StepReturn)
		n.pay(one, l, b)
		late := one.Err() != nil
		cancel()
		if late {
			n.later(l, blocks[i+1:]...)
			break
		}
	}
}
