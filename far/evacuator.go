package far

import (
	"errors"
	"time"
)

// The evacuator is the goroutine that keeps some segments of the local logs
// empty (the paper's section 5.3). It takes a segment in order of age and asks
// of each entry in it whether the index still refers to it, and then: a hot
// one is kept, at the end of the logs and a little cooler, which makes the
// whole CLOCK; a cold one with a far copy has its word turned to the far copy;
// a cold one without is staged, written to far memory together with others,
// and then has its word turned. Mutators go on all the while: an entry is
// looked at and moved under its shard's lock, and none is held while the store
// works; if the entry was changed meanwhile, its far copy is dead.
//
// While there is room enough for all that lives, nothing is evacuated: the
// segments with the fewest live bytes are compacted.

const (
	// compactBelow is the part of the logs that may live before anything is
	// evacuated.
	compactBelow = 0.85
	// keepAtMost is the part of a segment that is kept for being hot, so that
	// every segment that is evacuated yields some room.
	keepAtMost = 0.75
	// worthwhile is the part of a segment that must be reclaimable.
	worthwhile = 0.125
)

// aim is what the evacuator does with the entries of a segment.
type aim uint8

const (
	compact    aim = iota // keep them
	evict                 // keep the hot
	evictClean            // keep the hot, and those without a far copy
)

func (h *Heap) evacuator() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-h.ctx.Done():
			h.logs.finish(ErrClosed)
			return
		case <-h.logs.kick:
		case <-timer.C:
		}
		h.turn.begin()
		for h.ctx.Err() == nil && h.makeRoom() {
			h.turn.keep()
		}
		if h.pass.active() {
			h.askWaiters()
			timer.Reset(minPoll)
		}
		if err := h.tidy(); err != nil {
			h.logs.note(err)
		}
		if d, ok := h.retryIn(); ok {
			timer.Reset(d)
		}
	}
}

// retryIn reports whether there is work that nothing wakes the evacuator for,
// and when to look at it: a failure of the store has left some undone, or scopes
// have to be left. Who waits for room wakes the evacuator once, so that it must
// not miss the end of its rest, however long it was held up.
func (h *Heap) retryIn() (time.Duration, bool) {
	if h.pass.active() {
		// The longer it has waited, the less it matters.
		waited := time.Since(h.pass.since)
		return min(max(waited/8, minPoll), maxPoll), true
	}
	if h.far.err == nil || errors.Is(h.far.err, ErrStoreFull) {
		return maxPoll, h.barren > 0 && !h.logs.satisfied()
	}
	d := time.Until(h.far.retry)
	return max(d, minBackoff), d > 0 || !h.logs.satisfied()
}

// askWaiters has those who wait for room look whether it is a scope of theirs that
// the pass waits for.
func (h *Heap) askWaiters() {
	ps := &h.pass
	if time.Since(ps.since) < patience || time.Since(ps.asked) < patience || h.logs.hasRoom() {
		return
	}
	ps.asked = time.Now()
	h.logs.finish(errHeldUp)
}

// barrenMost is how many passes in a row may make no room until the evacuator
// waits a little: they may have made objects cold, which then go.
const barrenMost = 10

const (
	minPoll = 20 * time.Microsecond
	maxPoll = time.Millisecond
	// patience is how long the end of a pass is waited for, while there is some
	// room, before something else is evacuated.
	patience = 10 * time.Millisecond
)

// turn is the evacuator's time on a processor. Go has no priorities (the paper's
// section 5.4), but who is preempted, after 10 ms, or yields comes behind all
// that can run, which with many busy mutators is much longer than who wakes up. So
// the evacuator goes to sleep before it is preempted, and is up again at once.
type turn struct{ began time.Time }

// turnLength is how long the evacuator works in one go.
const turnLength = 5 * time.Millisecond

func (t *turn) begin() { t.began = time.Now() }

// keep is to be called every few milliseconds.
func (t *turn) keep() {
	if time.Since(t.began) > turnLength {
		time.Sleep(time.Microsecond)
		t.begin()
	}
}

// makeRoom does a piece of work if there is too little room, and reports
// whether it should be called again.
func (h *Heap) makeRoom() bool {
	l := &h.logs
	h.shrinking = l.shrinkWaits()
	if h.pass.active() && h.passReady() {
		h.finishPass()
		if n := l.gained(); l.renewed() || n > h.pass.best {
			h.pass.best, h.barren = n, 0
		} else {
			h.barren++
		}
		switch {
		case l.roomForWaiting():
			l.finish(nil)
		case h.barren >= barrenMost && (h.pass.full || h.far.err != nil):
			h.stuck()
		}
		return h.barren < barrenMost
	}
	if l.satisfied() && !h.forced.Swap(false) {
		l.finish(nil)
		return false
	}
	if h.pass.active() && l.hasRoom() && time.Since(h.pass.since) < patience {
		return false // entries need not go in the place of what the pass will free
	}
	s, what := h.victim()
	if !h.pass.active() && h.objectsFirst(s, what) && h.beginPass(h.lacking(), what) {
		return h.passReady()
	}
	if h.evacuate(s, what) || what != evict && h.farReady(unit) && h.evacuate(l.oldest(), evict) {
		h.barren = 0
	} else if h.pass.active() || h.beginPass(h.lacking(), evict) {
		return h.passReady()
	} else {
		h.stuck()
		return false
	}
	if l.roomForWaiting() {
		l.finish(nil)
	}
	return true
}

