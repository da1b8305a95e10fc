package far

import (
	"errors"
	"time"

	"polder/internal/failpoint"
	"polder/internal/invariants"
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

func (h *core) evacuator() {
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
func (h *core) retryIn() (time.Duration, bool) {
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
func (h *core) askWaiters() {
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
func (h *core) makeRoom() bool {
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
		case h.barren >= barrenMost && (h.pass.ev.full || h.far.err != nil):
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
func (h *core) lacking() int {
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
func (h *core) objectsFirst(s int, what aim) bool {
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
func (h *core) stuck() {
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
	case h.barren > 0 && err == nil && !h.pass.ev.full:
		// What is local is in use. That changes.
	case err != nil && !errors.Is(err, ErrStoreFull):
		l.note(err)
	case h.host.Freeing() || h.far.freeing.Load() > 0 || h.shrinking && h.far.dying():
		// The janitor is about to make room, and will wake us.
	case h.far.freed.Load() && h.barren < 2*barrenMost:
		l.wake() // it just has; but cleaning may do so for ever
	default:
		l.inUse.Store(err == nil && !h.pass.ev.full && !h.far.owing())
		l.full.Store(time.Now().Add(minBackoff).UnixNano())
		l.finish(l.errFull())
	}
}

// victim chooses the segment to work on and what to do with it; -1 if there is
// none that would yield room.
func (h *core) victim() (int, aim) {
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
		if s := &l.segs[i]; s.sealed && !s.kind.scoped() {
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
		if !s.sealed || s.kind.scoped() {
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

// evacuation is the emptying of segments of the local logs.
type evacuation struct {
	h    *core
	what aim

	kept  int  // bytes that were kept for being hot
	most  int  // how many may be
	tight bool // scopes live on their reserve, of which nothing may be used to keep what is hot
	full  bool // the store had no room

	// Of the record that Evacuate is about:
	n    int    // its bytes
	far  int    // bytes of its far copy, if there has to be one
	fate fate   // what place has said
	at   uint64 // and where it is to be

	staged []stagedRecord
}

// local is a record in the local logs.
type local struct {
	mem  []byte // the record, and what lies behind it
	addr uint64 // in units
}

// stagedRecord is a record whose far copy is being written.
type stagedRecord struct {
	local local
	n     int    // bytes here
	size  int    // bytes of the far copy, in whole classes
	far   uint64 // where the far copy is going to be
}

// fate is what becomes of a record in a segment that is being emptied.
type fate uint8

const (
	fateNone    fate = iota // nothing, as far as the heap knows
	fateKept                // it moves to the end of the logs
	fateDropped             // it has an equal far copy, which is used from now on
	fateStaged              // it is written to far memory, but not yet
	fateFull                // it has to wait until what is staged has been written
	fateStuck               // it stays, since there is no room to move it to
)

// place decides what becomes of the record that Evacuate is about, of n bytes in
// local memory and size bytes in far memory. Hot says that it was used of late,
// clean that it has an equal far copy. If it is to be kept or staged, place
// returns the memory to which Evacuate has to copy it, and the address, before the
// owner lets go of what keeps the record as it is.
func (ev *evacuation) place(from kind, n, size int, hot, clean bool) (f fate, to []byte, at uint64) {
	h := ev.h
	ev.n, ev.far = n, size
	defer func() { ev.fate, ev.at = f, at }()
	if ev.what == compact || hot && !ev.tight && ev.kept+n <= ev.most || ev.what == evictClean && !clean {
		ol := h.logs.hot(from)
		ol.mu.Lock()
		to, at, ok := h.logs.place(ol, n, forEvacuator)
		ol.mu.Unlock() // the evacuator walks over it when it is sealed, which is later
		if ok {
			return fateKept, to, at
		}
		if ev.what != evict {
			return fateStuck, nil, 0
		}
	}
	if clean {
		return fateDropped, nil, 0
	}
	if !h.far.fits(size) {
		return fateFull, nil, 0
	}
	to, at = h.far.reserve(size)
	return fateStaged, to, at
}

// cools reports whether what is kept is to count as used less of late than before.
func (ev *evacuation) cools() bool { return ev.what != compact }

// empty moves what lives in segment s elsewhere, and reports whether that has made
// some room. If the store fails, what could not be written stays where it is.
func (h *core) empty(s int, ev *evacuation, what aim) bool {
	l := &h.logs
	seg := &l.segs[s]
	before := seg.live.Load()
	h.count.evacuatedSegments.Add(1)
	ev.what = what
	var failed error
	l.walk(s, func(r local, id uint16) bool {
		o := h.host.Owner(id)
		for {
			ev.fate = fateNone
			switch ok := o.Evacuate(ev, r); ev.fate {
			case fateKept:
				if !ok {
					l.seg(ev.at).live.Add(-int64(ev.n))
					return true
				}
				ev.kept += ev.n
				seg.live.Add(-int64(ev.n))
			case fateDropped:
				if ok {
					seg.live.Add(-int64(ev.n))
					h.count.evacuatedClean.Add(1)
				}
			case fateStaged:
				ev.staged = append(ev.staged, stagedRecord{r, ev.n, roundSize(ev.far), ev.at})
			case fateStuck:
				return what != compact // others may be clean
			case fateFull:
				if err := h.settle(ev, seg); err != nil {
					failed = err
					ev.what = evictClean
				} else if !h.farReady(ev.far) {
					ev.full = h.far.err == nil || errors.Is(h.far.err, ErrStoreFull)
					h.far.close() // it is as good as full
					ev.what = evictClean
				}
				continue // try this one again
			}
			return true
		}
	})
	if err := h.settle(ev, seg); err != nil {
		failed = err
	}
	l.note(failed)
	after := seg.live.Load()
	if seg.kind.scoped() {
		h.leave(s)
	} else if after == 0 {
		h.release(s)
	}
	return after == 0 || after < before
}

// settle writes what is staged, all of which is from seg, and tells the owners.
func (h *core) settle(ev *evacuation, seg *logSegment) error {
	to, bytes := h.far.open, h.far.staged
	err := h.far.flush(h.ctx)
	if err == nil {
		h.count.bytesOut.Add(uint64(bytes))
	}
	failpoint.Hit("far.settled")
	for _, d := range ev.staged {
		if !h.host.Owner(seg.owner(d.local)).Settled(d.local, to, d.far, err == nil) {
			to.live.Add(-int64(d.size))
			continue
		}
		h.count.evacuated.Add(1)
		seg.live.Add(-int64(d.n))
	}
	clear(ev.staged)
	ev.staged = ev.staged[:0]
	if to != nil && to.dead() {
		h.wakeJanitor()
	}
	return err
}

// release takes back a segment to which nobody refers, and of which nobody holds an
// address.
func (h *core) release(s int) {
	l := &h.logs
	if invariants.Enabled {
		// Whoever reads an object after leaving its scope finds this.
		b := l.mem[s*l.segSize:][:l.segs[s].used]
		for i := range b {
			b[i] = 0xdb
		}
	}
	l.segs[s].freed.Store(0)
	l.release(s)
}

// evacuate empties segment s of what no scope keeps in place, and reports whether that has
// made some room; -1 is no segment.
func (h *core) evacuate(s int, what aim) bool {
	if s < 0 {
		return false
	}
	h.entries.kept, h.entries.most = 0, int(keepAtMost*float64(h.logs.segSize))
	return h.empty(s, &h.entries, what)
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
