package far

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"sync"
	"sync/atomic"

	"polder/far/heap"
	"polder/far/objects"
)

// Vector is an Array that grows: it is to a slice what Array is to an array.
// All methods may be called by any number of goroutines: those that change the
// length take a lock, the others do not. Whoever writes an element while others
// use the same one needs a lock, as with a slice.
//
// Append and Pop take constant time, and a read of the store only if the last
// group is far; an access is as that of an Array.
type Vector[T any] struct {
	tr    *tracker
	shift int

	mu  sync.Mutex // guards changes of what follows
	n   atomic.Int64
	all atomic.Int64 // parts of the directory that are made
	// dir is the directory of words: the first of every part. Part 0 has vectorPart
	// words, and part i vectorPart<<(i-1), so that nothing moves when it grows.
	dir [vectorParts]*uint64
}

const (
	vectorPart  = objects.WordsPerPage
	vectorParts = 32 // for maxWords
)

// vectorPartLen is how many words part i has.
func vectorPartLen(i int) int { return max(vectorPart<<i>>1, vectorPart) }

// NewVector makes an empty vector.
func NewVector[T any](h *Heap, cfg StructureConfig) (*Vector[T], error) {
	if cfg.HotBits == 0 {
		cfg.HotBits = 2
	}
	tr, err := newTracker[T](h, "vector", cfg, arrayGroup)
	if err != nil {
		return nil, err
	}
	v := &Vector[T]{tr: tr, shift: bits.TrailingZeros(uint(tr.Group))}
	if err := v.open(); err != nil {
		h.objects.Disown(tr.Class)
		return nil, err
	}
	tr.Word = v.word
	tr.index = v.index
	tr.len = v.Len
	h.track(tr)
	return v, nil
}

// open makes the vector what was kept of it.
func (v *Vector[T]) open() error {
	st, ok, err := v.tr.keptRuns()
	if err == nil && ok && (len(st.firsts) > vectorParts || v.objects(st.n) > 0 && v.objects(st.n) > vectorPart<<len(st.firsts)>>1) {
		err = errors.New("it is of no vector")
	}
	if err != nil {
		return fmt.Errorf("cannot open vector %q: what was kept of it is damaged: %w", v.tr.Class.Name(), err)
	}
	for part, first := range st.firsts {
		words, err := v.tr.keptWords(first, vectorPartLen(part))
		if err != nil {
			return err
		}
		v.dir[part] = &words[0]
	}
	v.n.Store(int64(st.n))
	v.all.Store(int64(len(st.firsts)))
	v.tr.keep(func() runsState {
		st := runsState{n: v.Len()}
		for _, p := range v.dir[:v.all.Load()] {
			st.firsts = append(st.firsts, v.tr.h.objects.Number(p))
		}
		return st
	})
	return nil
}

// partOf is the part of the directory that has chunk c, and its place there.
func partOf(c int) (part, i int) {
	part = bits.Len(uint(c / vectorPart))
	return part, c - vectorPart<<part>>1&^(vectorPart-1)
}

// word is the word of object c, nil if there is none.
func (v *Vector[T]) word(c int) *uint64 {
	if c < 0 || c >= v.objects(v.Len()) {
		return nil
	}
	return v.wordIn(c)
}

// wordIn is the word of object c, whose part is made.
func (v *Vector[T]) wordIn(c int) *uint64 {
	part, i := partOf(c)
	return wordAt(v.dir[part], i)
}

// objects is how many objects n elements take.
func (v *Vector[T]) objects(n int) int { return (n + v.tr.Group - 1) >> v.shift }

// index is the number of the object of word p, or -1.
func (v *Vector[T]) index(p *uint64) int {
	for part := range int(v.all.Load()) {
		if i := wordIndex(wordsAt(v.dir[part], vectorPartLen(part)), p); i >= 0 {
			return i + vectorPart<<part>>1&^(vectorPart-1)
		}
	}
	return -1
}

// Len is the number of elements.
func (v *Vector[T]) Len() int { return int(v.n.Load()) }

// At returns the pointer to element i. It panics, as indexing a slice does, if
// there is none.
func (v *Vector[T]) At(i int) Elem[T] {
	if n := v.Len(); uint(i) >= uint(n) {
		panic(indexError{i, n})
	}
	return elemAt[T](v.tr, v.wordIn(i>>v.shift), i&(1<<v.shift-1))
}

// indexError is the panic of an index that is out of range.
type indexError struct{ i, n int }

