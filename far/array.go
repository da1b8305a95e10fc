package far

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/bits"

	"polder/far/heap"
	"polder/far/objects"
)

// Array is an array of elements of type T, which must not hold Go pointers. Elements are zero at first, and are local
// or far in groups. An Array is for far memory what Go's [n]T is for local memory: any number of goroutines may use
// it, and whoever writes an element while others use the same element needs a lock. Different elements of a group may
// be written at the same time.
//
// At and the methods of Elem give access in a scope; Get, Set, Read and Write copy, and need no scope. An access
// takes constant time, and one read of the store if the element is far. A group that was never written takes no
// memory but its word of 8 bytes. The array recognizes strides in the accesses of a goroutine or an iterator, and
// prefetches along them.
type Array[T any] struct {
	n     int
	shift int
	words []uint64
	tr    *tracker
	idx   []struct{} // has length n; indexing it does the bounds checks
}

const arrayGroup = 1 << 10 // bytes

// NewArray makes an array of n elements. It waits within ctx for local memory for the array's words, and must not be
// called in a scope.
func NewArray[T any](ctx context.Context, h *Heap, n int, cfg StructureConfig) (*Array[T], error) {
	if n < 0 {
		return nil, fmt.Errorf("cannot make array %q: its length is %d", cfg.Name, n)
	}
	if cfg.HotBits == 0 {
		cfg.HotBits = 2
	}
	tr, err := newTracker[T](h, "array", cfg, arrayGroup)
	if err != nil {
		return nil, err
	}
	words, err := tr.arrayWords(ctx, n)
	if err != nil {
		h.objects.Disown(tr.Class)
		return nil, err
	}
	a := &Array[T]{n: n, shift: bits.TrailingZeros(uint(tr.Group)), words: words, tr: tr, idx: make([]struct{}, n)}
	tr.Word = func(i int) *uint64 {
		if uint(i) >= uint(len(words)) {
			return nil
		}
		return &words[i]
	}
	tr.index = func(p *uint64) int { return wordIndex(words, p) }
	tr.len = func() int { return n }
	h.track(tr)
	return a, nil
}

// arrayWords returns the words of an array of n elements: those that a checkpoint has kept, or else new ones.
func (tr *tracker) arrayWords(ctx context.Context, n int) ([]uint64, error) {
	objs := (n + tr.Group - 1) / tr.Group
	st, ok, err := tr.keptRuns()
	switch {
	case err != nil || ok && len(st.firsts) != 1:
		return nil, fmt.Errorf("cannot open array %q: what was kept of it is damaged: %w", tr.Class.Name(), cmp.Or(err, errors.New("it is of no array")))
	case ok && st.n != n:
		return nil, fmt.Errorf("cannot open array %q: it has %d elements, want %d", tr.Class.Name(), st.n, n)
	case ok:
		return tr.keptWords(st.firsts[0], objs)
	}
	words, err := tr.h.objects.NewRun(ctx, tr.Class, objs)
	if err != nil {
		return nil, fmt.Errorf("cannot make array %q of %d elements: %w", tr.Class.Name(), n, err)
	}
	first := uint64(0)
	if objs > 0 {
		first = tr.h.objects.Number(&words[0])
	}
	tr.keep(func() runsState { return runsState{n, []uint64{first}} })
	return words, nil
}

// Len is the number of elements.
func (a *Array[T]) Len() int { return a.n }

// At returns the pointer to element i. If there is no element i it panics, as indexing an array does.
func (a *Array[T]) At(i int) Elem[T] {
	_ = a.idx[i]
	return elemAt[T](a.tr, &a.words[i>>a.shift], i&(1<<a.shift-1))
}

// Get returns a copy of element i. It needs no scope, and waits within ctx.
func (a *Array[T]) Get(ctx context.Context, i int) (T, error) { return a.At(i).Load(ctx) }

// Set makes element i v. It needs no scope, and waits within ctx.
func (a *Array[T]) Set(ctx context.Context, i int, v T) error { return a.At(i).Store(ctx, v) }

// Read copies elements from i on to dst. It needs no scope, and waits within
// ctx.
func (a *Array[T]) Read(ctx context.Context, dst []T, i int) error {
	_ = a.idx[i : i+len(dst)]
	_, err := read(ctx, a.tr, dst, i)
	return err
}

