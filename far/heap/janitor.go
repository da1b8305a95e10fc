package heap

import "time"

// The janitor is the goroutine that does what nobody waits for: it gives dead segments back to the store, tells the
// host of segments that were lost, and lets it do its chores.

const (
	// SweepEvery is the time between two rounds of chores, and the longest that a loss goes unnoticed if nobody reads.
	SweepEvery = 100 * time.Millisecond
	// decayTicks is after how many ticks, SweepEvery apart, the reserve for scopes decays, towards what scopes have
	// taken meanwhile.
	decayTicks = 20
)

func (h *Heap) WakeJanitor() { wake(h.poke) }

// wake wakes the goroutine that waits for c, whose buffer has room for one, unless it is about to wake up anyway.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
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
			if s.Gone() && !s.Counted.Load() {
				name := s.Seg.Name()
				h.LastLost.Store(&name)
				h.host.Lost(s)
				s.Counted.Store(true)
			}
		})
		h.reap()
		if timed {
			h.payBack()
			h.Far.GiveIdle(h.Ctx)
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
		} else if h.Ctx.Err() == nil && h.Far.MayGo(s) {
			h.free(func() { h.Far.Discard(h.Ctx, s.Seg) })
			n++
		}
	})
	return n
}

// payBack offers the store again the segments that it would not take back.
func (h *Heap) payBack() {
	paid, unreturned := h.Far.PayBack(h.Ctx)
	h.Count.unreturned.Add(uint64(unreturned))
	if paid > 0 {
		h.noteFreed()
	}
}

// Drop gives a dead segment back, or leaves that to payBack if the store does not take it.
func (h *Heap) Drop(s *FarSegment) { h.free(func() { h.Far.Drop(h.Ctx, s) }) }

// free gives memory back by give, and tells those who wait for some.
func (h *Heap) free(give func()) {
	h.Far.freeing.Add(1)
	give()
	h.noteFreed()
	h.Far.freeing.Add(-1)
}

// noteFreed tells those who wait for far memory that some has been given back.
func (h *Heap) noteFreed() {
	h.Far.freed.Store(true)
	h.Logs.retry()
	h.Logs.Wake()
}
