package soft

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"polder/codec"
	"polder/soft/internal/flight"
	"polder/soft/internal/order"
)

// Pointers is the paper's soft memory pool: it makes pointers to values of T
// that may vanish, and rebuilds what has vanished out of an argument of type
// A. Its methods may be called by any number of goroutines.
type Pointers[T, A any] struct {
	h       *Heap
	table   *pointerTable
	rebuild func(ctx context.Context, arg A) (T, error)
	flights flight.Group[ownedRef, T]
}

// NewPointers makes a pool of pointers. T must not hold Go pointers. Rebuild
// may be nil if only Load is used.
func NewPointers[T, A any](h *Heap, rebuild func(context.Context, A) (T, error)) (*Pointers[T, A], error) {
	if err := codec.Pointerless(reflect.TypeFor[T]()); err != nil {
		return nil, fmt.Errorf("cannot make soft pointers: %w", err)
	}
	if sizeOf[T]() == 0 {
		return nil, errors.New("cannot make soft pointers to values of size 0")
	}
	t := &pointerTable{h: h}
	id, ok := h.owners.add(t, 0)
	if !ok {
		return nil, errOwners
	}
	t.id = id
	return &Pointers[T, A]{h: h, table: t, rebuild: rebuild}, nil
}

// Owned is what a pointed-to value can own: pointers that are released when
// the value goes away, whether it is freed, evicted or revoked.
type Owned interface{ owned() ownedRef }

// ownedRef names a pointer until the pointer is freed. After that the reference is used again, with another tag.
type ownedRef struct {
	t   *pointerTable
	ref uint64
	tag uint32
}

// hold keeps a pointer from being freed, as another reference would, until letGo: its owner may be freed or evicted
// at any time. hold reports false if the pointer is freed already.
func (r ownedRef) hold() bool { return r.t != nil && r.t.addRef(r.ref, r.tag) }

func (r ownedRef) letGo() { r.t.drop([]ownedRef{r}) }

func (r ownedRef) current() bool { return r.t != nil && r.t.current(r.ref, r.tag) }

// Ptr is a pointer to a value of T in soft memory, the only one there is
// (compare Shared). Any number of goroutines may use it, but it must not be
// copied. The zero Ptr points to nothing: Load reports false.
type Ptr[T any] struct {
	h    *Heap
	hint atomic.Uint64 // where the value lay when we last looked
	rev  uint64        // the reverse pointer of its objects
	ownedRef
	cell *cell
}

// Shared is a pointer that shares its value with others: the value is freed
// with the last of them. It must not be copied, but cloned.
type Shared[T any] struct{ Ptr[T] }

// Init makes p point to a new value, which owns the given pointers.
func (s *Pointers[T, A]) Init(p *Ptr[T], v T, own ...Owned) error {
	if p.h != nil {
		return errors.New("cannot init a soft pointer that is in use: free it first")
	}
	ref, tag, c := s.table.alloc()
	p.h, p.cell = s.h, c
	p.ownedRef, p.rev = ownedRef{s.table, ref, tag}, reverse(s.table.id, ref)
	if err := p.Store(v, own...); err != nil {
		p.Free()
		return err
	}
	return nil
}

// InitShared is Init for a shared pointer.
func (s *Pointers[T, A]) InitShared(p *Shared[T], v T, own ...Owned) error {
	return s.Init(&p.Ptr, v, own...)
}

// Load copies the value to dst and reports whether it is still there. If it
// is not, dst holds garbage.
//
// The pointer remembers where the value lay. Three things prove that it still lies there: the segment's generation,
// before and after the copy; the object's reverse pointer; and the dead bit, which is set before the pointer's cell
// names anything else. The stripe's count of writes proves that nobody overwrote the value meanwhile. Only when one
// of these proofs fails does Load look into the cell.
//
//polder:hot
func (p *Ptr[T]) Load(dst *T) bool {
	w := word(p.hint.Load())
	if w == 0 || sizeOf[T]() > maxInline {
		return p.loadSlow(dst)
	}
	h := p.h
	seg := w.segment()
	gen := h.ctl.Generation(seg)
	s := h.stripeOf(w)
	state := s.Load()
	if w.alive(gen) && state&(w.deadBit()|stripeLocked) == 0 {
		same := h.base.load64(seg, w.offset()+8) == p.rev
		copyOut(h.base, seg, w.offset()+headerSize, dst)
		order.LoadFence()
		if same && h.ctl.Generation(seg) == gen && (sizeOf[T]() > maxInPlace || sameWrites(state, s.Load())) {
			h.touch(w)
			if h.curve.threshold.Load() != 0 {
				h.accessCell(p.t.id, p.ref, w)
			}
			return true
		}
	}
	return p.loadSlow(dst)
}

//go:noinline
func (p *Ptr[T]) loadSlow(dst *T) bool {
	w, ok := loadRef(p.h, p.ownedRef, p.cell, dst)
	if ok {
		p.hint.Store(uint64(w))
		p.h.accessCell(p.t.id, p.ref, w)
	}
	return ok
}

