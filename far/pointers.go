package far

import (
	"errors"
	"fmt"
	"sync/atomic"

	"polder/far/heap"
	"polder/far/record"
	"polder/internal/failpoint"
	"polder/internal/sizeclass"
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
func (o *pointers) marked(r heap.Local) (*uint64, pword) {
	p := o.words.at(heap.HeadNumber(heap.Object(r.Mem).Head()))
	w := loadWord(p)
	if !w.local() || !w.marked() || w.addr() != o.core.Logs.DataOf(r.Addr) {
		return nil, 0
	}
	return p, w
}

// Evacuate implements Owner, for an object that was marked and is nobody's.
func (o *pointers) Evacuate(ev *heap.Evacuation, r heap.Local) bool {
	h, from := (*Heap)(o), heap.Object(r.Mem)
	p, w := o.marked(r)
	if p == nil {
		return false
	}
	tail := atomic.LoadUint64(from.Tail())
	failpoint.Hit("far.evacuating")
	c := h.class(classIn(tail))
	n := len(from) - heap.ObjectHeader
	far := heap.TailFar(tail)
	clean := false
	if far != 0 {
		seg := h.core.Far.Seg(far)
		if seg == nil {
			return false // somebody has taken the object, and nothing lives in seg any more
		}
		clean = !seg.Gone()
	}
	cold := w.coldness()
	switch f, to, at := ev.Place(heap.Scoped, heap.ObjectSize(n), heap.FarObjectSize(n), cold < c.cfg.HotBits, clean); f {
	case heap.FateKept:
		if ev.Cools() {
			cold = min(cold+1, coldest)
		}
		kept := heap.Object(to)
		copy(kept[heap.ObjectHeader:], from[heap.ObjectHeader:])
		clear(kept[heap.ObjectHeader+n:])
		atomic.StoreUint64(kept.Tail(), tail)
		kept.SetHead(from.Head())
		return casWord(p, w, localWord(h.core.Logs.DataOf(at), cold))
	case heap.FateDropped:
		if !casWord(p, w, farWord(far, heap.FarObjectSize(n), c.id)) {
			return false
		}
		c.evacuatedClean.Add(1)
		h.becameFar(c, from)
	case heap.FateStaged:
		data := c.putFar(to, heap.HeadNumber(from.Head()), from[heap.ObjectHeader:])
		if c.cfg.Evacuating != nil {
			c.cfg.Evacuating(data)
		}
	case heap.FateStuck:
		o.Unmark(heap.HeadNumber(from.Head()), w.addr())
	}
	return true
}

// Settled implements Owner.
func (o *pointers) Settled(r heap.Local, s *heap.FarSegment, addr uint64, written, _ bool) bool {
	h, from := (*Heap)(o), heap.Object(r.Mem)
	p, w := o.marked(r)
	if p == nil || !written || s.Gone() {
		return false
	}
	n := len(from) - heap.ObjectHeader
	c := h.class(classIn(atomic.LoadUint64(from.Tail())))
	if !casWord(p, w, farWord(addr, heap.FarObjectSize(n), c.id)) {
		return false
	}
	c.evacuatedDirty.Add(1)
	c.bytesOut.Add(uint64(n))
	h.soil(from) // a copy that was lost is buried now, when nobody else can have the object
	h.becameFar(c, from)
	return true
}

// becameFar tells the class of o.
func (h *Heap) becameFar(c *class, o heap.Object) {
	if c.cfg.Evacuated != nil {
		c.cfg.Evacuated(AnyRef{heap.HeadNumber(o.Head())})
	}
}

var errObject = errors.New("they are not those of the object that was looked for")

// Check implements Owner. What is wrong with an object, whoever dereferences it is
// told. If the word has changed meanwhile, its class may be another by now, whose records are younger
// than it.
func (o *pointers) Check(r record.Record, want *heap.Want) error {
	if want == nil {
		return nil
	}
	c := want.Of.(*class)
	switch {
	case r.Kind() != record.Object || r.Owner() != want.ID || r.Number() != want.Number || r.KeyLen() != 0 || r.Flags()&^record.Moved != 0:
		return errObject
	case r.Version() <= c.born:
		return errObject
	case sizeclass.Round(r.Size()) != want.Size || r.Len() > o.maxObject:
		return errObject
	case c.size >= 0 && r.Len() != c.size:
		return fmt.Errorf("they are an object of %d bytes, want %d", r.Len(), c.size)
	}
	return nil
}

// Refers implements Owner.
func (o *pointers) Refers(w *heap.Want) bool { return loadWord(o.words.at(w.Number)) == pword(w.Word) }

// Landed implements Owner.
func (o *pointers) Landed(f *heap.Flight) heap.Landing {
	c := f.Of.(*class)
	if c.cfg.Fetched != nil {
		v := f.Object[heap.ObjectHeader:]
		c.cfg.Fetched(v[:len(v):len(v)])
	}
	coldness := c.cfg.HotBits
	if f.Kind == heap.Streamed {
		coldness = coldest
	}
	if !casWord(o.words.at(f.Number), pword(f.Word), localWord(f.At, coldness)) {
		return heap.Elsewhere
	}
	return heap.Kept
}

// Live implements Owner.
func (o *pointers) Live(e record.Record, addr uint64) bool {
	if !o.words.has(e.Number()) {
		return false
	}
	w := loadWord(o.words.at(e.Number()))
	size := sizeclass.Round(e.Size()) // what is longer would hide its neighbours, and count as more when it is moved
	if w.far() {
		return w.farAddr() == addr && w.farSize() == size
	}
	if !w.local() {
		return false
	}
	at := o.core.Logs.Object(w.addr())
	return heap.TailFar(atomic.LoadUint64(at.Tail())) == addr && sizeclass.Round(heap.FarObjectSize(heap.HeadLen(at.Head()))) == size
}

// Moved implements Owner. The evacuator calls it between passes, so that what is
// local stays where it is.
func (o *pointers) Moved(e record.Record, from, to uint64, s *heap.FarSegment) bool {
	if s.Gone() {
		return false
	}
	p := o.words.at(e.Number())
	for {
		w := loadWord(p)
		switch {
		case w.far():
			if w.farAddr() != from {
				return false
			}
			if casWord(p, w, w&^pword(heap.AddrMask)|pword(to)) {
				return true
			}
		case w.local() && w.marked():
			o.Unmark(e.Number(), w.addr()) // or it might be copied while we write to it
		case w.local():
			tail := o.core.Logs.Object(w.addr()).Tail()
			t := atomic.LoadUint64(tail)
			if heap.TailFar(t) != from {
				if loadWord(p) == w {
					return false
				}
				continue
			}
			if atomic.CompareAndSwapUint64(tail, t, heap.NewTail(to, heap.TailOwner(t))) {
				return true
			}
		default:
			return false
		}
	}
}
