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
	// lastPart is the part of that time which is kept for giving up what a heap needs at nodes and witnesses.
	lastPart = 8
	// overtime is for how long those are waited for whose time is over, who should then end at once.
	overtime = time.Second
)

// An ending is the one time by which a daemon that ends has done everything that belongs to that. Each phase gets what those before it have left. A partition of a server
// has that of the server. Nil is that of nothing, and never begins.
type ending struct {
	within time.Duration

	mu    sync.Mutex
	until time.Time // zero before it begins; guarded by mu
}

// begin has the time run, from the first call on.
func (e *ending) begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.until.IsZero() {
		e.until = time.Now().Add(e.within)
	}
}

// left is how long there is, if it has begun.
func (e *ending) left() (d time.Duration, begun bool) {
	if e == nil {
		return 0, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Until(e.until), !e.until.IsZero()
}

// phase is for a phase that may take so long at most, and as long as there is if it is to leave something to others.
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
	what  string // for who is told that it has not ended; "" for what takes no time
	close func() error
}

// onClose has close called at the end, before what was given earlier.
func (p *process) onClose(close func() error) { p.onEnd("", close) }

// onEnd is onClose for what may take long.
func (p *process) onEnd(what string, close func() error) {
	p.closers = append(p.closers, closer{what, close})
}

// close ends everything, last started first, and adds what goes wrong to err. What has not ended in time is named and left alone.
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
			err = p.answers.Close() // it shows what ends now
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

// A drainer has a process end only when nothing is lent any more.
type drainer struct {
	nodes    []*memnode.Node
	withdraw func(bool) // them from the directory, or has them there again
	done     chan error // capacity 1: they have been drained because somebody asked for it; what was given up by force
}

func newDrainer() *drainer { return &drainer{withdraw: func(bool) {}, done: make(chan error, 1)} }

// drain has the process end when nothing is lent any more, or with force when the time is over. Otherwise it stays, and
// the error says who has what.
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
		default: // it ends already
		}
	}
	return lost, err
}

// waitDrained is wait for a process that lends: when ctx is done, it ends within so long if nothing is lent then,
// and stays otherwise. main ends it with the second signal.
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
