package heap

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"polder/far/object"
	"polder/internal/failpoint"
)

// pass is the evacuator's work on segments of objects (the paper's section 5.3), in four phases: it selects segments,
// marks the objects in them, waits for the scopes that were open before, and evacuates. While it waits it can work on
// segments of locked records, so that a scope that is held long does not keep those from being evacuated.
//
// A pass is the evacuator's alone, and there is one at a time.
type pass struct {
	number uint64
	segs   []int
	what   aim
	since  time.Time // when the wait began
	asked  time.Time // when those who wait for room were last asked, see askWaiters

	// epoch: the pass waits for scopes that were open in an earlier epoch; 0: no pass.
	epoch atomic.Int64

	// Passes counts the beginnings and the ends of passes: it is odd during one.
	Passes atomic.Uint64

	// best is the highest that gained was after a pass, since mutators last took segments. Passes still make room
	// only if they exceed it: a pass that gains only what the one before it has lost could do so for ever.
	best int

	Ev     Evacuation
	pinned []uintptr // the addresses that scopes had pinned when the wait was over
}

func (ps *pass) active() bool { return ps.epoch.Load() != 0 }

const (
	// passSegments is the most that one pass takes.
	passSegments = 64
	// streamsAhead is the part of all segments that a pass may take beyond what is lacking, if they are without
	// temporal locality, so that many segments share the cost of a pass.
	streamsAhead = 1.0 / 16
	// streamsLeft is the part of all segments that a pass then leaves of those without temporal locality: the
	// youngest may have been prefetched, and not used yet.
	streamsLeft = 1.0 / 4
)

// The phases of a segment that the evacuator empties (the paper's section 5.3). Scopes that were open when its objects
// were marked may hold their addresses, and are waited for. Whoever meets a mark meanwhile goes on using the object
// where it is, and says so by a pin; what is pinned when the wait is over is left alone. After that nobody holds the
// address of a marked object, so that it can be copied: by the evacuator, or by those who meet the mark, who race by
// CAS.
const (
	PhaseNone     uint32 = iota
	PhaseWaiting         // for scopes that were open before
	PhaseSettling        // what is pinned is being left alone
	PhaseMoving          // the marked objects are nobody's
)

// beginPass selects about n segments of objects and marks what is in them. It reports false if there are none.
func (h *Heap) beginPass(n int, what aim) bool {
	ps := &h.Pass
	ps.segs = h.Logs.selectObjects(ps.segs[:0], min(n, passSegments), what, h.policy)
	if len(ps.segs) == 0 {
		return false
	}
	h.mark(what)
	return true
}

// mark begins the pass: it marks what is in the segments of the pass.
func (h *Heap) mark(what aim) {
	ps := &h.Pass
	ps.number++
	ps.Passes.Add(1)
	h.Count.passes.Add(1)
	ps.what, ps.Ev.kept, ps.Ev.full = what, 0, false
	ps.Ev.most = int(keepAtMost * float64(h.Logs.SegSize*len(ps.segs)))
	for _, s := range ps.segs {
		h.Logs.Segs[s].Phase.Store(PhaseWaiting)
	}
	failpoint.Hit("far.marking")
	m := h.host.Marker()
	for _, s := range ps.segs {
		h.turn.keep()
		h.Logs.walk(s, func(r Local, _ uint16) bool {
			m.Mark(object.HeadNumber(object.Object(r.Mem).Head()), h.Logs.DataOf(r.Addr), ps.number)
			return true
		})
	}
	ps.epoch.Store(h.Scopes.Begin())
	ps.since = time.Now()
	failpoint.Hit("far.waiting")
}

