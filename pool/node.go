package pool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"polder/memnode/wire"
	"polder/pool/manager"
	"polder/verbs"
)

// nodeState says whether a node can be used.
type nodeState uint8

const (
	// nodeConnecting: after a loss, the first attempt to connect is under way, or the attempts within Config.Pause.
	// Operations wait for the outcome.
	nodeConnecting nodeState = iota
	// nodeUp: there is a link.
	nodeUp
	// nodeDown: the last attempt failed, and another will be made.
	// Operations fail.
	nodeDown
	// nodeClosed: the pool is closed, or has forgotten the node.
	nodeClosed
)

func (s nodeState) String() string {
	return [...]string{"connecting", "up", "down", "closed"}[s]
}

// A node is a memory node as the pool sees it. Its keeper is the goroutine that makes links.
type node struct {
	pool    *Pool
	fabric  *fabric
	manager Manager
	name    string
	log     *slog.Logger
	dial    func(context.Context) (verbs.Conn, error)

	forget context.CancelFunc // ends the keeper

	counters counters
	objects  atomic.Int64 // objects of components that this client has there

	mu      sync.Mutex
	state   nodeState
	cause   error         // nodeDown, nodeClosed: why
	changed chan struct{} // closed when state changes
	link    *link         // nodeUp
	extents map[uint32]*extent
	session wire.Session
	// inherits says that the session is an earlier pool's. Memory of the session that this pool does not know is
	// dormant, until it is reopened or pruned, instead of being given back.
	inherits bool
	dormant  map[uint32]manager.Grant // nodeUp: grants over link, by their first chunk
	grace    time.Duration
	zone     string
}

func newNode(p *Pool, f *fabric, cfg NodeConfig) *node {
	n := &node{
		pool: p, fabric: f, manager: cfg.Manager, name: cfg.Name, dial: cfg.Dial, log: p.log.With("node", cfg.Name),
		changed: make(chan struct{}),
		extents: make(map[uint32]*extent),
		session: p.sessionOf(cfg.Name),
	}
	n.inherits = n.session.ID != 0
	n.counters.init(cfg.Name)
	return n
}

// setState changes the state and wakes whoever watches it.
//
// Preconditions: n.mu is held.
func (n *node) setState(s nodeState, cause error) {
	n.state, n.cause = s, cause
	close(n.changed)
	n.changed = make(chan struct{})
}

// watch returns the state and a channel that is closed when it changes.
func (n *node) watch() (nodeState, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state, n.changed
}

// unusable returns why operations on n fail at once, or nil.
func (n *node) unusable() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch n.state {
	case nodeDown:
		return &goneError{n.cause}
	case nodeClosed:
		return n.cause
	}
	return nil
}

// current returns the link, or nil.
func (n *node) current() *link {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.link
}

// linkBroke retires l, unless that has been done already, and wakes the keeper.
func (n *node) linkBroke(l *link) {
	n.mu.Lock()
	if n.link != l {
		n.mu.Unlock()
		return
	}
	// The state changes before anybody can see that the link is dead: so whoever sees the link dead finds a state to
	// wait for. The link is dead before anybody else can find it broken: so nobody tries again on it.
	n.link = nil
	n.setState(nodeConnecting, nil)
	l.dead.Store(true)
	n.mu.Unlock()
	l.kill()
	close(l.broke)
}

// A link that was lost is made again at once if it had lasted for steady, and otherwise after shortWait, so that a
// node that accepts connections only to drop them is not flooded.
const (
	steady    = time.Second
	shortWait = 10 * time.Millisecond
	soon      = 100 * time.Millisecond // longest pause between attempts while operations wait
)

