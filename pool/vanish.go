package pool

import (
	"context"
	"errors"
	"time"

	"polder/pool/manager"
)

// What a chunk's node may do with its contents.
const (
	stays    uint32 = iota // nothing: it must keep them
	vanishes               // drop them
	vanished               // it has dropped them, or may have
)

// ErrStays: the chunk's node never asks for memory back, so there is nothing to permit.
var ErrStays = errors.New("the node does not lend what is idle")

// MayVanish permits the node to drop the contents of c when its host needs the memory. If the node does, c is lost
// (Vanished); so c should hold what can be done without, such as a copy beside those that count. MayVanish fails with
// ErrStays if the node never asks for memory back, or if c is not one single chunk of the node.
func (c *Chunk) MayVanish(ctx context.Context) error {
	if err := c.mayVanish(ctx); err != nil {
		x := c.extents[0]
		return &OpError{Op: "let vanish", Node: x.node.name, Region: x.region(), Err: err}
	}
	return nil
}

func (c *Chunk) mayVanish(ctx context.Context) error {
	if err := c.acquire(); err != nil {
		return err
	}
	defer c.release()
	x := c.extents[0]
	if len(c.extents) > 1 || x.chunks > 1 {
		return ErrStays
	}
	return x.node.whileUp(ctx, func() error {
		l := x.node.current()
		if l == nil {
			return errRetry
		}
		y := l.session.Info().Yielder
		if y == nil {
			return ErrStays
		}
		// The node may use the permission before it has answered.
		if !c.vanish.CompareAndSwap(stays, vanishes) {
			return nil
		}
		err := x.node.asked(l, ctx, y.MayVanish(ctx, []uint32{x.id}))
		if errors.Is(err, manager.ErrRefused) {
			c.vanish.CompareAndSwap(vanishes, stays)
		}
		return err
	})
}

// asked is the error to return for a request over l that ended with err. Unless the node refused the request, it is
// not known whether it was carried out, and asked gives up the link.
func (n *node) asked(l *link, ctx context.Context, err error) error {
	if err == nil || errors.Is(err, manager.ErrRefused) {
		return err
	}
	n.linkBroke(l)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errRetry
}

// MustStay takes back what MayVanish has permitted. ok reports whether c still has everything that was written to it;
// it is false if c has vanished before. After an error that is not known.
func (c *Chunk) MustStay(ctx context.Context) (ok bool, err error) {
	err = c.acquire()
	if errors.Is(err, ErrLost) {
		return false, nil
	}
	x := c.extents[0]
	if err == nil {
		defer c.release()
		err = x.node.whileUp(ctx, func() error {
			l := x.node.current()
			switch {
			case l == nil:
				return errRetry
			case c.vanish.Load() != vanishes: // nothing was permitted, or c has vanished
				ok = c.vanish.Load() == stays
				return nil
			}
			all, err := l.session.Info().Yielder.MustStay(ctx, []uint32{x.id})
			if err = x.node.asked(l, ctx, err); err != nil {
				return err
			}
			// If the connection is lost meanwhile, c counts as vanished: the swap decides which came first.
			if ok = all && c.vanish.CompareAndSwap(vanishes, stays); !ok {
				c.drop()
			}
			return nil
		})
	}
	if err != nil {
		return false, &OpError{Op: "keep", Node: x.node.name, Region: x.region(), Err: err}
	}
	return ok, nil
}

// Vanished reports whether the contents of c are gone because its node has dropped them, as MayVanish permits. Then
// all that can be done with c is to free it.
func (c *Chunk) Vanished() bool { return c.vanish.Load() == vanished }

// drop notes that c has vanished.
func (c *Chunk) drop() {
	c.vanish.Store(vanished)
	c.gone.Store(true)
}

// dropPermitted notes that all chunks that may vanish have vanished: the permissions have ended with the connection
// over which they were given, and with it the knowledge of what was dropped.
//
// Preconditions: n.mu is held.
func (n *node) dropPermitted() {
	for _, x := range n.extents {
		if x.chunk.vanish.Load() == vanishes {
			x.chunk.drop()
		}
	}
}

// learnVanished asks the node over l which chunks it has dropped.
func (n *node) learnVanished(ctx context.Context, l *link) {
	if l.session.Info().Yielder == nil || n.askIdle(ctx, l, n.pool.cfg.Timeout) != nil {
		n.linkBroke(l) // a node without a Yielder must not report dropped chunks
	}
}

// lookForRoom asks the node over l, a node that lends what is idle, how much that is: it changes, and the node does
// not report it by itself.
func (n *node) lookForRoom(ctx context.Context, l *link) {
	if err := n.askIdle(ctx, l, min(n.pool.cfg.Timeout, lookEvery)); err != nil && !errors.Is(err, ErrTimeout) {
		n.linkBroke(l)
	}
}

// lookEvery is the time between two calls of lookForRoom.
const lookEvery = time.Second

// askIdle asks the node over l which chunks it has dropped. The answer also says how much there is to borrow.
func (n *node) askIdle(ctx context.Context, l *link, patience time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, ErrTimeout)
	defer cancel()
	return l.session.Info().Yielder.Vanished(ctx, func(id uint32) {
		n.mu.Lock()
		defer n.mu.Unlock()
		if x := n.extents[id]; n.link == l && x != nil && x.chunk.vanish.Load() == vanishes {
			x.chunk.drop()
		}
	})
}

// settleVanishing makes the node forget that chunks may vanish or have vanished, before they are given back: they may
// be lent again, as parts of other chunks.
func (n *node) settleVanishing(ctx context.Context, l *link, chunks []uint32) error {
	y := l.session.Info().Yielder
	if y == nil || len(chunks) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, n.pool.cfg.Timeout)
	defer cancel()
	_, err := y.MustStay(ctx, chunks)
	return err
}
