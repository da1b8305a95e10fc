package heap

import (
	"errors"
	"time"

	"polder/far/record"
	"polder/internal/failpoint"
	"polder/internal/goroutine"
	"polder/internal/invariants"
)

// The evacuator is the goroutine that keeps some segments of the local logs empty (the paper's section 5.3). It takes
// segments in the order of the policy, and asks the owner of each record in a segment whether it still refers to the
// record: see the package's comment. Mutators go on all the while, and no lock is held while the store works; if a
// record was changed meanwhile, its far copy is dead.
//
// While there is room enough for all that lives, nothing is evacuated: the
// segments with the fewest live bytes are compacted.

const (
	// compactBelow is the part of the logs that may live before anything is evacuated.
	compactBelow = 0.85
	// keepAtMost is the part of a segment that is kept for being hot, so that
	// every segment that is evacuated yields some room.
	keepAtMost = 0.75
	// worthwhile is the part of a segment that must be reclaimable.
	worthwhile = 0.125
)

// aim is what the evacuator does with the records of a segment.
type aim uint8

const (
	compact    aim = iota // keep them
	Evict                 // keep the hot
	evictClean            // keep the hot, and those without a far copy
	writeBack             // write those without a far copy, and keep all local
)

func (h *Heap) evacuator() {
	h.evacuates.Store(goroutine.Number())
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-h.Ctx.Done():
			h.Drain()
			h.Logs.finish(ErrClosed)
			return
		case <-h.Logs.kick:
		case b := <-h.Far.landing:
			h.arrived(b)
		case h.backing = <-h.backs:
			h.Logs.sealAll(h.backing.scoped)
		case p := <-h.pauses:
			close(p.began)
			<-p.over
		case <-timer.C:
		}
		h.turn.begin()
		// Those who write without end do not keep a checkpoint waiting.
		for h.Ctx.Err() == nil && len(h.backs)+len(h.pauses) == 0 && !h.saves() && h.makeRoom() {
			h.turn.keep()
		}
		if h.Pass.active() {
			h.askWaiters()
			timer.Reset(minPoll)
		}
		if !h.saves() && (!h.Far.busy() || h.Logs.Satisfied()) {
			if err := h.tidy(); err != nil {
				h.Logs.note(err)
			}
			if err := h.cleanForCheckpoint(); err != nil {
				h.Logs.note(err)
			}
		}
		if len(h.Far.flying) == 0 {
			h.submit() // nothing else fills it up
		}
		h.writeSome()
		h.trimWindow()
		if d, ok := h.RetryIn(); ok {
			timer.Reset(d)
		} else if h.Far.may > narrow && !h.Far.busy() {
			timer.Reset(idleWindow)
		}
	}
}

// RetryIn reports whether there is work that nothing wakes the evacuator for, and when to look at it: a failure of
// the store has left some undone, or scopes have to be left. Whoever waits for room wakes the evacuator only once, so
// the evacuator must not miss the moment when the store need no longer be left alone, however long it was held up.
func (h *Heap) RetryIn() (time.Duration, bool) {
	if h.Pass.active() {
		// The longer it has waited, the less it matters.
		waited := time.Since(h.Pass.since)
		return min(max(waited/8, minPoll), MaxPoll), true
	}
	if h.Far.err == nil || errors.Is(h.Far.err, ErrStoreFull) {
		if (h.barren > 0 || h.postponed > 0) && !h.Logs.Satisfied() {
			return MaxPoll, true
		}
		return MaxPoll << min(h.untidy, 10), h.untidy > 0
	}
	d := time.Until(h.Far.Retry)
	return max(d, MinBackoff), d > 0 || !h.Logs.Satisfied()
}

// askWaiters has those who wait for room look whether the pass waits for a scope of theirs.
func (h *Heap) askWaiters() {
	ps := &h.Pass
	if time.Since(ps.since) < patience || time.Since(ps.asked) < patience || h.Logs.HasRoom() {
		return
	}
	ps.asked = time.Now()
	h.Logs.finish(errHeldUp)
}

