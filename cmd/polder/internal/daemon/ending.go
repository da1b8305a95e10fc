package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"polder/memnode"
)

// DefaultEndWithin is how long a daemon may take to end. Service managers allow for more (deploy/).
const DefaultEndWithin = time.Minute

const (
	// lastPart: this part (an eighth) of the time is kept for giving up what a heap needs at nodes and witnesses.
	lastPart = 8
	// overtime is how much longer close waits for parts whose time is over: they should then end at once.
	overtime = time.Second
)

// An ending is the time by which a daemon has to have ended, with everything that belongs to it. Each phase gets the
// time that earlier phases have left. A server's partitions share the server's ending. A nil ending never begins.
type ending struct {
	within time.Duration

	mu    sync.Mutex
	until time.Time // zero before it begins; guarded by mu
}

// begin starts the time at its first call.
func (e *ending) begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.until.IsZero() {
		e.until = time.Now().Add(e.within)
	}
}

// left returns how much time is left, and whether the ending has begun.
func (e *ending) left() (d time.Duration, begun bool) {
	if e == nil {
		return 0, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Until(e.until), !e.until.IsZero()
}

// phase returns a context for a phase that may take most at most, and no longer than the time that is left; with
// others, it leaves a part of that time to later phases.
func (e *ending) phase(most time.Duration, others bool) (context.Context, context.CancelFunc) {
	why := context.DeadlineExceeded
	if left, begun := e.left(); begun {
		if others {
			left -= e.within / lastPart
		}
		if left < most {
			most, why = left, fmt.Errorf("%w: the daemon is to end within %v (--end-within)", why, e.within)
		}
	}
	return context.WithTimeoutCause(context.Background(), most, why)
}

// closer is a part of a daemon that ends with it.
type closer struct {
	what  string // for the message that it has not ended; "" for what takes no time
	close func() error
}

// onClose registers close to be called at the end, before those that were registered earlier.
func (p *process) onClose(close func() error) { p.onEnd("", close) }

// onEnd is onClose for parts that may take long.
func (p *process) onEnd(what string, close func() error) {
	p.closers = append(p.closers, closer{what, close})
}

// close ends everything, last started first, and adds errors to err. It names parts that have not ended in time, and
// leaves them alone.
func (p *process) close(err *error) {
	if p.mine == nil {
		p.ends.begin()
	}
	var mu sync.Mutex
	what, over := "the administrative address", false
	var errs []error
	next := func(name string, err error) bool { // ends one part, and begins the next
		mu.Lock()
		defer mu.Unlock()
		if errs = append(errs, err); name != "" {
			what = name
		}
		return !over
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var err error
		if p.answers != nil {
			err = p.answers.Close() // last: it shows what is ending
		}
		for _, c := range slices.Backward(p.closers) {
			if !next(c.what, err) {
				return
			}
			err = c.close()
		}
		next("what runs in the background", err)
		p.wg.Wait()
	}()
	var timer <-chan time.Time
	if left, begun := p.ends.left(); begun {
		timer = time.After(left + overtime)
	}
	select {
	case <-ended:
	case <-timer:
	}
	mu.Lock()
	defer mu.Unlock()
	select {
	case <-ended:
	default:
		over = true
		errs = append(errs, fmt.Errorf("the end was not finished within %v (--end-within): %s has not ended", p.ends.within, what))
	}
	*err = errors.Join(append([]error{*err}, errs...)...)
}

// A drainer lets a process end only when nothing is lent any more.
type drainer struct {
	nodes    []*memnode.Node
	withdraw func(bool) // removes the nodes from the directory, or adds them again
	done     chan error // capacity 1: drained at an operator's request; the error is what was lost by force
}

func newDrainer() *drainer { return &drainer{withdraw: func(bool) {}, done: make(chan error, 1)} }

// drain ends the process when nothing is lent any more, or, with force, when the time is over. Otherwise the process
// stays, and the error says who has borrowed what.
func (d *drainer) drain(ctx context.Context, within time.Duration, force bool) (lost, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("it was not moved elsewhere within %v", within))
	defer cancel()
	d.withdraw(true)
	err = memnode.Drain(ctx, d.nodes...)
	var held *memnode.HeldError
	if force && errors.As(err, &held) && ctx.Err() == context.DeadlineExceeded {
		lost, err = held, nil
	}
	if err != nil {
		d.withdraw(false)
	}
	if err == nil {
		select {
		case d.done <- lost:
		default: // the process is ending already
		}
	}
	return lost, err
}

// waitDrained is wait for a process that lends. When ctx is done the process ends if nothing is lent any more by the
// end of within, and stays otherwise. A second signal makes main end it.
func (p *process) waitDrained(ctx context.Context, d *drainer, within time.Duration) error {
	signal := ctx.Done()
	for {
		select {
		case <-signal:
			signal = nil
			if within == 0 {
				return p.wait(ctx)
			}
			p.wg.Go(func() {
				_, err := d.drain(context.WithoutCancel(ctx), within, false)
				if errors.As(err, new(*memnode.HeldError)) {
					p.Logger.Error("the node does not end, since what it has would be lost; a second signal ends it at once", "error", err)
				}
			})
		case lost := <-d.done:
			if lost != nil {
				p.Logger.Warn("ending by force", "error", lost)
			} else {
				p.Logger.Info("ending: nothing is lent any more")
			}
			return nil
		case err := <-p.failed:
			return err
		}
	}
}
