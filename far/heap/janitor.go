package heap

import "time"

// The janitor is the goroutine that does what nobody waits for: it gives dead
// segments back to the store, tells the host of segments that were lost, and lets
// it do its chores.

const (
	// SweepEvery is the time between two rounds of chores, and the longest
	// that a loss goes unnoticed if nobody reads.
	SweepEvery = 100 * time.Millisecond
	// decayTicks is how many times sweepEvery what is kept in reserve for scopes
	// stays after the last one that took as much.
	decayTicks = 20
)

func (h *Heap) WakeJanitor() {
	select {
	case h.poke <- struct{}{}:
	default:
	}
}

func (h *Heap) janitor() {
	tick := time.NewTicker(SweepEvery)
	defer tick.Stop()
	ticks := 0
	for {
		timed := false
		select {
		case <-h.Ctx.Done():
			return
		case <-h.poke:
		case <-tick.C:
			timed = true
		}
		h.Far.All(func(s *FarSegment) {
			if s.Gone() && !s.counted.Load() {
				name := s.Seg.Name()
				h.LastLost.Store(&name)
				h.host.Lost(s)
				s.counted.Store(true)
			}
		})
		h.reap()
		if timed {
			h.payBack()
			h.giveIdle()
			h.watch(time.Now())
			if ticks++; ticks%decayTicks == 0 {
				h.decay()
			}
		}
		h.host.Chores(timed)
	}
}

// reap gives all dead segments back and returns how many there were.
func (h *Heap) reap() (n int) {
	h.Far.All(func(s *FarSegment) {
		if s.Dead() && h.Ctx.Err() == nil {
			h.Drop(s)
			n++
		} else if h.Ctx.Err() == nil && h.Far.mayGo(s) {
			h.free(func() error {
				h.Far.mu.Lock()
				retained := h.Far.retain(s.Seg)
				h.Far.mu.Unlock()
				if retained {
					return nil
				}
				_, err := h.Far.giveBack(h.Ctx, debt{seg: s.Seg})
				return err
			})
			n++
		}
	})
	return n
}

// payBack offers the store again what it would not take back, up to the first
// that it still does not take.
func (h *Heap) payBack() {
	owed := h.Far.takeOwed()
	for i, d := range owed {
		done, err := h.Far.giveBack(h.Ctx, d)
		if err != nil {
			h.Count.unreturned.Add(1)
		}
		if !done {
			h.Far.owe(owed[i+1:]...)
			return
		}
		h.Far.freed.Store(true)
		h.Logs.retry()
		h.Logs.Wake()
	}
}

// giveIdle gives back the segments that have been idle for long enough, and spare
// ones that are too many.
func (h *Heap) giveIdle() {
	next := func() Segment {
		if s := h.Far.takeSurplus(); s != nil {
			return s
		}
		return h.Far.takeIdle(true)
	}
	for s := next(); s != nil; s = next() {
		if _, err := h.Far.giveBack(h.Ctx, debt{seg: s}); err != nil {
			h.Count.unreturned.Add(1)
		}
		if h.Ctx.Err() != nil {
			return
		}
	}
}

// Drop gives a dead segment back, or leaves that to payBack if the store does
// not take it.
func (h *Heap) Drop(s *FarSegment) { h.free(func() error { return h.Far.drop(h.Ctx, s) }) }

// free gives memory back by give, and tells those who wait for some.
func (h *Heap) free(give func() error) {
	h.Far.freeing.Add(1)
	if err := give(); err != nil {
		h.Count.unreturned.Add(1)
	}
	h.Far.freed.Store(true)
	h.Far.freeing.Add(-1)
	h.Logs.retry()
	h.Logs.Wake()
}
