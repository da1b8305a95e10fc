package far

import (
	"context"
	"runtime"
	"sync/atomic"

	"polder/far/heap"
)

// Shared is one of several pointers to one object, which lives until the last
// of them is freed. They are all told when the object moves, since they all are
// the same word: where AIFM chains the pointers and visits them one by one,
// there is nothing to visit here. The zero Shared points to nothing.
//
// A Shared may be copied, as any value; a copy is the same reference, and is
// freed with it. Clone makes another one.
type Shared[T any] struct {
	p     Ptr[T]
	count *atomic.Int64
}

// Share makes p, which must not be used any more by itself, a Shared.
func Share[T any](p Ptr[T]) Shared[T] {
	s := Shared[T]{p: p, count: new(atomic.Int64)}
	s.count.Store(1)
	return s
}

// Deref returns the object, as Ptr.Deref does.
func (s Shared[T]) Deref(sc *heap.Scope) *T { return s.p.Deref(sc) }

// DerefMut returns the object, as Ptr.DerefMut does.
func (s Shared[T]) DerefMut(sc *heap.Scope) *T { return s.p.DerefMut(sc) }

// DerefStream returns the object, as Ptr.DerefStream does.
func (s Shared[T]) DerefStream(sc *heap.Scope) *T { return s.p.DerefStream(sc) }

// Load returns a copy of the object, as Ptr.Load does.
func (s Shared[T]) Load(ctx context.Context) (T, error) { return s.p.Load(ctx) }

// Store makes the object v, as Ptr.Store does.
func (s Shared[T]) Store(ctx context.Context, v T) error { return s.p.Store(ctx, v) }

// Clone returns another pointer to the same object, which is to be freed as
// well.
func (s Shared[T]) Clone() Shared[T] {
	if s.count.Add(1) <= 1 {
		panic("BUG: a far.Shared is cloned after it was freed")
	}
	return s
}

// Free frees the pointer, and with the last one the object.
func (s Shared[T]) Free() {
	switch n := s.count.Add(-1); {
	case n == 0:
		s.p.Free()
	case n < 0:
		panic("BUG: a far.Shared is freed more often than it was cloned")
	}
}

// IsNil reports whether s points to nothing.
func (s Shared[T]) IsNil() bool { return s.p.IsNil() }

// Same reports whether s and o point to the same object.
func (s Shared[T]) Same(o Shared[T]) bool { return s.p.w == o.p.w }

// Owned is a pointer whose object is freed when the garbage collector finds
// that nobody has the Owned any more, for those who want that. It is an object of
// Go's, so that it cannot be part of a far one.
type Owned[T any] struct {
	p    Ptr[T]
	stop runtime.Cleanup
}

// Own ties p to a Go value.
func Own[T any](p Ptr[T]) *Owned[T] {
	o := &Owned[T]{p: p}
	o.stop = runtime.AddCleanup(o, Ptr[T].Free, p)
	return o
}

// Ptr returns the pointer, which is good as long as o is reachable; see
// runtime.KeepAlive.
func (o *Owned[T]) Ptr() Ptr[T] { return o.p }

// Free frees the object at once, rather than when o is collected.
func (o *Owned[T]) Free() {
	o.stop.Stop()
	o.p.Free()
}
