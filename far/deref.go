package far

import (
	"context"
	"fmt"
	"sync/atomic"

	"polder/far/heap"
	"polder/internal/sizeclass"
)

// coldest is the coldness of what may go in the next pass, whatever its class.
const coldest = 0xff

// deref returns the object of p, which is local and stays where it is until s
// is left.
func (h *Heap) deref(s *heap.Scope, p *uint64, what int) (heap.Object, error) {
	h.core.MustBeOpen(s)
	for {
		if o := h.derefLocal(s, p, what); o != nil {
			return o, nil
		}
		switch w := loadWord(p); {
		case w.local():
			// It has become so just now.
		case w.far():
			if err := h.miss(s, p, w, what); err != nil {
				return nil, err
			}
		case w.zero():
			if err := h.materialize(s, p, w, what); err != nil {
				return nil, h.core.NoRoom(s, err, h.class(uint16(w)).size)
			}
		case h.core.Shut.Load():
			return nil, heap.ErrClosed
		default:
			panic("BUG: a far pointer is used after it was freed")
		}
	}
}

// derefLocal is deref of an object that is local; nil if it is not.
func (h *Heap) derefLocal(s *heap.Scope, p *uint64, what int) heap.Object {
	for {
		w := loadWord(p)
		if !w.local() {
			return nil
		}
		var o heap.Object
		if w.marked() {
			o = h.meet(s, p, w, what)
		} else {
			o = h.use(p, w, what)
		}
		if o != nil {
			return o
		}
	}
}

// use returns the local object of p, whose word is w, or nil if the word has
// changed.
func (h *Heap) use(p *uint64, w pword, what int) heap.Object {
	o := h.core.Logs.Object(w.addr())
	cold := 0
	if what&derefStream != 0 {
		cold = coldest
	}
	if w.coldness() != cold {
		if !casWord(p, w, w.cooled(cold)) {
			return nil
		}
		if cold == 0 {
			h.class(classIn(atomic.LoadUint64(o.Tail()))).warmed.Add(1)
		}
	}
	if what&derefMut != 0 {
		h.soil(o)
	}
	return o
}

// soil makes a local object one without a far copy.
func (h *Heap) soil(o heap.Object) {
	for {
		tail := atomic.LoadUint64(o.Tail())
		far := heap.TailFar(tail)
		if far == 0 {
			return
		}
		if atomic.CompareAndSwapUint64(o.Tail(), tail, heap.NewTail(0, heap.TailOwner(tail))) {
			h.core.BuryFar(far, sizeclass.Round(heap.FarObjectSize(heap.HeadLen(o.Head()))))
			return
		}
	}
}

// meet returns the object of p, whose word is w, marked; or nil if the word is
// to be looked at again.
func (h *Heap) meet(s *heap.Scope, p *uint64, w pword, what int) heap.Object {
	seg := h.core.Logs.SegmentOf(w.addr())
	switch seg.Phase.Load() {
	case heap.PhaseWaiting:
		hot := w
		if what&derefStream == 0 {
			hot = w.cooled(0)
		}
		if hot != w && !casWord(p, w, hot) {
			return nil
		}
		if !h.core.Pin(s, w.addr()) {
			casWord(p, hot, hot.unmarked())
			return nil
		}
		if seg.Phase.Load() != heap.PhaseWaiting || loadWord(p) != hot {
			return nil
		}
		o := h.core.Logs.Object(w.addr())
		h.class(classIn(atomic.LoadUint64(o.Tail()))).rescued.Add(1)
		if what&derefMut != 0 {
			h.soil(o)
		}
		return o
	case heap.PhaseSettling:
		casWord(p, w, w.unmarked().cooled(0))
		return nil
	case heap.PhaseMoving:
		return h.copyOut(s, p, w, what, seg)
	}
	return nil // the pass is over
}

// copyOut moves a marked object to where it is left alone. The evacuator or
// others may have been faster, and the bytes may then be anything.
func (h *Heap) copyOut(s *heap.Scope, p *uint64, w pword, what int, seg *heap.LogSegment) heap.Object {
	o := h.core.Logs.Object(w.addr())
	head, tail := o.Head(), atomic.LoadUint64(o.Tail())
	n := heap.HeadLen(head)
	if h.words.number(p) != heap.HeadNumber(head) || n > h.maxLocal || heap.ObjectSize(n) > len(o) ||
		int(classIn(tail)) >= len(*h.classes.Load()) {
		return nil // it is not there any more
	}
	c := h.class(classIn(tail))
	to, addr, err := h.core.NewSlot(s, heap.Scoped, heap.ObjectHead(heap.HeadNumber(head), n), tail, n)
	if err != nil {
		casWord(p, w, w.unmarked().cooled(0)) // it stays
		return nil
	}
	copy(to[heap.ObjectHeader:], o[heap.ObjectHeader:heap.ObjectHeader+n])
	if !casWord(p, w, localWord(addr, 0)) {
		h.core.DropSlot(addr, n)
		return nil
	}
	c.rescued.Add(1)
	seg.Live.Add(-int64(heap.ObjectSize(n)))
	if what&derefMut != 0 {
		h.soil(to)
	}
	return to
}

