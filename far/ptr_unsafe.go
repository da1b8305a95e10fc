package far

import (
	"context"
	"sync/atomic"
	"unsafe"

	"polder/far/heap"
	"polder/far/object"
	"polder/far/objects"
	"polder/internal/invariants"
)

// Ptr is a remoteable pointer to an object of type T (the paper's section 4.2.1). The object is local or far, and
// moves between the two as the heap's evacuator and those who dereference the pointer make it move. A Ptr is a small
// value, to be copied and compared like any pointer. All copies are the same pointer, which takes one word of local
// memory as long as it exists and is used now and then. The zero Ptr points to nothing, and dereferencing it panics.
//
// The bytes of an object are the program's: if some goroutines write them while others read, they need the same locks
// as with any memory. The pointer itself may be used by any number of goroutines.
type Ptr[T any] struct {
	_   [0]*T // so that pointers to different types do not convert
	gen generation
	w   *unsafe.Pointer // the word: see objects.Word
}

// word returns the word of p as a *uint64.
func (p Ptr[T]) word() *uint64 { return (*uint64)(unsafe.Pointer(p.w)) }

// Deref returns the object, to be read until s is left. If it is far, Deref fetches it, and only the calling
// goroutine waits. If that fails, Deref returns nil, and s.Err says why: *LostError, *CorruptError, ErrScopeFull, or
// the error of the store or of the scope's context.
//
// The fast path, for an object that is local, was used of late, and is not about to be moved, is inlined: a load, a
// test and a branch.
func (p Ptr[T]) Deref(s *heap.Scope) (v *T) {
	if invariants.Enabled {
		p.gen.check(s, p.word())
	}
	v = (*T)(atomic.LoadPointer(p.w))
	if int64(uintptr(unsafe.Pointer(v))) < 0 {
		v = (*T)(derefSlow(s, p.w))
	}
	return
}

// DerefMut returns the object, to be read and written until s is left, as Deref does. The comparison with objects.Top
// tests the sign bit; written like this, DerefMut is short enough for the compiler to inline.
func (p Ptr[T]) DerefMut(s *heap.Scope) (v *T) {
	if invariants.Enabled {
		p.gen.check(s, p.word())
	}
	v = (*T)(atomic.LoadPointer(p.w))
	if uintptr(unsafe.Pointer(v)) > objects.Top || *(*bool)(unsafe.Add(unsafe.Pointer(v), -8)) {
		v = (*T)(derefMutSlow(s, p.w))
	}
	return
}

// DerefStream is Deref for an object without temporal locality (the paper's
// non-temporal access): it is among the first to be evacuated once s is left.
func (p Ptr[T]) DerefStream(s *heap.Scope) *T {
	if invariants.Enabled {
		p.gen.check(s, p.word())
	}
	return (*T)(derefFor(s, p.word(), objects.Stream))
}

// DerefMutStream is DerefMut for an object without temporal locality.
func (p Ptr[T]) DerefMutStream(s *heap.Scope) *T {
	if invariants.Enabled {
		p.gen.check(s, p.word())
	}
	return (*T)(derefFor(s, p.word(), objects.Mut|objects.Stream))
}

// Load returns a copy of the object. It needs no scope, and waits within ctx
// for a fetch and for local memory.
func (p Ptr[T]) Load(ctx context.Context) (v T, err error) {
	h := heapOf(p.word())
	if h == nil {
		return v, heap.ErrClosed
	}
	err = h.core.One(ctx, func(s *heap.Scope) {
		if o := p.Deref(s); o != nil {
			v = *o
		}
	})
	return v, err
}

// Store makes the object v. It needs no scope, and waits within ctx for a
// fetch and for local memory.
func (p Ptr[T]) Store(ctx context.Context, v T) error {
	h := heapOf(p.word())
	if h == nil {
		return heap.ErrClosed
	}
	return h.core.One(ctx, func(s *heap.Scope) {
		if o := p.DerefMut(s); o != nil {
			*o = v
		}
	})
}

// Free frees the object and the pointer, and so all copies of the pointer. In scopes that are open the object may
// still be read. Freeing a pointer twice, or using it after it was freed, is an error. Builds with invariants always
// detect it, others only while the word is not in use again.
func (p Ptr[T]) Free() {
	h := heapOf(p.word())
	if h == nil {
		return // the object went with the heap
	}
	if invariants.Enabled {
		p.gen.checkFreed(h, p.word())
	}
	h.objects.Free(p.word())
}

