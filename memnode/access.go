package memnode

import (
	"context"
	"fmt"
	"time"

	"polder/memnode/wire"
	"polder/verbs"
)

// accessQP is the node's end of a client's access queue pair. The only
// requests in its send queue are the node's own binds and invalidations.
type accessQP struct {
	qp  verbs.QP
	cq  verbs.CQ
	wrs []verbs.SendWR // the batch to run; at most wire.MaxBatch, all signaled
	wcs [32]verbs.WC
}

// bindTimeout bounds how long the device may take for a batch of binds, which
// never wait for a peer. It takes microseconds; more means a broken device.
const bindTimeout = 5 * time.Second

func newAccessQP(dev verbs.Device, pd verbs.PD, onEvent func(verbs.AsyncEvent)) (*accessQP, error) {
	cq, err := dev.CreateCQ(verbs.CQInit{Depth: 2 * wire.MaxBatch})
	if err != nil {
		return nil, fmt.Errorf("cannot create a completion queue: %w", err)
	}
	qp, err := pd.CreateQP(verbs.QPInit{
		SendCQ: cq, RecvCQ: cq, SendDepth: wire.MaxBatch, RecvDepth: 1, OnEvent: onEvent,
	})
	if err != nil {
		cq.Close()
		return nil, fmt.Errorf("cannot create an access queue pair: %w", err)
	}
	return &accessQP{qp: qp, cq: cq, wrs: make([]verbs.SendWR, 0, wire.MaxBatch)}, nil
}

// run executes a.wrs in order and returns how many succeeded; the others were
// not executed.
func (a *accessQP) run() (int, error) {
	if len(a.wrs) == 0 {
		return 0, nil
	}
	if err := a.qp.PostSend(a.wrs...); err != nil {
		return 0, err
	}
	ctx := context.Background()
	var failed error
	for done, seen := 0, 0; ; {
		n := a.cq.Poll(a.wcs[:])
		for _, wc := range a.wcs[:n] {
			if err := wc.Err(); err == nil {
				done++
			} else if failed == nil {
				failed = err
			}
		}
		if seen += n; seen == len(a.wrs) {
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
		if err := a.cq.Wait(ctx); err != nil {
			return done, fmt.Errorf("cannot wait for the device: %w", err)
		}
	}
}

func (a *accessQP) close() {
	a.qp.Close()
	a.cq.Close()
}
