package far

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"polder/internal/failpoint"
	"polder/internal/invariants"
)

// pass is the evacuator's work on segments of objects (the paper's section
// 5.3), in four phases: it selects segments, marks the objects in them, waits for
// the scopes that were open before, and evacuates. While it waits it can work
// on segments of entries, so that a scope that is held long does not keep those
// from being evacuated.
//
// A pass is the evacuator's alone, and there is one at a time.
type pass struct {
	number uint64
	segs   []int
	what   aim
	since  time.Time // when the wait began
	asked  time.Time // when those who wait for room were last asked, see askWaiters

	// epoch: scopes that were open in an earlier one are waited for; 0: no pass.
	epoch atomic.Int64

	// passes counts the beginnings and the ends of passes: it is odd during one.
	passes atomic.Uint64

	// best is what passes have gained at the most since others took segments. That
	// is the measure of whether they still make room: one may gain what the one
	// before it has lost, for ever.
	best int

	full   bool      // the store had no room
	pinned []uintptr // the addresses that scopes had pinned when it was over
	staged []stagedObject
	clean  dropped
	kept   int  // bytes that were kept for being hot
	tight  bool // scopes live on their reserve, of which nothing may be used to keep what is hot
}

// stagedObject is an object whose far copy is being written.
type stagedObject struct {
	p   *uint64
	w   pword // the word, marked
	far uint64
	n   int // bytes of data
}

// dropped is objects of a class and of a segment that became far without being
// written, and have not been accounted for yet.
type dropped struct {
	c        *class
	n, bytes int
}

func (ps *pass) active() bool { return ps.epoch.Load() != 0 }

const (
	// passSegments is the most that one pass takes.
	passSegments = 64
	// streamsAhead is the part of all segments that a pass takes beyond what is
	// lacking if they are without temporal locality, so that what a pass costs
	// is shared by many.
	streamsAhead = 1.0 / 16
	// streamsLeft is the part of all segments that are left of those then: the
	// youngest may have been prefetched, and not used yet.
	streamsLeft = 1.0 / 4
)

// beginPass selects up to n segments of objects and marks what is in them.
func (h *Heap) beginPass(n int, what aim) bool {
	ps := &h.pass
	ps.segs = h.logs.selectObjects(ps.segs[:0], min(n, passSegments), what)
	if len(ps.segs) == 0 {
		return false
	}
	ps.number++
	ps.passes.Add(1)
	h.count.passes.Add(1)
	ps.what, ps.kept, ps.full = what, 0, false
	for _, s := range ps.segs {
		h.logs.segs[s].phase.Store(phaseWaiting)
	}
	failpoint.Hit("far.marking")
	for _, s := range ps.segs {
		h.turn.keep()
		h.eachObject(s, func(p *uint64, o object, addr uintptr) bool {
			for w := loadWord(p); w.local() && w.addr() == addr; w = loadWord(p) {
				if casWord(p, w, w.markedBy(ps.number)) {
					break
				}
			}
			return true
		})
	}
	ps.epoch.Store(h.scopes.advance())
	ps.since = time.Now()
	if h.scopes.fenced {
		if err := fence(); err != nil {
			panic("BUG: " + err.Error())
		}
	}
	failpoint.Hit("far.waiting")
	return true
}

// eachObject calls fn for every object in a sealed segment that may be one
// that its word refers to, until fn returns false.
func (h *Heap) eachObject(s int, fn func(p *uint64, o object, addr uintptr) bool) {
	l := &h.logs
	begin := s * l.segSize
	end := begin + l.segs[s].used
	for off := begin; off < end; {
		o := object(l.mem[off:end])
		head := o.head()
		n := headLen(head)
		if number := headNumber(head); number != 0 {
			if !fn(h.words.at(number), o[:objectHeader+n], l.base+uintptr(off)+objectHeader) {
				return
			}
		}
		off += objectSize(n)
	}
}

