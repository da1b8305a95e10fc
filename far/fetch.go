package far

import (
	"context"
	"fmt"
	"sync/atomic"

	"polder/far/heap"
)

// flight is one read of a far entry, shared by all who want it, who find it in its
// shard's list until it has landed. What nobody is to share or to keep is not listed,
// so that no lock is needed when it lands: headers, and what GetMany reads for the
// first time. What has been read is as good as when the index was looked at.
//
// A flight pins its segment until the last one lets go of it, so that as long
// as the index has the same address, the bytes are the entry's.
type flight struct {
	sh     *shard
	tag    uint32
	word   word // the index's when it was begun
	addr   uint64
	seg    *heap.FarSegment
	pin    int     // of seg
	whole  bool    // the entire entry, otherwise its header, its key and a bigHead
	listed bool    // it is in the shard's list until it has landed
	admit  bool    // it deserves a place in local memory; under sh.mu
	wants  wants   // the most that somebody wants of it; under sh.mu
	short  bool    // the bytes may turn out to be too few for the key
	block  *block  // where they are read to
	buf    []byte  // in it
	next   *flight // in the shard's list; under sh.mu
	prev   *flight // the same

	own block          // the block of one that is not part of a batch
	op  [1]heap.ReadOp // the read of it
	ref atomic.Int32   // how many have joined it and not let go, less 1 if its leader has

	done chan struct{} // closed when the fields below are set; nil if nobody joined
	e    heap.Record   // nil if there is an error, or if the entry has moved
	err  error
	// mine: err is due to the leader's context; the others have to try again.
	mine bool
	kept bool // the entry is local now; under sh.mu
}

// wants is what is wanted of an entry that is far. The later includes the former.
type wants uint8

const (
	wantsHead  wants = iota // its header and its key, and its bigHead if it has one
	wantsBytes              // all of it, which the caller takes from the flight
	wantsLook               // the same, in order to try again what the call is about
	wantsLocal              // to have it in local memory, whatever admits says
)

// block is a buffer, and those who use it: each flight that reads into it, and
// the batch that takes parts of it for flights.
type block struct {
	heap.Buffer
	refs atomic.Int32

	// The rest is the batch's.
	used  int   // bytes that were given out
	given int32 // to how many flights
}

// manyUses is more than a block ever has: a batch that goes on taking parts of it
// counts as so many, less those that it has given out.
const manyUses = 1 << 20

// carve takes n bytes of c, or returns nil if there are not as many left.
func (c *block) carve(n int) []byte {
	if c == nil || c.used+n > cap(c.B) {
		return nil
	}
	b := c.B[c.used : c.used+n : c.used+n]
	c.used += n
	c.given++
	return b
}

// letGo ends n uses of c.
func (h *Heap) letGo(c *block, n int32) {
	if c == nil || c.refs.Add(-n) > 0 {
		return
	}
	h.core.Bufs.Put(c.Buffer)
	c.Buffer = heap.Buffer{}
}

// corrupt reports whether the store answered with other bytes.
func (f *flight) corrupt() bool {
	_, ok := f.err.(*heap.CorruptError)
	return ok
}

// holding is the flights that a call holds, seldom more than one.
type holding struct{ flights []*flight }

func (hd *holding) add(f *flight) { hd.flights = append(hd.flights, f) }

// of returns the flight that brought the bytes of a far address, or the news
// that they are corrupt, or nil. One that is not whole does not count if whole
// is set.
func (hd *holding) of(addr uint64, whole bool) *flight {
	if hd == nil {
		return nil
	}
	for _, f := range hd.flights {
		if f.addr == addr && (f.whole || !whole) && (f.e != nil || f.corrupt()) {
			return f
		}
	}
	return nil
}

func (hd *holding) release(h *Heap) {
	for _, f := range hd.flights {
		f.release(h)
	}
	hd.flights = nil
}

// release lets go of f. Its leader does so when it has landed, or if it is not
// whole.
func (f *flight) release(h *Heap) {
	if f.done != nil && f.ref.Add(-1) >= 0 {
		return
	}
	h.letGo(f.block, 1)
	f.unpin(h)
	h.flights.Put(f.reset())
}

func (f *flight) unpin(h *Heap) {
	if f.seg.Unpin(f.pin) {
		h.core.WakeJanitor()
	}
}

