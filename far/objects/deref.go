package objects

import (
	"context"
	"fmt"
	"sync/atomic"

	"polder/far/heap"
	"polder/far/object"
	"polder/internal/sizeclass"
)

// Coldest is the coldness of an object that may go in the next pass, whatever its class.
const Coldest = 0xff

// What an object is dereferenced for, beside reading.
const (
	Mut    = 1 << iota // to write
	Stream             // not to use it again soon
)

// Deref returns the object of p, which is local and stays where it is until s
// is left.
func (sp *Space) Deref(s *heap.Scope, p *uint64, what int) (object.Object, error) {
	sp.core.MustBeOpen(s)
	for {
		if o := sp.DerefLocal(s, p, what); o != nil {
			return o, nil
		}
		switch w := Load(p); {
		case w.Local():
			// It has become so just now.
		case w.Far():
			if err := sp.miss(s, p, w, what); err != nil {
				return nil, err
			}
		case w.Zero():
			if err := sp.materialize(s, p, w, what); err != nil {
				return nil, sp.core.NoRoom(s, err, sp.class(uint16(w)).Size)
			}
		case w.Asleep():
			if err := sp.wake(s, p); err != nil {
				return nil, err
			}
		case w.lost():
			return nil, sp.lost()
		case sp.core.Shut.Load():
			return nil, heap.ErrClosed
		default:
			panic("BUG: a far pointer is used after it was freed")
		}
	}
}

// DerefLocal is Deref of an object that is local. It returns nil if the object is not local.
func (sp *Space) DerefLocal(s *heap.Scope, p *uint64, what int) object.Object {
	for {
		w := Load(p)
		if !w.Local() {
			return nil
		}
		var o object.Object
		if w.Marked() {
			o = sp.meet(s, p, w, what)
		} else {
			o = sp.use(p, w, what)
		}
		if o != nil {
			return o
		}
	}
}

// use returns the local object of p, whose word is w, or nil if the word has
// changed.
func (sp *Space) use(p *uint64, w Word, what int) object.Object {
	o := sp.core.Logs.Object(w.Addr())
	cold := 0
	if what&Stream != 0 {
		cold = Coldest
	}
	if w.Coldness() != cold {
		if !casWord(p, w, w.cooled(cold)) {
			return nil
		}
		if cold == 0 {
			sp.class(classIn(atomic.LoadUint64(o.Tail()))).warmed.Add(1)
		}
	}
	if what&Mut != 0 {
		sp.soil(o)
	}
	return o
}

// soil gives up the far copy of a local object, if it has one: the object is dirty from now on.
func (sp *Space) soil(o object.Object) {
	for {
		tail := atomic.LoadUint64(o.Tail())
		far := object.TailFar(tail)
		if far == 0 {
			return
		}
		if atomic.CompareAndSwapUint64(o.Tail(), tail, object.NewTail(0, object.TailOwner(tail))) {
			sp.core.BuryFar(far, sizeclass.Round(object.FarSize(object.HeadLen(o.Head()))))
			return
		}
	}
}

// meet returns the object of p, whose word w is marked, for use in s. It returns nil if the caller has to look at the
// word again.
func (sp *Space) meet(s *heap.Scope, p *uint64, w Word, what int) object.Object {
	seg := sp.core.Logs.SegmentOf(w.Addr())
	switch seg.Phase.Load() {
	case heap.PhaseWaiting:
		hot := w
		if what&Stream == 0 {
			hot = w.cooled(0)
		}
		if hot != w && !casWord(p, w, hot) {
			return nil
		}
		if !sp.core.Pin(s, w.Addr()) {
			casWord(p, hot, hot.unmarked())
			return nil
		}
		if seg.Phase.Load() != heap.PhaseWaiting || Load(p) != hot {
			return nil
		}
		o := sp.core.Logs.Object(w.Addr())
		sp.class(classIn(atomic.LoadUint64(o.Tail()))).rescued.Add(1)
		if what&Mut != 0 {
			sp.soil(o)
		}
		return o
	case heap.PhaseSettling:
		casWord(p, w, w.unmarked().cooled(0))
		return nil
	case heap.PhaseMoving:
		return sp.copyOut(s, p, w, what, seg)
	}
	return nil // the pass is over
}

