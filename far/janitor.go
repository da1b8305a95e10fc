package far

import "time"

// The janitor is the goroutine that does what nobody waits for: it gives dead
// segments back to the store, tells the host of segments that were lost, and lets
// it do its chores.

const (
	// sweepEvery is the time between two rounds of chores, and the longest
	// that a loss goes unnoticed if nobody reads.
	sweepEvery = 100 * time.Millisecond
	// decayTicks is how many times sweepEvery what is kept in reserve for scopes
	// stays after the last one that took as much.
	decayTicks = 20
)

func (h *core) wakeJanitor() {
	select {
	case h.poke <- struct{}{}:
	default:
	}
}

func (h *core) janitor() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	ticks := 0
	for {
		timed := false
		select {
		case <-h.ctx.Done():
			return
		case <-h.poke:
		case <-tick.C:
			timed = true
		}
		h.far.all(func(s *farSegment) {
			if s.gone() && !s.counted {
				s.counted = true
				name := s.seg.Name()
				h.lastLost.Store(&name)
				h.host.Lost(s)
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
func (h *core) reap() (n int) {
	h.far.all(func(s *farSegment) {
		if s.dead() && h.ctx.Err() == nil {
			h.drop(s)
			n++
		}
	})
	return n
}

// payBack offers the store again what it would not take back, up to the first
// that it still does not take.
func (h *core) payBack() {
	owed := h.far.takeOwed()
	for i, d := range owed {
		done, err := h.far.giveBack(h.ctx, d)
		if err != nil {
			h.count.unreturned.Add(1)
		}
		if !done {
			h.far.owe(owed[i+1:]...)
			return
		}
		h.far.freed.Store(true)
		h.logs.stir()
		h.logs.wake()
	}
}

// giveIdle gives back the segments that have been idle for long enough, and spare
// ones that are too many.
func (h *core) giveIdle() {
	next := func() Segment {
		if s := h.far.takeSurplus(); s != nil {
			return s
		}
		return h.far.takeIdle(true)
	}
	for s := next(); s != nil; s = next() {
		if _, err := h.far.giveBack(h.ctx, debt{seg: s}); err != nil {
			h.count.unreturned.Add(1)
		}
		if h.ctx.Err() != nil {
			return
		}
	}
}

// drop gives a dead segment back, or leaves that to payBack if the store does
// not take it.
func (h *core) drop(s *farSegment) {
	h.far.freeing.Add(1)
	if err := h.far.drop(h.ctx, s); err != nil {
		h.count.unreturned.Add(1)
	}
	h.far.freed.Store(true)
	h.far.freeing.Add(-1)
	h.logs.stir()
	h.logs.wake()
}
