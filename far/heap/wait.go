package heap

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// HoldFor is how long callers that wait for room go on holding buffers: the janitor may need a buffer to make room.
const HoldFor = 100 * time.Millisecond

// WaitRoom waits until the evacuator has made room.
func (h *Heap) WaitRoom(ctx context.Context) error { return h.WaitFor(ctx, ForMutator, nil) }

// WaitFor is WaitRoom for room that c may use. If it takes longer than HoldFor, or at once for ForShrink, WaitFor
// calls letGo, with which the caller gives back what others may need. letGo may be nil.
func (h *Heap) WaitFor(ctx context.Context, c Claim, letGo func()) error {
	l := &h.Logs
	if c == ForMutator && l.isFull() {
		return l.errFull()
	}
	if h.isEvacuator() {
		return errEvacuator
	}
	r := l.join(c)
	l.Wake()
	var long <-chan time.Time
	switch {
	case letGo == nil:
	case c == ForShrink:
		letGo() // what the caller reads may lie in a segment that has to be cleaned
	default:
		long = time.After(HoldFor)
	}
	for round := 1; ; round++ {
		select {
		case <-r.done:
			switch {
			case c == ForMutator && errors.Is(r.err, ErrFull) && l.HasRoom():
				return nil // others were refused, who wanted more than a segment
			case r.err != errHeldUp:
				return r.err
			}
			if round&(round-1) == 0 && h.isHeldUpHere() { // less and less often, as mostPatience says
				return errScopeOpen
			}
			r = l.join(c)
			l.Wake()
		case <-long:
			letGo()
			long = nil
		case <-h.Ctx.Done():
			return ErrClosed
		case <-ctx.Done():
			err := context.Cause(ctx)
			if why := l.Why(); why != nil {
				err = errors.Join(err, why)
			}
			if s := h.heldUpBy(); s != nil {
				err = fmt.Errorf("%w; the evacuator waits for a scope to be left, which was made at %s", err, position(s.made))
			}
			return fmt.Errorf("cannot make room in local memory: %w", err)
		}
	}
}

// errHeldUp ends a round of waiting that is to go on: a waiter looks whether it holds the scope that the evacuator
// waits for, and joins the next round if it does not.
var errHeldUp = errors.New("held up")

var errEvacuator = errors.New("cannot wait for local memory in what the evacuator calls, such as ClassConfig.Evacuated: it is the evacuator that makes some; let another goroutine do it")

var errScopeOpen = fmt.Errorf("cannot wait for local memory: %w: leave it first, or use what takes the scope, such as NewIn", ErrScopeOpen)

// GrowIndex takes n bytes of the budget for the index u, and waits up to wait for them.
func (h *Heap) GrowIndex(u Line, n int64, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(h.Ctx, wait)
	defer cancel()
	for {
		err := h.Logs.GrowIndex(u, n, ForMutator)
		if err != ErrNoRoom {
			return err
		}
		if err := h.WaitRoom(ctx); err != nil {
			return err
		}
	}
}
