package far

import (
	"context"
	"sync"

	"polder/far/heap"
	"polder/far/objects"
	"polder/internal/invariants"
)

// Shared is one of several pointers to one object, which lives until the last
// of them is freed. They are all told when the object moves, since they all are
// the same word: where AIFM chains the pointers and visits them one by one,
// there is nothing to visit here. The zero Shared points to nothing.
//
// A Shared may be copied, as any value; a copy is the same reference, and is
// freed with it. Clone makes another one. In a far object it lies as a [SharedRef].
// An object that has clones takes some 40 bytes of Go memory for their number, outside of the
// budget, and one without takes none.
type Shared[T any] struct{ p Ptr[T] }

// SharedRef is a Shared that may be part of an object of a pointer, as a Ref is a Ptr: the
// same reference, and not another one. It means something to its heap only. The zero SharedRef
// points to nothing.
type SharedRef[T any] struct{ r Ref[T] }

// clones are the objects of a heap that have several Shareds.
type clones struct {
	mu    sync.Mutex
	extra map[uint64]int // how many more than one, by the number of the word; under mu
}

// Share makes p, which must not be used any more by itself, a Shared.
func Share[T any](p Ptr[T]) Shared[T] { return Shared[T]{p} }

// Deref returns the object, as Ptr.Deref does.
func (s Shared[T]) Deref(sc *heap.Scope) *T { return s.p.Deref(sc) }

// DerefMut returns the object, as Ptr.DerefMut does.
func (s Shared[T]) DerefMut(sc *heap.Scope) *T { return s.p.DerefMut(sc) }

// Load returns a copy of the object, as Ptr.Load does.
func (s Shared[T]) Load(ctx context.Context) (T, error) { return s.p.Load(ctx) }

// Store makes the object v, as Ptr.Store does.
func (s Shared[T]) Store(ctx context.Context, v T) error { return s.p.Store(ctx, v) }

// Clone returns another pointer to the same object, which is to be freed as
// well. It waits for nothing.
func (s Shared[T]) Clone() Shared[T] {
	h := heapOf(s.p.word())
	if h == nil {
		return s // gone with the heap
	}
	if invariants.Enabled {
		s.p.gen.checkFreed(h, s.p.word())
	}
	h.clones.mu.Lock()
	defer h.clones.mu.Unlock()
	if objects.Load(s.p.word()).Free() {
		panic("BUG: a far.Shared is cloned after it was freed")
	}
	if h.clones.extra == nil {
		h.clones.extra = make(map[uint64]int)
	}
	h.clones.extra[h.objects.Number(s.p.word())]++
	return s
}

// Free frees the pointer, and with the last one the object. To free it more often than it was
// cloned is found as it is for a Ptr.
func (s Shared[T]) Free() {
	if h := heapOf(s.p.word()); h == nil || !h.clones.drop(h.objects.Number(s.p.word())) {
		s.p.Free()
	}
}

// drop takes one clone from the word with a number, and reports whether there was one.
func (c *clones) drop(number uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.extra[number] {
	case 0:
		return false
	case 1:
		delete(c.extra, number)
	default:
		c.extra[number]--
	}
	return true
}

// Ref returns s in a form that may be part of a far object, as Ptr.Ref does.
func (s Shared[T]) Ref() SharedRef[T] { return SharedRef[T]{s.p.Ref()} }

// Shared returns the pointer that r is on its heap.
func (r SharedRef[T]) Shared(h *Heap) Shared[T] { return Shared[T]{r.r.Ptr(h)} }

// IsNil reports whether r points to nothing.
func (r SharedRef[T]) IsNil() bool { return r.r.IsNil() }
