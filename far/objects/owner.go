package objects

import (
	"errors"
	"fmt"
	"sync/atomic"

	"polder/far/heap"
	"polder/far/object"
	"polder/far/record"
	"polder/internal/failpoint"
	"polder/internal/sizeclass"
)

// owner is a Space as the heap sees it: the owner of the objects that
// pointers refer to. Every change of a pointer's word is a CAS, so that an
// owner's method and a mutator that meet at a word race for it.
type owner Space

// Owner is the owner of all objects, of all classes.
func (sp *Space) Owner() heap.Marker { return (*owner)(sp) }

// Mark implements Marker.
func (o *owner) Mark(number uint64, addr uintptr, pass uint64) {
	p := o.words.at(number)
	for w := Load(p); w.Local() && w.Addr() == addr; w = Load(p) {
		if casWord(p, w, w.markedBy(pass)) {
			return
		}
	}
}

// Unmark implements Marker. Number may be anything.
func (o *owner) Unmark(number uint64, addr uintptr) {
	if !o.words.has(number) {
		return
	}
	p := o.words.at(number)
	for w := Load(p); w.Local() && w.Marked() && w.Addr() == addr; w = Load(p) {
		if casWord(p, w, w.unmarked()) {
			return
		}
	}
}

// marked returns the word of the object in r, and its value. It returns nil if the object is not there any more, or
// not marked.
func (o *owner) marked(r heap.Local) (*uint64, Word) {
	p := o.words.at(object.HeadNumber(object.Object(r.Mem).Head()))
	w := Load(p)
	if !w.Local() || !w.Marked() || w.Addr() != o.core.Logs.DataOf(r.Addr) {
		return nil, 0
	}
	return p, w
}

// Evacuate implements Owner, for an object that was marked and that nobody is using.
func (o *owner) Evacuate(ev *heap.Evacuation, r heap.Local) bool {
	sp, from := (*Space)(o), object.Object(r.Mem)
	p, w := o.marked(r)
	if p == nil {
		return false
	}
	tail := atomic.LoadUint64(from.Tail())
	failpoint.Hit("far.evacuating")
	c := sp.class(classIn(tail))
	if ev.WritesBack() && !c.Outlives() {
		o.Unmark(object.HeadNumber(from.Head()), w.Addr())
		return false
	}
	n := len(from) - object.Header
	far := object.TailFar(tail)
	clean := false
	if far != 0 {
		seg := sp.core.Far.Seg(far)
		if seg == nil {
			return false // somebody has taken the object, and nothing lives in seg any more
		}
		clean = !seg.Gone()
	}
	cold := w.Coldness()
	switch f, to, at := ev.Place(heap.Scoped, object.Size(n), object.FarSize(n), cold < c.cfg.HotBits, clean); f {
	case heap.FateKept:
		if ev.Cools() {
			cold = min(cold+1, Coldest)
		}
		kept := object.Object(to)
		copy(kept[object.Header:], from[object.Header:])
		clear(kept[object.Header+n:])
		atomic.StoreUint64(kept.Tail(), tail)
		kept.SetHead(from.Head())
		return casWord(p, w, localWord(sp.core.Logs.DataOf(at), cold))
	case heap.FateDropped:
		if !casWord(p, w, farWord(far, object.FarSize(n), c.ID)) {
			return false
		}
		c.evacuatedClean.Add(1)
		sp.becameFar(c, from)
	case heap.FateStaged:
		data := c.putFar(to, object.HeadNumber(from.Head()), from[object.Header:])
		if c.cfg.Evacuating != nil {
			c.cfg.Evacuating(data)
		}
	case heap.FateStuck:
		o.Unmark(object.HeadNumber(from.Head()), w.Addr())
	}
	return true
}

// Settled implements Owner.
func (o *owner) Settled(r heap.Local, s *heap.FarSegment, addr uint64, written, stays bool) bool {
	sp, from := (*Space)(o), object.Object(r.Mem)
	p, w := o.marked(r)
	if p == nil || !written || s.Gone() {
		return false
	}
	n := len(from) - object.Header
	c := sp.class(classIn(atomic.LoadUint64(from.Tail())))
	if stays {
		return sp.stay(p, w, from, c, addr)
	}
	if !casWord(p, w, farWord(addr, object.FarSize(n), c.ID)) {
		return false
	}
	c.evacuatedDirty.Add(1)
	c.bytesOut.Add(uint64(n))
	sp.soil(from) // if its copy is lost it is buried now, when nobody else can have the object
	sp.becameFar(c, from)
	return true
}