// barrenMost is how many passes in a row may make no room before the evacuator waits a little. Such passes may have
// made objects colder, which go in a later pass then.
const barrenMost = 10

// hopedMost is how many times in a row the evacuator tries once more because far memory has just been given back.
const hopedMost = 4

// postponedMost is how many times in a row, MaxPoll apart, the evacuator tries once more because owners could not
// tell just now what the cleaner has to know.
const postponedMost = 500

const (
	minPoll = 20 * time.Microsecond
	MaxPoll = time.Millisecond
	// patience is how long the evacuator waits for the end of a pass, while there is some room, before it evacuates
	// something else.
	patience = 10 * time.Millisecond
	// mostPatience bounds how seldom somebody who waits looks whether it holds a scope that is waited for.
	mostPatience = 32 * patience
)

// turn is the evacuator's time on a processor. Go has no priorities (the paper's section 5.4). A goroutine that yields,
// or is preempted after 10 ms, queues behind all that can run; with many busy mutators it waits much longer there than
// a goroutine that wakes up. So the evacuator goes to sleep before it is preempted, and is up again at once.
type turn struct{ began time.Time }

// turnLength is how long the evacuator works in one go.
const turnLength = 5 * time.Millisecond

func (t *turn) begin() { t.began = time.Now() }

// keep is to be called every few milliseconds.
func (t *turn) keep() {
	if time.Since(t.began) > turnLength && !failpoint.Without("far.priority") {
		time.Sleep(time.Microsecond)
		t.begin()
	}
}

// makeRoom does a piece of work if there is too little room, and reports whether it should be called again.
func (h *Heap) makeRoom() bool {
	l := &h.Logs
	h.collect()
	h.shrinking = l.shrinkWaits()
	if !h.Pass.active() { // a pass has looked already, and says what it has found when it ends
		l.look()
	}
	if h.Pass.active() && h.passReady() {
		h.finishPass()
		if n := l.gained(); l.renewed() || n > h.Pass.best {
			h.Pass.best, h.barren = n, 0
		} else {
			h.barren++
		}
		switch {
		case l.roomForWaiting():
			l.finish(nil)
		case h.barren >= barrenMost && (h.Pass.Ev.full || h.Far.err != nil) && !h.Far.busy():
			h.stuck()
		}
		return h.barren < barrenMost
	}
	if l.Satisfied() && !h.Forced.Swap(false) {
		l.finish(nil)
		return false
	}
	if l.enough(h.Far.may * h.Far.size) {
		return false // what is being written makes room
	}
	if h.Pass.active() && l.HasRoom() && time.Since(h.Pass.since) < patience {
		return false // no locked records need go instead of what the pass will free
	}
	s, what := h.victim()
	if !h.Pass.active() && h.objectsFirst(s, what) && h.beginPass(h.lacking(), what) {
		return h.passReady()
	}
	if h.evacuate(s, what) || what != Evict && h.FarReady(Unit) && h.evacuate(l.next(h.policy), Evict) {
		h.barren, h.hoped = 0, 0
	} else if h.Pass.active() || h.beginPass(h.lacking(), Evict) {
		return h.passReady()
	} else {
		if !h.Far.busy() {
			h.stuck()
		}
		return false
	}
	if l.roomForWaiting() {
		l.finish(nil)
	}
	return true
}

// lacking is how many empty segments there are too few, at least 1, counting what those who wait to enter a scope
// will take: a pass has to wait for scopes however little it takes, so it may as well take enough.
func (h *Heap) lacking() int {
	l := &h.Logs
	wanted := h.Scopes.wanted()
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return max(l.low+l.want+1+(wanted+l.SegSize-1)/l.SegSize-l.available()-l.emptying, 1)
}

