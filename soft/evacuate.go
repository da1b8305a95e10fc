package soft

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"polder/soft/internal/order"
)

// evacuator empties segments: it clears the slots of what is cold, copies
// what is hot into a log of its own, and gives the segment a new life. It
// works in the background so as to keep a few segments free, and in the
// caller's goroutine when there is none.
//
// Its three stages are the paper's. Scanning finds how much of a segment is
// live; the account kept beside each segment says so without reading it.
// Compaction takes the segment with the least to save. Sorting ranks the rest
// by the sum of size times hotness, for the coordinator (rank.go).
//
// Which segment is emptied when all are full of live objects? The segments written lately by mutators (young) are a
// first-in-first-out queue, of a tenth of the memory to begin with; when one is emptied, the objects that were read
// are saved. The other segments (old) are a clock. That is S3-FIFO, with logs for queues, and with a share of the
// young that adapts.
type evacuator struct {
	h  *Heap
	mu sync.Mutex // held while segments are emptied

	// youngShare is how many bytes the young segments may take. While they take more, they are emptied before old
	// ones.
	youngShare atomic.Int64
	total      int64 // the heap's memory, in bytes, when bound last looked; under Heap.mu

	kick  chan struct{}
	rank  ranking
	swept uint64 // lost objects seen by the last sweep
}

func (e *evacuator) init(h *Heap) {
	e.h = h
	e.kick = make(chan struct{}, 1)
	e.youngShare.Store(h.cfg.Budget / 10)
	e.total = h.cfg.Budget
}

// low is how many free segments the evacuator keeps in a heap that was granted so many: fewer are too few.
func (e *evacuator) low(granted int) int { return min(2+granted/64, 32) }

func (e *evacuator) wake() {
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

// tick is how often the evacuator looks around by itself.
const tick = 200 * time.Millisecond

func (e *evacuator) run(ctx context.Context) {
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.kick:
		case <-t.C:
			e.notice()
			e.rank.refresh(e.h)
		}
		for ctx.Err() == nil && e.freeIsLow() {
			if e.collectOne() != nil {
				break
			}
		}
	}
}

func (e *evacuator) freeIsLow() bool {
	e.h.mu.Lock()
	defer e.h.mu.Unlock()
	l := &e.h.list
	return l.counts[segYoung]+l.counts[segOld] > 0 && len(l.free) < e.low(l.granted())
}

// collect frees a segment, unless somebody else has meanwhile.
func (e *evacuator) collect() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.h.mu.Lock()
	ok := len(e.h.list.free) > 1
	e.h.mu.Unlock()
	if ok {
		return nil
	}
	return e.emptyOne()
}

func (e *evacuator) collectOne() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.emptyOne()
}

// emptyOne empties one segment. It passes over old segments in which nearly every object would be saved: their
// objects are aged instead of copied. The more segments it has passed over, the hotter an object must be to be saved.
//
// Preconditions: e.mu is held.
func (e *evacuator) emptyOne() error {
	for tries := 0; ; tries++ {
		seg, from, ok := e.choose()
		if !ok {
			if e.retireRevoked() > 0 || e.h.sealOne() {
				continue
			}
			return ErrNoMemory
		}
		v := victim{e: e, seg: seg, gen: e.h.ctl.Generation(seg), end: e.h.end(seg)}
		if e.h.isGone(seg) {
			e.retire(seg)
			continue
		}
		if live(e.h.live[seg].Load()).objects() == 0 { // as after overwriting: nothing to look at
			e.retire(seg)
			return nil
		}
		switch {
		case from == segTaken: // sparse: save all of it
			v.keep = -1
		case from == segYoung:
			v.young = true
		case from == segOld:
			v.keep = min(tries/8, hottest)
			if tries < 24 && e.passOver(&v) {
				e.h.mu.Lock()
				e.h.list.set(seg, segOld)
				e.h.list.old.push(seg)
				e.h.mu.Unlock()
				continue
			}
		}
		v.empty()
		e.retire(seg)
		return nil
	}
}