// copyOut moves a marked object out of seg, which is being emptied, and returns it at its new place. If the evacuator
// or another mutator has moved it before, its bytes may be anything. copyOut returns nil if the caller has to look at
// the word again.
func (sp *Space) copyOut(s *heap.Scope, p *uint64, w Word, what int, seg *heap.LogSegment) object.Object {
	o := sp.core.Logs.Object(w.Addr())
	head, tail := o.Head(), atomic.LoadUint64(o.Tail())
	n := object.HeadLen(head)
	if sp.words.number(p) != object.HeadNumber(head) || n > sp.maxLocal || object.Size(n) > len(o) ||
		int(classIn(tail)) >= len(*sp.classes.Load()) {
		return nil // it is not there any more
	}
	c := sp.class(classIn(tail))
	to, addr, err := sp.core.NewSlot(s, heap.Scoped, object.Head(object.HeadNumber(head), n), tail, n)
	if err != nil {
		casWord(p, w, w.unmarked().cooled(0)) // it stays
		return nil
	}
	copy(to[object.Header:], o[object.Header:object.Header+n])
	if !casWord(p, w, localWord(addr, 0)) {
		sp.core.DropSlot(addr, n)
		return nil
	}
	c.rescued.Add(1)
	seg.Live.Add(-int64(object.Size(n)))
	if what&Mut != 0 {
		sp.soil(to)
	}
	return to
}

// New makes an object of n bytes, data followed by zeros, and returns its word.
func (sp *Space) New(c *Class, s *heap.Scope, n, what int, data []byte) (*uint64, error) {
	if n > sp.most {
		return nil, fmt.Errorf("cannot make an object of %d bytes (at most %d): %w", n, sp.most, heap.ErrTooLarge)
	}
	k, coldness := heap.Scoped, c.cfg.HotBits
	if what&Stream != 0 {
		k, coldness = heap.Streamed, Coldest
	}
	if sp.core.Shut.Load() {
		return nil, heap.ErrClosed
	}
	c.mustExist()
	ol := sp.core.Logs.Buffer(k)
	ol.Mu.Lock()
	number, err := sp.words.next(sp.cacheOf(ol), &sp.core.Logs, sp.core.Claim(s, wordCost))
	if err != nil {
		ol.Mu.Unlock()
		return nil, err
	}
	o, addr, err := sp.core.Logs.Slot(ol, sp.core.Claim(s, object.Size(n)), object.Head(number, n), object.NewTail(0, c.Owner()), n)
	if err != nil {
		sp.cacheOf(ol).left |= 1 << (number % wordGroup)
		ol.Mu.Unlock()
		return nil, err
	}
	ol.Mu.Unlock()
	clear(o[object.Header+copy(o[object.Header:], data):])
	p := sp.words.at(number)
	storeWord(p, localWord(addr, coldness))
	return p, nil
}

