package far

import (
	"context"
	"fmt"

	"polder/far/heap"
)

// fetchInPlace is the size in bytes from which on far objects are read to where
// they are to stay, rather than into a buffer.
const fetchInPlace = 4 << 10

// pinFar returns the far segment of the word w, which p is, pinned, so that it
// is not given back while it is read. It returns nil if p has changed.
func (h *Heap) pinFar(p *uint64, w pword) *heap.FarSegment {
	seg := h.core.Far.Seg(w.farAddr())
	if seg == nil {
		return nil
	}
	// The cleaner turns words first and looks for pins afterwards.
	seg.Pins.Add(1)
	if loadWord(p) == w && h.core.Far.Seg(w.farAddr()) == seg {
		return seg
	}
	h.unpinFar(seg)
	return nil
}

func (h *Heap) unpinFar(seg *heap.FarSegment) {
	if seg.Pins.Add(-1) == 0 && seg.Dead() {
		h.core.WakeJanitor()
	}
}

// landing is a far object on its way into local memory.
type landing struct {
	p    *uint64
	w    pword
	seg  *heap.FarSegment // pinned
	what int
	buf  heap.Buffer // what it is read into, or else
	slot heap.Object // where it is read to
	addr uintptr
	room int // bytes of data that slot has
}

// target is the bytes that the read is to fill.
func (d *landing) target() []byte {
	if d.slot != nil {
		return d.slot[heap.ObjectHeader : heap.ObjectHeader+d.room]
	}
	return d.buf.B
}

// farBytes is how many bytes the far entry of w has: where the objects of its
// class are of one size, exactly, and otherwise as many at the most.
func (h *Heap) farBytes(w pword) int {
	if c := h.class(w.farClass()); c.size >= 0 {
		return min(heap.FarObjectSize(c.size), w.farSize())
	}
	return min(w.farSize(), h.core.Far.SegSize-h.core.Far.Offset(w.farAddr()))
}

// logFor is the kind of log that what is fetched so goes to.
func logFor(what int) heap.Kind {
	if what&derefStream != 0 {
		return heap.Streamed
	}
	return heap.Scoped
}

// boardObject begins the fetch of d.p, or says what to wait for: a buffer if busy is
// not nil. It fails with errAgain if the word has changed, and with errNoRoom.
func (h *Heap) boardObject(s *heap.Scope, d *landing) (busy <-chan struct{}, err error) {
	if d.seg = h.pinFar(d.p, d.w); d.seg == nil {
		return nil, errAgain
	}
	if d.seg.Gone() {
		err = &heap.LostError{Segment: d.seg.Seg.Name()}
		h.unpinFar(d.seg)
		return nil, err
	}
	n := h.farBytes(d.w)
	if n >= fetchInPlace {
		// Until it has landed, the slot is nobody's.
		d.room = n
		d.slot, d.addr, err = h.newSlot(s, logFor(d.what), heap.ObjectHead(0, n), 0, n)
	} else {
		d.buf, busy = h.core.Bufs.Get(n)
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
	h.core.Bufs.Put(d.buf)
	h.unpinFar(d.seg)
}

// landObject ends a fetch whose read ended with err: checks the bytes and makes
// the object local. The fetch has ended afterwards, whatever it returns.
func (h *Heap) landObject(s *heap.Scope, d *landing, err error) error {
	b := d.target()
	h.core.Count.Fetches.Add(1)
	kept := false
	defer func() {
		if !kept { // or Fetched panics
			h.abandon(d)
		}
	}()
	if err != nil {
		if d.seg.Gone() {
			h.core.WakeJanitor()
			return &heap.LostError{Segment: d.seg.Seg.Name()}
		}
		return fmt.Errorf("cannot fetch %d bytes from %s: %w", len(b), d.seg.Seg.Name(), err)
	}
	h.core.Count.BytesIn.Add(uint64(len(b)))
	number := h.words.number(d.p)
	e, c, err := h.inspectObject(b, number, d.w)
	if err != nil {
		if loadWord(d.p) != d.w {
			return errAgain // the bytes were not needed any more
		}
		h.core.Count.Corrupt.Add(1)
		return &heap.CorruptError{Segment: d.seg.Seg.Name(), Off: h.core.Far.Offset(d.w.farAddr()), Err: err}
	}
	n := e.Vlen()
	tail := heap.NewTail(d.w.farAddr(), c.id)
	if d.slot == nil {
		if d.slot, d.addr, err = h.newSlot(s, logFor(d.what), heap.ObjectHead(number, n), tail, n); err != nil {
			return err
		}
		d.room = n
		clear(d.slot[heap.ObjectHeader+copy(d.slot[heap.ObjectHeader:], e.Value()):])
	} else {
		h.settleSlot(d, heap.ObjectHead(number, n), tail)
	}
	if c.cfg.Fetched != nil {
		c.cfg.Fetched(d.slot[heap.ObjectHeader : heap.ObjectHeader+n : heap.ObjectHeader+n])
	}
	coldness := c.cfg.HotBits
	if d.what&derefStream != 0 {
		coldness = coldest
	}
	h.core.Bufs.Put(d.buf)
	d.buf = heap.Buffer{}
	if kept = casWord(d.p, d.w, localWord(d.addr, coldness)); !kept {
		return errAgain
	}
	if s != nil {
		c.misses.Add(1)
	}
	c.bytesIn.Add(uint64(n))
	h.unpinFar(d.seg)
	return nil
}

// settleSlot makes the slot that an entry was read into one of the object that
// it is, with that head and tail, and of the rest others that are nobody's.
func (h *Heap) settleSlot(d *landing, head, tail uint64) {
	h.core.Logs.SegmentOf(d.addr).Live.Add(-int64(heap.HeaderSize + layOut(d.slot[heap.HeaderSize:], head, tail)))
	d.slot.SetHead(heap.ObjectHead(0, heap.HeaderSize-heap.ObjectHeader))
	d.slot, d.addr, d.room = d.slot[heap.HeaderSize:], d.addr+heap.HeaderSize, heap.HeadLen(head)
}

// fetchObject brings the far object of p, whose word is w, into local memory,
// for a scope.
func (h *Heap) fetchObject(ctx context.Context, s *heap.Scope, p *uint64, w pword, what int) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, heap.StoreTimeout)
		defer cancel()
	}
	d := landing{p: p, w: w, what: what}
	for {
		busy, err := h.boardObject(s, &d)
		if err != nil {
			return h.core.NoRoom(s, err, w.farSize())
		}
		if busy == nil {
			break
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return fmt.Errorf("all buffers are in use: %w", h.tooLate(ctx))
		}
	}
	ops := []heap.ReadOp{{Seg: d.seg.Seg, Off: h.core.Far.Offset(w.farAddr()), Buf: d.target()}}
	h.core.Far.Store.Read(ctx, ops)
	return h.core.NoRoom(s, h.landObject(s, &d, ops[0].Err), w.farSize())
}

// replace makes the new object at addr, of class c, that of p, if that is far or was
// never used, and otherwise drops it. It reports which.
func (h *Heap) replace(p *uint64, addr uintptr, c *class) bool {
	for {
		w := loadWord(p)
		if !w.far() && !w.zero() {
			h.dropSlot(addr, c.size)
			return false
		}
		if casWord(p, w, localWord(addr, coldest)) {
			if w.far() {
				h.core.BuryFar(w.farAddr(), w.farSize())
			}
			return true
		}
	}
}