// selectObjects appends up to n sealed segments of objects: those in which
// nothing lives, then those without temporal locality, then the rest, in order
// of age, or of what lives in them if they are to be compacted. Of the former there
// may be some more.
func (l *logs) selectObjects(segs []int, n int, what aim) []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.segs[:l.top] {
		s := &l.segs[i]
		if !s.sealed || s.kind == entries {
			continue
		}
		if what == compact && s.live.Load() > int64(float64(l.segSize)*(1-worthwhile)) {
			continue
		}
		segs = append(segs, i)
	}
	rank := func(i int) int64 {
		s := &l.segs[i]
		switch live := s.live.Load(); {
		case live == 0:
			return -2
		case what == compact:
			return live
		case s.kind == streams && l.seq-s.seq > uint64(float64(l.resident)*streamsLeft):
			return -1 // the younger ones may have been prefetched, and not used yet
		}
		return int64(s.seq)
	}
	slices.SortFunc(segs, func(a, b int) int {
		if ra, rb := rank(a), rank(b); ra != rb {
			if ra < rb {
				return -1
			}
			return 1
		}
		return int(int64(l.segs[a].seq) - int64(l.segs[b].seq))
	})
	if n >= len(segs) {
		return segs
	}
	if what == evict {
		some := 0
		for _, i := range segs[n:] {
			if s := &l.segs[i]; s.kind == streams || s.live.Load() == 0 {
				some++
			}
		}
		more := min(int(streamsAhead*float64(l.resident)), some-int(streamsLeft*float64(l.resident)), passSegments-n)
		n += max(more, 0)
	}
	return segs[:n]
}

// passReady reports whether the wait of the pass is over.
func (h *Heap) passReady() bool { return h.scopes.passed(h.pass.epoch.Load()) }

// finishPass evacuates the segments of the pass.
func (h *Heap) finishPass() {
	ps, l := &h.pass, &h.logs
	failpoint.Hit("far.settling")
	for _, s := range ps.segs {
		l.segs[s].phase.Store(phaseSettling)
	}
	// Whoever pins from now on sees that the wait is over; the others' pins
	// are visible.
	ps.pinned = ps.pinned[:0]
	h.scopes.each(func(s *Scope) {
		for i := range s.pins {
			if addr := s.pins[i].Load(); addr != 0 {
				ps.pinned = append(ps.pinned, addr)
			}
		}
	})
	for _, addr := range ps.pinned {
		// A pin may be of an earlier pass, and what is there be anything.
		number := headNumber(l.object(addr).head())
		if l.segmentOf(addr).phase.Load() == phaseSettling && h.words.has(number) {
			h.unmark(h.words.at(number), addr)
		}
	}
	for _, s := range ps.segs {
		l.segs[s].phase.Store(phaseMoving)
	}
	failpoint.Hit("far.moving")
	for _, s := range ps.segs {
		h.turn.keep()
		ps.tight = l.tight()
		h.evacuateObjects(s)
		if l.hasRoom() {
			l.finish(nil) // nobody waits for the rest of the pass
		}
		h.scopes.roomMade()
	}
	ps.epoch.Store(0)
	ps.passes.Add(1)
	failpoint.Hit("far.passed")
}

// tight reports whether scopes have taken some of what is set aside for them.
func (l *logs) tight() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.available() < l.keep(forMutator)
}

// renewed reports whether there are objects that the evacuator has not seen.
func (l *logs) renewed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	fresh := l.fresh
	l.fresh = false
	return fresh
}

// gained is the number of segments that the evacuator has made room of so far.
func (l *logs) gained() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gain
}

// unmark leaves the object at addr, which p may be, where it is.
func (h *Heap) unmark(p *uint64, addr uintptr) {
	for w := loadWord(p); w.local() && w.marked() && w.addr() == addr; w = loadWord(p) {
		if casWord(p, w, w.unmarked()) {
			return
		}
	}
}

