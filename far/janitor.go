package far

import (
	"context"
	"time"
)

// The janitor is the goroutine that does what nobody waits for: it gives dead
// segments back to the store, accounts for segments that were lost, removes
// the pieces of large values that are gone, and looks for entries whose time
// has come and that nobody asks for.

const (
	// sweepEvery is the time between two looks for expired entries, and the
	// longest that a loss goes unnoticed if nobody reads.
	sweepEvery = 100 * time.Millisecond
	// A look takes in so many buckets of the index, and reads so many
	// headers of far entries. If more than a quarter of the entries with an
	// expiry have expired, the next look follows at once.
	sweepBuckets = 1024
	sweepHeads   = 64

	// decayTicks is how many times sweepEvery what is kept in reserve for scopes
	// stays after the last one that took as much.
	decayTicks = 20

	// maxStrayWait is the longest wait before the index is searched for stray
	// pieces again, after some of what it refers to could not be read.
	maxStrayWait = 10 * time.Second
)

func (h *Heap) wakeJanitor() {
	select {
	case h.poke <- struct{}{}:
	default:
	}
}

func (h *Heap) janitor() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	sw := sweeper{klen: 64}
	var strayWait time.Duration // what strays wait, longer each time it is in vain
	var strayNext time.Time
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
			if s.gone() && !s.counted && h.lose(s) {
				h.strays.Store(true)
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
		if timed && time.Now().After(strayNext) && h.strays.Swap(false) {
			if h.buryStrays() {
				strayWait = 0
			} else {
				h.strays.Store(true)
				strayWait = min(2*strayWait+sweepEvery, maxStrayWait)
				strayNext = time.Now().Add(strayWait)
			}
		}
		h.buryOrphans()
		for timed && h.ctx.Err() == nil && sw.sweep(h) {
		}
	}
}

// reap gives all dead segments back and returns how many there were.
func (h *Heap) reap() (n int) {
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
func (h *Heap) payBack() {
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
func (h *Heap) giveIdle() {
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
func (h *Heap) drop(s *farSegment) {
	h.far.freeing.Add(1)
	if err := h.far.drop(h.ctx, s); err != nil {
		h.count.unreturned.Add(1)
	}
	h.far.freed.Store(true)
	h.far.freeing.Add(-1)
	h.logs.stir()
	h.logs.wake()
}

// orphaned reports whether there are pieces to be removed.
func (h *Heap) orphaned() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.orphans) > 0
}

// buryOrphans removes the pieces of values that are gone. What cannot be
// removed just now stays for the next time.
func (h *Heap) buryOrphans() {
	for h.ctx.Err() == nil {
		h.mu.Lock()
		n := len(h.orphans)
		if n == 0 {
			h.mu.Unlock()
			return
		}
		o := h.orphans[n-1]
		h.mu.Unlock()
		ctx, cancel := context.WithTimeout(h.ctx, storeTimeout)
		err := o.bury(ctx)
		cancel()

		h.mu.Lock()
		at := len(h.orphans) - 1
		for h.orphans[at].big.version != o.big.version {
			at-- // others have been appended
		}
		if err != nil {
			// Let another one have a try first.
			h.orphans[at], h.orphans[0] = h.orphans[0], o
		} else {
			last := len(h.orphans) - 1
			h.orphans[at] = h.orphans[last]
			h.orphans = h.orphans[:last]
		}
		h.mu.Unlock()
		h.logs.wake() // there may be room now
		if err != nil {
			return
		}
	}
}

// sweeper walks over the index, a little at a time, in search of entries
// whose time has come.
type sweeper struct {
	m, shard, bucket int
	klen             int // length of the keys that are read with the headers
}

// sweep looks at the next stretch of the index and reports whether it paid.
func (sw *sweeper) sweep(h *Heap) bool {
	seen, expired := 0, 0
	var far []*flight
	maps := *h.maps.Load()
	if len(maps) == 0 {
		return false
	}
	if sw.m >= len(maps) {
		sw.m, sw.shard, sw.bucket = 0, 0, 0
	}
	m := maps[sw.m]
	for n := 0; n < sweepBuckets && len(far) < sweepHeads; {
		sh := &m.shards[sw.shard]
		sh.mu.Lock()
		for ; sw.bucket < len(sh.t.buckets) && n < sweepBuckets && len(far) < sweepHeads; sw.bucket++ {
			n++
			for i := range bucketEntries {
				p := place(sw.bucket*bucketEntries + i)
				w := *sh.t.word(p)
				if w&wordTTL == 0 || w.isLost() {
					continue
				}
				if w.far() {
					if h.far.seg(w.addr()).gone() {
						continue
					}
					switch f, leader, _ := h.board(sh, sh.t.tag(p), p, wantsHead, sw.klen, nil); {
					case leader:
						far = append(far, f)
					case f != nil:
						f.release(h) // somebody is looking at it anyway
					}
					continue
				}
				seen++
				if e := h.logs.at(w.addr()); e.expired() {
					sh.expire(h, p, e)
					expired++
				}
			}
		}
		end := sw.bucket >= len(sh.t.buckets)
		if end {
			// It shrinks another time if there is no room for both tables.
			_ = m.shrink(sh)
		}
		sh.mu.Unlock()
		if end {
			n++ // an empty shard is a look, too
			sw.shard, sw.bucket = sw.shard+1, 0
			if sw.shard == len(m.shards) {
				sw.m, sw.shard = sw.m+1, 0
				break
			}
		}
	}
	ctx, cancel := context.WithTimeout(h.ctx, storeTimeout)
	h.leadAll(ctx, m, far)
	cancel()
	for _, f := range far {
		if f.e != nil {
			seen++
			if f.e.expired() && f.sh.expireFar(h, f) {
				expired++
			}
		} else if f.short {
			sw.klen = MaxKeySize
		}
		f.release(h)
	}
	return seen > 0 && 4*expired > seen
}

// expireFar removes the entry that f found expired, if it is still there.
func (sh *shard) expireFar(h *Heap, f *flight) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	p := sh.t.find(f.tag, wordFar|word(f.addr))
	if p == none || sh.t.word(p).isLost() {
		return false
	}
	sh.expire(h, p, f.e)
	return true
}