// lacking is the number of segments that there are too few, or will be when
// those who wait to enter a scope have taken theirs: a pass waits for scopes
// however little it takes.
func (h *Heap) lacking() int {
	l := &h.logs
	wanted := h.scopes.wanted()
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.low+l.want+1+(wanted+l.segSize-1)/l.segSize-l.available(), 1)
}

// objectsFirst reports whether there is a segment of objects that should be
// emptied rather than segment s of entries, which may be -1: one in which nothing
// lives or that is without temporal locality, one with less in it if they are
// compacted, or an older one.
func (h *Heap) objectsFirst(s int, what aim) bool {
	l := &h.logs
	var one [1]int
	segs := l.selectObjects(one[:0], 1, what)
	if len(segs) == 0 || s < 0 {
		return len(segs) > 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	o, e := &l.segs[segs[0]], &l.segs[s]
	switch {
	case e.live.Load() == 0:
		return false
	case o.live.Load() == 0:
		return true
	case what == compact:
		return o.live.Load() < e.live.Load()
	case o.kind == streams:
		return true
	}
	return o.seq < e.seq
}

// stuck ends the waiting of those who need room that cannot be made: at once
// if the store is full or nothing local can go, otherwise their deadlines do.
func (h *Heap) stuck() {
	l := &h.logs
	if l.roomForWaiting() {
		l.finish(nil) // there is nothing more to evacuate, and no need to
		return
	}
	if !h.shrinking && l.shrinkWaits() {
		l.wake() // who has come meanwhile may use more
		return
	}
	l.mu.Lock()
	l.want = 0 // who wants it still will say so again
	l.mu.Unlock()
	switch err := h.far.err; {
	case h.barren > 0 && err == nil && !h.pass.full:
		// What is local is in use. That changes.
	case err != nil && !errors.Is(err, ErrStoreFull):
		l.note(err)
	case h.orphaned() || h.far.freeing.Load() > 0 || h.shrinking && h.far.dying():
		// The janitor is about to make room, and will wake us.
	case h.far.freed.Load() && h.barren < 2*barrenMost:
		l.wake() // it just has; but cleaning may do so for ever
	default:
		l.inUse.Store(err == nil && !h.pass.full && !h.far.owing())
		l.full.Store(time.Now().Add(minBackoff).UnixNano())
		l.finish(l.errFull())
	}
}

// victim chooses the segment to work on and what to do with it; -1 if there is
// none that would yield room.
func (h *Heap) victim() (int, aim) {
	l := &h.logs
	if live, usable := l.usage(); h.barren == 0 && float64(live) < compactBelow*float64(usable) {
		s := l.sparsest(func(s *logSegment) int64 { return s.live.Load() })
		var one [1]int
		if s >= 0 || len(l.selectObjects(one[:0], 1, compact)) > 0 {
			return s, compact
		}
	}
	if h.farReady(unit) {
		return l.oldest(), evict
	}
	s := l.sparsest(func(s *logSegment) int64 { return s.live.Load() - s.clean.Load() })
	return s, evictClean
}

// sparsest returns the sealed segment with the least cost, in bytes that would
// have to be kept, or -1 if none is worthwhile.
func (l *logs) sparsest(cost func(s *logSegment) int64) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	best, least := -1, int64(float64(l.segSize)*(1-worthwhile))
	for i := range l.segs[:l.top] {
		if s := &l.segs[i]; s.sealed && s.kind == entries {
			if c := cost(s); c < least {
				best, least = i, c
			}
		}
	}
	return best
}

// oldest returns the oldest sealed segment, or -1.
func (l *logs) oldest() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	best := -1
	for i := range l.segs[:l.top] {
		s := &l.segs[i]
		if !s.sealed || s.kind != entries {
			continue
		}
		if best < 0 || s.seq < l.segs[best].seq {
			best = i
		}
		if s.live.Load() == 0 {
			return i
		}
	}
	return best
}

// evacuate empties segment s and reports whether that has made some room; -1 is
// no segment. If the store fails, what could not be written stays where it is.
func (h *Heap) evacuate(s int, what aim) bool {
	if s < 0 {
		return false
	}
	l := &h.logs
	seg := &l.segs[s]
	before := seg.live.Load()
	h.count.evacuatedSegments.Add(1)
	begin := s * l.segSize
	end := begin + seg.used
	kept := 0
	settled := begin // the staged entries before it are settled
	var failed error
	for off := begin; off < end; {
		e := entry(l.mem[off:])
		n := e.size()
		switch h.evacuateEntry(e, uint64(off)/unit, what, &kept) {
		case outcomeStagingFull:
			if err := h.settle(settled, off); err != nil {
				settled, end, failed = off, off, err // leave the rest
				continue
			}
			settled = off
			if what == evict && !h.farReady(n) {
				h.far.close() // it is as good as full
				what = evictClean
			}
			continue // try this one again
		case outcomeNoRoom:
			end = off // leave the rest
			continue
		}
		off += n
	}
	if err := h.settle(settled, end); err != nil {
		failed = err
	}
	l.note(failed)
	after := seg.live.Load()
	if after == 0 {
		l.release(s)
	}
	return after == 0 || after < before
}

