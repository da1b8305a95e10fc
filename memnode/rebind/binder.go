package rebind

import (
	"context"
	"fmt"
	"time"

	"polder/memnode/wire"
	"polder/verbs"
)

// A Binder is a queue pair that binds and invalidates the windows of all clients. It is connected to itself, so no
// client can hold it up: requests on a client's own queue pair would wait for the client to read what it has been
// sent. Only one goroutine may use it at a time.
type Binder struct {
	WRs []verbs.SendWR // the batch to run; at most wire.MaxBatch, all signaled

	dev    verbs.Device
	pd     verbs.PD
	qp     verbs.QP
	cq     verbs.CQ
	posted int // of WRs
	wcs    [32]verbs.WC
}

// bindTimeout bounds how long the device may take for a batch of binds, which never wait for a peer. A batch takes
// microseconds; a longer time means a broken device.
const bindTimeout = 5 * time.Second

// NewBinder returns a binder of windows of pd.
func NewBinder(dev verbs.Device, pd verbs.PD) (*Binder, error) {
	b := &Binder{dev: dev, pd: pd, WRs: make([]verbs.SendWR, 0, wire.MaxBatch)}
	if err := b.open(); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

func (b *Binder) open() (err error) {
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

// Run executes b.WRs in order and returns how many succeeded; the others were
// not executed.
func (b *Binder) Run() (int, error) {
	if err := b.post(); err != nil {
		return 0, err
	}
	return b.wait()
}

// post posts b.WRs. If it succeeds, wait must be called before anything else.
func (b *Binder) post() error {
	b.posted = 0
	if len(b.WRs) == 0 {
		return nil
	}
	if b.qp == nil {
		if err := b.open(); err != nil {
			b.Close()
			return err
		}
	}
	if err := b.qp.PostSend(b.WRs...); err != nil {
		b.Close()
		return err
	}
	b.posted = len(b.WRs)
	return nil
}

// wait waits until the posted requests are done, and returns what Run returns.
func (b *Binder) wait() (int, error) {
	done, err := b.await()
	if err != nil {
		b.Close() // a queue pair that failed does nothing more
	}
	return done, err
}

func (b *Binder) await() (done int, failed error) {
	ctx := context.Background()
	for seen := 0; seen < b.posted; {
		n := b.cq.Poll(b.wcs[:])
		for _, wc := range b.wcs[:n] {
			if err := wc.Err(); err == nil {
				done++
			} else if failed == nil {
				failed = err
			}
		}
		if seen += n; n > 0 {
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
	return done, failed
}

// Close closes the queue pair. Run opens another.
func (b *Binder) Close() {
	if b.qp != nil {
		b.qp.Close()
		b.qp = nil
	}
	if b.cq != nil {
		b.cq.Close()
		b.cq = nil
	}
}
