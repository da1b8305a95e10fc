package memnode

import (
	"context"
	"fmt"
	"time"

	"polder/memnode/wire"
	"polder/verbs"
)

// binder is the queue pair that binds and invalidates every client's windows.
// It is connected to itself, so no client can hold it up: requests on a client's
// own queue pair would wait for the client to read what it has been sent.
type binder struct {
	dev verbs.Device
	pd  verbs.PD
	qp  verbs.QP
	cq  verbs.CQ
	wrs []verbs.SendWR // the batch to run; at most wire.MaxBatch, all signaled
	wcs [32]verbs.WC
}

// bindTimeout bounds how long the device may take for a batch of binds, which
// never wait for a peer. It takes microseconds; more means a broken device.
const bindTimeout = 5 * time.Second

func newBinder(dev verbs.Device, pd verbs.PD) (*binder, error) {
	b := &binder{dev: dev, pd: pd, wrs: make([]verbs.SendWR, 0, wire.MaxBatch)}
	if err := b.open(); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *binder) open() (err error) {
	if b.cq, err = b.dev.CreateCQ(verbs.CQInit{Depth: 2 * wire.MaxBatch}); err != nil {
		return fmt.Errorf("cannot create a completion queue: %w", err)
	}
	b.qp, err = b.pd.CreateQP(verbs.QPInit{
		SendCQ: b.cq, RecvCQ: b.cq, SendDepth: wire.MaxBatch, RecvDepth: 1,
	})
	if err != nil {
		return fmt.Errorf("cannot create a queue pair for binding: %w", err)
	}
	if err := b.dev.ConnectLoopback(b.qp, b.qp); err != nil {
		return fmt.Errorf("cannot connect the queue pair for binding: %w", err)
	}
	return nil
}

// run executes b.wrs in order and returns how many succeeded; the others were
// not executed.
func (b *binder) run() (int, error) {
	if len(b.wrs) == 0 {
		return 0, nil
	}
	if b.qp == nil {
		if err := b.open(); err != nil {
			b.close()
			return 0, err
		}
	}
	done, err := b.execute()
	if err != nil {
		b.close() // a queue pair that failed does nothing more
	}
	return done, err
}

func (b *binder) execute() (int, error) {
	if err := b.qp.PostSend(b.wrs...); err != nil {
		return 0, err
	}
	ctx := context.Background()
	var failed error
	for done, seen := 0, 0; ; {
		n := b.cq.Poll(b.wcs[:])
		for _, wc := range b.wcs[:n] {
			if err := wc.Err(); err == nil {
				done++
			} else if failed == nil {
				failed = err
			}
		}
		if seen += n; seen == len(b.wrs) {
			return done, failed
		}
		if n > 0 {
			continue
		}
		// The slow path: the device has not finished by itself.
		if ctx.Done() == nil {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, bindTimeout)
			defer cancel()
		}
		if err := b.cq.Wait(ctx); err != nil {
			return done, fmt.Errorf("cannot wait for the device: %w", err)
		}
	}
}

func (b *binder) close() {
	if b.qp != nil {
		b.qp.Close()
		b.qp = nil
	}
	if b.cq != nil {
		b.cq.Close()
		b.cq = nil
	}
}
