package keyspace

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"polder/far"
	"polder/resp/hashes"
)

// sweepEvery is how often the sweeper looks for large hashes that have expired.
const sweepEvery = time.Second

// settleFor is how long, each time, the sweeper tries to store what commands have
// left for it. It holds locks of keys meanwhile.
const settleFor = 100 * time.Millisecond

// sweeper frees the blocks of large hashes that were deleted, overwritten or
// have expired, and stores what commands that have struck fields out could not. It is
// one goroutine.
type sweeper struct {
	space *Space
	wake  chan struct{} // capacity 1

	mu      sync.Mutex
	queue   []*hashes.Large // guarded by mu
	freeing []*hashes.Large // taken from it, guarded by mu
	pinned  []*hashes.Large // copies that are being dumped, guarded by mu
}

// drop gives a hash that nothing leads to any more to the sweeper.
func (w *sweeper) drop(h *hashes.Large) {
	w.mu.Lock()
	w.queue = append(w.queue, h)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// pin has checkpoints know of a hash that nothing leads to, and unpin gives it to the sweeper.
func (w *sweeper) pin(h *hashes.Large) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pinned = append(w.pinned, h)
}

func (w *sweeper) unpin(h *hashes.Large) {
	w.mu.Lock()
	w.pinned = slices.DeleteFunc(w.pinned, func(p *hashes.Large) bool { return p == h })
	w.mu.Unlock()
	w.drop(h)
}

func (w *sweeper) take() []*hashes.Large {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.freeing, w.queue = w.queue, nil
	return w.freeing
}

func (w *sweeper) run() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.space.ctx.Done():
			return
		case <-w.wake:
			if w.space.loading.Load() {
				continue // till the next tick
			}
		case <-tick.C:
			if w.space.loading.Load() {
				continue
			}
			w.expire()
		}
		var again []*hashes.Large
		for _, h := range w.take() {
			if !w.free(h) {
				again = append(again, h)
			}
		}
		w.mu.Lock()
		w.queue, w.freeing = append(w.queue, again...), nil // for the next tick
		w.mu.Unlock()
	}
}

// free frees the blocks of h and reports whether it could.
func (w *sweeper) free(h *hashes.Large) bool {
	ok := true
	for b := range h.Buckets {
		if _, err := w.space.blocks.Delete(w.space.ctx, h.Key(b)); err != nil {
			if ok = false; w.space.ctx.Err() != nil {
				break
			}
		}
	}
	return ok
}

// expire drops the large hashes whose entries have expired, and stores the others
// without what is struck out of them.
func (w *sweeper) expire() {
	if w.space.largeHashes.Load() == 0 {
		w.space.unsettled.Store(0)
		return
	}
	ctx, cancel := context.WithTimeout(w.space.ctx, settleFor)
	defer cancel()
	var failed error // when one list could not be stored, no more are tried
	unsettled := 0
	for i := range w.space.Stripes {
		st := &w.space.Stripes[i]
		if !st.Mu.TryLock() {
			continue // next time
		}
		for key, h := range st.large {
			if _, _, err := w.space.keys.Stat(far.NoWait, []byte(key)); errors.Is(err, far.ErrNotFound) {
				w.space.lead(st, key, nil)
				w.drop(h)
			} else if failed == nil {
				failed = w.space.settleStruck(ctx, st, key, h)
			}
			unsettled += h.Struck.Len()
		}
		st.Mu.Unlock()
	}
	w.space.unsettled.Store(int64(unsettled))
}