// keep is the keeper: it connects, and connects again, until ctx ends.
func (n *node) keep(ctx context.Context) {
	defer n.closeNow(ctx)
	var wait backoff
	var graceEnds time.Time // when the session's grace period ends, while there is no link
	var waited time.Time    // time until which operations wait
	for {
		l, err := n.connect(ctx)
		if err != nil {
			if wire.Superseded.Is(err) {
				n.pool.supersede(err)
			}
			if ctx.Err() != nil {
				return
			}
			pause := wait.next()
			if time.Now().Before(waited) {
				pause = min(pause, soon)
			} else {
				n.fail(err, graceEnds)
			}
			if left := time.Until(graceEnds); left > 0 {
				pause = min(pause, left)
			}
			sleep(ctx, pause)
			continue
		}
		n.log.Info("memory node connected", "peer", l.conn.RemoteAddr(), "in place", l.inPlace())
		since := time.Now()
		l.watch(ctx, n.pool.cfg.Timeout)
		if ctx.Err() != nil {
			n.farewell(ctx, l)
			return
		}
		n.log.Warn("connection lost", "error", l.conn.Err())
		if n.pool.cfg.Keep == nil {
			graceEnds = time.Now().Add(n.graceTime())
		}
		waited = time.Now().Add(n.pool.cfg.Pause)
		n.linkBroke(l)
		l.close()
		n.counters.reconnects.Add(1)
		wait = 0
		if time.Since(since) < steady {
			sleep(ctx, shortWait)
		}
	}
}

