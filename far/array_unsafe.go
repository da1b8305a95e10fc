package far

import (
	"context"
	"sync/atomic"
	"unsafe"

	"polder/far/heap"
	"polder/far/object"
	"polder/far/objects"
)

// Elem is a pointer to an element of an Array or a Vector, that is, to one of the several elements in a far object.
// It is a small value, made by At, and has the methods of Ptr.
type Elem[T any] struct {
	_ [0]*T
	e elem
}

// elem is an Elem without its type.
type elem struct {
	w   *unsafe.Pointer // the word of the object
	off uintptr         // where in the object the element is, in bytes
	tr  *tracker
}

// Deref returns the element, to be read until s is left, as Ptr.Deref does. The fast path is inlined: it is a load,
// an addition, a test and a branch. The comparison with elemTop tests the sign bit; written like this, Deref is short
// enough for the compiler to inline.
func (p Elem[T]) Deref(s *heap.Scope) (v *T) {
	v = (*T)(unsafe.Add(atomic.LoadPointer(p.e.w), p.e.off))
	if uintptr(unsafe.Pointer(v)) > elemTop {
		v = (*T)(elemSlow(s, p.e))
	}
	return
}

// DerefMut returns the element, to be read and written until s is left, as Ptr.DerefMut does. It is too long to be
// inlined, so it costs a call, a nanosecond or two: code that writes many elements should use MutChunks.
func (p Elem[T]) DerefMut(s *heap.Scope) *T {
	v := atomic.LoadPointer(p.e.w)
	if uintptr(v) > elemTop || *(*bool)(unsafe.Add(v, -8)) {
		return (*T)(elemFor(s, p.e, objects.Mut))
	}
	return (*T)(unsafe.Add(v, p.e.off))
}

// DerefStream is Deref for an element without temporal locality, as
// Ptr.DerefStream.
func (p Elem[T]) DerefStream(s *heap.Scope) *T { return (*T)(elemFor(s, p.e, objects.Stream)) }

// DerefMutStream is DerefMut for an element without temporal locality.
func (p Elem[T]) DerefMutStream(s *heap.Scope) *T {
	return (*T)(elemFor(s, p.e, objects.Mut|objects.Stream))
}

// Load returns a copy of the element. It needs no scope, and waits within ctx.
func (p Elem[T]) Load(ctx context.Context) (v T, err error) {
	err = p.e.tr.h.core.One(ctx, func(s *heap.Scope) {
		if o := p.Deref(s); o != nil {
			v = *o
		}
	})
	return v, err
}

// Store makes the element v. It needs no scope, and waits within ctx.
func (p Elem[T]) Store(ctx context.Context, v T) error {
	return p.e.tr.h.core.One(ctx, func(s *heap.Scope) {
		if o := p.DerefMut(s); o != nil {
			*o = v
		}
	})
}

// IsLocal reports whether the element is in local memory just now, as
// Ptr.IsLocal does.
func (p Elem[T]) IsLocal() bool {
	w := objects.Load((*uint64)(unsafe.Pointer(p.e.w)))
	return w.Local() || w.Zero()
}

// elemSlow is Elem.Deref off the fast path.
//
//go:noinline
func elemSlow(s *heap.Scope, e elem) unsafe.Pointer { return elemFor(s, e, 0) }

func elemFor(s *heap.Scope, e elem, what int) unsafe.Pointer {
	o := e.tr.object(s, (*uint64)(unsafe.Pointer(e.w)), what)
	if o == nil {
		return nil
	}
	return unsafe.Pointer(unsafe.SliceData(o[object.Header+e.off:]))
}

// elemAt returns the Elem of element i of the object whose word is w.
func elemAt[T any](tr *tracker, w *uint64, i int) Elem[T] {
	return Elem[T]{e: elem{
		w:   (*unsafe.Pointer)(unsafe.Pointer(w)),
		off: uintptr(i) * unsafe.Sizeof(*new(T)),
		tr:  tr,
	}}
}

// sizeOf is the size of a T in bytes.
func sizeOf[T any]() int { return int(unsafe.Sizeof(*new(T))) }

// wordAt returns the word i places after first.
func wordAt(first *uint64, i int) *uint64 {
	return (*uint64)(unsafe.Add(unsafe.Pointer(first), i*objects.WordSize))
}

// wordsAt returns the n words from first on.
func wordsAt(first *uint64, n int) []uint64 { return unsafe.Slice(first, n) }

// wordIndex returns the index of p in words, or -1.
func wordIndex(words []uint64, p *uint64) int {
	if len(words) == 0 {
		return -1
	}
	d := uintptr(unsafe.Pointer(p)) - uintptr(unsafe.Pointer(&words[0]))
	if d >= uintptr(len(words))*objects.WordSize {
		return -1
	}
	return int(d / objects.WordSize)
}

// elementsOf returns the n elements that the object o holds.
func elementsOf[T any](o object.Object, n int) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(o[object.Header:]))), n)
}
