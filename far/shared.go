package far

import (
	"context"
	"sync"

	"polder/far/heap"
	"polder/far/objects"
	"polder/internal/invariants"
)

// Shared is one of several pointers to one object, which lives until the last of them is freed. When the object
// moves, there is no list of Shareds to visit, unlike in AIFM, which chains such pointers and visits them one by one:
// all Shareds of an object have the same word. The zero Shared points to nothing.
//
// A Shared may be copied like any value. A copy is the same reference, and is freed with the original; Clone makes
// another reference. [SharedRef] is the form of a Shared that may be part of a far object. An object that has clones
// takes some 40 bytes of Go memory for their number, outside of the budget; an object without clones takes none.
type Shared[T any] struct{ p Ptr[T] }

// SharedRef is a Shared in a form that may be part of a far object, as a Ref is for a Ptr. It is the same reference
// as the Shared, not another one. It means something only to its heap. The zero SharedRef points to nothing.
type SharedRef[T any] struct{ r Ref[T] }

// clones counts the references to those objects of a heap that have several Shareds.
type clones struct {
	mu    sync.Mutex
	extra map[uint64]int // references beyond the first, by the number of the word; under mu
}

// Share makes a Shared of p. Afterwards p itself must not be used any more.
func Share[T any](p Ptr[T]) Shared[T] { return Shared[T]{p} }

// Deref returns the object, as Ptr.Deref does.
func (s Shared[T]) Deref(sc *heap.Scope) *T { return s.p.Deref(sc) }

// DerefMut returns the object, as Ptr.DerefMut does.
func (s Shared[T]) DerefMut(sc *heap.Scope) *T { return s.p.DerefMut(sc) }

// Load returns a copy of the object, as Ptr.Load does.
func (s Shared[T]) Load(ctx context.Context) (T, error) { return s.p.Load(ctx) }

// Store makes the object v, as Ptr.Store does.
func (s Shared[T]) Store(ctx context.Context, v T) error { return s.p.Store(ctx, v) }

// Clone returns another reference to the same object, which has to be freed as well. It waits for nothing.
func (s Shared[T]) Clone() Shared[T] {
	h := heapOf(s.p.word())
	if h == nil {
		return s // the object went with the heap
	}
	if invariants.Enabled {
		s.p.gen.checkFreed(h, s.p.word())
	}
	h.clones.mu.Lock()
	defer h.clones.mu.Unlock()
	if objects.Load(s.p.word()).Free() {
		if h.core.Shut.Load() {
			return s // the object went with the heap, which is being closed
		}
		panic("BUG: a far.Shared is cloned after it was freed")
	}
	if h.clones.extra == nil {
		h.clones.extra = make(map[uint64]int)
	}
	h.clones.extra[h.objects.Number(s.p.word())]++
	return s
}

// Free frees this reference, and with the last reference the object. A Free too many is detected as it is for a Ptr.
func (s Shared[T]) Free() {
	if h := heapOf(s.p.word()); h == nil || !h.clones.drop(h.objects.Number(s.p.word())) {
		s.p.Free()
	}
}

// drop removes one clone of the object whose word has this number, and reports whether there was one.
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

// Shared returns the Shared of heap h to which r refers.
func (r SharedRef[T]) Shared(h *Heap) Shared[T] { return Shared[T]{r.r.Ptr(h)} }

// IsNil reports whether r points to nothing.
func (r SharedRef[T]) IsNil() bool { return r.r.IsNil() }
