package pool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"polder/memnode/wire"
	"polder/pool/manager"
)

// Session is a pool's standing with a node: what the node calls it, and the secret by which whoever shows it gets
// its memory. The number is also that of the memory: a node that has lost it begins a session of another number.
type Session = wire.Session

// Keep says that what a pool borrows outlives it: nodes keep it until it is freed by whoever shows the sessions'
// secrets, or until the operator of a node has it given back. See the package comment.
type Keep struct {
	// Name is the heap's, for people: 1 to wire.MaxHeap printable ASCII characters without spaces.
	Name string
	// Epoch is the ownership's number, 1 or more. Pools of higher epochs end those of lower ones. Of two pools
	// with the same epoch each ends the other's connections, again and again: so every owner takes an epoch of
	// its own.
	Epoch uint64
	// Sessions are those of an earlier pool (Pool.Sessions), by the names of nodes. They are resumed as nodes are
	// connected to. With a node that is not among them a new one begins.
	Sessions map[string]Session
	// Changed, if it is set, is told of every session that begins, before anything is borrowed in it: store it
	// before you rely on what lies there, since without it the memory cannot be had again. If the node had another
	// session, what that had is lost. It is called by the goroutine that connects to the node, which waits for
	// it; it may be called before Open returns, and must not close the pool.
	Changed func(node string, s Session)
}

// check says what is wrong with k for nodes whose manager is m.
func (k *Keep) check(m Manager) error {
	if k.Epoch == 0 {
		return errors.New("it is to be kept in epoch 0, want 1 or more")
	}
	if err := k.wire().Check(); err != nil {
		return err
	}
	if entry, ok := wire.ManagerNamed(m.Name()); !ok || !entry.Keeps {
		return fmt.Errorf("what is borrowed by %s cannot be kept, since whoever had it could not be kept from writing to it: "+
			"borrow by %s, %s or %s, and not by unix: or broker: addresses", m.Name(), wire.Native, wire.OneSided, wire.RPCMW)
	}
	return nil
}

func (k *Keep) wire() *wire.Keep { return &wire.Keep{Epoch: k.Epoch, Heap: k.Name} }

// A Place says where a chunk of a kept pool lies, so that a later one can reopen it.
type Place struct {
	Node    string
	Session uint64   // Session.ID: which of the node's memories
	Units   []uint32 // the node's numbers of the chunk's parts, of Pool.ChunkSize bytes each, in order
}

// Place returns where c lies. It reports false if that is not at one node, or the pool is not kept.
func (c *Chunk) Place() (Place, bool) {
	first := c.extents[0]
	at := Place{Node: first.node.name, Session: first.session}
	for _, x := range c.extents {
		if x.node != first.node || x.session == 0 || x.session != first.session {
			return Place{}, false
		}
		for i := range x.chunks {
			at.Units = append(at.Units, x.id+uint32(i))
		}
	}
	return at, true
}

// Sessions returns the sessions of a kept pool, by the names of nodes: those with nodes that have been connected
// to, and those of Keep.Sessions that have not turned out to be lost.
func (p *Pool) Sessions() map[string]Session {
	p.keptMu.Lock()
	defer p.keptMu.Unlock()
	return maps.Clone(p.kept)
}

// sessionOf is the session that is to be resumed with a node, or zero.
func (p *Pool) sessionOf(node string) Session {
	p.keptMu.Lock()
	defer p.keptMu.Unlock()
	return p.kept[node]
}

// began takes note of a session that has begun with a node, if the pool is kept.
func (p *Pool) began(node string, s Session) {
	if p.cfg.Keep == nil {
		return
	}
	p.keptMu.Lock()
	p.kept[node] = s
	p.keptMu.Unlock()
	if p.cfg.Keep.Changed != nil {
		p.cfg.Keep.Changed(node, s)
	}
}

// supersede ends the pool's business with all nodes: a node has told that a pool of a higher epoch has come.
func (p *Pool) supersede(err error) {
	err = fmt.Errorf("%w: %w", ErrSuperseded, err)
	p.log.Error("this process does not own its memory any more", "error", err)
	p.superseded.CompareAndSwap(nil, &err)
	p.stop(err)
}

