package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"polder/memnode"
)

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
