package pool

import (
	"context"
	"errors"
	"time"

	"polder/pool/manager"
)

// What a chunk's node may do with it.
const (
	stays    uint32 = iota // nothing
	vanishes               // drop what is in it
	vanished               // it has, or may have
)

// ErrStays: the chunk's node asks for no memory back, so there is nothing to permit.
var ErrStays = errors.New("the node does not lend what is idle")

// MayVanish permits the node to drop what is in c when its host needs the memory. c is lost then (Vanished), so
// that it has to be of something that can be done without, such as a copy beside those that count. It
// fails with ErrStays if the node asks for no memory back, or c is not one piece of one chunk of it.
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
		// The node may act on it before it has answered.
		if !c.vanish.CompareAndSwap(stays, vanishes) {
			return nil
		}
		return x.node.asked(l, ctx, y.MayVanish(ctx, []uint32{x.id}))
	})
}

// asked is the error of a request over l, which is of no use any more if that has failed: whether it was
// answered is not known.
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

// MustStay takes back what MayVanish has permitted. It reports whether c has all that was written to it, which it does
// not if it has vanished before. If there is an error that is not known.
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
			case c.vanish.Load() != vanishes: // nothing was permitted, or it has vanished
				ok = c.vanish.Load() == stays
				return nil
			}
			all, err := l.session.Info().Yielder.MustStay(ctx, []uint32{x.id})
			if err = x.node.asked(l, ctx, err); err != nil {
				return err
			}
			// If the connection is lost meanwhile it counts as vanished: who wins says so.
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

// Vanished reports whether what was in c is gone, since its node has dropped it, as MayVanish permits. All that
// can be done with c then is to free it.
func (c *Chunk) Vanished() bool { return c.vanish.Load() == vanished }

// drop notes that c has vanished.
func (c *Chunk) drop() {
	c.vanish.Store(vanished)
	c.gone.Store(true)
}

// dropPermitted is called when permissions have ended with the connection over which they were given.
//
// Preconditions: n.mu is held.
func (n *node) dropPermitted() {
	for _, x := range n.extents {
		if x.chunk.vanish.Load() == vanishes {
			x.chunk.drop()
		}
	}
}

// learnVanished asks over l which chunks have been dropped.
func (n *node) learnVanished(ctx context.Context, l *link) {
	if l.session.Info().Yielder == nil || n.askIdle(ctx, l, n.pool.cfg.Timeout) != nil {
		n.linkBroke(l) // without a yielder it has no business to speak of it
	}
}

// lookForRoom asks over l, which lends what is idle, how much that is, since that changes and nobody says so.
func (n *node) lookForRoom(ctx context.Context, l *link) {
	if err := n.askIdle(ctx, l, min(n.pool.cfg.Timeout, lookEvery)); err != nil && !errors.Is(err, ErrTimeout) {
		n.linkBroke(l)
	}
}

// lookEvery is how often that is done.
const lookEvery = time.Second

// askIdle asks over l which chunks have been dropped. The answer says how much there is to borrow, too.
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

// settleVanishing has n forget what it was permitted, or has done, with chunks that are to be given back next:
// they may come back as others.
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