// over is ErrSuperseded with the reason if the pool has been superseded.
func (p *Pool) over() error {
	if err := p.superseded.Load(); err != nil {
		return *err
	}
	return nil
}

// Reopen returns the chunk of an earlier pool that lies at at and has size bytes, with its contents. It waits for
// the node to be connected to as Alloc does. It fails with ErrLost if the node does not have it, with ErrInUse if it,
// or a part of it, is open in this pool.
func (p *Pool) Reopen(ctx context.Context, at Place, size int64) (c *Chunk, err error) {
	n := p.named(at.Node)
	if n == nil {
		return nil, &OpError{Op: "reopen", Err: fmt.Errorf("the pool has no node %q", at.Node)}
	}
	err = n.whileUp(ctx, func() error {
		c, err = n.reopen(at, size)
		return err
	})
	if err != nil {
		return nil, &OpError{Op: "reopen", Node: n.name, Err: err}
	}
	return c, nil
}

// Prune frees what the pool has resumed at a node and nobody has reopened: what was borrowed and never recorded, or
// freed and not given back. It is to be called once everything that is wanted has been reopened; until then nothing
// that an earlier pool had is freed but by Chunk.Free.
func (p *Pool) Prune(ctx context.Context, node string) error {
	n := p.named(node)
	if n == nil {
		return &OpError{Op: "prune", Err: fmt.Errorf("the pool has no node %q", node)}
	}
	if err := n.whileUp(ctx, func() error { return n.prune(ctx) }); err != nil {
		return &OpError{Op: "prune", Node: node, Err: err}
	}
	return nil
}

// whileUp calls f while n is connected, waiting for that as long as Config.Timeout allows, and again if it
// returns errRetry.
func (n *node) whileUp(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, n.pool.cfg.Timeout, ErrTimeout)
	defer cancel()
	for {
		if err := n.pool.over(); err != nil {
			return err
		}
		switch state, changed := n.watch(); state {
		case nodeUp:
			if err := f(); err != errRetry {
				return err
			}
		case nodeConnecting:
			select {
			case <-changed:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		default:
			if err := n.unusable(); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// reopen makes a chunk of what n has resumed.
func (n *node) reopen(at Place, size int64) (*Chunk, error) {
	unit := int64(n.pool.ChunkSize())
	if want := (size-1)/unit + 1; size < 1 || want != int64(len(at.Units)) {
		return nil, fmt.Errorf("%d bytes in %d units of %d: that does not fit", size, len(at.Units), unit)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.link == nil:
		return nil, errRetry
	case n.session.ID != at.Session:
		return nil, fmt.Errorf("%w: the node has lost what it had, or it was given back", ErrLost)
	}
	c := newChunk(n.pool, size)
	extents := make([]extent, len(at.Units))
	for i, id := range at.Units {
		g, ok := n.dormant[id]
		switch {
		case !ok && n.extents[id] != nil || slices.Contains(at.Units[:i], id):
			return nil, fmt.Errorf("%w: unit %d is open", ErrInUse, id)
		case !ok:
			return nil, fmt.Errorf("%w: the node does not know unit %d", ErrLost, id)
		}
		x := &extents[i]
		x.chunk, x.node, x.session, x.id, x.chunks = c, n, n.session.ID, id, g.Chunks
		x.off, x.size = int64(i)*unit, unit
		x.binding.Store(n.link.bind(g))
		c.extents = append(c.extents, x)
		c.have += unit
	}
	for i := range extents {
		x := &extents[i]
		delete(n.dormant, x.id)
		n.extents[x.id] = x
	}
	return c, nil
}

// prune frees what is dormant.
func (n *node) prune(ctx context.Context) error {
	n.mu.Lock()
	l := n.link
	if l == nil {
		n.mu.Unlock()
		return errRetry
	}
	ids := slices.Collect(maps.Keys(n.dormant))
	n.dormant, n.inherits = nil, false
	n.mu.Unlock()
	err := n.giveBack(context.WithoutCancel(ctx), l, ids)
	if err != nil && !errors.Is(err, manager.ErrRefused) {
		n.linkBroke(l) // the next link gives the rest back
		return nil
	}
	return err
}

// Kept reports whether what the pool borrows outlives it.
func (p *Pool) Kept() bool { return p.cfg.Keep != nil }