// evacuateObjects empties segment s, whose marked objects are nobody's, and
// releases it if nothing is left in it.
func (h *Heap) evacuateObjects(s int) {
	l, ps := &h.logs, &h.pass
	seg := &l.segs[s]
	h.count.evacuatedSegments.Add(1)
	var failed error
	what := ps.what
	h.eachObject(s, func(p *uint64, o object, addr uintptr) bool {
		for {
			out := h.evacuateObject(p, o, addr, what)
			if out == outcomeDone {
				return true
			}
			if err := h.settleObjects(seg); err != nil {
				failed = err
				what = evictClean
			} else if !h.farReady(farObjectSize(len(o) - objectHeader)) {
				ps.full = h.far.err == nil || errors.Is(h.far.err, ErrStoreFull)
				h.far.close()
				what = evictClean
			}
		}
	})
	if err := h.settleObjects(seg); err != nil {
		failed = err
	}
	h.accountDropped(seg)
	l.note(failed)
	if seg.live.Load() != 0 {
		// What is left is what could not be moved, or was used meanwhile.
		h.eachObject(s, func(p *uint64, _ object, addr uintptr) bool {
			h.unmark(p, addr)
			return true
		})
	}
	seg.phase.Store(phaseNone)
	if seg.live.Load() == 0 && seg.freed.Load() < ps.epoch.Load() {
		h.releaseObjects(s)
		return
	}
	// It comes last next time: others may have become easier.
	l.mu.Lock()
	l.seq++
	seg.seq = l.seq
	l.mu.Unlock()
}