// enough reports whether the segments that are being emptied are enough: they have to make up for those that are
// lacking, and, if mutators have no room to take just now, to fill a window of that many bytes, too.
func (l *Logs) enough(window int) bool {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	n := l.available()
	if l.emptying == 0 || n+l.emptying <= l.low+l.want {
		return false
	}
	return n > l.keep(ForMutator)+l.want || l.emptying*l.SegSize >= window
}

// objectsFirst reports whether there is a segment of objects that should be emptied rather than segment s of locked
// records, which may be -1. A segment in which nothing lives comes first, s before the other. Then, if segments are
// compacted, the one in which less lives comes first; otherwise the segment of objects if it is without temporal
// locality, or if the policy ranks it before s.
func (h *Heap) objectsFirst(s int, what aim) bool {
	l := &h.Logs
	var one [1]int
	segs := l.selectObjects(one[:0], 1, what, h.policy)
	if len(segs) == 0 || s < 0 {
		return len(segs) > 0
	}
	l.Mu.Lock()
	defer l.Mu.Unlock()
	o, e := &l.Segs[segs[0]], &l.Segs[s]
	switch {
	case e.Live.Load() == 0:
		return false
	case o.Live.Load() == 0:
		return true
	case what == compact:
		return o.Live.Load() < e.Live.Load()
	case o.Kind == Streamed:
		return true
	}
	rank := l.ranks(h.policy)
	return rank(o) < rank(e)
}

// stuck is called when no room can be made. If the store is full, or nothing local can go, it ends the waiting of
// those who need room at once. Otherwise their deadlines do.
func (h *Heap) stuck() {
	failpoint.Hit("far.stuck")
	l := &h.Logs
	if l.roomForWaiting() {
		l.finish(nil) // there is nothing more to evacuate, and no need to
		return
	}
	if l.shrinkWaits() && !h.shrinking {
		l.Wake() // who has come ForShrink meanwhile may use more
		return
	}
	if l.narrow.Store(true); h.trimWindow() {
		l.Wake() // nothing is being written, so its buffers can make room
		return
	}
	if l.allOpen() && l.sealAll(true) {
		l.Wake() // what was in them may go now
		return
	}
	l.Mu.Lock()
	l.want = 0 // an index that still wants room will say so again
	l.Mu.Unlock()
	switch err := h.Far.err; {
	case h.barren > 0 && err == nil && !h.Pass.Ev.full:
		// What is local is in use. That changes.
	case err != nil && !errors.Is(err, ErrStoreFull):
		l.note(err)
	case h.host.Freeing() || h.Far.freeing.Load() > 0 || h.shrinking && h.Far.Dying():
		// The janitor is about to make room, and will wake us.
	case h.postponed > 0 && h.postponed < postponedMost:
		// It is tried again: see RetryIn.
	case h.Far.freed.Load() && h.barren < 2*barrenMost && h.hoped < hopedMost:
		h.hoped++
		l.Wake() // far memory has just been given back; but with cleaning that may go on for ever
	default:
		h.hoped = 0
		l.inUse.Store(err == nil && !h.Pass.Ev.full && !h.Far.Owing())
		if !l.refuse(l.errFull(), h.shrinking) {
			l.Wake() // more may go now, or may be used
		}
	}
}

// victim chooses the segment to work on and what to do with it; -1 if there is none that would yield room.
func (h *Heap) victim() (int, aim) {
	l := &h.Logs
	live, usable := l.usage()
	live -= h.Far.leaving
	if h.barren == 0 && float64(live) < compactBelow*float64(usable) {
		s := l.sparsest(func(s *LogSegment) int64 { return s.Live.Load() })
		var one [1]int
		if s >= 0 || len(l.selectObjects(one[:0], 1, compact, h.policy)) > 0 {
			return s, compact
		}
	}
	if h.FarReady(Unit) {
		return l.next(h.policy), Evict
	}
	s := l.sparsest(func(s *LogSegment) int64 { return s.Live.Load() - s.Clean.Load() })
	return s, evictClean
}

