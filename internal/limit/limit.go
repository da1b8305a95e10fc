// Package limit bounds how long an operation waits, at next to no cost for an operation that does not have to wait.
package limit

import (
	"context"
	"sync/atomic"
	"time"
)

// A Context ends with the one that it was made from, with End, and when somebody has waited for it for a given time.
// Unlike one of context.WithTimeout, it counts that time from the first call of Done or Deadline on, and has no timer
// before: to make and stop one takes longer than a read that is answered at once. Safe for concurrent use.
type Context struct {
	context.Context // the one it was made from
	most            time.Duration
	timed           atomic.Pointer[timed] // nil while nobody waits
}

type timed struct {
	context.Context
	end context.CancelFunc
}

// over is what a Context is after End if nobody has waited.
var over = func() *timed {
	ctx, end := context.WithCancel(context.Background())
	end()
	return &timed{ctx, end}
}()

// Within returns a Context. The caller calls End when the operation is done.
func Within(ctx context.Context, most time.Duration) *Context {
	return &Context{Context: ctx, most: most}
}

// End ends c.
func (c *Context) End() {
	if !c.timed.CompareAndSwap(nil, over) {
		c.timed.Load().end()
	}
}

// start returns the context with a timer that c stands for from now on.
func (c *Context) start() *timed {
	if t := c.timed.Load(); t != nil {
		return t
	}
	ctx, end := context.WithTimeout(c.Context, c.most)
	if !c.timed.CompareAndSwap(nil, &timed{ctx, end}) {
		end()
	}
	return c.timed.Load()
}

// now returns the context that c stands for at the moment.
func (c *Context) now() context.Context {
	if t := c.timed.Load(); t != nil {
		return t
	}
	return c.Context
}

// Deadline implements context.Context.
func (c *Context) Deadline() (time.Time, bool) { return c.start().Deadline() }

// Done implements context.Context.
func (c *Context) Done() <-chan struct{} { return c.start().Done() }

// Err implements context.Context.
func (c *Context) Err() error { return c.now().Err() }

// Value implements context.Context.
func (c *Context) Value(key any) any { return c.now().Value(key) }