// releaseObjects takes back a segment of objects of which nobody holds an
// address.
func (h *Heap) releaseObjects(s int) {
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

// evacuateObject deals with the object at addr, which p may be.
func (h *Heap) evacuateObject(p *uint64, o object, addr uintptr, what aim) outcome {
	ps, l := &h.pass, &h.logs
	w := loadWord(p)
	if !w.local() || !w.marked() || w.addr() != addr {
		return outcomeDone
	}
	tail := atomic.LoadUint64(o.tail())
	failpoint.Hit("far.evacuating")
	c := h.class(tailClass(tail))
	n := len(o) - objectHeader
	far := tailFar(tail)
	clean := false
	if far != 0 {
		seg := h.far.seg(far)
		if seg == nil {
			return outcomeDone // somebody has taken the object, and nothing lives in seg any more
		}
		clean = !seg.gone()
	}
	cold := w.coldness()
	hot := cold < c.cfg.HotBits && !ps.tight && ps.kept+objectSize(n) <= int(keepAtMost*float64(l.segSize*len(ps.segs)))
	if what == compact || hot || what == evictClean && !clean {
		if what != compact {
			cold++
		}
		if h.moveObject(p, w, o, tail, cold) {
			ps.kept += objectSize(n)
			return outcomeDone
		}
		if what != evict {
			h.unmark(p, addr)
			return outcomeDone
		}
	}
	if clean {
		if casWord(p, w, farWord(far, farObjectSize(n), c.id)) {
			if ps.clean.c != c {
				h.accountDropped(l.segmentOf(addr))
				ps.clean.c = c
			}
			ps.clean.n++
			ps.clean.bytes += objectSize(n)
			h.becameFar(c, o)
		}
		return outcomeDone
	}
	if !h.far.fits(farObjectSize(n)) {
		return outcomeStagingFull
	}
	at := h.far.stageObject(headNumber(o.head()), c, o[objectHeader:])
	ps.staged = append(ps.staged, stagedObject{p, w, at, n})
	return outcomeDone
}

// accountDropped accounts for the objects of seg that were dropped: at once, which
// costs as much for all of them as for one.
func (h *Heap) accountDropped(seg *logSegment) {
	if d := &h.pass.clean; d.n > 0 {
		seg.live.Add(-int64(d.bytes))
		h.count.evacuatedClean.Add(uint64(d.n))
		d.c.evacuatedClean.Add(uint64(d.n))
		d.c.evacuated.Add(uint64(d.n))
		*d = dropped{}
	}
}

// moveObject moves a marked object to the end of the evacuator's log. It fails
// if there is no room.
func (h *Heap) moveObject(p *uint64, w pword, o object, tail uint64, cold int) bool {
	n := len(o) - objectHeader
	ol := &h.logs.hotObjects
	ol.mu.Lock()
	defer ol.mu.Unlock()
	b, at, ok := h.logs.place(ol, objectSize(n), forEvacuator)
	if !ok {
		return false
	}
	to := object(b)
	copy(to[objectHeader:], o[objectHeader:])
	clear(to[objectHeader+n:])
	atomic.StoreUint64(to.tail(), tail)
	to.setHead(o.head())
	addr := h.logs.base + uintptr(at)*unit + objectHeader
	if casWord(p, w, localWord(addr, min(cold, coldest))) {
		h.logs.segmentOf(w.addr()).live.Add(-int64(objectSize(n)))
	} else {
		h.dropSlot(addr, n)
	}
	return true
}

// settleObjects writes what is staged and turns the words.
func (h *Heap) settleObjects(seg *logSegment) error {
	ps := &h.pass
	to, bytes := h.far.open, h.far.staged
	err := h.far.flush(h.ctx)
	if err == nil {
		h.count.bytesOut.Add(uint64(bytes))
	}
	failpoint.Hit("far.settled")
	for _, d := range ps.staged {
		o := h.logs.object(d.w.addr())
		size := farObjectSize(d.n)
		c := h.class(tailClass(atomic.LoadUint64(o.tail())))
		if err != nil || to.gone() || !casWord(d.p, d.w, farWord(d.far, size, c.id)) {
			to.live.Add(-int64(roundSize(size)))
			continue
		}
		h.count.evacuated.Add(1)
		c.evacuated.Add(1)
		c.bytesOut.Add(uint64(d.n))
		h.soil(o) // a copy that was lost is buried now, when nobody else can have the object
		h.becameFar(c, o)
		seg.live.Add(-int64(objectSize(d.n)))
	}
	ps.staged = ps.staged[:0]
	if to != nil && to.dead() {
		h.wakeJanitor()
	}
	return err
}

// becameFar tells the class of o.
func (h *Heap) becameFar(c *class, o object) {
	if c.cfg.Evacuated != nil {
		c.cfg.Evacuated(AnyRef{headNumber(o.head())})
	}
}

// stageObject is stage for an object.
func (f *farLog) stageObject(number uint64, c *class, data []byte) uint64 {
	n := farObjectSize(len(data))
	addr := f.open.id*f.units + uint64(f.open.end+f.staged)/unit
	e := entry(f.staging[f.staged : f.staged+n])
	putFar(e, number, c.serial, data)
	if c.cfg.Evacuating != nil {
		v := e.value()
		c.cfg.Evacuating(v[:len(v):len(v)])
	}
	e.seal(addr)
	f.staged += n
	f.open.live.Add(int64(roundSize(n)))
	f.open.filled.Add(int64(roundSize(n)))
	return addr
}

// objectLives reports whether a pointer refers to the far copy at addr of the
// object that e is.
func (h *Heap) objectLives(e entry, addr uint64) bool {
	if !h.words.has(e.number()) {
		return false
	}
	w := loadWord(h.words.at(e.number()))
	if w.far() {
		return w.farAddr() == addr
	}
	return w.local() && tailFar(atomic.LoadUint64(h.logs.object(w.addr()).tail())) == addr
}

// moveFar makes the pointer that refers to the far copy at from refer to that
// at to, and reports whether there is one. The evacuator calls it between
// passes, so that what is local stays where it is.
func (h *Heap) moveFar(e entry, from, to uint64) bool {
	p := h.words.at(e.number())
	for {
		w := loadWord(p)
		switch {
		case w.far():
			if w.farAddr() != from {
				return false
			}
			if casWord(p, w, w&^pword(addrMask)|pword(to)) {
				return true
			}
		case w.local() && w.marked():
			h.unmark(p, w.addr()) // or it might be copied while we write to it
		case w.local():
			tail := h.logs.object(w.addr()).tail()
			t := atomic.LoadUint64(tail)
			if tailFar(t) != from {
				if loadWord(p) == w {
					return false
				}
				continue
			}
			if atomic.CompareAndSwapUint64(tail, t, newTail(to, tailClass(t))) {
				return true
			}
		default:
			return false
		}
	}
}