// choose takes the segment to empty: the sparsest segment if any is sparse (then the returned state is segTaken),
// else the oldest young segment if the young have more than their share, else the oldest old one.
func (e *evacuator) choose() (seg uint32, from segmentState, ok bool) {
	h := e.h
	h.mu.Lock()
	defer h.mu.Unlock()
	l := &h.list
	e.bound()
	best, bestGranules := uint32(0), uint32(segGranules/3)
	for _, q := range []*queue{&l.young, &l.old} {
		q.each(func(s uint32) bool {
			if g := live(h.live[s].Load()).granules(); g < bestGranules {
				best, bestGranules, ok = s, g, true
			}
			return bestGranules > 0
		})
	}
	if ok {
		if !l.young.remove(best) {
			l.old.remove(best)
		}
		l.set(best, segTaken)
		return best, segTaken, true
	}
	q, from := &l.old, segOld
	if y := l.young.len(); int64(y)*SegmentSize > e.youngShare.Load() || l.old.len() == 0 {
		q, from = &l.young, segYoung
	}
	seg, ok = q.pop()
	if ok {
		l.set(seg, segTaken)
	}
	return seg, from, ok
}

// shift makes the share of the young larger, or smaller, by n bytes.
func (e *evacuator) shift(n int64, young bool) {
	if !young {
		n = -n
	}
	e.youngShare.Add(n)
}

// bound scales the share of the young as the heap's memory has changed since the last time: else, in a heap that
// shrinks, hot objects would make room for merely new ones. It keeps the share between a fiftieth and nine tenths of
// the memory.
//
// Preconditions: Heap.mu is held.
func (e *evacuator) bound() {
	total := int64(e.h.list.granted()) * SegmentSize
	share := e.youngShare.Load()
	in := int64(float64(share) * float64(total) / float64(max(e.total, 1)))
	e.total = total
	if in = min(max(in, total/50), total*9/10); in != share {
		e.youngShare.Add(in - share)
	}
}

// passOver ages a segment in which nearly everything would be saved, and
// reports whether it did.
func (e *evacuator) passOver(v *victim) bool {
	var saved uint32
	v.walk(func(w word, hd header) bool {
		if v.worth(w, hd) > v.keep {
			saved += granulesFor(int(hd.size))
		}
		return true
	})
	if saved < segGranules*7/8 {
		return false
	}
	hot := e.h.hot[int(v.seg)*hotPerSeg : (int(v.seg)+1)*hotPerSeg]
	for i, n := range hot {
		if n > 0 {
			hot[i] = n - 1
		}
	}
	return true
}

func (h *Heap) end(seg uint32) uint32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.list.end[seg]
}

// retire ends a segment's life: its account is closed, and it becomes free,
// or goes away if it was revoked meanwhile.
//
// Preconditions: e.mu is held; the segment is in none of the queues.
func (e *evacuator) retire(seg uint32) {
	h := e.h
	recycled := h.ctl.Recycle(seg)
	l := live(h.live[seg].Swap(0))
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.objects() > 0 { // lost to a revocation, or never named by a slot: see Heap.place
		h.count.lostObjects.Add(uint64(l.objects()))
		h.count.lostBytes.Add(uint64(l.granules()) * granule)
	}
	if recycled {
		h.ctl.SetRank(seg, rankFree)
		h.list.pushFree(seg)
		return
	}
	h.list.set(seg, segAway)
	h.count.revoked.Add(1)
}

// retireRevoked strikes out sealed and free segments that have been revoked
// and returns how many there were.
//
// Preconditions: e.mu is held.
func (e *evacuator) retireRevoked() int {
	h := e.h
	var gone []uint32
	h.mu.Lock()
	for _, q := range []*queue{&h.list.young, &h.list.old} {
		q.each(func(seg uint32) bool {
			if h.isGone(seg) {
				gone = append(gone, seg)
			}
			return true
		})
	}
	free := h.list.free[:0]
	n := 0
	for _, seg := range h.list.free {
		if h.ctl.Granted(seg) {
			free = append(free, seg)
			continue
		}
		h.list.set(seg, segAway)
		h.count.revoked.Add(1)
		n++
	}
	h.list.free = free
	for _, seg := range gone {
		if !h.list.young.remove(seg) {
			h.list.old.remove(seg)
		}
		h.list.set(seg, segTaken)
	}
	h.mu.Unlock()
	for _, seg := range gone {
		h.huge[seg].Store(false)
		e.retire(seg)
	}
	return n + len(gone)
}

// isGone reports whether a sealed segment has been revoked since it was
// written, even if it has been granted again.
func (h *Heap) isGone(seg uint32) bool {
	gen := h.ctl.Generation(seg)
	return gen&1 != 0 || live(h.live[seg].Load()).gen() != gen>>1&liveGen
}