// Write copies src to the elements from i on. It needs no scope, and waits within ctx. If it fails, some elements may
// have been written. If Write overwrites all elements of a far group, it does not read the group first; the group
// then counts as one without temporal locality.
func (a *Array[T]) Write(ctx context.Context, src []T, i int) error {
	_ = a.idx[i : i+len(src)]
	_, err := write(ctx, a.tr, src, i)
	return err
}

// All iterates over the elements in order. An element is for reading only, and valid during its step. The iteration
// enters and leaves s for each group, and prefetches; it waits within the scope's context. If an element cannot be
// had, the iteration ends early, and s.Err says why.
func (a *Array[T]) All(s *heap.Scope) iter.Seq2[int, *T] { return each(a.part(s, 0, a.n, 0)) }

// Stream is All for elements without temporal locality: reading them does not displace other objects (the paper's
// non-temporal access).
func (a *Array[T]) Stream(s *heap.Scope) iter.Seq2[int, *T] {
	return each(a.part(s, 0, a.n, objects.Stream))
}

// Backward is All from the last element to the first.
func (a *Array[T]) Backward(s *heap.Scope) iter.Seq2[int, *T] { return backward[T](a.tr, s, a.n) }

// Chunks iterates over the elements from i to j, a group at a time. Each step gives the index of the first element
// and the elements, which are for reading only and valid during the step. It is the fastest way through an array.
// Otherwise it is like All.
func (a *Array[T]) Chunks(s *heap.Scope, i, j int) iter.Seq2[int, []T] { return a.part(s, i, j, 0) }

// StreamChunks is Chunks for elements without temporal locality.
func (a *Array[T]) StreamChunks(s *heap.Scope, i, j int) iter.Seq2[int, []T] {
	return a.part(s, i, j, objects.Stream)
}

// MutChunks is Chunks for elements to be read and written.
func (a *Array[T]) MutChunks(s *heap.Scope, i, j int) iter.Seq2[int, []T] {
	return a.part(s, i, j, objects.Mut)
}

// StreamMutChunks is MutChunks for elements without temporal locality.
func (a *Array[T]) StreamMutChunks(s *heap.Scope, i, j int) iter.Seq2[int, []T] {
	return a.part(s, i, j, objects.Mut|objects.Stream)
}

// part iterates over the elements from i to j by groups.
func (a *Array[T]) part(s *heap.Scope, i, j, what int) iter.Seq2[int, []T] {
	_ = a.idx[i:j]
	return part[T](a.tr, s, i, j, what)
}

// Prefetch brings those elements from i to j that are far into local memory, in as few reads of the store as it can,
// and returns when they are there, so that using them need not wait. It stops when it has brought as much as fills
// half of local memory. It waits within ctx, and must not be called in a scope. It does not report elements that are
// lost or corrupt; whoever uses such an element gets the error.
func (a *Array[T]) Prefetch(ctx context.Context, i, j int) error {
	_ = a.idx[i:j]
	return a.tr.prefetch(ctx, i>>a.shift, (j+a.tr.Group-1)>>a.shift)
}

// DontNeed says that the elements from i to j will not be used soon: they are
// among the first to be evacuated.
func (a *Array[T]) DontNeed(i, j int) {
	_ = a.idx[i:j]
	for c := i >> a.shift; c < (j+a.tr.Group-1)>>a.shift; c++ {
		objects.Chill(&a.words[c])
	}
}

// Clear makes all elements zero, and gives back the memory that they take.
func (a *Array[T]) Clear() {
	for i := range a.words {
		a.tr.h.objects.Reset(&a.words[i], a.tr.Class)
	}
}

// Free frees the array and gives its memory back, local and far. Nobody may be using the array. Afterwards its length
// is 0, and an iteration fails with ErrFreed. Freeing it again does nothing.
func (a *Array[T]) Free() {
	for i := range a.words {
		a.tr.h.objects.Free(&a.words[i])
	}
	a.tr.h.untrack(a.tr)
	a.words, a.idx, a.n = nil, nil, 0
}

// Stats returns the statistics of the array.
func (a *Array[T]) Stats() StructureStats { return a.tr.structure() }