// stay gives a marked object the far copy that was written to addr, and keeps it local. It reports whether the object
// is still the one that was written. An object cannot become clean where it lies, because mutators look without a
// fence whether it is (see object.Object): so stay moves the object or, without room for that, makes it far.
func (sp *Space) stay(p *uint64, w Word, from object.Object, c *Class, addr uint64) bool {
	n := len(from) - object.Header
	to, at, err := sp.core.NewSlot(nil, heap.Scoped, from.Head(), object.NewTail(addr, c.Owner()), n)
	now := farWord(addr, object.FarSize(n), c.ID)
	if err == nil {
		clear(to[object.Header+copy(to[object.Header:], from[object.Header:]):])
		now = localWord(at, w.Coldness())
	}
	if !casWord(p, w, now) {
		if err == nil {
			sp.core.DropSlot(at, n)
		}
		return false
	}
	c.bytesOut.Add(uint64(n))
	sp.core.DropSlot(w.Addr(), n)
	sp.soil(from) // as in Settled
	if err != nil {
		c.evacuatedDirty.Add(1)
		sp.becameFar(c, from)
	}
	return true
}

// becameFar calls the Evacuated function of c, if it has one, for o.
func (sp *Space) becameFar(c *Class, o object.Object) {
	if c.cfg.Evacuated != nil {
		sp.core.Call(c.cfg.Evacuated, object.HeadNumber(o.Head()))
	}
}

var errObject = errors.New("they are not those of the object that was looked for")

// Check implements Owner. Whoever dereferences an object is told the error that Check returns for it. If the word has
// changed since want was made, its class may be another one with the same number by now, whose records are younger
// than that class.
func (o *owner) Check(r record.Record, want *heap.Want) error {
	if want == nil {
		return nil
	}
	c := want.Of.(*Class)
	switch {
	case r.Kind() != c.kind || r.Owner() != want.ID || r.Number() != want.Number || r.KeyLen() != 0 || r.Flags()&^record.Moved != 0:
		return errObject
	case r.Version() <= c.Born:
		return errObject
	case sizeclass.Round(r.Size()) != want.Size || r.Len() > o.most:
		return errObject
	case c.Size >= 0 && r.Len() != c.Size:
		return fmt.Errorf("they are an object of %d bytes, want %d", r.Len(), c.Size)
	}
	return nil
}

// Refers implements Owner.
func (o *owner) Refers(w *heap.Want) bool { return Load(o.words.at(w.Number)) == Word(w.Word) }

// Landed implements Owner.
func (o *owner) Landed(f *heap.Flight) heap.Landing {
	c := f.Of.(*Class)
	if c.cfg.Fetched != nil {
		v := f.Object[object.Header:]
		c.cfg.Fetched(v[:len(v):len(v)])
	}
	coldness := c.cfg.HotBits
	if f.Kind == heap.Streamed {
		coldness = Coldest
	}
	if !casWord(o.words.at(f.Number), Word(f.Word), localWord(f.At, coldness)) {
		return heap.Elsewhere
	}
	return heap.Kept
}

// Live implements Owner.
func (o *owner) Live(e record.Record, addr uint64) bool {
	if !o.words.has(e.Number()) {
		return false
	}
	w := Load(o.words.at(e.Number()))
	size := sizeclass.Round(e.Size()) // a longer record would hide its neighbours, and count for more once moved
	if w.Far() {
		return w.FarAddr() == addr && w.FarSize() == size
	}
	if !w.Local() {
		return false
	}
	at := o.core.Logs.Object(w.Addr())
	return object.TailFar(atomic.LoadUint64(at.Tail())) == addr && sizeclass.Round(object.FarSize(object.HeadLen(at.Head()))) == size
}

// Moved implements Owner. The evacuator calls it between passes, so local objects stay where they are.
func (o *owner) Moved(e record.Record, from, to uint64, s *heap.FarSegment) bool {
	if s.Gone() {
		return false
	}
	p := o.words.at(e.Number())
	for {
		w := Load(p)
		switch {
		case w.Far():
			if w.FarAddr() != from {
				return false
			}
			if casWord(p, w, w&^Word(heap.AddrMask)|Word(to)) {
				return true
			}
		case w.Local() && w.Marked():
			o.Unmark(e.Number(), w.Addr()) // or it might be copied while we write to it
		case w.Local():
			tail := o.core.Logs.Object(w.Addr()).Tail()
			t := atomic.LoadUint64(tail)
			if object.TailFar(t) != from {
				if Load(p) == w {
					return false
				}
				continue
			}
			if atomic.CompareAndSwapUint64(tail, t, object.NewTail(to, object.TailOwner(t))) {
				return true
			}
		default:
			return false
		}
	}
}