// sparsest returns the evacuable segment with the least cost, in bytes that would
// have to be kept, or -1 if none is worthwhile.
func (l *Logs) sparsest(cost func(s *LogSegment) int64) int {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	best, least := -1, int64(float64(l.SegSize)*(1-worthwhile))
	for i := range l.Segs[:l.top] {
		if s := &l.Segs[i]; s.evacuable() {
			if c := cost(s); c < least {
				best, least = i, c
			}
		}
	}
	return best
}

// evacuable reports whether s can be emptied without waiting for scopes. Logs.Mu must be held.
func (s *LogSegment) evacuable() bool { return s.sealed && !s.Kind.scoped() && s.views.Load() == 0 }

// ranks returns how p ranks segments. The result may be used as long as l.Mu is held.
func (l *Logs) ranks(p Policy) func(s *LogSegment) uint64 {
	var a Age
	for i := range l.Segs[:l.top] {
		if s := &l.Segs[i]; s.sealed && s.kept {
			a.Again++
		} else if s.sealed {
			a.Fresh++
		}
	}
	return func(s *LogSegment) uint64 {
		a.Seq, a.Kept = s.seq, s.kept
		return p.Rank(a)
	}
}

// next returns the evacuable segment that is to be emptied next, or -1: one in which nothing lives, or else the one
// that p says.
func (l *Logs) next(p Policy) int {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	rank := l.ranks(p)
	best, least := -1, uint64(0)
	for i := range l.Segs[:l.top] {
		s := &l.Segs[i]
		if !s.evacuable() {
			continue
		}
		if r := rank(s); best < 0 || r < least {
			best, least = i, r
		}
		if s.Live.Load() == 0 {
			return i
		}
	}
	return best
}

// Evacuation is the emptying of segments of the local logs.
type Evacuation struct {
	h    *Heap
	what aim

	kept  int  // bytes that were kept for being hot
	most  int  // how many may be
	Tight bool // scopes live on their reserve, so no memory may be used to keep what is hot
	full  bool // the store had no room

	seg   *LogSegment // that is being emptied
	debts [2]int64    // bytes that are left in debtors other than seg, of the locked and of the scoped kind

	// Of the record that Evacuate is about:
	from uint64 // where it is
	n    int    // its bytes
	far  int    // bytes of its far copy, if there has to be one
	fate fate   // what Place has said
	to   []byte // the memory that it goes to
	at   uint64 // the address of to
}

// Local is a record in the local logs.
type Local struct {
	Mem  []byte // the record, and what lies behind it
	Addr uint64 // in units
}

// fate is what becomes of a record in a segment that is being emptied.
type fate uint8

const (
	fateNone    fate = iota // nothing, as far as the heap knows
	FateKept                // it moves to the end of the logs
	FateDropped             // it has an equal far copy, which is used from now on
	FateStaged              // it is written to far memory, but not yet
	fateFull                // there has to be room in far memory first, or a buffer
	fateLate                // it has to wait until something else has been written, which makes room to move it to
	FateStuck               // it stays, since there is no room to move it to
)

// Place decides what becomes of the record that Evacuate is about, of n bytes in local memory and size bytes in far
// memory. hot says that it was used lately, clean that it has an equal far copy. If the record is to be kept, Place
// returns the memory to which Evacuate has to copy it, and the address. If it is to be staged, Place returns the
// memory where Evacuate has to put it as a far record, which the heap then seals. Evacuate has to do so before the
// owner lets go of what keeps the record as it is.
func (ev *Evacuation) Place(from Kind, n, size int, hot, clean bool) (f fate, to []byte, at uint64) {
	h := ev.h
	ev.n, ev.far = n, size
	defer func() { ev.fate, ev.to, ev.at = f, to, at }()
	if ev.what == writeBack {
		if clean {
			return fateNone, nil, 0
		}
		if !h.Far.fits(size) {
			return fateFull, nil, 0
		}
		to, at = h.Far.reserve(size, source(ev.from)|staysLocal)
		return FateStaged, to, at
	}
	if ev.what == compact || h.policy.Keeps(hot) && !ev.Tight && ev.kept+n <= ev.most || ev.what == evictClean && !clean {
		ol := h.Logs.Hot(from)
		ol.Mu.Lock()
		ok := ev.mayKeep(n)
		if ok {
			to, at, ok = h.Logs.Place(ol, n, ForEvacuator)
		}
		ol.Mu.Unlock() // the evacuator walks over the segment only when it is sealed, which is later
		if ok {
			return FateKept, to, at
		}
		if len(h.Far.flying) > 0 {
			return fateLate, nil, 0
		}
		if ev.what != Evict {
			return FateStuck, nil, 0
		}
	}
	if clean {
		return FateDropped, nil, 0
	}
	if !h.Far.fits(size) {
		return fateFull, nil, 0
	}
	to, at = h.Far.reserve(size, source(ev.from))
	return FateStaged, to, at
}

