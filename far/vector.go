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

// Vector is an Array that grows: a Vector is to an Array what a slice is to Go's array. All methods may be called by
// any number of goroutines: those that change the length take a lock, the others do not. Whoever writes an element
// while others use the same element needs a lock, as with a slice.
//
// Append and Pop take constant time, and a read of the store only if the last group is far; an access costs as much
// as in an Array.
type Vector[T any] struct {
	tr    *tracker
	shift int

	mu  sync.Mutex // held to change the fields below; reading them needs no lock
	n   atomic.Int64
	all atomic.Int64 // how many parts of the directory exist
	// dir is the directory of words: the first word of every part. Part 0 has vectorPart words, and part i
	// vectorPart<<(i-1), so that no word moves when the vector grows.
	dir [vectorParts]*uint64
}

const (
	vectorPart  = objects.WordsPerPage
	vectorParts = 32 // enough for all words that a heap can have
)

// vectorPartLen is the number of words of part i.
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

// open brings the vector to the state that a checkpoint has kept of it; without one it stays empty.
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

// partOf returns the part of the directory that has the word of object c, and the word's index in the part.
func partOf(c int) (part, i int) {
	part = bits.Len(uint(c / vectorPart))
	return part, c - vectorPart<<part>>1&^(vectorPart-1)
}

// word returns the word of object c, nil if there is no such object.
func (v *Vector[T]) word(c int) *uint64 {
	if c < 0 || c >= v.objects(v.Len()) {
		return nil
	}
	return v.wordIn(c)
}

// wordIn returns the word of object c. The part of the directory that has it must exist.
func (v *Vector[T]) wordIn(c int) *uint64 {
	part, i := partOf(c)
	return wordAt(v.dir[part], i)
}

// objects is the number of objects for n elements.
func (v *Vector[T]) objects(n int) int { return (n + v.tr.Group - 1) >> v.shift }

// index returns the index of the object whose word is p, or -1.
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

// At returns the pointer to element i. If there is no element i it panics, as indexing a slice does.
func (v *Vector[T]) At(i int) Elem[T] {
	if n := v.Len(); uint(i) >= uint(n) {
		panic(indexError{i, n})
	}
	return elemAt[T](v.tr, v.wordIn(i>>v.shift), i&(1<<v.shift-1))
}

// indexError is the value of the panic for an index that is out of range.
type indexError struct{ i, n int }

func (e indexError) Error() string {
	return fmt.Sprintf("index out of range [%d] with length %d", e.i, e.n)
}

// RuntimeError makes e a runtime.Error, as that of a slice is.
func (e indexError) RuntimeError() {}

// rangeError is the value of the panic for a range that is out of range.
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

// Read copies elements from i on to dst, as Array.Read does. If the vector loses some of these elements meanwhile,
// their places in dst stay as they are.
func (v *Vector[T]) Read(ctx context.Context, dst []T, i int) error {
	v.check(i, i+len(dst))
	_, err := read(ctx, v.tr, dst, i)
	return err
}

// Write copies src to the elements from i on, as Array.Write does. The elements must exist. Those that the vector
// loses meanwhile are not written.
func (v *Vector[T]) Write(ctx context.Context, src []T, i int) error {
	v.check(i, i+len(src))
	_, err := write(ctx, v.tr, src, i)
	return err
}

// Append appends xs. It needs no scope, and waits within ctx. If it fails, some of xs may have been appended.
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

// AppendIn is Append in s, which must be open and from which it takes local memory.
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

// append appends as many of xs as fit into the object of the next element. If it fails, s.Err says why; and if that
// is because an object cannot be dereferenced, append returns the object's word. v.mu must be held.
func (v *Vector[T]) append(s *heap.Scope, xs []T) (n int, p *uint64) {
	i := v.Len()
	part, c := partOf(i >> v.shift)
	if v.dir[part] == nil {
		words, err := v.tr.h.objects.Run(v.tr.Class, vectorPartLen(part))
		if err != nil {
			v.tr.h.core.Fail(s, v.tr.h.core.NoRoom(s, err, objects.WordSize*vectorPartLen(part)))
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

// PopIn is Pop in s, which must be open.
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

// colder returns the word of the last object if the prefetcher has to be told of its use, and otherwise nil. The
// caller tells the prefetcher with no lock held, because the prefetcher may be the program's and use the vector.
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

// Truncate removes all elements from n on, and gives back the memory that they take.
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

// cut reduces the length to n. v.mu must be held.
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

// check panics, as slicing a slice does, unless all elements from i to j exist.
func (v *Vector[T]) check(i, j int) {
	if n := v.Len(); i < 0 || i > j || j > n {
		panic(rangeError{i, j, n})
	}
}

func (v *Vector[T]) part(s *heap.Scope, i, j, what int) iter.Seq2[int, []T] {
	v.check(i, j)
	return part[T](v.tr, s, i, j, what)
}

// Prefetch brings those elements from i to j that are far into local memory, as Array.Prefetch does. The range may go
// beyond the vector.
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

// Free frees the vector and gives its memory back, local and far. Afterwards its length is 0 for ever, and calls that
// would use or append elements fail with ErrFreed, in other goroutines, too. Goroutines that use elements through
// pointers or in an iteration must have ended that before Free. Freeing it again does nothing.
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

// Stats returns the statistics of the vector.
func (v *Vector[T]) Stats() StructureStats { return v.tr.structure() }