// reset makes f, which nobody has any more, one to be used again.
func (f *flight) reset() *flight {
	if f.done != nil {
		f.done = nil
		f.ref.Store(0)
	}
	f.block, f.buf, f.seg, f.e, f.err, f.op[0] = nil, nil, nil, nil, nil, heap.ReadOp{}
	f.admit, f.mine, f.kept = false, false, false
	return f
}

// list adds f to those of the shard that are under way. sh.mu must be held.
func (sh *shard) list(f *flight) {
	f.prev, f.next = nil, sh.flights
	if f.next != nil {
		f.next.prev = f
	}
	sh.flights = f
}

// unlist takes f out of the shard's list. sh.mu must be held.
func (sh *shard) unlist(f *flight) {
	if f.next != nil {
		f.next.prev = f.prev
	}
	if f.prev != nil {
		f.prev.next = f.next
	} else {
		sh.flights = f.next
	}
	f.next, f.prev = nil, nil
}

// flightOf returns the flight of the far word w, or nil. sh.mu must be held.
func (sh *shard) flightOf(w word) *flight {
	if w&wordFlying == 0 {
		return nil
	}
	for f := sh.flights; f != nil; f = f.next {
		if f.addr == w.addr() {
			return f
		}
	}
	return nil
}

// board joins the flight of the far entry at p, or begins one of which the caller
// is the leader, as a part of b unless that is nil. If there is no buffer for it,
// it returns no flight but the channel to wait for, and the caller must let go of
// all its flights before it waits. Who wants the head gets as much of the key as
// klen bytes. sh.mu must be held.
func (h *Heap) board(sh *shard, tag uint32, p place, what wants, klen int, b *batch) (f *flight, leader bool, busy <-chan struct{}) {
	w := *sh.t.word(p)
	sh.count.misses++
	if f := sh.flightOf(w); f != nil {
		f.ref.Add(1)
		f.wants = max(f.wants, what)
		if f.done == nil {
			f.done = make(chan struct{})
		}
		sh.count.coalesced++
		return f, false, nil
	}
	n := min(w.size(), h.core.Far.SegSize-h.core.Far.Offset(w.addr()))
	if what == wantsHead {
		n = min(n, heap.HeaderSize+klen+bigHeadSize+heap.TrailerSize)
	}
	if f, busy = b.flight(h, n); busy != nil {
		return nil, false, busy
	}
	f.sh, f.tag, f.word, f.addr, f.seg, f.whole, f.wants = sh, tag, w, w.addr(), h.core.Far.Seg(w.addr()), what != wantsHead, what
	f.short = n < w.size()
	f.pin = f.seg.Pin()
	if f.whole {
		f.admit = sh.admits(h, sh.t.word(p))
	}
	if f.listed = f.whole && (f.admit || b == nil || what != wantsBytes); f.listed {
		*sh.t.word(p) |= wordFlying
		sh.list(f)
	}
	return f, true, nil
}

// flight returns a flight with a buffer of n bytes, or the channel to wait for. It
// is a part of b unless that is nil.
func (b *batch) flight(h *Heap, n int) (f *flight, busy <-chan struct{}) {
	if b != nil {
		return b.next(h, n)
	}
	f, _ = h.flights.Get().(*flight)
	if f == nil {
		f = new(flight)
	}
	if f.own.Buffer, busy = h.core.Bufs.Get(n); busy != nil {
		h.flights.Put(f)
		return nil, busy
	}
	f.own.refs.Store(1)
	f.block, f.buf = &f.own, f.own.B
	return f, nil
}

// lead makes a flight that the caller began and returns when it has landed.
func (h *Heap) lead(ctx context.Context, m *ByteMap, f *flight) {
	f.op[0] = f.read(h)
	h.core.Far.Store.Read(ctx, f.op[:])
	one := [1]*flight{f}
	h.landed(ctx, m, one[:], f.op[:])
}

// leadAll is lead for many, in one read of the store.
func (h *Heap) leadAll(ctx context.Context, m *ByteMap, fs []*flight) {
	if len(fs) == 0 {
		return
	}
	ops := make([]heap.ReadOp, len(fs))
	for i, f := range fs {
		ops[i] = f.read(h)
	}
	h.core.Far.Store.Read(ctx, ops)
	h.landed(ctx, m, fs, ops)
}

// read is the read that f is.
func (f *flight) read(h *Heap) heap.ReadOp {
	return heap.ReadOp{Seg: f.seg.Seg, Off: h.core.Far.Offset(f.addr), Buf: f.buf}
}

