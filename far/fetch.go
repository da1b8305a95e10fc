package far

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
)

// flight is one read of a far entry, shared by all who want it. A flight that
// was begun with whole set is listed in its shard until it has landed.
//
// A flight pins its segment until the last one lets go of it, so that as long
// as the index has the same address, the bytes are the entry's.
type flight struct {
	sh    *shard
	tag   uint32
	word  word // the index's when it was begun
	addr  uint64
	seg   *farSegment
	whole bool // the entire entry, otherwise its header, its key and a bigHead
	n     int  // bytes to read
	short bool // they may turn out to be too few for the key
	refs  atomic.Int32
	buf   buffer

	done chan struct{} // closed when the fields below are set; nil if nobody joined
	e    entry         // nil if there is an error, or if the entry has moved
	err  error
	// mine: err is due to the leader's context; the others have to try again.
	mine bool
	kept bool // the entry is local now; under sh.mu
}

// corrupt reports whether the store answered with other bytes.
func (f *flight) corrupt() bool {
	_, ok := f.err.(*CorruptError)
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

// release lets go of f.
func (f *flight) release(h *Heap) {
	if f.refs.Add(-1) > 0 {
		return
	}
	h.bufs.put(f.buf)
	f.buf, f.e = buffer{}, nil
	if f.seg.pins.Add(-1) == 0 && f.seg.dead() {
		h.wakeJanitor()
	}
}

// board joins the flight of the far word w, or begins one of which the caller
// is the leader. If there is no buffer for it, it returns no flight but the
// channel to wait for, and the caller must let go of all its flights before it
// waits. A flight that is not whole reads the entry's header and as much of
// its key as klen bytes. sh.mu must be held.
func (h *Heap) board(sh *shard, tag uint32, w word, whole bool, klen int) (f *flight, leader bool, busy <-chan struct{}) {
	sh.count.misses++
	if f := sh.flights[w.addr()]; f != nil {
		f.refs.Add(1)
		if f.done == nil {
			f.done = make(chan struct{})
		}
		sh.count.coalesced++
		return f, false, nil
	}
	n := min(w.size(), h.far.segSize-h.far.offset(w.addr()))
	if !whole {
		n = min(n, headerSize+klen+bigHeadSize+trailerSize)
	}
	buf, busy := h.bufs.get(n)
	if busy != nil {
		return nil, false, busy
	}
	f = &flight{sh: sh, tag: tag, word: w, addr: w.addr(), seg: h.far.seg(w.addr()), whole: whole, n: n, buf: buf}
	f.short = n < w.size()
	f.refs.Store(1)
	f.seg.pins.Add(1)
	if whole {
		if sh.flights == nil {
			sh.flights = map[uint64]*flight{}
		}
		sh.flights[f.addr] = f
	}
	return f, true, nil
}

// lead makes flights that the caller began and returns when they have landed.
func (h *Heap) lead(ctx context.Context, m *ByteMap, fs ...*flight) {
	if len(fs) == 0 {
		return
	}
	var one [1]ReadOp
	ops := one[:]
	if len(fs) > 1 {
		ops = make([]ReadOp, len(fs))
	}
	for i, f := range fs {
		ops[i] = ReadOp{Seg: f.seg.seg, Off: h.far.offset(f.addr), Buf: f.buf.b}
	}
	h.far.store.Read(ctx, ops)
	for i, f := range fs {
		h.land(ctx, m, f, ops[i].Err)
	}
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

// land ends a flight whose read ended with err: checks the bytes, keeps a
// whole entry in local memory if it is still the index's and there is room,
// and wakes who waits for it.
func (h *Heap) land(ctx context.Context, m *ByteMap, f *flight, err error) {
	h.count.fetches.Add(1)
	switch {
	case err != nil:
		f.mine = ctx.Err() != nil
		f.err = fmt.Errorf("cannot fetch %d bytes from %s: %w", f.n, f.seg.seg.Name(), err)
	default:
		h.count.bytesIn.Add(uint64(f.n))
		if f.e, f.err = m.inspect(f); f.err != nil {
			h.count.corrupt.Add(1)
		}
	}
	if f.seg.gone() {
		h.wakeJanitor() // to account for what went with it
	}
	if !f.whole {
		return
	}
	f.sh.mu.Lock()
	delete(f.sh.flights, f.addr)
	if p := f.sh.t.find(f.tag, wordFar|word(f.addr)); p == none || f.sh.t.word(p).isLost() {
		f.e, f.err = nil, nil // everybody looks again
	} else if f.e != nil {
		h.keep(f, f.sh.t.word(p))
	}
	done := f.done
	f.sh.mu.Unlock()
	if done != nil {
		close(done)
	}
}

// keep puts the entry that f brought into the local logs, if they have room,
// and makes it the index's. f.sh.mu must be held.
func (h *Heap) keep(f *flight, w *word) {
	n := f.e.size()
	ol := h.openLog(f.sh)
	ol.mu.Lock()
	defer ol.mu.Unlock()
	e, addr, ok := h.logs.place(ol, n, forMutator)
	if !ok {
		return
	}
	clear(e[copy(e, f.e):])
	if f.seg.gone() { // rescued just in time
		e.setFar(0)
		f.seg.live.Add(-int64(w.size()))
	} else {
		h.logs.seg(addr).clean.Add(int64(n))
	}
	*w = newWord(addr, n, w.flags()) | wordFresh
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
		if done || h.logs.why() != nil || h.waitRoom(ctx, nil) != nil {
			return
		}
	}
}

// inspect checks the bytes that f brought. They may be anything.
func (m *ByteMap) inspect(f *flight) (entry, error) {
	bad := func(err error) (entry, error) {
		return nil, &CorruptError{Segment: f.seg.seg.Name(), Off: m.h.far.offset(f.addr), Err: err}
	}
	b := f.buf.b
	decode := decodeHead
	if f.whole {
		decode = decodeEntry
	}
	e, err := decode(b, f.addr)
	if err == errShort && f.short && !f.whole {
		return nil, nil
	}
	f.short = false
	switch {
	case err != nil:
		return bad(err)
	case e.mapID() != m.id || e.hash().tag() != f.tag || m.shard(e.hash()) != f.sh:
		return bad(errForeign)
	case e.wordFlags() != f.word.flags() || roundSize(e.size()) != f.word.size():
		return bad(errForeign)
	case e.big() && !m.h.plausible(bigOf(e)):
		return bad(errBigHead)
	}
	return e, nil
}

var errForeign = errors.New("they are not those of the entry that was looked for")