// fail makes operations on n fail because of err until n is connected again. If the grace period is over, the chunks
// are lost.
func (n *node) fail(err error, graceEnds time.Time) {
	n.mu.Lock()
	switch n.state {
	case nodeDown:
	case nodeClosed:
		n.mu.Unlock()
		return
	default:
		n.log.Warn("memory node gone", "error", err)
	}
	n.setState(nodeDown, err)
	n.mu.Unlock()
	if !graceEnds.IsZero() && time.Now().After(graceEnds) {
		if lost := n.loseAll(); lost > 0 {
			n.log.Warn("grace period over: chunks lost", "chunks", lost)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func (n *node) graceTime() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.grace
}

// connect makes a link and publishes it.
func (n *node) connect(ctx context.Context) (*link, error) {
	bounded, cancel := context.WithTimeoutCause(ctx, n.pool.cfg.Timeout, ErrTimeout)
	defer cancel()
	conn, err := n.dial(bounded)
	if err != nil {
		return nil, err
	}
	l, err := newLink(n, conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	unknown, err := n.attach(bounded, l)
	if err != nil {
		l.kill()
		l.close()
		return nil, err
	}
	// Memory that was freed while there was no connection, or that was granted by a reply that never arrived.
	if err := n.giveBack(ctx, l, unknown); err != nil {
		n.linkBroke(l)
	}
	return l, nil
}

// attach opens a session over l and makes l the node's link. unknown is what the node has lent to this client and
// this pool does not know of, by first chunks.
func (n *node) attach(ctx context.Context, l *link) (unknown []uint32, err error) {
	n.mu.Lock()
	resume := n.session
	n.mu.Unlock()
	var keep wire.Keep
	if k := n.pool.cfg.Keep; k != nil {
		keep = *k.wire()
	}
	s, err := n.manager.Attach(ctx, manager.Link{
		Device: n.fabric.dev, PD: n.fabric.pd, Conn: l.conn, Resume: resume, Keep: keep, Cluster: n.pool.cfg.Cluster,
		Access: l.access, Groups: n.pool.cfg.Groups, Pairs: n.pool.cfg.Pairs, NextGroup: l.nextGroup,
		Through: l.groups[0].through, Buffer: n.fabric.mr, Complete: l.groups[0].completed,
		Vanished: l.tellVanished,
	})
	if err != nil {
		return nil, err
	}
	l.session = s
	l.verifier, _ = s.(manager.Verifier)
	info := s.Info()
	if err := n.pool.agreeChunkSize(info.ChunkSize); err != nil {
		return nil, err
	}
	n.mapMemory(ctx, l)
	var owned []manager.Grant
	if info.Resumed {
		if owned, err = s.Owned(ctx); err != nil {
			return nil, fmt.Errorf("cannot resume the session: %w", err)
		}
	}
	if info.Session != resume {
		n.pool.began(n.name, info.Session)
	}
	lost, unknown, err := n.publish(l, owned)
	if err != nil {
		return nil, err
	}
	for _, x := range lost {
		x.lose()
	}
	if len(lost) > 0 {
		n.log.Warn("chunks lost", "chunks", chunksOf(lost))
	}
	return unknown, nil
}

// publish makes l the node's link. owned is what the client owns over it. publish returns the extents that the client
// no longer owns, and what it owns without the pool's knowing.
func (n *node) publish(l *link, owned []manager.Grant) (lost []*extent, unknown []uint32, err error) {
	info := l.session.Info()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state == nodeClosed {
		return nil, nil, ErrClosed
	}
	n.dropPermitted()
	n.inherits = n.inherits && info.Resumed
	n.dormant = make(map[uint32]manager.Grant)
	kept := make(map[uint32]*extent, len(owned))
	for _, g := range owned {
		if x := n.extents[g.Chunk]; x != nil && x.chunks == g.Chunks {
			x.binding.Store(l.bind(g))
			kept[g.Chunk] = x
		} else if n.inherits {
			n.dormant[g.Chunk] = g
		} else {
			unknown = append(unknown, g.Chunk)
		}
	}
	for id, x := range n.extents {
		if kept[id] == nil {
			lost = append(lost, x)
		}
	}
	n.extents = kept
	n.session, n.grace, n.zone = info.Session, info.Grace, info.Zone
	n.link = l
	n.setState(nodeUp, nil)
	return lost, unknown, nil
}

// loseAll gives up every extent, and returns how many chunks they had.
func (n *node) loseAll() int {
	n.mu.Lock()
	lost := slices.Collect(maps.Values(n.extents))
	clear(n.extents)
	n.session = wire.Session{}
	n.mu.Unlock()
	for _, x := range lost {
		x.lose()
	}
	return chunksOf(lost)
}

// closing is why operations fail once ctx, the keeper's, is done.
func closing(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, ErrSuperseded) {
		return cause
	}
	return ErrClosed
}

// farewell gives everything back over l, unless the pool is kept, and closes l.
func (n *node) farewell(ctx context.Context, l *link) {
	n.mu.Lock()
	var ids []uint32
	for id := range n.extents {
		ids = append(ids, id)
	}
	n.link = nil
	n.setState(nodeClosed, closing(ctx))
	n.mu.Unlock()
	l.kill()
	l.ground()
	if n.pool.cfg.Keep != nil {
		ids = nil
	}
	_ = n.giveBack(context.Background(), l, ids) // what this cannot give back the node reclaims in time
	l.close()
}

// end closes n if it cannot be reached and nothing of it is in use.
func (n *node) end() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch chunks := 0; {
	case n.state != nodeDown:
		return fmt.Errorf("%w: it is %s", ErrInUse, n.state)
	case len(n.extents) > 0:
		for _, x := range n.extents {
			chunks += x.chunks
		}
		return fmt.Errorf("%w: %d chunks are borrowed", ErrInUse, chunks)
	case n.objects.Load() > 0:
		return fmt.Errorf("%w: %d objects of components are there", ErrInUse, n.objects.Load())
	}
	n.setState(nodeClosed, ErrClosed)
	n.forget()
	return nil
}

// closeNow marks n as closed.
func (n *node) closeNow(ctx context.Context) {
	n.mu.Lock()
	if n.state != nodeClosed {
		n.link = nil
		n.setState(nodeClosed, closing(ctx))
	}
	n.mu.Unlock()
}

// errRetry is the error of an attempt during which its link broke.
var errRetry = errors.New("connection lost")

// allocBatch is the most chunks that a node is asked for in one request.
const allocBatch = 512

// extend adds memory of n's to c.
func (n *node) extend(ctx context.Context, c *Chunk) error {
	l := n.current()
	if l == nil {
		return errRetry
	}
	size := int64(n.pool.ChunkSize())
	grants := make([]manager.Grant, min(allocBatch, (c.size-c.have-1)/size+1))
	got, err := l.session.Alloc(ctx, grants)
	if err != nil {
		if errors.Is(err, ErrNoMemory) || errors.Is(err, manager.ErrRefused) || ctx.Err() != nil {
			return err
		}
		n.linkBroke(l)
		return errRetry
	}
	grants = grants[:got]
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.link != l {
		return errRetry // the next link gives the memory back
	}
	for _, g := range grants {
		if n.extents[g.Chunk] != nil {
			return fmt.Errorf("node granted chunk %d twice", g.Chunk)
		}
	}
	extents := make([]extent, got)
	for i, g := range grants {
		x := &extents[i]
		x.chunk, x.node, x.id, x.chunks = c, n, g.Chunk, g.Chunks
		if n.pool.cfg.Keep != nil {
			x.session = n.session.ID
		}
		x.off, x.size = c.have, int64(g.Chunks)*size
		x.binding.Store(l.bind(g))
		c.extents = append(c.extents, x)
		c.have += x.size
		n.extents[x.id] = x
		n.counters.allocs.Add(int64(x.chunks))
	}
	return nil
}

// free gives back extents, which nobody uses any more.
func (n *node) free(ctx context.Context, extents []*extent) error {
	if err := n.pool.over(); err != nil {
		return err
	}
	ids := make([]uint32, 0, len(extents))
	var vanishing []uint32
	n.mu.Lock()
	for _, x := range extents {
		if n.extents[x.id] == x { // otherwise the extent is lost, or the pool is closed
			delete(n.extents, x.id)
			ids = append(ids, x.id)
			if x.chunk.vanish.Load() != stays {
				vanishing = append(vanishing, x.id)
			}
			n.counters.frees.Add(int64(x.chunks))
		}
	}
	l := n.link
	n.mu.Unlock()
	if l == nil {
		return nil // the next link finds that the pool does not know them
	}
	// From here on the extents must get back to the node, however long the caller wants to wait.
	ctx = context.WithoutCancel(ctx)
	err := n.settleVanishing(ctx, l, vanishing)
	if err == nil {
		err = n.giveBack(ctx, l, ids)
	}
	if errors.Is(err, manager.ErrRefused) {
		return err
	}
	if err != nil {
		n.linkBroke(l)
	}
	return nil
}

// freeBatch is the most grants that a node is given back within Config.Timeout.
const freeBatch = 256

// giveBack gives grants back over l. ids are their first chunks. If the node refuses to take some back, giveBack goes
// on with the rest.
func (n *node) giveBack(ctx context.Context, l *link, ids []uint32) error {
	var refused error
	for batch := range slices.Chunk(ids, freeBatch) {
		ctx, cancel := context.WithTimeout(ctx, n.pool.cfg.Timeout)
		err := l.session.Free(ctx, batch)
		cancel()
		switch {
		case errors.Is(err, manager.ErrRefused):
			refused = err
		case err != nil:
			return err
		}
	}
	return refused
}

// returned is closed when n has memory again, or when its connection is made or lost. It is nil if that will not be
// known.
func (n *node) returned() <-chan struct{} {
	l := n.current()
	if l == nil {
		_, changed := n.watch()
		return changed
	}
	if w, ok := l.session.(manager.Waiter); ok {
		return w.Returned()
	}
	return nil
}

// leaving reports whether n will end when nothing is lent any more.
func (n *node) leaving() bool {
	l := n.current()
	return l != nil && l.session.Leaving()
}

// space is how many more chunks n could give, as far as is known.
func (n *node) space() uint32 {
	l := n.current()
	if l == nil {
		return 0
	}
	s := l.session.Space()
	return min(s.Free, s.Budget)
}