// notice strikes out what was revoked, takes in what was granted, and clears
// the slots of objects that are gone.
func (e *evacuator) notice() {
	h := e.h
	for i := range h.append { // before e.mu: an appender's lock comes first

		a := &h.append[i]
		a.mu.Lock()
		if a.open && h.ctl.Generation(a.seg) != a.gen {
			h.closeLog(a, segYoung)
		}
		a.mu.Unlock()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := &h.survive; s.open && h.ctl.Generation(s.seg) != s.gen {
		h.closeLog(s, segOld)
	}
	e.retireRevoked()
	h.takeGranted()
	if n := h.count.lostObjects.Load(); n != e.swept {
		e.swept = n
		for _, o := range h.owners.all() {
			if o.owner != nil {
				o.owner.sweep()
			}
		}
	}
}

// victim is a segment that is being emptied.
type victim struct {
	e    *evacuator
	seg  uint32
	gen  uint64
	end  uint32
	keep int // objects that are hotter than this are saved

	young bool // it was written by mutators
}

// hotness is how often an object was read since it was last aged, up to
// hottest.
func (v *victim) hotness(w word) int {
	return int(v.e.h.hot[int(v.seg)*hotPerSeg+int(w.offset()/hotGranule)])
}

// worth is an object's hotness with its pool's priority added.
func (v *victim) worth(w word, hd header) int {
	return v.hotness(w) + v.e.h.owners.get(hd.owner).prio
}

// walk visits the objects that are not known to be dead. It stops if the
// segment is revoked: nothing is passed to f that was not proved.
func (v *victim) walk(f func(w word, hd header) bool) {
	h := v.e.h
	for off := uint32(0); off < v.end; {
		hd := h.base.header(v.seg, off)
		order.LoadFence()
		if h.ctl.Generation(v.seg) != v.gen || !hd.fits(off) {
			return
		}
		w := makeWord(v.seg, v.gen, off, 0)
		if !h.isDead(w) && !f(w, hd) {
			return
		}
		off += granulesFor(int(hd.size)) * granule
	}
}

// empty saves or evicts every object of the segment. It updates the segment's account and the counters once, at the
// end: an atomic operation for each object would take as long as all the rest.
func (v *victim) empty() {
	h := v.e.h
	var saved, evicted live
	before := h.count.evictedBytes.Load()
	var ghosts ghostBatch
	v.walk(func(w word, hd header) bool {
		own := h.owners.get(hd.owner)
		if own.owner == nil {
			return true
		}
		n := granulesFor(int(hd.size))
		h.markDead(w) // or it might be overwritten after it has been copied
		if v.keep < 0 || v.hotness(w)+own.prio > v.keep {
			if to, ok := v.save(w, hd); ok {
				h.setHot(to, max(v.hotness(w)-1, 0))
				if own.owner.swing(hd.ref, w, to) {
					saved += liveDelta(n)
				} else { // overwritten or deleted meanwhile
					h.markDead(to)
					h.release(to, n)
				}
				return true
			}
		}
		large := h.largeNamed(w, hd)
		if own.owner.swing(hd.ref, w, 0) {
			evicted += liveDelta(n)
			h.larges.drop(large)
			h.ghosts.add(&ghosts, hd, before+uint64(evicted.granules())*granule, v.young)
		}
		return true
	})
	h.ghosts.flush(&ghosts)
	h.settle(v.seg, v.gen, saved+evicted)
	h.count.saved.Add(uint64(saved.granules()) * granule)
	h.count.evictedObjects.Add(uint64(evicted.objects()))
	h.count.evictedBytes.Add(uint64(evicted.granules()) * granule)
}

// save copies an object into the evacuator's log. It fails if there is no
// room, or if the segment was revoked before the copy was complete.
func (v *victim) save(w word, hd header) (word, bool) {
	h := v.e.h
	off := w.offset()
	src := h.base.bytes(v.seg, off+headerSize, hd.size)
	to, err := h.placeIn(&h.survive, segOld, hd, src)
	if err != nil {
		return 0, false
	}
	order.LoadFence()
	if h.ctl.Generation(v.seg) != v.gen {
		h.markDead(to)
		h.release(to, granulesFor(int(hd.size)))
		return 0, false
	}
	return to, true
}

func (h *Heap) setHot(w word, n int) {
	h.hot[int(w.segment())*hotPerSeg+int(w.offset()/hotGranule)] = byte(n)
}

// touch counts an access to an object. Readers do it with plain loads and
// stores of a byte: a lost count does not matter, and a store that is late
// only makes something else a little hotter.
//
//polder:hot
func (h *Heap) touch(w word) {
	p := &h.hot[int(w.segment())*hotPerSeg+int(w.offset()/hotGranule)]
	if *p < hottest {
		*p++
	}
}