type outcome uint8

const (
	outcomeDone outcome = iota
	outcomeStagingFull
	outcomeNoRoom
)

// evacuateEntry deals with the entry at a local address.
func (h *Heap) evacuateEntry(e entry, addr uint64, what aim, kept *int) outcome {
	m := (*h.maps.Load())[e.mapID()]
	hs := e.hash()
	sh := m.shard(hs)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	p := sh.t.find(hs.tag(), word(addr))
	if p == none {
		return outcomeDone // overwritten, deleted or moved
	}
	w := sh.t.word(p)
	n := e.size()
	keep := false
	switch {
	case e.expired():
		sh.expire(h, p, e)
		return outcomeDone
	case what == compact:
		keep = true
	case w.hot() > 0 && *kept+n <= int(keepAtMost*float64(h.logs.segSize)):
		*w -= hotOne
		keep = true
	}
	if keep {
		switch err := h.keepLocal(w, e, addr); {
		case err == nil:
			*kept += n
			return outcomeDone
		case what != evict:
			return outcomeNoRoom
		}
	}
	switch {
	case e.clean() && !h.far.seg(e.far()).gone():
		h.logs.bury(e, addr)
		*w = newWord(e.far(), n, w.flags()) | wordFar
		h.count.evacuatedClean.Add(1)
		return outcomeDone
	case what != evict:
		if h.keepLocal(w, e, addr) != nil {
			return outcomeNoRoom
		}
		*kept += n
		return outcomeDone
	case !h.far.fits(n):
		return outcomeStagingFull
	}
	h.unclean(e, addr)
	e.setFar(h.far.stage(e))
	e.setFlag(flagStaged)
	return outcomeDone
}

// keepLocal moves a local entry to the end of the logs. Its shard's lock must
// be held.
func (h *Heap) keepLocal(w *word, e entry, addr uint64) error {
	l := &h.logs
	n := e.size()
	c, to, ok := l.place(&l.hot, n, forEvacuator)
	if !ok {
		return errNoRoom
	}
	copy(c, e[:n])
	if e.clean() {
		l.seg(to).clean.Add(int64(n))
	}
	l.bury(e, addr)
	*w = w.at(to)
	return nil
}

// unclean makes a local entry one without a far copy. Its shard's lock must be
// held.
func (h *Heap) unclean(e entry, addr uint64) {
	if !e.clean() {
		return
	}
	n := e.size()
	h.logs.seg(addr).clean.Add(-int64(n))
	h.buryFar(e.far(), roundSize(n))
	e.setFar(0)
	h.logs.stir()
}

// settle writes what is staged and turns the words of the entries that were
// staged from the local addresses [begin, end), in bytes.
func (h *Heap) settle(begin, end int) error {
	l := &h.logs
	to := h.far.open
	bytes := h.far.staged
	err := h.far.flush(h.ctx)
	if err == nil {
		h.count.bytesOut.Add(uint64(bytes))
	}
	for off := begin; off < end; {
		e := entry(l.mem[off:])
		n := e.size()
		if e.staged() {
			h.settleEntry(e, uint64(off)/unit, to, err == nil)
		}
		off += n
	}
	if to != nil && to.dead() {
		h.wakeJanitor()
	}
	return err
}

// settleEntry turns the word of an entry whose far copy has been written, or
// has not.
func (h *Heap) settleEntry(e entry, addr uint64, to *farSegment, written bool) {
	m := (*h.maps.Load())[e.mapID()]
	hs := e.hash()
	sh := m.shard(hs)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	n := e.size()
	far := e.far()
	e.clearFlag(flagStaged)
	e.setFar(0)
	p := sh.t.find(hs.tag(), word(addr))
	if !written || p == none || to.gone() {
		to.live.Add(-int64(roundSize(n)))
		return
	}
	w := sh.t.word(p)
	h.logs.bury(e, addr)
	*w = newWord(far, n, w.flags()) | wordFar
	h.count.evacuated.Add(1)
}

// satisfied reports whether there are as many empty segments as there should
// be.
func (l *logs) satisfied() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.available() > l.low+l.want
}

// hasRoom reports whether a mutator could open a segment.
func (l *logs) hasRoom() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.available() > l.keep(forMutator)+l.want
}

// shrinkWaits reports whether somebody waits for room for what shrinks.
func (l *logs) shrinkWaits() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shrinks > 0
}

// roomForWaiting reports whether some of those who wait for room could open a
// segment.
func (l *logs) roomForWaiting() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.available()
	return n > l.keep(forMutator)+l.want || l.shrinks > 0 && n > l.keep(forShrink)
}

// note remembers why the store takes nothing just now.
func (l *logs) note(err error) {
	l.mu.Lock()
	l.trouble = err
	l.mu.Unlock()
}