// loadRef copies the value that the cell c names. It reports false unless c is the cell of the pointer r both before
// and after.
func loadRef[T any](h *Heap, r ownedRef, c *cell, dst *T) (w word, ok bool) {
	if !r.current() {
		return 0, false
	}
	if sizeOf[T]() > maxInline {
		w, ok = loadLarge(h, c, dst)
	} else {
		w, ok = loadCell(h, c, dst)
	}
	return w, ok && r.current()
}

// Store replaces the value and what it owns.
func (p *Ptr[T]) Store(v T, own ...Owned) error { return p.StoreFrom(&v, own...) }

// StoreFrom is Store for values that are dear to pass: it copies *v once. A
// value of up to 4 KiB is written where it lies.
//
//polder:hot
func (p *Ptr[T]) StoreFrom(v *T, own ...Owned) error {
	if w := word(p.hint.Load()); w != 0 && sizeOf[T]() <= maxInPlace && len(own) == 0 && !p.t.owning.Load() &&
		overwrite(p.h, w, p.rev, v) {
		return nil
	}
	return p.storeSlow(v, own)
}

//go:noinline
func (p *Ptr[T]) storeSlow(v *T, own []Owned) error {
	if !p.hold() {
		return errors.New("cannot store through a soft pointer that points to nothing")
	}
	defer p.letGo()
	w, err := putCell(p.h, p.t.id, p.ref, p.cell, v)
	if err != nil {
		return err
	}
	p.hint.Store(uint64(w))
	if len(own) > 0 || p.t.owning.Load() {
		p.t.own(p.ref, own)
	}
	return nil
}

// CompareAndSwap replaces the value by new if its bytes are those of old, and
// reports whether it did. A value that has vanished equals nothing.
func (p *Ptr[T]) CompareAndSwap(old, new T) (bool, error) {
	if !p.hold() {
		return false, nil
	}
	defer p.letGo()
	w, ok, err := casCell(p.h, p.t.id, p.ref, p.cell, &old, &new)
	if ok {
		p.hint.Store(uint64(w))
	}
	return ok, err
}

// Free releases the value and what it owns; of a Shared, only this reference.
// Freeing a pointer to nothing is a no-op. It must not race with other uses
// of p.
func (p *Ptr[T]) Free() {
	if p.h == nil {
		return
	}
	r := p.ownedRef
	p.h, p.cell, p.ownedRef = nil, nil, ownedRef{}
	p.hint.Store(0)
	r.t.drop([]ownedRef{r})
}

func (p *Ptr[T]) owned() ownedRef { return p.ownedRef }

// CloneTo makes q another pointer to the same value.
func (p *Shared[T]) CloneTo(q *Shared[T]) error {
	if q.h != nil {
		return errors.New("cannot clone to a soft pointer that is in use: free it first")
	}
	if !p.hold() {
		return errors.New("cannot clone a soft pointer that points to nothing")
	}
	q.h, q.cell, q.ownedRef, q.rev = p.h, p.cell, p.ownedRef, p.rev
	q.hint.Store(p.hint.Load())
	return nil
}

// Read copies the value out, and rebuilds it from arg if it has vanished:
// once, however many goroutines ask.
func (s *Pointers[T, A]) Read(ctx context.Context, p *Ptr[T], arg A) (T, error) {
	var v T
	if p.Load(&v) {
		return v, nil
	}
	return s.readSlow(ctx, p, arg)
}

// readSlow is Read for a value that was not there a moment ago.
func (s *Pointers[T, A]) readSlow(ctx context.Context, p *Ptr[T], arg A) (v T, err error) {
	if s.rebuild == nil {
		return v, ErrNoRebuild
	}
	r, c := p.ownedRef, p.cell // p may be freed when nobody waits any more
	if r.t == nil {
		return v, errors.New("cannot read through a soft pointer that points to nothing: init it first")
	}
	return s.flights.Do(ctx, r, func(ctx context.Context, f *flight.Call[T]) (T, error) {
		var v T
		if _, ok := loadRef(s.h, r, c, &v); ok {
			return v, nil
		}
		start := time.Now()
		v, err := s.rebuild(ctx, arg)
		took := time.Since(start)
		s.h.rebuilt(took, 1)
		if err != nil {
			return v, fmt.Errorf("cannot rebuild a soft value: %w", err)
		}
		if !r.hold() { // freed with what owned it: the cell may be another's
			return v, nil
		}
		defer r.letGo()
		cost := costClass(took)
		s.h.rebuiltCell(r.t.id, r.ref, sizeOf[T](), cost)
		// A store that came meanwhile wins: it is newer than what we rebuilt.
		// If memory is short, the value is not kept.
		if w := word(c.Load()); w == 0 || !w.alive(s.h.ctl.Generation(w.segment())) {
			_, _, _ = storeCell(s.h, r.t.id, r.ref, c, codec.Bytes(&v), cost, true, w)
		}
		return v, nil
	})
}

// Close frees every pointer of the pool.
func (s *Pointers[T, A]) Close() {
	s.table.close()
}