// NewRun makes n adjacent words for objects that are zero. It waits for room within ctx.
func (sp *Space) NewRun(ctx context.Context, c *Class, n int) ([]uint64, error) {
	if n < 0 || c.Size < 0 {
		return nil, fmt.Errorf("cannot make a run of %d objects of class %q", n, c.cfg.Name)
	}
	c.mustExist()
	for n > 0 {
		ws, err := sp.Run(c, n)
		if err != heap.ErrNoRoom {
			return ws, err
		}
		if err := sp.core.RoomSoon(ctx); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// Run makes n adjacent words for objects that are zero; n is at least 1. It fails with heap.ErrNoRoom if there is no
// room.
func (sp *Space) Run(c *Class, n int) ([]uint64, error) {
	if sp.core.Shut.Load() {
		return nil, heap.ErrClosed
	}
	first, err := sp.words.run(n, &sp.core.Logs)
	if err != nil {
		return nil, err
	}
	ws := sp.words.table[first : first+uint64(n) : first+uint64(n)]
	for i := range ws {
		storeWord(&ws[i], zeroWord(c.ID))
	}
	return ws, nil
}

// Fill makes b the object of word n, of class c, whose objects may have any size. Nobody else knows the word yet.
// Fill may wait for the store, but not for local memory.
func (sp *Space) Fill(ctx context.Context, n uint64, c *Class, b []byte) error {
	return sp.fill(ctx, n, c, c.cfg.HotBits, b)
}

func (sp *Space) fill(ctx context.Context, n uint64, c *Class, coldness int, b []byte) error {
	if sp.core.Shut.Load() {
		return heap.ErrClosed
	}
	o, addr, err := sp.core.NewSlot(nil, heap.Scoped, object.Head(n, len(b)), object.NewTail(0, c.Owner()), len(b))
	if err != nil {
		return err
	}
	clear(o[object.Header+copy(o[object.Header:], b):])
	for p := sp.words.at(n); ; {
		w := Load(p)
		if w.Asleep() {
			if err := sp.awaken(ctx, n/WordsPerPage); err != nil {
				sp.core.DropSlot(addr, len(b))
				return err
			}
		} else if casWord(p, w, localWord(addr, coldness)) {
			return nil
		}
	}
}

// materialize makes the object of p, whose word w says that it is zero, an object of zeros in local memory.
func (sp *Space) materialize(s *heap.Scope, p *uint64, w Word, what int) error {
	c := sp.class(uint16(w))
	k, coldness := heap.Scoped, c.cfg.HotBits
	if what&Stream != 0 {
		k, coldness = heap.Streamed, Coldest
	}
	o, addr, err := sp.core.NewSlot(s, k, object.Head(sp.words.number(p), c.Size), object.NewTail(0, c.Owner()), c.Size)
	if err != nil {
		return err
	}
	clear(o[object.Header:])
	if !casWord(p, w, localWord(addr, coldness)) {
		sp.core.DropSlot(addr, c.Size)
	}
	return nil
}

// Free frees the object of p, and p.
func (sp *Space) Free(p *uint64) {
	for {
		w := Load(p)
		if w.Asleep() {
			if sp.sleep.freeLater(p, -1) {
				return
			}
			continue
		}
		if w.Free() {
			if sp.core.Shut.Load() {
				return
			}
			panic("BUG: a far pointer is freed twice")
		}
		if !casWord(p, w, freeWord) {
			continue
		}
		sp.buryObject(w)
		sp.words.put(sp.words.number(p))
		return
	}
}

// Reset makes the object of p, of class c, zero, so that it takes no memory.
func (sp *Space) Reset(p *uint64, c *Class) {
	for {
		w := Load(p)
		if w.Free() || w.Zero() || w.Asleep() && sp.sleep.freeLater(p, int(c.ID)) {
			return
		}
		if !w.Asleep() && casWord(p, w, zeroWord(c.ID)) {
			sp.buryObject(w)
			return
		}
	}
}

// Chill makes the object of p one of the first to be evacuated, if it is local and not marked.
func Chill(p *uint64) {
	if w := Load(p); w.Local() && !w.Marked() {
		casWord(p, w, w.cooled(Coldest))
	}
}

// buryObject accounts for the death of the object whose word was w.
func (sp *Space) buryObject(w Word) {
	switch {
	case w.Far():
		sp.core.BuryFar(w.FarAddr(), w.FarSize())
	case w.Local():
		o := sp.core.Logs.Object(w.Addr())
		n := object.HeadLen(o.Head())
		sp.soil(o)
		seg := sp.core.Logs.SegmentOf(w.Addr())
		for now := sp.core.Scopes.Now(); ; {
			if old := seg.Freed.Load(); old >= now || seg.Freed.CompareAndSwap(old, now) {
				break
			}
		}
		seg.Live.Add(-int64(object.Size(n)))
	}
	sp.core.Logs.Stir()
}