// landed ends the flights that reads were.
func (h *Heap) landed(ctx context.Context, m *ByteMap, fs []*flight, ops []heap.ReadOp) {
	bytes := 0
	for i, f := range fs {
		if ops[i].Err == nil {
			bytes += len(f.buf)
		}
		h.land(ctx, m, f, ops[i].Err)
	}
	h.core.Count.Fetches.Add(uint64(len(fs)))
	h.core.Count.BytesIn.Add(uint64(bytes))
}

// wait returns when f, which the caller has joined, has landed, or with the
// cause of ctx's end.
func (f *flight) wait(ctx context.Context) error {
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// land ends a flight whose read ended with err: checks the bytes, keeps the
// entry in local memory if it is to be kept, it is still the index's, and
// there is room; and wakes who waits for it.
func (h *Heap) land(ctx context.Context, m *ByteMap, f *flight, err error) {
	switch {
	case err != nil:
		f.mine = ctx.Err() != nil
		f.err = fmt.Errorf("cannot fetch %d bytes from %s: %w", len(f.buf), f.seg.Seg.Name(), err)
	default:
		if f.e, f.err = m.inspect(f); f.err != nil {
			h.core.Count.Corrupt.Add(1)
		}
	}
	if f.seg.Gone() {
		h.core.WakeJanitor() // to account for what went with it
	}
	if !f.listed {
		return
	}
	sh := f.sh
	sh.mu.Lock()
	sh.unlist(f)
	if p := sh.t.find(f.tag, wordFar|word(f.addr)); p == none || sh.t.word(p).isLost() {
		f.e, f.err = nil, nil // everybody looks again
	} else {
		w := sh.t.word(p)
		*w &^= wordFlying
		if f.e != nil && (f.admit || f.wants == wantsLocal) {
			h.keep(f, w)
		}
	}
	done := f.done
	sh.mu.Unlock()
	if done != nil {
		close(done)
	}
}

// keep puts the entry that f brought into the local logs, if they have room,
// and makes it the index's. f.sh.mu must be held.
func (h *Heap) keep(f *flight, w *word) {
	n := f.e.Size()
	ol := h.openLog(f.sh)
	ol.Mu.Lock()
	defer ol.Mu.Unlock()
	e, addr, ok := h.core.Logs.Place(ol, n, heap.ForMutator)
	if !ok {
		return
	}
	clear(e[copy(e, f.e):])
	if f.seg.Gone() { // rescued just in time
		e.SetFar(0)
		f.seg.Live.Add(-int64(w.size()))
	} else {
		h.core.Logs.Seg(addr).Clean.Add(int64(n))
	}
	*w = newWord(addr, n, w.flags())
	if f.wants != wantsBytes {
		*w |= wordFresh // it was not used yet
	}
	f.kept = true
}

// insist is keep for a flight that has landed when there was no room: it waits
// for some, within ctx, which bounds how long it may hold the buffer.
func (h *Heap) insist(ctx context.Context, f *flight) {
	for f.e != nil {
		f.sh.mu.Lock()
		p := f.sh.t.find(f.tag, wordFar|word(f.addr))
		if !f.kept && p != none && !f.sh.t.word(p).isLost() {
			h.keep(f, f.sh.t.word(p))
		}
		done := f.kept || p == none
		f.sh.mu.Unlock()
		if done || h.core.Logs.Why() != nil || h.core.WaitRoom(ctx) != nil {
			return
		}
	}
}

// inspect checks the bytes that f brought. They may be anything.
func (m *ByteMap) inspect(f *flight) (heap.Record, error) {
	bad := func(err error) (heap.Record, error) {
		return nil, &heap.CorruptError{Segment: f.seg.Seg.Name(), Off: m.h.core.Far.Offset(f.addr), Err: err}
	}
	b := f.buf
	decode := heap.DecodeHead
	if f.whole {
		decode = heap.DecodeEntry
	}
	e, err := decode(b, f.addr)
	if err == heap.ErrShort && f.short && !f.whole {
		return nil, nil
	}
	f.short = false
	switch {
	case err != nil:
		return bad(err)
	case e.Owner() != m.id || hashOf(e).tag() != f.tag || m.shard(hashOf(e)) != f.sh:
		return bad(heap.ErrForeign)
	case wordFlagsOf(e) != f.word.ofEntry() || heap.RoundSize(e.Size()) != f.word.size():
		return bad(heap.ErrForeign)
	case e.Big():
		if err := m.h.checkBig(e); err != nil {
			return bad(err)
		}
	}
	return e, nil
}
