package soft

import (
	"errors"
	"fmt"
	"sync"

	"polder/internal/processor"
)

// appender writes one log: objects one after another into a segment that nobody else writes. While an appender has a
// segment open, the segment is neither evacuated nor given a new life, even if it is revoked. So an appender that was
// slow in one life of a segment never writes into the next.
type appender struct {
	mu   sync.Mutex
	open bool
	seg  uint32
	gen  uint64
	at   uint32
	_    [64]byte // one cache line each
}

// maxInline is the largest payload that is one object. Larger values are split. A piece fills the rest of the open
// segment, if that is at least minPiece, or else a whole segment. So hardly any memory is left unused, and pieces are
// large: from a mebibyte on, memory is copied past the caches, which is one and a half times as fast.
const (
	maxInline = 256 << 10
	minPiece  = 64 << 10
	maxPiece  = SegmentSize - headerSize
)

// ErrTooLarge is what values beyond MaxValue are answered with.
var ErrTooLarge = fmt.Errorf("the value is larger than %d bytes", int64(MaxValue))

// MaxValue bounds one value.
const MaxValue = 1 << 30

// ErrNoMemory is what writes are answered with while the coordinator has taken
// nearly everything. It passes; a cache goes on without storing.
var ErrNoMemory = errors.New("no soft memory is granted")

// appender returns the log of the processor that the caller runs on.
func (h *Heap) appender() *appender { return &h.append[processor.Number()&(len(h.append)-1)] }

// place writes an object of the given parts into a log and returns where it lies. The object counts as live from
// here: the caller puts the word into its slot, or releases it. An evacuator that comes first drops the object, which
// no slot names yet, and then the word names an object that is gone: a cell's object is placed again (keepCell), a
// map's is in effect evicted early.
//
// Preconditions: hd.size is the sum of the parts and at most maxInline. No
// owner's lock is held.
//
//polder:hot
func (h *Heap) place(hd header, parts ...[]byte) (word, error) {
	a := h.appender()
	a.mu.Lock()
	w, err := h.placeIn(a, segYoung, hd, parts...)
	a.mu.Unlock()
	return w, err
}

// placePiece is place for the beginning of a value: as much of it as makes a
// piece. It returns how much that was.
func (h *Heap) placePiece(hd header, val []byte) (word, int, error) {
	a := h.appender()
	a.mu.Lock()
	defer a.mu.Unlock()
	n := min(len(val), maxPiece)
	if a.open && SegmentSize-a.at >= headerSize+minPiece {
		n = min(n, int(SegmentSize-a.at-headerSize))
	}
	hd.size = uint32(n)
	w, err := h.placeIn(a, segYoung, hd, val[:n])
	return w, n, err
}

// placeIn is place on a locked appender, whose segments are sealed into the
// given state.
func (h *Heap) placeIn(a *appender, seal segmentState, hd header, parts ...[]byte) (word, error) {
	n := granulesFor(int(hd.size))
	for {
		if !a.open || a.at+n*granule > SegmentSize || h.ctl.Generation(a.seg) != a.gen {
			if err := h.reopen(a, seal); err != nil {
				return 0, err
			}
		}
		w := makeWord(a.seg, a.gen, a.at, 0)
		h.base.putHeader(a.seg, a.at, hd)
		at := a.at + headerSize
		for _, p := range parts {
			at += uint32(copy(h.base.bytes(a.seg, at, uint32(len(p))), p))
		}
		a.at += n * granule
		// If the segment was revoked meanwhile, what we wrote is gone. charge compares the generations to find out.
		if h.charge(w, n) {
			return w, nil
		}
	}
}

// reopen seals an appender's segment and takes a fresh one.
func (h *Heap) reopen(a *appender, seal segmentState) error {
	h.closeLog(a, seal)
	if h.closed.Load() {
		return ErrClosed
	}
	for {
		seg, ok := h.takeFree(seal)
		if !ok {
			if seal == segOld {
				return ErrNoMemory
			}
			if err := h.evac.collect(); err != nil {
				return err
			}
			continue
		}
		gen := h.ctl.Generation(seg)
		if gen&1 != 0 { // revoked while it was free
			h.lose(seg)
			continue
		}
		h.store.populate(seg, gen)
		h.store.renew(seg)
		h.live[seg].Store(uint64(makeLive(gen)))
		a.open, a.seg, a.gen, a.at = true, seg, gen, 0
		return nil
	}
}

// closeLog seals an appender's segment.
func (h *Heap) closeLog(a *appender, seal segmentState) {
	if !a.open {
		return
	}
	a.open = false
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list.end[a.seg] = a.at
	h.list.set(a.seg, seal)
	if seal == segOld {
		h.list.old.push(a.seg)
	} else {
		h.list.young.push(a.seg)
	}
}

// sealOne seals an open segment that nobody is writing to at the moment, and reports whether there was one. It is for
// a heap so small that all its segments may be open.
func (h *Heap) sealOne() bool {
	for i := range h.append {
		a := &h.append[i]
		if !a.mu.TryLock() { // waiting would go against the order of locks
			continue
		}
		open := a.open
		h.closeLog(a, segYoung)
		a.mu.Unlock()
		if open {
			return true
		}
	}
	return false
}

// takeFree takes a free segment for an appender. The mutators' appenders leave one segment behind for the evacuator,
// which needs somewhere to put what it saves.
func (h *Heap) takeFree(seal segmentState) (uint32, bool) {
	keep := 1
	if seal == segOld {
		keep = 0
	}
	h.mu.Lock()
	seg, ok := h.list.popFree(keep)
	low := len(h.list.free) < h.evac.low(h.list.granted())
	h.mu.Unlock()
	if low {
		h.evac.wake()
	}
	return seg, ok
}

// lose strikes an open segment that was revoked before anything was written.
func (h *Heap) lose(seg uint32) {
	h.mu.Lock()
	h.list.set(seg, segAway)
	h.mu.Unlock()
}

// charge adds an object to its segment's account, unless the segment has
// been revoked.
func (h *Heap) charge(w word, granules uint32) bool {
	seg := w.segment()
	if !w.alive(h.ctl.Generation(seg)) {
		return false
	}
	h.live[seg].Add(uint64(liveDelta(granules)))
	return true
}

// release takes an object off its segment's account. It is called once, by
// whoever swapped the object's word out of its slot. If the segment has begun
// a new life, the account was closed with the old one.
func (h *Heap) release(w word, granules uint32) {
	h.settle(w.segment(), uint64(w>>genShift)&genMask<<1, liveDelta(granules))
}

// settle takes objects off a segment's account, unless the account is that of another life than theirs. gen is the
// generation of their life, or its low bits.
func (h *Heap) settle(seg uint32, gen uint64, d live) {
	a := &h.live[seg]
	for {
		l := live(a.Load())
		if (l.gen()^gen>>1)&genMask != 0 || l.objects() < d.objects() {
			return
		}
		if a.CompareAndSwap(uint64(l), uint64(l-d)) {
			return
		}
	}
}
