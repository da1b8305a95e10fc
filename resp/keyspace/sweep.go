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

// settleFor bounds how long the sweeper, at each tick, stores lists without their struck-out fields, which commands
// could not do. It holds locks of keys meanwhile.
const settleFor = 100 * time.Millisecond

// sweeper frees the blocks of large hashes that were deleted, were overwritten or have expired. It also stores lists
// without their struck-out fields if commands could not do so. It is one goroutine.
type sweeper struct {
	space *Space
	wake  chan struct{} // capacity 1

	mu      sync.Mutex
	queue   []*hashes.Large // to be freed; guarded by mu
	freeing []*hashes.Large // taken from queue, and being freed; guarded by mu
	pinned  []*hashes.Large // copies that are being dumped; guarded by mu
}

// drop gives a hash that no key leads to any more to the sweeper, which frees it.
func (w *sweeper) drop(h *hashes.Large) {
	w.mu.Lock()
	w.queue = append(w.queue, h)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// pin makes checkpoints list h, a hash that no key leads to, so that it is freed after a restart. unpin gives h to
// the sweeper.
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
				continue // the next tick looks again
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
		w.queue, w.freeing = append(w.queue, again...), nil // again is for the next tick
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

// expire drops the large hashes whose entries have expired, and stores the lists of the other hashes without the
// fields that are struck out of them.
func (w *sweeper) expire() {
	if w.space.largeHashes.Load() == 0 {
		w.space.unsettled.Store(0)
		return
	}
	ctx, cancel := context.WithTimeout(w.space.ctx, settleFor)
	defer cancel()
	var failed error // after one list could not be stored, no more are tried
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