// mayKeep reports whether a record of n bytes may be moved to the end of the logs. What only the evacuator may take
// must have room for the rest of the record's segment, and for what is left in other debtors, segments of which
// something was moved. A debtor is not given back before the rest has gone, too. If somebody uses one record of each
// segment just now, all of the reserve could be taken by the records beside those, and there would be no room for the
// ones in use when nobody uses them any more. The mutex of the open log is held.
func (ev *Evacuation) mayKeep(n int) bool {
	l := &ev.h.Logs
	l.Mu.Lock()
	room := int64(max(l.Back-l.Owed, 0)) * int64(l.SegSize)
	l.Mu.Unlock()
	of := kindOf(ev.seg)
	for k, debt := range ev.debts {
		if k == of {
			debt += ev.seg.Live.Load() - ev.seg.leaving
		}
		has := int64(0)
		if ol := &l.kept[k]; k == of || ol.Mu.TryLock() { // the other log's holder must not be waited for
			if ol.Seg >= 0 {
				has = int64(l.SegSize - l.Segs[ol.Seg].Used)
			}
			if k != of {
				ol.Mu.Unlock()
			}
		}
		if has < debt {
			// The space behind the last record that fits into a segment is of no use.
			room -= debt - has + min(has, int64(n))
		}
	}
	return room >= 0
}

// kindOf is which of the kept logs the records of s go to.
func kindOf(s *LogSegment) int {
	if s.Kind.scoped() {
		return 1
	}
	return 0
}

// debts is how many bytes are left in debtors other than s, by kindOf.
func (l *Logs) debts(s *LogSegment) (debts [2]int64) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	for i := range l.Segs[:l.top] {
		if o := &l.Segs[i]; o.debtor && o != s {
			debts[kindOf(o)] += o.Live.Load() - o.leaving
		}
	}
	return debts
}

// Cools reports whether a record that is kept is to count as used longer ago than before.
func (ev *Evacuation) Cools() bool { return ev.what != compact }

// WritesBack reports whether records are written only so that they have a far copy, and not to make room.
func (ev *Evacuation) WritesBack() bool { return ev.what == writeBack }

