package softdev

import (
	"context"

	"polder/verbs"
)

// cq is a verbs.CQ.
type cq struct {
	d    *Device
	num  uint32
	init verbs.CQInit

	inBatch bool // guarded by d.g.mu: in the batch's handlers
	waiters int  // guarded by d.g.mu: goroutines in Wait
	closed  bool // guarded by d.g.mu

	wake chan struct{} // holds a token when a waiter should look
	done chan struct{} // closed by Close
}

func (c *cq) Num() uint32 { return c.num }

func (c *cq) Poll(wc []verbs.WC) int {
	c.d.g.mu.Lock()
	k := 0
	if !c.closed && !c.d.closed {
		k = c.d.nic.Poll(c.num, wc)
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
		g.mu.Unlock()
		var err error
		select {
		case <-c.wake:
		case <-c.done:
		case <-c.d.done:
		case <-ctx.Done():
			err = ctx.Err()
		}
		g.mu.Lock()
		if err != nil {
			if c.waiters--; c.waiters > 0 {
				c.signal() // in case it was meant for this one
			}
			g.mu.Unlock()
			return err
		}
	}
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
	d.unlock()
	return nil
}
