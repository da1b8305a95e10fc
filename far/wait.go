package far

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// holdFor is how long buffers are held while there is no room: the janitor may
// need one to make it.
const holdFor = 100 * time.Millisecond

// waitRoom waits until the evacuator has made room.
func (h *core) waitRoom(ctx context.Context) error { return h.waitFor(ctx, forMutator, nil) }

// waitFor is waitRoom for room that c may use. If it takes long, it calls letGo, which may
// be nil: the caller gives back what others may need.
func (h *core) waitFor(ctx context.Context, c claim, letGo func()) error {
	l := &h.logs
	if c == forMutator && l.isFull() {
		return l.errFull()
	}
	r := l.join(c)
	l.wake()
	var long <-chan time.Time
	switch {
	case letGo == nil:
	case c == forShrink:
		letGo() // what it reads may be what has to be cleaned
	default:
		long = time.After(holdFor)
	}
	for {
		select {
		case <-r.done:
			if r.err != errHeldUp {
				return r.err
			}
			if h.isHeldUpHere() {
				return errScopeOpen
			}
			r = l.join(c)
			l.wake()
		case <-long:
			letGo()
			long = nil
		case <-h.ctx.Done():
			return ErrClosed
		case <-ctx.Done():
			err := context.Cause(ctx)
			if why := l.why(); why != nil {
				err = errors.Join(err, why)
			}
			if s := h.heldUpBy(); s != nil {
				err = fmt.Errorf("%w; the evacuator waits for a scope to be left, which was made at %s", err, position(s.made))
			}
			return fmt.Errorf("cannot make room in local memory: %w", err)
		}
	}
}

// errHeldUp is what a round of waiting ends with that is to go on: whoever waits first looks
// whether it holds the scope that the evacuator waits for.
var errHeldUp = errors.New("held up")

var errScopeOpen = fmt.Errorf("cannot wait for local memory: %w: leave it first, or use what takes the scope, such as NewIn", ErrScopeOpen)
