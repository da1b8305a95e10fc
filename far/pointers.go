package far

import (
	"sync/atomic"

	"polder/internal/failpoint"
)

// pointers is a Heap as its memory sees it for objects: the owner of those that
// pointers refer to. Every change of a pointer's word is a CAS, so that an
// owner's method and a mutator that meet at a word race for it.
type pointers Heap

// Mark implements Marker.
func (o *pointers) Mark(number uint64, addr uintptr, pass uint64) {
	p := o.words.at(number)
	for w := loadWord(p); w.local() && w.addr() == addr; w = loadWord(p) {
		if casWord(p, w, w.markedBy(pass)) {
			return
		}
	}
}

// Unmark implements Marker. Number may be anything.
func (o *pointers) Unmark(number uint64, addr uintptr) {
	if !o.words.has(number) {
		return
	}
	p := o.words.at(number)
	for w := loadWord(p); w.local() && w.marked() && w.addr() == addr; w = loadWord(p) {
		if casWord(p, w, w.unmarked()) {
			return
		}
	}
}

// marked returns the word of the marked object of r, and what it is now; nil if it is
// not there any more, or not marked.
func (o *pointers) marked(r local) (*uint64, pword) {
	p := o.words.at(headNumber(object(r.mem).head()))
	w := loadWord(p)
	if !w.local() || !w.marked() || w.addr() != o.logs.dataOf(r.addr) {
		return nil, 0
	}
	return p, w
}

// Evacuate implements Owner, for an object that was marked and is nobody's.
func (o *pointers) Evacuate(ev *evacuation, r local) bool {
	h, from := (*Heap)(o), object(r.mem)
	p, w := o.marked(r)
	if p == nil {
		return false
	}
	tail := atomic.LoadUint64(from.tail())
	failpoint.Hit("far.evacuating")
	c := h.class(tailClass(tail))
	n := len(from) - objectHeader
	far := tailFar(tail)
	clean := false
	if far != 0 {
		seg := h.far.seg(far)
		if seg == nil {
			return false // somebody has taken the object, and nothing lives in seg any more
		}
		clean = !seg.gone()
	}
	cold := w.coldness()
	switch f, to, at := ev.place(objects, objectSize(n), farObjectSize(n), cold < c.cfg.HotBits, clean); f {
	case fateKept:
		if ev.cools() {
			cold = min(cold+1, coldest)
		}
		kept := object(to)
		copy(kept[objectHeader:], from[objectHeader:])
		clear(kept[objectHeader+n:])
		atomic.StoreUint64(kept.tail(), tail)
		kept.setHead(from.head())
		return casWord(p, w, localWord(h.logs.dataOf(at), cold))
	case fateDropped:
		if !casWord(p, w, farWord(far, farObjectSize(n), c.id)) {
			return false
		}
		c.evacuatedClean.Add(1)
		h.becameFar(c, from)
	case fateStaged:
		e := entry(to)
		putFar(e, headNumber(from.head()), c.serial, from[objectHeader:])
		if c.cfg.Evacuating != nil {
			v := e.value()
			c.cfg.Evacuating(v[:len(v):len(v)])
		}
		e.seal(at)
	case fateStuck:
		o.Unmark(headNumber(from.head()), w.addr())
	}
	return true
}

// Settled implements Owner.
func (o *pointers) Settled(r local, s *farSegment, addr uint64, written bool) bool {
	h, from := (*Heap)(o), object(r.mem)
	p, w := o.marked(r)
	if p == nil || !written || s.gone() {
		return false
	}
	n := len(from) - objectHeader
	c := h.class(tailClass(atomic.LoadUint64(from.tail())))
	if !casWord(p, w, farWord(addr, farObjectSize(n), c.id)) {
		return false
	}
	c.evacuatedDirty.Add(1)
	c.bytesOut.Add(uint64(n))
	h.soil(from) // a copy that was lost is buried now, when nobody else can have the object
	h.becameFar(c, from)
	return true
}

// becameFar tells the class of o.
func (h *Heap) becameFar(c *class, o object) {
	if c.cfg.Evacuated != nil {
		c.cfg.Evacuated(AnyRef{headNumber(o.head())})
	}
}

// Check implements Owner. What is wrong with an object, whoever dereferences it is
// told.
func (o *pointers) Check(entry) error { return nil }

// Live implements Owner.
func (o *pointers) Live(e entry, addr uint64) bool {
	if !o.words.has(e.number()) {
		return false
	}
	w := loadWord(o.words.at(e.number()))
	if w.far() {
		return w.farAddr() == addr
	}
	return w.local() && tailFar(atomic.LoadUint64(o.logs.object(w.addr()).tail())) == addr
}

// Moved implements Owner. The evacuator calls it between passes, so that what is
// local stays where it is.
func (o *pointers) Moved(e entry, from, to uint64, s *farSegment) bool {
	if s.gone() {
		return false
	}
	p := o.words.at(e.number())
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
			o.Unmark(e.number(), w.addr()) // or it might be copied while we write to it
		case w.local():
			tail := o.logs.object(w.addr()).tail()
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
