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

// Session identifies a pool to a node: the ID that the node knows it by, and the secret; whoever shows both gets the
// pool's memory. The ID also stands for that memory: a node that has lost the memory begins a session with another
// ID.
type Session = wire.Session

// Keep makes what a pool borrows outlive the pool: nodes keep it until somebody who shows the session's secret frees
// it, or until the operator of a node takes it back. See the package comment.
type Keep struct {
	// Name is the name of the heap, for people: 1 to wire.MaxHeap printable ASCII characters without spaces.
	Name string
	// Epoch is the number of the ownership, 1 or more. A pool with a higher epoch ends those with lower ones. Two
	// pools with the same epoch end each other's connections, again and again: so every owner takes an epoch of its
	// own.
	Epoch uint64
	// Sessions are the sessions of an earlier pool (Pool.Sessions), by the names of nodes. The pool resumes them when
	// it connects to the nodes. With a node that is not among them it begins a new session.
	Sessions map[string]Session
	// Changed, if set, is called with every session that begins, before anything is borrowed in it. Store the session
	// before you rely on memory borrowed in it: without it the memory cannot be had again. If the node had another
	// session, the contents of that are lost. Changed is called by the goroutine that connects to the node, which
	// waits for it. It may be called before Open returns, and must not close the pool.
	Changed func(node string, s Session)
}

// check returns an error if k is wrong, or if manager m cannot keep memory.
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

// A Place says where a chunk of a kept pool lies, so that a later pool can reopen it.
type Place struct {
	Node    string
	Session uint64   // Session.ID: which of the node's memories it lies in
	Units   []uint32 // the node's numbers of the chunk's parts, each of Pool.ChunkSize bytes, in order
}

// Place returns where c lies. It reports false if c lies on several nodes or in several sessions, or the pool is not
// kept.
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

// Sessions returns the sessions of a kept pool, by the names of nodes: those with nodes that it has connected to, and
// those of Keep.Sessions that have not turned out to be lost.
func (p *Pool) Sessions() map[string]Session {
	p.keptMu.Lock()
	defer p.keptMu.Unlock()
	return maps.Clone(p.kept)
}

// sessionOf returns the session to resume with a node, or the zero Session.
func (p *Pool) sessionOf(node string) Session {
	p.keptMu.Lock()
	defer p.keptMu.Unlock()
	return p.kept[node]
}

// began records a session that has begun with a node, if the pool is kept.
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

// supersede ends the pool's work with all nodes: a node has said that a pool with a higher epoch has come.
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

// Reopen returns a chunk of an earlier pool, with its contents: the one at the given place, of size bytes. Like
// Alloc, it waits for the node to be connected. It fails with ErrLost if the node does not have the chunk, and with
// ErrInUse if the chunk, or a part of it, is open in this pool.
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

// Prune frees the memory that the pool has resumed at a node and that nobody has reopened: memory that was borrowed
// and never recorded, or freed and not given back. Call it once everything that is wanted has been reopened. Until
// then, memory of an earlier pool is freed only by Chunk.Free.
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

// whileUp waits for n to be connected and calls f, again if f returns errRetry, for as long as Config.Timeout allows.
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

// reopen makes a chunk of grants of n that are dormant.
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

// prune frees the grants that are dormant.
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
