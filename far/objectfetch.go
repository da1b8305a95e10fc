package far

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
)

// fetchInPlace is the size in bytes from which on far objects are read to where
// they are to stay, rather than into a buffer.
const fetchInPlace = 4 << 10

// pinFar returns the far segment of the word w, which p is, pinned, so that it
// is not given back while it is read. It returns nil if p has changed.
func (h *Heap) pinFar(p *uint64, w pword) *farSegment {
	seg := h.far.seg(w.farAddr())
	if seg == nil {
		return nil
	}
	// The cleaner turns words first and looks for pins afterwards.
	seg.pins.Add(1)
	if loadWord(p) == w && h.far.seg(w.farAddr()) == seg {
		return seg
	}
	h.unpinFar(seg)
	return nil
}

func (h *Heap) unpinFar(seg *farSegment) {
	if seg.pins.Add(-1) == 0 && seg.dead() {
		h.wakeJanitor()
	}
}

// landing is a far object on its way into local memory.
type landing struct {
	p    *uint64
	w    pword
	seg  *farSegment // pinned
	what int
	buf  buffer // what it is read into, or else
	slot object // where it is read to
	addr uintptr
	room int // bytes of data that slot has
}

// target is the bytes that the read is to fill.
func (d *landing) target() []byte {
	if d.slot != nil {
		return d.slot[objectHeader : objectHeader+d.room]
	}
	return d.buf.b
}

// board begins the fetch of d.p, or says what to wait for: a buffer if busy is
// not nil. It fails with errAgain if the word has changed, and with errNoRoom.
func (h *Heap) boardObject(s *Scope, d *landing) (busy <-chan struct{}, err error) {
	if d.seg = h.pinFar(d.p, d.w); d.seg == nil {
		return nil, errAgain
	}
	if d.seg.gone() {
		err = &LostError{d.seg.seg.Name()}
		h.unpinFar(d.seg)
		return nil, err
	}
	n := min(d.w.farSize(), h.far.segSize-h.far.offset(d.w.farAddr()))
	if size := h.class(d.w.farClass()).size; size >= 0 {
		n = min(n, farObjectSize(size)) // farSize is rounded up
	}
	if n >= fetchInPlace {
		// Until it has landed, the slot is nobody's.
		k := objects
		if d.what&derefStream != 0 {
			k = streams
		}
		d.room = n
		d.slot, d.addr, err = h.newSlot(s, k, objectHead(0, n), 0, n)
	} else {
		d.buf, busy = h.bufs.get(n)
	}
	if err != nil || busy != nil {
		h.unpinFar(d.seg)
	}
	return busy, err
}

// abandon ends a fetch that has failed.
func (h *Heap) abandon(d *landing) {
	if d.slot != nil {
		h.dropSlot(d.addr, d.room)
	}
	h.bufs.put(d.buf)
	h.unpinFar(d.seg)
}

// landObject ends a fetch whose read ended with err: checks the bytes and makes
// the object local. The fetch has ended afterwards, whatever it returns.
func (h *Heap) landObject(s *Scope, d *landing, err error) error {
	b := d.target()
	h.count.fetches.Add(1)
	if err != nil {
		defer h.abandon(d)
		if d.seg.gone() {
			h.wakeJanitor()
			return &LostError{d.seg.seg.Name()}
		}
		return fmt.Errorf("cannot fetch %d bytes from %s: %w", len(b), d.seg.seg.Name(), err)
	}
	h.count.bytesIn.Add(uint64(len(b)))
	number := h.words.number(d.p)
	e, c, err := h.inspectObject(b, number, d.w)
	if err != nil {
		defer h.abandon(d)
		if loadWord(d.p) != d.w {
			return errAgain // the bytes were not needed any more
		}
		h.count.corrupt.Add(1)
		return &CorruptError{Segment: d.seg.seg.Name(), Off: h.far.offset(d.w.farAddr()), Err: err}
	}
	n := e.vlen()
	tail := newTail(d.w.farAddr(), c.id)
	if d.slot == nil {
		k := objects
		if d.what&derefStream != 0 {
			k = streams
		}
		if d.slot, d.addr, err = h.newSlot(s, k, objectHead(number, n), tail, n); err != nil {
			defer h.abandon(d)
			return err
		}
		d.room = n
		clear(d.slot[objectHeader+copy(d.slot[objectHeader:], e.value()):])
	} else {
		h.trim(d, e, tail, number)
	}
	if c.cfg.Fetched != nil {
		c.cfg.Fetched(d.slot[objectHeader : objectHeader+n : objectHeader+n])
	}
	coldness := c.cfg.HotBits
	if d.what&derefStream != 0 {
		coldness = coldest
	}
	h.bufs.put(d.buf)
	d.buf = buffer{}
	if !casWord(d.p, d.w, localWord(d.addr, coldness)) {
		h.abandon(d)
		return errAgain
	}
	if s != nil {
		c.misses.Add(1)
	}
	c.bytesIn.Add(uint64(n))
	h.unpinFar(d.seg)
	return nil
}