// Empty moves what lives in segment s elsewhere, and reports whether that makes some room, if not at once then when
// what it has staged has been written. If the store fails, what could not be written stays where it is.
func (h *Heap) Empty(s int, ev *Evacuation, what aim) bool {
	l := &h.Logs
	seg := &l.Segs[s]
	before, keptBefore := seg.Live.Load()-seg.leaving, ev.kept
	h.Count.evacuatedSegments.Add(1)
	ev.what, ev.seg, ev.debts = what, seg, l.debts(seg)
	l.beginEmptying(seg)
	l.walk(s, func(r Local, id uint16) bool {
		o := h.host.Owner(id)
		for {
			ev.fate, ev.from = fateNone, r.Addr
			switch ok := o.Evacuate(ev, r); ev.fate {
			case FateKept:
				if !ok {
					l.Seg(ev.at).Live.Add(-int64(ev.n))
					return true
				}
				ev.kept += ev.n
				seg.Live.Add(-int64(ev.n))
			case FateDropped:
				if ok {
					seg.Live.Add(-int64(ev.n))
					h.Count.evacuatedClean.Add(1)
				}
			case FateStaged:
				record.Record(ev.to).SetVersion(h.Far.NextVersion())
				seg.leaving += int64(ev.n)
				h.Far.leaving += int64(ev.n)
			case FateStuck:
				return what != compact // others may be clean
			case fateLate:
				h.arrived(<-h.Far.landing)
				continue
			case fateFull:
				if !h.makeFit(ev.far) {
					ev.full = h.Far.err == nil || errors.Is(h.Far.err, ErrStoreFull)
					if h.midway == nil {
						h.closeFar() // it is as good as full
					}
					ev.what = evictClean
				}
				continue // try this one again
			}
			return true
		}
	})
	h.noteTrouble()
	after := seg.Live.Load() - seg.leaving
	seg.emptying = false
	seg.debtor = after > 0 && (seg.debtor || ev.kept > keptBefore)
	if seg.leaving == 0 {
		h.emptied(seg)
	}
	// What was kept still takes room, so moving it makes none.
	kept := int64(ev.kept - keptBefore)
	return before-after > kept || after == 0 && kept <= int64(float64(l.SegSize)*(1-worthwhile))
}

// beginEmptying makes seg the evacuator's alone.
func (l *Logs) beginEmptying(seg *LogSegment) {
	l.Mu.Lock()
	l.emptying++
	seg.sealed = false
	l.Mu.Unlock()
	seg.emptying = true
}

// emptied ends what Empty has begun, when all that Empty has staged has been written. If nobody refers to seg any
// more, emptied takes it back.
func (h *Heap) emptied(seg *LogSegment) {
	if seg.emptying {
		return // Empty is still at it
	}
	l := &h.Logs
	l.Mu.Lock()
	l.emptying--
	seg.sealed = true
	l.Mu.Unlock()
	if seg.Kind.scoped() {
		h.leave(seg)
	} else if seg.Live.Load() == 0 && seg.views.Load() == 0 {
		h.takeBack(seg)
	}
}

// takeBack takes back a segment to which nobody refers, and of which nobody holds an address.
func (h *Heap) takeBack(seg *LogSegment) {
	l := &h.Logs
	if invariants.Enabled {
		// Whoever reads an object after leaving its scope finds this.
		b := l.mem[seg.id*l.SegSize:][:seg.Used]
		for i := range b {
			b[i] = 0xdb
		}
	}
	seg.Freed.Store(0)
	seg.debtor = false
	l.Release(seg.id)
}

// evacuate empties segment s, of locked records, and reports whether that makes some room. s may be -1: no segment.
func (h *Heap) evacuate(s int, what aim) bool {
	if s < 0 {
		return false
	}
	h.entries.kept, h.entries.most = 0, int(keepAtMost*float64(h.Logs.SegSize))
	return h.Empty(s, &h.entries, what)
}

// Satisfied reports whether there are as many empty segments as there should be.
func (l *Logs) Satisfied() bool {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return l.available() > l.low+l.want
}

// HasRoom reports whether a mutator could open a segment.
func (l *Logs) HasRoom() bool {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return l.available() > l.keep(ForMutator)+l.want
}

// shrinkWaits reports whether somebody waits for room for what shrinks.
func (l *Logs) shrinkWaits() bool {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return l.shrinks > 0
}

// roomForWaiting reports whether some of those who wait for room could open a segment.
func (l *Logs) roomForWaiting() bool {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	n := l.available()
	return n >= l.keep(ForMutator)+max(l.want, 1) || l.shrinks > 0 && n > l.keep(ForShrink)
}

// note remembers why the store takes nothing just now.
func (l *Logs) note(err error) {
	l.Mu.Lock()
	l.trouble = err
	l.Mu.Unlock()
}