func (e indexError) Error() string {
	return fmt.Sprintf("index out of range [%d] with length %d", e.i, e.n)
}

// RuntimeError makes e a runtime.Error, as that of a slice is.
func (e indexError) RuntimeError() {}

// rangeError is the panic of a range that is out of range.
type rangeError struct{ i, j, n int }

func (e rangeError) Error() string {
	return fmt.Sprintf("slice bounds out of range [%d:%d] with length %d", e.i, e.j, e.n)
}

// RuntimeError makes e a runtime.Error, as that of a slice is.
func (e rangeError) RuntimeError() {}

// Get returns a copy of element i. It needs no scope, and waits within ctx.
func (v *Vector[T]) Get(ctx context.Context, i int) (T, error) { return v.At(i).Load(ctx) }

// Set makes element i x. It needs no scope, and waits within ctx.
func (v *Vector[T]) Set(ctx context.Context, i int, x T) error { return v.At(i).Store(ctx, x) }

// Read copies elements from i on to dst, as Array.Read does. Those that the vector loses meanwhile are left as they are.
func (v *Vector[T]) Read(ctx context.Context, dst []T, i int) error {
	v.check(i, i+len(dst))
	_, err := read(ctx, v.tr, dst, i)
	return err
}

// Write copies src to the elements from i on, of which there are as many, as Array.Write does. Those that the vector loses
// meanwhile are passed over.
func (v *Vector[T]) Write(ctx context.Context, src []T, i int) error {
	v.check(i, i+len(src))
	_, err := write(ctx, v.tr, src, i)
	return err
}

// Append appends xs. It needs no scope, and waits within ctx. If it fails, those
// that there was room for may have been appended.
func (v *Vector[T]) Append(ctx context.Context, xs ...T) error {
	for len(xs) > 0 {
		n := 0
		err := v.tr.locked(ctx, &v.mu, func(s *heap.Scope) (p *uint64) {
			n, p = v.append(s, xs)
			return p
		})
		if err != nil {
			return err
		}
		xs = xs[n:]
	}
	return nil
}

// AppendIn is Append in a scope, which is open, and in which it takes local
// memory.
func (v *Vector[T]) AppendIn(s *heap.Scope, xs ...T) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.tr.freed() {
		return ErrFreed
	}
	for len(xs) > 0 {
		n, p := v.append(s, xs)
		if p != nil || n == 0 {
			return s.Err()
		}
		xs = xs[n:]
	}
	return nil
}

// append appends as many of xs as go into one object. If it fails, p may be the
// word that is why.
func (v *Vector[T]) append(s *heap.Scope, xs []T) (n int, p *uint64) {
	i := v.Len()
	part, c := partOf(i >> v.shift)
	if v.dir[part] == nil {
		words, err := v.tr.h.objects.Run(v.tr.Class, vectorPartLen(part))
		if err != nil {
			v.tr.h.core.Fail(s, v.tr.h.core.NoRoom(s, err, objects.WordSize<<part))
			return 0, nil
		}
		v.dir[part] = &words[0]
		v.all.Store(int64(part + 1))
	}
	p = wordAt(v.dir[part], c)
	o, err := v.tr.h.objects.Deref(s, p, objects.Mut)
	if err != nil {
		v.tr.h.core.Fail(s, err)
		return 0, p
	}
	n = copy(elementsOf[T](o, v.tr.Group)[i&(v.tr.Group-1):], xs)
	v.n.Add(int64(n))
	return n, nil
}

// Pop removes the last element and returns it, or false if there is none.
func (v *Vector[T]) Pop(ctx context.Context) (x T, ok bool, err error) {
	if p := v.colder(); p != nil {
		_ = v.tr.h.ahead.WithScope(ctx, func(s *heap.Scope) { v.tr.touch(s, p) })
	}
	err = v.tr.locked(ctx, &v.mu, func(s *heap.Scope) *uint64 {
		var p *uint64
		x, ok, p = v.pop(s)
		return p
	})
	return x, ok, err
}

// PopIn is Pop in a scope, which is open.
func (v *Vector[T]) PopIn(s *heap.Scope) (x T, ok bool, err error) {
	if p := v.colder(); p != nil {
		v.tr.touch(s, p)
	}
	err = v.tr.in(s, &v.mu, func(s *heap.Scope) *uint64 {
		var p *uint64
		x, ok, p = v.pop(s)
		return p
	})
	return x, ok, err
}