// pointerTable holds the cells of a pool's pointers, in chunks that never
// move, and who owns whom.
type pointerTable struct {
	h      *Heap
	id     uint16
	chunks atomic.Pointer[[]*pointerChunk]
	owning atomic.Bool // anybody owns anything

	mu       sync.Mutex // leaf
	free     []uint64
	next     uint64
	children map[uint64][]ownedRef
}

const chunkCells = 4096

type pointerChunk struct {
	cells [chunkCells]cell
	meta  [chunkCells]atomic.Uint64 // incarnation (32) | references (32)
}

func (t *pointerTable) at(ref uint64) (*cell, *atomic.Uint64) {
	chunks := t.chunks.Load()
	if chunks == nil || ref/chunkCells >= uint64(len(*chunks)) {
		return nil, nil
	}
	c := (*chunks)[ref/chunkCells]
	return &c.cells[ref%chunkCells], &c.meta[ref%chunkCells]
}

func (t *pointerTable) alloc() (ref uint64, tag uint32, c *cell) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.free); n > 0 {
		ref = t.free[n-1]
		t.free = t.free[:n-1]
	} else {
		ref = t.next
		t.next++
		if ref%chunkCells == 0 {
			var chunks []*pointerChunk
			if p := t.chunks.Load(); p != nil {
				chunks = append(chunks, *p...)
			}
			chunks = append(chunks, new(pointerChunk))
			t.chunks.Store(&chunks)
		}
	}
	c, meta := t.at(ref)
	tag = uint32(meta.Load() >> 32)
	meta.Add(1)
	return ref, tag, c
}

// current reports whether a pointer's cell is still that pointer's.
func (t *pointerTable) current(ref uint64, tag uint32) bool {
	_, meta := t.at(ref)
	if meta == nil {
		return false
	}
	m := meta.Load()
	return uint32(m>>32) == tag && uint32(m) > 0
}

func (t *pointerTable) addRef(ref uint64, tag uint32) bool {
	_, meta := t.at(ref)
	for {
		m := meta.Load()
		if uint32(m>>32) != tag || uint32(m) == 0 {
			return false
		}
		if meta.CompareAndSwap(m, m+1) {
			return true
		}
	}
}

// own makes the value of ref own the given pointers, and drops the references to those that it owned before.
func (t *pointerTable) own(ref uint64, own []Owned) {
	old := t.disown(ref)
	if len(own) > 0 {
		t.owning.Store(true)
		refs := make([]ownedRef, len(own))
		for i, o := range own {
			refs[i] = o.owned()
		}
		t.mu.Lock()
		if t.children == nil {
			t.children = make(map[uint64][]ownedRef)
		}
		t.children[ref] = refs
		t.mu.Unlock()
	}
	t.drop(old)
}

func (t *pointerTable) disown(ref uint64) []ownedRef {
	if !t.owning.Load() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.children[ref]
	delete(t.children, ref)
	return old
}

// drop gives references up. It frees a pointer that nobody refers to any more, and also gives up the references that
// the pointer's value owned.
func (t *pointerTable) drop(list []ownedRef) {
	for len(list) > 0 {
		r := list[len(list)-1]
		list = list[:len(list)-1]
		c, meta := r.t.at(r.ref)
		for {
			m := meta.Load()
			if uint32(m>>32) != r.tag || uint32(m) == 0 {
				break // freed by somebody else already
			}
			if uint32(m) > 1 {
				if meta.CompareAndSwap(m, m-1) {
					break
				}
				continue
			}
			if !meta.CompareAndSwap(m, uint64(r.tag+1)<<32) {
				continue
			}
			dropCell(r.t.h, c)
			list = append(list, r.t.disown(r.ref)...)
			r.t.mu.Lock()
			r.t.free = append(r.t.free, r.ref)
			r.t.mu.Unlock()
			break
		}
	}
}

func (t *pointerTable) swing(ref uint64, from, to word) bool {
	c, _ := t.at(ref)
	if c == nil || !c.CompareAndSwap(uint64(from), uint64(to)) {
		return false
	}
	if to == 0 {
		t.drop(t.disown(ref))
	}
	return true
}

func (t *pointerTable) holdsLarge(ref uint64, id largeID) bool {
	c, _ := t.at(ref)
	return c != nil && cellHoldsLarge(t.h, c, id)
}

func (t *pointerTable) sweep() {
	t.each(func(ref uint64, c *cell) {
		if sweepCell(t.h, c) {
			t.drop(t.disown(ref))
		}
	})
}

func (t *pointerTable) each(f func(ref uint64, c *cell)) {
	chunks := t.chunks.Load()
	if chunks == nil {
		return
	}
	for i, c := range *chunks {
		for j := range c.cells {
			f(uint64(i*chunkCells+j), &c.cells[j])
		}
	}
}

func (t *pointerTable) close() {
	var owned []ownedRef // perhaps of other pools
	t.each(func(ref uint64, c *cell) {
		_, meta := t.at(ref)
		if m := meta.Load(); uint32(m) > 0 && meta.CompareAndSwap(m, uint64(uint32(m>>32)+1)<<32) {
			dropCell(t.h, c)
			owned = append(owned, t.disown(ref)...)
		}
	})
	t.drop(owned)
	t.h.owners.remove(t.id)
}
