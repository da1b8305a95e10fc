package far

import (
	"context"
	"sync/atomic"
	"unsafe"

	"polder/internal/invariants"
)

// Ptr is a remoteable pointer to an object of type T (the paper's section
// 4.2.1), which is local or far and moves between the two as the heap's
// evacuator and those who dereference it will have it. A Ptr is a small value,
// to be copied and compared like any pointer; all copies are the same pointer,
// which takes one word of local memory as long as it exists. The zero Ptr points
// to nothing, and dereferencing it panics.
//
// The bytes of an object are the program's: who writes them while others
// read needs the same locks as with any memory. The pointer itself may be used
// by any number of goroutines.
type Ptr[T any] struct {
	_   [0]*T // so that pointers to different types do not convert
	gen generation
	w   *uint64
}

// What dereferencing wants, beside the size of the object in the bits above.
const (
	derefMut    = 1 << iota // to write
	derefStream             // not to use it again soon
	derefShift  = iota
)

// Deref returns the object, to be read until s is left. If it is far, Deref
// fetches it, and only the calling goroutine waits. If that fails, Deref returns nil
// and s.Err says why: *LostError, *CorruptError, ErrScopeFull, or what the
// store or the scope's context says.
//
// The fast path, for an object that is local, was used of late, and is not
// about to be moved, is inlined: a load, a shift, a test and a branch.
func (p Ptr[T]) Deref(s *Scope) *T {
	if invariants.Enabled {
		p.gen.check(s, p.w)
	}
	v := atomic.LoadPointer((*unsafe.Pointer)(unsafe.Pointer(p.w)))
	if uintptr(v)>>pColdShift != 0 {
		v = derefSlow(s, p.w, int(unsafe.Sizeof(*(*T)(nil)))<<derefShift)
	}
	return (*T)(v)
}

// DerefMut returns the object, to be read and written until s is left, as Deref
// does.
func (p Ptr[T]) DerefMut(s *Scope) *T {
	if invariants.Enabled {
		p.gen.check(s, p.w)
	}
	v := atomic.LoadPointer((*unsafe.Pointer)(unsafe.Pointer(p.w)))
	if uintptr(v)>>pColdShift != 0 || *(*uint64)(unsafe.Add(v, -8)) >= 1<<copyShift {
		v = derefSlow(s, p.w, int(unsafe.Sizeof(*(*T)(nil)))<<derefShift|derefMut)
	}
	return (*T)(v)
}

// DerefStream is Deref for an object without temporal locality (the paper's
// non-temporal access): it is among the first to be evacuated once s is left.
func (p Ptr[T]) DerefStream(s *Scope) *T {
	if invariants.Enabled {
		p.gen.check(s, p.w)
	}
	return (*T)(derefSlow(s, p.w, int(unsafe.Sizeof(*(*T)(nil)))<<derefShift|derefStream))
}

// DerefMutStream is DerefMut for an object without temporal locality.
func (p Ptr[T]) DerefMutStream(s *Scope) *T {
	if invariants.Enabled {
		p.gen.check(s, p.w)
	}
	return (*T)(derefSlow(s, p.w, int(unsafe.Sizeof(*(*T)(nil)))<<derefShift|derefMut|derefStream))
}

// Load returns a copy of the object. It needs no scope, and waits within ctx
// for a fetch.
func (p Ptr[T]) Load(ctx context.Context) (v T, err error) {
	s := heapOf(p.w).acquire(ctx)
	if o := p.Deref(s); o != nil {
		v = *o
	}
	err = s.Err()
	s.giveBack()
	return v, err
}

// Store makes the object v. It needs no scope, and waits within ctx for a
// fetch.
func (p Ptr[T]) Store(ctx context.Context, v T) error {
	s := heapOf(p.w).acquire(ctx)
	if o := p.DerefMut(s); o != nil {
		*o = v
	}
	err := s.Err()
	s.giveBack()
	return err
}

// Free frees the object and the pointer, all copies of it. In scopes that are
// open the object may still be read. Freeing a pointer twice, or using it
// afterwards, is an error that is found if the word is not in use again; builds
// with invariants always find it.
func (p Ptr[T]) Free() {
	h := heapOf(p.w)
	if invariants.Enabled {
		p.gen.checkFreed(h, p.w)
	}
	h.free(p.w)
}

// IsLocal reports whether the object is in local memory just now. It is a
// hint: nothing keeps it there but a scope in which it was dereferenced.
func (p Ptr[T]) IsLocal() bool { w := loadWord(p.w); return w.local() || w&pZero != 0 }

// IsNil reports whether p points to nothing.
func (p Ptr[T]) IsNil() bool { return p.w == nil }

// Ref returns p in a form that may be part of a far object.
func (p Ptr[T]) Ref() Ref[T] {
	if p.w == nil {
		return Ref[T]{}
	}
	return Ref[T]{n: heapOf(p.w).words.number(p.w)}
}

// Any returns p without its type.
func (p Ptr[T]) Any() AnyRef { return AnyRef{p.Ref().n} }

// Ref is a Ptr that may be part of an object of a pointer: it is a number that
// means something to its heap only. The zero Ref points to nothing.
type Ref[T any] struct {
	_ [0]*T
	n uint64
}

// Ptr returns the pointer that r is on its heap.
func (r Ref[T]) Ptr(h *Heap) Ptr[T] {
	if r.n == 0 {
		return Ptr[T]{}
	}
	return ptrTo[T](h, h.words.at(r.n))
}

// IsNil reports whether r points to nothing.
func (r Ref[T]) IsNil() bool { return r.n == 0 }

// AnyRef is a Ref of which the type is not known.
type AnyRef struct{ n uint64 }

// RefTo returns r as a reference to an object of type T, which it must be.
func RefTo[T any](r AnyRef) Ref[T] { return Ref[T]{n: r.n} }

// Run is n pointers in a row, whose words lie side by side: what an array of
// far objects is made of. The objects are zero until they are used, and take no
// memory until then beside their words.
type Run[T any] struct {
	_     [0]*T
	words []uint64
	h     *Heap
}

// At returns the pointer with number i.
func (r Run[T]) At(i int) Ptr[T] {
	if invariants.Enabled {
		return ptrTo[T](r.h, &r.words[i])
	}
	return Ptr[T]{w: &r.words[i]}
}

// Len is the number of pointers.
func (r Run[T]) Len() int { return len(r.words) }

// Free frees all pointers of the run.
func (r Run[T]) Free() {
	for i := range r.words {
		r.h.free(&r.words[i])
	}
}

// NewRun makes n pointers in a row.
func (c *Class[T]) NewRun(ctx context.Context, n int) (Run[T], error) {
	words, err := c.h.newRun(ctx, c.c, n)
	return Run[T]{words: words, h: c.h}, err
}

func ptrTo[T any](h *Heap, w *uint64) Ptr[T] {
	return Ptr[T]{gen: generationOf(h, w), w: w}
}

// objectOf is the object of T at the beginning of b.
func objectOf[T any](b []byte) *T { return (*T)(unsafe.Pointer(unsafe.SliceData(b))) }

// bytesOf is the bytes of v.
func bytesOf[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// derefSlow is Deref off the fast path. What is the size of the object, -1 if
// any size will do, and what it is wanted for.
//
//go:noinline
func derefSlow(s *Scope, p *uint64, what int) unsafe.Pointer {
	o, err := s.h.deref(s, p, what)
	if err != nil {
		s.fail(err)
		return nil
	}
	return unsafe.Pointer(&o[objectHeader])
}
