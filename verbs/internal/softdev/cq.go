package softdev

import (
	"context"
	"sync/atomic"

	"polder/verbs"
)

// cq is a verbs.CQ.
type cq struct {
	d    *Device
	num  uint32
	init verbs.CQInit

	filled atomic.Bool // changed with d.g.mu held; false: there is nothing to poll

	inBatch bool // guarded by d.g.mu: in the batch's handlers
	waiters int  // guarded by d.g.mu: goroutines in Wait
	closed  bool // guarded by d.g.mu

	wake chan struct{} // holds a token when a waiter should look
	done chan struct{} // closed by Close
}

func (c *cq) Num() uint32 { return c.num }

func (c *cq) Poll(wc []verbs.WC) int {
	if !c.filled.Load() {
		return 0 // so that polling in a loop does not take the lock
	}
	c.d.g.mu.Lock()
	k := 0
	if !c.closed && !c.d.closed {
		k = c.d.nic.Poll(c.num, wc)
	}
	if k < len(wc) {
		c.filled.Store(false)
	}
	c.d.g.mu.Unlock()
	return k
}

// signal lets one waiter look. d.g.mu need not be held.
func (c *cq) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *cq) Wait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	g := c.d.g
	g.mu.Lock()
	c.waiters++
	for {
		switch {
		case c.closed || c.d.closed:
			c.waiters--
			g.mu.Unlock()
			return verbs.ErrClosed
		case c.d.nic.CQLen(c.num) > 0:
			if c.waiters--; c.waiters > 0 {
				c.signal() // there may be enough for another
			}
			g.mu.Unlock()
			return nil
		}
		if err := c.sleep(ctx); err != nil {
			if c.waiters--; c.waiters > 0 {
				c.signal() // in case it was meant for this one
			}
			g.mu.Unlock()
			return err
		}
	}
}

// sleep waits until there may be something to look at, or returns ctx's error.
// d.g.mu is released meanwhile.
func (c *cq) sleep(ctx context.Context) (err error) {
	g := c.d.g
	if p := c.d.parker; p != nil && p.cq == nil {
		p.cq = c
		g.mu.Unlock()
		err = p.park(ctx)
		g.mu.Lock()
		p.cq = nil
		return err
	}
	g.mu.Unlock()
	select {
	case <-c.wake:
	case <-c.done:
	case <-c.d.done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	g.mu.Lock()
	return err
}

// parked returns the device's parker if a goroutine waits there for c. d.g.mu
// must be held.
func (c *cq) parked() *parker {
	if p := c.d.parker; p != nil && p.cq == c {
		return p
	}
	return nil
}

func (c *cq) Close() error {
	d := c.d
	d.g.mu.Lock()
	if c.closed || d.closed {
		d.g.mu.Unlock()
		return nil
	}
	if err := d.nic.DestroyCQ(c.num); err != nil {
		d.g.mu.Unlock()
		return err
	}
	c.closed = true
	d.cqs[c.num&0xffff] = nil
	close(c.done)
	if p := c.parked(); p != nil {
		p.unpark()
	}
	d.unlock()
	return nil
}