// colder returns the word of the last object if the prefetcher is to be told of its use, with no
// lock held: it may be the program's, and use the vector.
func (v *Vector[T]) colder() *uint64 {
	p := v.word((v.Len() - 1) >> v.shift)
	if p != nil {
		if objects.Load(p).Warm() {
			return nil
		}
	}
	return p
}

func (v *Vector[T]) pop(s *heap.Scope) (x T, ok bool, p *uint64) {
	i := v.Len() - 1
	if i < 0 {
		return x, false, nil
	}
	p = v.wordIn(i >> v.shift)
	o := v.tr.use(s, p, 0)
	if o == nil {
		return x, false, p
	}
	x = elementsOf[T](o, v.tr.Group)[i&(v.tr.Group-1)]
	v.cut(i)
	return x, true, nil
}

// Truncate removes all elements from n on, and gives up what memory they have.
func (v *Vector[T]) Truncate(n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if n < 0 {
		panic(indexError{n, v.Len()})
	}
	if n < v.Len() {
		v.cut(n)
	}
}

// cut makes n the length, which is less than it was. v.mu must be held.
func (v *Vector[T]) cut(n int) {
	from, to := v.objects(n), v.objects(v.Len())
	v.n.Store(int64(n))
	for c := from; c < to; c++ {
		v.tr.h.objects.Reset(v.wordIn(c), v.tr.Class)
	}
}

// Clear removes all elements.
func (v *Vector[T]) Clear() { v.Truncate(0) }

// All iterates over the elements in order, as Array.All does. Elements that are
// appended meanwhile are not seen; those that are removed may be seen as
// zeros, or not at all.
func (v *Vector[T]) All(s *heap.Scope) iter.Seq2[int, *T] { return each(v.Chunks(s, 0, v.Len())) }

// Stream is All for elements without temporal locality.
func (v *Vector[T]) Stream(s *heap.Scope) iter.Seq2[int, *T] {
	return each(v.StreamChunks(s, 0, v.Len()))
}

// Backward is All from the last element to the first.
func (v *Vector[T]) Backward(s *heap.Scope) iter.Seq2[int, *T] { return backward[T](v.tr, s, v.Len()) }

// Chunks iterates over the elements from i to j, a group at a time, as
// Array.Chunks does.
func (v *Vector[T]) Chunks(s *heap.Scope, i, j int) iter.Seq2[int, []T] { return v.part(s, i, j, 0) }

// StreamChunks is Chunks for elements without temporal locality.
func (v *Vector[T]) StreamChunks(s *heap.Scope, i, j int) iter.Seq2[int, []T] {
	return v.part(s, i, j, objects.Stream)
}

// MutChunks is Chunks for elements to be read and written.
func (v *Vector[T]) MutChunks(s *heap.Scope, i, j int) iter.Seq2[int, []T] {
	return v.part(s, i, j, objects.Mut)
}

// check panics, as slicing a slice does, unless there are elements from i to j.
func (v *Vector[T]) check(i, j int) {
	if n := v.Len(); i < 0 || i > j || j > n {
		panic(rangeError{i, j, n})
	}
}

func (v *Vector[T]) part(s *heap.Scope, i, j, what int) iter.Seq2[int, []T] {
	v.check(i, j)
	return part[T](v.tr, s, i, j, what)
}

// Prefetch brings the elements from i to j that are far into local memory, as
// Array.Prefetch does, as far as there are any.
func (v *Vector[T]) Prefetch(ctx context.Context, i, j int) error {
	return v.tr.prefetch(ctx, max(i, 0)>>v.shift, v.objects(min(j, v.Len())))
}

// DontNeed says that the elements from i to j will not be used soon.
func (v *Vector[T]) DontNeed(i, j int) {
	for c := max(i, 0) >> v.shift; c < v.objects(min(j, v.Len())); c++ {
		if p := v.word(c); p != nil {
			objects.Chill(p)
		}
	}
}

// Free frees the vector and gives its memory back, local and far. Afterwards its length is 0 for
// ever, and what would use or append elements fails with ErrFreed, in other goroutines, too: those that use elements
// through pointers or in an iteration must have come to an end. To free it again does nothing.
func (v *Vector[T]) Free() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.n.Store(0)
	for part := range int(v.all.Swap(0)) {
		for i := range vectorPartLen(part) {
			v.tr.h.objects.Free(wordAt(v.dir[part], i))
		}
	}
	v.tr.h.untrack(v.tr)
}

// Stats returns what the vector has been through.
func (v *Vector[T]) Stats() StructureStats { return v.tr.structure() }