// newObject makes an object of n bytes that is data, or zero without.
func (h *Heap) newObject(c *class, s *heap.Scope, n, what int, data []byte) (*uint64, error) {
	if n > h.maxObject {
		return nil, fmt.Errorf("cannot make an object of %d bytes (at most %d): %w", n, h.maxObject, ErrTooLarge)
	}
	k, coldness := heap.Scoped, c.cfg.HotBits
	if what&derefStream != 0 {
		k, coldness = heap.Streamed, coldest
	}
	if h.core.Shut.Load() {
		return nil, heap.ErrClosed
	}
	c.mustExist()
	ol := h.core.Logs.Buffer(k)
	ol.Mu.Lock()
	number, err := h.words.next(h.cacheOf(ol), &h.core.Logs, h.core.Claim(s, wordCost))
	if err != nil {
		ol.Mu.Unlock()
		return nil, err
	}
	o, addr, err := h.core.Logs.Slot(ol, h.core.Claim(s, heap.ObjectSize(n)), heap.ObjectHead(number, n), heap.NewTail(0, c.owner()), n)
	if err != nil {
		h.cacheOf(ol).left |= 1 << (number % wordGroup)
		ol.Mu.Unlock()
		return nil, err
	}
	ol.Mu.Unlock()
	clear(o[heap.ObjectHeader+copy(o[heap.ObjectHeader:], data):])
	p := h.words.at(number)
	storeWord(p, localWord(addr, coldness))
	return p, nil
}

// newRun makes n words in a row, of objects that are zero.
func (h *Heap) newRun(ctx context.Context, c *class, n int) ([]uint64, error) {
	if n < 0 || c.size < 0 {
		return nil, fmt.Errorf("cannot make a run of %d objects of class %q", n, c.cfg.Name)
	}
	c.mustExist()
	for n > 0 {
		first, err := h.words.run(n, &h.core.Logs)
		if err == nil {
			ws := h.words.table[first : first+uint64(n) : first+uint64(n)]
			for i := range ws {
				storeWord(&ws[i], zeroWord(c.id))
			}
			return ws, nil
		}
		if err != heap.ErrNoRoom {
			return nil, err
		}
		if err := h.core.RoomSoon(ctx); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// materialize makes the object of p, whose word is w, an object of zeros in
// local memory.
func (h *Heap) materialize(s *heap.Scope, p *uint64, w pword, what int) error {
	c := h.class(uint16(w))
	k, coldness := heap.Scoped, c.cfg.HotBits
	if what&derefStream != 0 {
		k, coldness = heap.Streamed, coldest
	}
	o, addr, err := h.core.NewSlot(s, k, heap.ObjectHead(h.words.number(p), c.size), heap.NewTail(0, c.owner()), c.size)
	if err != nil {
		return err
	}
	clear(o[heap.ObjectHeader:])
	if !casWord(p, w, localWord(addr, coldness)) {
		h.core.DropSlot(addr, c.size)
	}
	return nil
}

// free frees the object of p, and p.
func (h *Heap) free(p *uint64) {
	for {
		w := loadWord(p)
		if w.free() {
			if h.core.Shut.Load() {
				return
			}
			panic("BUG: a far pointer is freed twice")
		}
		if !casWord(p, w, freeWord) {
			continue
		}
		h.buryObject(w)
		h.words.put(h.words.number(p))
		return
	}
}

// buryObject accounts for the death of the object whose word was w.
func (h *Heap) buryObject(w pword) {
	switch {
	case w.far():
		h.core.BuryFar(w.farAddr(), w.farSize())
	case w.local():
		o := h.core.Logs.Object(w.addr())
		n := heap.HeadLen(o.Head())
		h.soil(o)
		seg := h.core.Logs.SegmentOf(w.addr())
		for now := h.core.Scopes.Now(); ; {
			if old := seg.Freed.Load(); old >= now || seg.Freed.CompareAndSwap(old, now) {
				break
			}
		}
		seg.Live.Add(-int64(heap.ObjectSize(n)))
	}
	h.core.Logs.Stir()
}

// mustServe panics if the pointer of word p cannot be dereferenced in s.
func (h *Heap) mustServe(s *heap.Scope, p *uint64) {
	h.core.MustBeOpen(s)
	if p != nil && !isIn(h.words.table, p) {
		panic("BUG: a far pointer is dereferenced in a scope of another heap")
	}
}