// IsLocal reports whether the object is in local memory just now. It is a
// hint: nothing keeps it there but a scope in which it was dereferenced.
func (p Ptr[T]) IsLocal() bool { w := objects.Load(p.word()); return w.Local() || w.Zero() }

// IsNil reports whether p points to nothing.
func (p Ptr[T]) IsNil() bool { return p.w == nil }

// Ref returns p in a form that may be part of a far object. If p points to nothing, or the heap has been closed, the
// Ref refers to nothing.
func (p Ptr[T]) Ref() Ref[T] {
	if p.w == nil {
		return Ref[T]{}
	}
	h := heapOf(p.word())
	if h == nil {
		return Ref[T]{}
	}
	return Ref[T]{n: h.objects.Number(p.word())}
}

// Any returns p without its type.
func (p Ptr[T]) Any() AnyRef { return AnyRef{p.Ref().n} }

// Ref is a Ptr in a form that may be part of a far object: a number, which means something only to the heap of the
// pointer. The zero Ref points to nothing.
type Ref[T any] struct {
	_ [0]*T
	n uint64
}

// Ptr returns the pointer of heap h to which r refers.
func (r Ref[T]) Ptr(h *Heap) Ptr[T] {
	if r.n == 0 {
		return Ptr[T]{}
	}
	return ptrTo[T](h, h.objects.At(r.n))
}

// IsNil reports whether r points to nothing.
func (r Ref[T]) IsNil() bool { return r.n == 0 }

// AnyRef is a Ref without its type.
type AnyRef struct{ n uint64 }

// numbersOf returns the memory of refs as the numbers of their words.
func numbersOf(refs []AnyRef) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(refs))), len(refs))
}

// Prefetch brings those objects of refs that are far into local memory, in as few reads of the store as it can, and
// returns when they are there, so that dereferencing them need not wait. It waits for local memory within ctx, and so
// must not be called in a scope. It passes over refs to nothing and objects that are local. It does not report
// objects that are lost or corrupt; whoever dereferences such an object gets the error.
func (h *Heap) Prefetch(ctx context.Context, refs ...AnyRef) error {
	return h.objects.Prefetch(ctx, numbersOf(refs))
}

// Run is n pointers in a row, whose words lie side by side. Arrays of far objects are made of runs. The objects are
// zero until they are used, and until then take no memory but their words.
type Run[T any] struct {
	_     [0]*T
	words []uint64
	h     *Heap
}

// At returns pointer i of the run.
func (r Run[T]) At(i int) Ptr[T] {
	if invariants.Enabled {
		return ptrTo[T](r.h, &r.words[i])
	}
	return Ptr[T]{w: (*unsafe.Pointer)(unsafe.Pointer(&r.words[i]))}
}

// Len is the number of pointers.
func (r Run[T]) Len() int { return len(r.words) }

// Free frees all pointers of the run.
func (r Run[T]) Free() {
	for i := range r.words {
		r.h.objects.Free(&r.words[i])
	}
}

// NewRun makes n pointers in a row.
func (c *Class[T]) NewRun(ctx context.Context, n int) (Run[T], error) {
	words, err := c.h.objects.NewRun(ctx, c.c, n)
	return Run[T]{words: words, h: c.h}, err
}

func ptrTo[T any](h *Heap, w *uint64) Ptr[T] {
	return Ptr[T]{gen: generationOf(h, w), w: (*unsafe.Pointer)(unsafe.Pointer(w))}
}

// derefSlow is Deref off the fast path.
//
//go:noinline
func derefSlow(s *heap.Scope, p *unsafe.Pointer) unsafe.Pointer {
	return derefFor(s, (*uint64)(unsafe.Pointer(p)), 0)
}

// derefMutSlow is DerefMut off the fast path.
//
//go:noinline
func derefMutSlow(s *heap.Scope, p *unsafe.Pointer) unsafe.Pointer {
	return derefFor(s, (*uint64)(unsafe.Pointer(p)), objects.Mut)
}

func derefFor(s *heap.Scope, p *uint64, what int) unsafe.Pointer {
	h := heapOfScope(s)
	h.objects.MustServe(s, p)
	o, err := h.objects.Deref(s, p, what)
	if err != nil {
		h.core.Fail(s, err)
		return nil
	}
	return unsafe.Pointer(unsafe.SliceData(o[object.Header:]))
}
