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
	// lastPart says which part of that time is kept for the end: in the last eighth, kept.close gives up the heap.
	lastPart = 8
	// overtime is how long close waits, after the time is over, for parts that should then end at once.
	overtime = time.Second
)

// An ending is the time limit for all that a daemon does when it ends. Each phase may use the time that the phases
// before it have left. A server's partitions share the server's ending. A nil ending never begins.
type ending struct {
	within time.Duration

	mu    sync.Mutex
	until time.Time // zero before it begins; guarded by mu
}

// begin starts the time. Only the first call does.
func (e *ending) begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.until.IsZero() {
		e.until = time.Now().Add(e.within)
	}
}

// left returns how much time is left. begun is false if begin was not called yet.
func (e *ending) left() (d time.Duration, begun bool) {
	if e == nil {
		return 0, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Until(e.until), !e.until.IsZero()
}

// longest returns how long a phase may take that nothing else bounds.
func (e *ending) longest() time.Duration {
	if e == nil {
		return DefaultEndWithin
	}
	return max(DefaultEndWithin, e.within)
}

// phase returns the context of a phase of the ending. It lasts for most, or, once the ending has begun, for the time
// that is left if that is less. With others, the phase leaves the last part of the time to other phases.
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
	what  string // names the part in the error that it has not ended; "" if it ends quickly
	close func() error
}

// onClose adds a function that close calls. Functions that were added later are called first.
func (p *process) onClose(close func() error) { p.onEnd("", close) }

// onEnd is onClose for a part that may take long to end. what is its name in errors.
func (p *process) onEnd(what string, close func() error) {
	p.closers = append(p.closers, closer{what, close})
}

// close ends everything, last started first, and joins what goes wrong to err. If a part does not end in time, err
// names it, and close returns without waiting for it any longer.
func (p *process) close(err *error) {
	if p.mine == nil {
		p.ends.begin()
	}
	var mu sync.Mutex
	what, over := "the administrative address", false
	var errs []error
	next := func(name string, err error) bool { // notes how a part has ended, and which part is next
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
			err = p.answers.Close() // first: it shows the parts that end now
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

// A drainer ends a process only when its nodes lend nothing any more.
type drainer struct {
	nodes    []*memnode.Node
	withdraw func(bool) // true takes the nodes out of the directory, false puts them back
	// done, of capacity 1, gets a value when drain succeeds: nil, or what was lost by force.
	done chan error
}

func newDrainer() *drainer { return &drainer{withdraw: func(bool) {}, done: make(chan error, 1)} }

// drain ends the process when the nodes lend nothing any more. If something is still lent after within, drain ends
// the process with force, and lost says what was lent; without force the process stays, and err says who has what.
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
		default: // the process ends already
		}
	}
	return lost, err
}

// waitDrained is wait for a process that lends. When ctx is done, it tries to drain the nodes for as long as within
// says, and returns when they are drained. If that fails, the process stays until a second signal, on which main
// exits. If within is 0, waitDrained returns as soon as ctx is done. It also returns when an operator has drained the
// nodes, or with the first part that failed.
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