// trim makes the slot into which the entry e was read one of just its data,
// and of the rest another that is nobody's.
func (h *Heap) trim(d *landing, e entry, tail, number uint64) {
	n := e.vlen()
	o, whole := d.slot, objectSize(d.room)
	copy(o[objectHeader:], e.value())
	size := objectSize(n)
	clear(o[objectHeader+n : size])
	if rest := whole - size; rest > 0 {
		atomic.StoreUint64(object(o[size:]).tail(), 0)
		object(o[size:]).setHead(objectHead(0, rest-objectHeader))
		h.logs.segmentOf(d.addr).live.Add(-int64(rest))
	}
	atomic.StoreUint64(o.tail(), tail)
	o.setHead(objectHead(number, n))
	d.room = n
}

// fetchObject brings the far object of p, whose word is w, into local memory,
// for a scope.
func (h *Heap) fetchObject(ctx context.Context, s *Scope, p *uint64, w pword, what int) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, storeTimeout)
		defer cancel()
	}
	d := landing{p: p, w: w, what: what}
	for {
		busy, err := h.boardObject(s, &d)
		if err != nil {
			return s.noRoom(err, w.farSize())
		}
		if busy == nil {
			break
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return fmt.Errorf("cannot fetch an object: all buffers are in use: %w", context.Cause(ctx))
		}
	}
	ops := []ReadOp{{Seg: d.seg.seg, Off: h.far.offset(w.farAddr()), Buf: d.target()}}
	h.far.store.Read(ctx, ops)
	return s.noRoom(h.landObject(s, &d, ops[0].Err), w.farSize())
}

// Prefetch brings the objects of refs that are far into local memory, in as few
// reads of the store as it can, so that dereferencing them need not wait. It
// waits for local memory within ctx, and so must not be called in a scope. Refs
// to nothing and objects that are local are passed over; that an object is lost
// or corrupt, whoever dereferences it is told. With stream set they are objects
// without temporal locality.
func (h *Heap) Prefetch(ctx context.Context, refs []AnyRef, stream bool) error {
	if err := h.begin(); err != nil {
		return err
	}
	defer h.end()
	what := 0
	if stream {
		what = derefStream
	}
	b := objectBatch{h: h}
	if n := min(len(refs), maxBatch); n > 1 {
		b.led, b.flights, b.ops = make([]landing, 0, n), make([]*objectFlight, 0, n), make([]ReadOp, 0, n)
	}
	for _, r := range refs {
		if r.n == 0 {
			continue
		}
		if err := b.add(ctx, h.words.at(r.n), what); err != nil {
			return errOr(b.read(ctx), err)
		}
	}
	return b.read(ctx)
}

// objectBatch is objects that are fetched in one read of the store.
type objectBatch struct {
	h       *Heap
	led     []landing
	flights []*objectFlight
	ops     []ReadOp
	pending int
}

// add makes the object of p a part of the batch if it is far and nobody
// fetches it.
func (b *objectBatch) add(ctx context.Context, p *uint64, what int) error {
	h := b.h
	for {
		w := loadWord(p)
		if !w.far() {
			return nil
		}
		part := h.fetchingOf(p)
		part.mu.Lock()
		if part.by[p] != nil {
			part.mu.Unlock()
			return nil
		}
		f := &objectFlight{done: make(chan struct{})}
		if part.by == nil {
			part.by = map[*uint64]*objectFlight{}
		}
		part.by[p] = f
		part.mu.Unlock()

		d := landing{p: p, w: w, what: what}
		busy, err := h.boardObject(nil, &d)
		if err == nil && busy == nil {
			b.led, b.flights = append(b.led, d), append(b.flights, f)
			b.ops = append(b.ops, ReadOp{Seg: d.seg.seg, Off: h.far.offset(w.farAddr()), Buf: d.target()})
			if b.pending += len(d.target()); len(b.led) == maxBatch || b.pending >= maxBatchBytes {
				return b.read(ctx)
			}
			return nil
		}
		h.endFlight(p, f, nil)
		var lost *LostError
		switch {
		case errors.As(err, &lost):
			return nil
		case err == errAgain:
			continue
		case err != nil && err != errNoRoom:
			return err
		}
		// Who waits must hold nothing that others wait for.
		if err := b.read(ctx); err != nil {
			return err
		}
		if err == errNoRoom {
			if err := h.roomSoon(ctx); err != nil {
				return err
			}
			continue
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (h *Heap) endFlight(p *uint64, f *objectFlight, err error) {
	part := h.fetchingOf(p)
	part.mu.Lock()
	delete(part.by, p)
	part.mu.Unlock()
	f.err = err
	close(f.done)
}

// read fetches what is in the batch.
func (b *objectBatch) read(ctx context.Context) (err error) {
	if len(b.led) == 0 {
		return context.Cause(ctx)
	}
	h := b.h
	rctx := ctx
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		rctx, cancel = context.WithTimeout(ctx, storeTimeout)
		defer cancel()
	}
	h.far.store.Read(rctx, b.ops)
	for i := range b.led {
		d := &b.led[i]
		e := h.landObject(nil, d, b.ops[i].Err)
		var lost *LostError
		var corrupt *CorruptError
		switch {
		case e == nil:
			h.class(d.w.farClass()).prefetched.Add(1)
		case e == errAgain, e == errNoRoom, errors.As(e, &lost), errors.As(e, &corrupt):
			// Whoever dereferences it sees to it.
		case err == nil:
			err = e
		}
		h.endFlight(d.p, b.flights[i], nil)
	}
	b.led, b.flights, b.ops, b.pending = b.led[:0], b.flights[:0], b.ops[:0], 0
	return errOr(err, context.Cause(ctx))
}