// selectObjects appends up to n sealed segments of objects: those in which nothing lives, then those without temporal
// locality, then the rest, in the order of p. If they are to be compacted, the order is that of how much lives in
// them. If segments in which nothing lives or that are without temporal locality are to be evicted, it may append
// some more of them: see streamsAhead.
func (l *Logs) selectObjects(segs []int, n int, what aim, p Policy) []int {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	for i := range l.Segs[:l.top] {
		s := &l.Segs[i]
		if !s.sealed || !s.Kind.scoped() {
			continue
		}
		if what == compact && s.Live.Load() > int64(float64(l.SegSize)*(1-worthwhile)) {
			continue
		}
		segs = append(segs, i)
	}
	place := l.ranks(p)
	rank := func(i int) int64 {
		s := &l.Segs[i]
		switch live := s.Live.Load(); {
		case live == 0:
			return -2
		case what == compact:
			return live
		case s.Kind == Streamed && l.seq-s.seq > uint64(float64(l.resident)*streamsLeft):
			return -1 // the younger ones may have been prefetched, and not used yet
		}
		return int64(place(s) & math.MaxInt64)
	}
	slices.SortFunc(segs, func(a, b int) int {
		if ra, rb := rank(a), rank(b); ra != rb {
			if ra < rb {
				return -1
			}
			return 1
		}
		return int(int64(l.Segs[a].seq) - int64(l.Segs[b].seq))
	})
	if n >= len(segs) {
		return segs
	}
	if what == Evict {
		some := 0
		for _, i := range segs[n:] {
			if s := &l.Segs[i]; s.Kind == Streamed || s.Live.Load() == 0 {
				some++
			}
		}
		more := min(int(streamsAhead*float64(l.resident)), some-int(streamsLeft*float64(l.resident)), passSegments-n)
		n += max(more, 0)
	}
	return segs[:n]
}

// passReady reports whether the wait of the pass is over.
func (h *Heap) passReady() bool { return h.Scopes.Passed(h.Pass.epoch.Load()) }

// finishPass evacuates the segments of the pass.
func (h *Heap) finishPass() {
	ps, l := &h.Pass, &h.Logs
	failpoint.Hit("far.settling")
	for _, s := range ps.segs {
		l.Segs[s].Phase.Store(PhaseSettling)
	}
	// Whoever pins from now on sees that the wait is over; earlier pins are visible here.
	ps.pinned = ps.pinned[:0]
	h.Scopes.each(func(s *Scope) {
		for i := range s.pins {
			if addr := s.pins[i].Load(); addr != 0 {
				ps.pinned = append(ps.pinned, addr)
			}
		}
	})
	for _, addr := range ps.pinned {
		// The pin may be from an earlier pass, and anything may lie at addr by now.
		if l.SegmentOf(addr).Phase.Load() == PhaseSettling {
			h.host.Marker().Unmark(object.HeadNumber(l.Object(addr).Head()), addr)
		}
	}
	for _, s := range ps.segs {
		l.Segs[s].Phase.Store(PhaseMoving)
	}
	failpoint.Hit("far.moving")
	for _, s := range ps.segs {
		h.turn.keep()
		ps.Ev.Tight = l.tight()
		l.Segs[s].passed = ps.epoch.Load()
		if ps.what == writeBack {
			h.backing.failed(h.writeBack(s, &ps.Ev))
			continue
		}
		h.Empty(s, &ps.Ev, ps.what)
		if l.HasRoom() {
			l.finish(nil) // nobody waits for the rest of the pass
		}
		h.Scopes.RoomMade()
	}
	ps.epoch.Store(0)
	ps.Passes.Add(1)
	failpoint.Hit("far.passed")
}

// tight reports whether scopes have taken some of what is set aside for them.
func (l *Logs) tight() bool {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return l.available() < l.keep(ForMutator)
}

// renewed reports whether mutators have taken segments since it was last called: there may be objects that the
// evacuator has not seen.
func (l *Logs) renewed() bool {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	fresh := l.fresh
	l.fresh = false
	return fresh
}

// gained is how many segments the evacuator has released so far, less those that it took, with those that will be
// empty when what it has staged is written.
func (l *Logs) gained() int {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return l.gain + l.emptying
}

// leave ends the pass for seg, and takes seg back if nothing is left in it whose address anybody may hold.
func (h *Heap) leave(seg *LogSegment) {
	l := &h.Logs
	if seg.Live.Load() != 0 {
		// What is left is what could not be moved, or was used meanwhile.
		m := h.host.Marker()
		l.walk(seg.id, func(r Local, _ uint16) bool {
			m.Unmark(object.HeadNumber(object.Object(r.Mem).Head()), l.DataOf(r.Addr))
			return true
		})
	}
	seg.Phase.Store(PhaseNone)
	if seg.Live.Load() == 0 && seg.Freed.Load() < seg.passed {
		h.takeBack(seg)
		return
	}
	// It comes last next time: others may have become easier.
	l.Mu.Lock()
	l.seq++
	seg.seq = l.seq
	l.Mu.Unlock()
}
