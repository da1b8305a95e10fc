package far

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"reflect"

	"polder/far/heap"
	"polder/far/object"
	"polder/far/objects"
)

// StructureConfig configures an Array, a Vector, a List, a Stack or a Queue. The
// zero value is good. A heap has up to 16,384 structures and classes at a time.
type StructureConfig struct {
	// Name appears in statistics.
	Name string
	// Keep says that on a heap of Open the structure outlives the process: it is part of checkpoints, and who makes one with the Name gets it back, if
	// T is laid out as it was. An Array and a Vector can be kept.
	Keep bool
	// Group is how many elements lie in one far object, rounded up to a power
	// of two. An object is what is fetched and evacuated, and costs 24 bytes of
	// header and pointer. Zero means as many as fit into 1 KiB of an Array or a
	// Vector, and into 4 KiB of the others; at least one.
	Group int
	// HotBits is how many passes of the evacuator an object survives unused,
	// 1 to 8. Zero means 1, and 2 for an Array and a Vector.
	HotBits int
	// NewPrefetcher makes the prefetcher of a goroutine. Nil means a Stride.
	NewPrefetcher func() Prefetcher
}

// newTracker makes the class and the tracker of a structure of elements of type
// T, of which room bytes, or cfg.Group, go into an object.
func newTracker[T any](h *Heap, kind string, cfg StructureConfig, room int) (*tracker, error) {
	name := cfg.Name
	if cfg.Name == "" {
		cfg.Name = kind
	}
	t := reflect.TypeFor[T]()
	if err := pointerless(t); err != nil {
		return nil, fmt.Errorf("cannot make %s %q: %w", kind, cfg.Name, err)
	}
	if cfg.Group < 0 {
		return nil, fmt.Errorf("cannot make %s %q: Group is %d, want a number of elements, or 0 for the default", kind, cfg.Name, cfg.Group)
	}
	if cfg.Group > h.objects.MaxObject() {
		return nil, fmt.Errorf("cannot make %s %q: Group is %d, and objects have at most %d bytes: %w", kind, cfg.Name, cfg.Group, h.objects.MaxObject(), ErrTooLarge)
	}
	size := sizeOf[T]()
	group := cfg.Group
	if group == 0 {
		group = max(room/max(size, 1), 1)
		group = 1 << (bits.Len(uint(group)) - 1)
	} else {
		group = 1 << bits.Len(uint(group-1))
	}
	layout, err := keptLayout(cfg.Keep, name, t)
	if cfg.Keep && kind != "array" && kind != "vector" {
		err = errors.New("only arrays and vectors can be: use a map, or objects of a class")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot keep %s %q: %w", kind, cfg.Name, err)
	}
	tr := &tracker{h: h, kind: kind, group: group, make: cfg.NewPrefetcher}
	c, err := h.objects.NewClass(objects.Config{Name: cfg.Name, HotBits: cfg.HotBits, Evacuated: tr.evacuated, Outlives: cfg.Keep, Layout: kind + " of " + layout}, group*size)
	if err != nil {
		return nil, err
	}
	tr.c = c
	return tr, nil
}

// Array is an array of elements of type T, which must not hold Go pointers: at
// first all zero, local or far in groups. It is to Go's [n]T what far memory is to
// local: any number of goroutines may use it, and whoever writes an element
// while others use the same one needs a lock. Elements of a group may be written
// at the same time.
//
// At and the methods of Elem give access in a scope; Get, Set, Read and Write
// copy, and need none. An access takes constant time, and one read of the store
// if the element is far; groups that were never written take no memory but
// their word of 8 bytes. Strides are prefetched, a goroutine's or an iterator's.
type Array[T any] struct {
	n     int
	shift int
	words []uint64
	tr    *tracker
	idx   []struct{} // n of them: what bounds checks are done on
}

const arrayGroup = 1 << 10 // bytes

// NewArray makes an array of n elements. It waits for local memory for its
// words within ctx, and must not be called in a scope.
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
		h.objects.Disown(tr.c)
		return nil, err
	}
	a := &Array[T]{n: n, shift: bits.TrailingZeros(uint(tr.group)), words: words, tr: tr, idx: make([]struct{}, n)}
	tr.word = func(i int) *uint64 {
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

// arrayWords are the words of an array of n elements: new ones, or those that were kept.
func (tr *tracker) arrayWords(ctx context.Context, n int) ([]uint64, error) {
	objs := (n + tr.group - 1) / tr.group
	st, ok, err := tr.keptRuns()
	switch {
	case err != nil || ok && len(st.firsts) != 1:
		return nil, fmt.Errorf("cannot open array %q: what was kept of it is damaged: %w", tr.c.Name(), cmp.Or(err, errors.New("it is of no array")))
	case ok && st.n != n:
		return nil, fmt.Errorf("cannot open array %q: it has %d elements, want %d", tr.c.Name(), st.n, n)
	case ok:
		return tr.keptWords(st.firsts[0], objs)
	}
	words, err := tr.h.objects.NewRun(ctx, tr.c, objs)
	if err != nil {
		return nil, fmt.Errorf("cannot make array %q of %d elements: %w", tr.c.Name(), n, err)
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

// At returns the pointer to element i. It panics, as indexing an array does, if
// there is none.
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
	return a.tr.h.withScope(ctx, func(s *heap.Scope) {
		for at, b := range a.part(s, i, i+len(dst), objects.Stream) {
			copy(dst[at-i:], b)
		}
	})
}

// Write copies src to the elements from i on. It needs no scope, and waits
// within ctx. If it fails, some may have been written. A group that is far, and
// of which it writes all elements, is not read before, and becomes one without
// temporal locality.
func (a *Array[T]) Write(ctx context.Context, src []T, i int) error {
	_ = a.idx[i : i+len(src)]
	return a.tr.h.withScope(ctx, func(s *heap.Scope) {
		for at, end := i, i+len(src); at < end; {
			n := min(a.tr.group-at&(a.tr.group-1), end-at)
			b := src[at-i : at-i+n]
			if at&(a.tr.group-1) == 0 && (n == a.tr.group || at+n == a.n) && overwrite(a.tr, s, &a.words[at>>a.shift], b) {
				at += n
				continue
			}
			written := false
			for _, to := range a.part(s, at, at+n, objects.Mut) {
				written = copy(to, b) == n
			}
			if !written {
				return
			}
			at += n
		}
	})
}

// All iterates over the elements in order, to be read, and valid during their
// step. The iteration enters and leaves s, group by group, and prefetches; it
// waits within the scope's context. It ends early if an element cannot be had, and then s.Err
// says why.
func (a *Array[T]) All(s *heap.Scope) iter.Seq2[int, *T] { return each(a.part(s, 0, a.n, 0)) }

// Stream is All for elements without temporal locality: they do not displace
// others (the paper's non-temporal access).
func (a *Array[T]) Stream(s *heap.Scope) iter.Seq2[int, *T] {
	return each(a.part(s, 0, a.n, objects.Stream))
}

// Backward is All from the last element to the first.
func (a *Array[T]) Backward(s *heap.Scope) iter.Seq2[int, *T] { return backward[T](a.tr, s, a.n) }

// Chunks iterates over the elements from i to j, a group at a time, to be read:
// the number of the first and the elements, which are valid during the step.
// It is the fastest way through an array. Otherwise it is as All.
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

// part iterates over the elements of tr from i to j by groups.
func part[T any](tr *tracker, s *heap.Scope, i, j, what int) iter.Seq2[int, []T] {
	return func(yield func(int, []T) bool) {
		if tr.freed() {
			tr.h.core.Fail(s, ErrFreed)
			return
		}
		open := false
		defer func() { // if yield panics
			if open {
				s.Leave()
			}
		}()
		for at := i; at < j; {
			c, first := at/tr.group, at%tr.group
			n := min(tr.group-first, j-at)
			p := tr.word(c)
			if p == nil {
				return // a Vector has become shorter
			}
			b := chunkEnter[T](tr, s, p, c, (j-1)/tr.group+1, what)
			if b == nil {
				return
			}
			open = true
			more := yield(at, b[first:first+n:first+n])
			open = false
			s.Leave()
			if !more {
				return
			}
			at += n
		}
	}
}

// backward iterates over the first n elements of tr, from the last one on.
func backward[T any](tr *tracker, s *heap.Scope, n int) iter.Seq2[int, *T] {
	return func(yield func(int, *T) bool) {
		if tr.freed() {
			tr.h.core.Fail(s, ErrFreed)
			return
		}
		for c := (n - 1 + tr.group) / tr.group; c > 0; c-- {
			at := (c - 1) * tr.group
			p := tr.word(c - 1)
			if p == nil {
				continue // a Vector has become shorter
			}
			more := chunkStep(tr, s, p, c-1, 0, func(b []T) bool {
				for j := min(len(b), n-at) - 1; j >= 0; j-- {
					if !yield(at+j, &b[j]) {
						return false
					}
				}
				return true
			})
			if !more {
				return
			}
		}
	}
}

// each iterates over the elements of chunks.
func each[T any](chunks iter.Seq2[int, []T]) iter.Seq2[int, *T] {
	return func(yield func(int, *T) bool) {
		for at, b := range chunks {
			for j := range b {
				if !yield(at+j, &b[j]) {
					return
				}
			}
		}
	}
}

// chunkStep calls fn with the elements of object i, whose word is p, in s, and
// reports whether to go on. With i negative the prefetcher is not told.
func chunkStep[T any](tr *tracker, s *heap.Scope, p *uint64, i, what int, fn func(b []T) bool) bool {
	b := chunkEnter[T](tr, s, p, i, i+1, what)
	if b == nil {
		return false
	}
	defer s.Leave()
	return fn(b)
}

// chunkEnter enters s and returns the elements of object i, whose word is p. If
// it cannot, it returns nil, and tr.h.heldIn(s).err says why, and s is as it was. With i
// negative the prefetcher is not told. What follows up to object n, not included,
// is next.
func chunkEnter[T any](tr *tracker, s *heap.Scope, p *uint64, i, n, what int) []T {
	o := tr.chunkEnter(s, p, i, n, what)
	if o == nil {
		return nil
	}
	return elementsOf[T](o, tr.group)
}

// chunkEnter is the function of that name, for elements of any type.
func (tr *tracker) chunkEnter(s *heap.Scope, p *uint64, i, n, what int) object.Object {
	if w := objects.Load(p); w.Far() || w.Coldness() != 0 {
		tr.h.ahead.usedNow(tr, p)
	}
	if i >= 0 {
		tr.access(s, i, what&objects.Stream != 0)
		if objects.Load(p).Far() && !heap.IsOpen(s) {
			tr.demand(s, i, n, what&objects.Stream != 0)
		}
	}
	for try := 0; ; try++ {
		if o := tr.enterFor(s, p, what); o != nil {
			return o
		}
		// If s was open before, whoever holds it has to leave it.
		if try == heap.ScopeTries || heap.IsOpen(s) || !errors.Is(tr.h.core.HeldIn(s).Err, heap.ErrScopeFull) || tr.h.core.RoomSoon(tr.h.core.HeldIn(s).Ctx) != nil {
			return nil
		}
		tr.h.core.HeldIn(s).Err = nil
	}
}

// enterFor enters s and returns the object of p, or else leaves s as it was: nil, and
// tr.h.heldIn(s).err says why, or a panic.
func (tr *tracker) enterFor(s *heap.Scope, p *uint64, what int) (o object.Object) {
	s.Enter()
	defer func() {
		if o == nil {
			s.Leave()
		}
	}()
	o, err := tr.h.objects.Deref(s, p, what)
	if err != nil {
		tr.h.core.Fail(s, err)
	}
	return o
}

// overwrite makes b the elements of the object of p without reading what they were,
// and reports whether it has. Otherwise nothing has changed.
func overwrite[T any](tr *tracker, s *heap.Scope, p *uint64, b []T) bool {
	for range heap.ScopeTries {
		s.Enter()
		done, err := overwriteIn(tr, s, p, b)
		s.Leave()
		if done {
			return true
		}
		if err != nil && (err != heap.ErrNoRoom || tr.h.core.RoomSoon(tr.h.core.HeldIn(s).Ctx) != nil) {
			break
		}
	}
	return false
}

// overwriteIn is overwrite in s. If there is no error, it may be tried again.
func overwriteIn[T any](tr *tracker, s *heap.Scope, p *uint64, b []T) (done bool, err error) {
	h := tr.h
	if o := h.objects.DerefLocal(s, p, objects.Mut); o != nil {
		h.ahead.usedNow(tr, p)
		copy(elementsOf[T](o, tr.group), b)
		return true, nil
	}
	if objects.Load(p).Free() {
		return false, heap.ErrClosed
	}
	o, addr, err := h.core.NewSlot(s, heap.Streamed, object.Head(h.objects.Number(p), tr.c.Size), object.NewTail(0, tr.c.Owner()), tr.c.Size)
	if err != nil {
		return false, err
	}
	clear(o[object.Header+tr.c.Size:])
	es := elementsOf[T](o, tr.group)
	clear(es[copy(es, b):])
	return h.objects.Replace(p, addr, tr.c), nil
}

// withScope calls fn in a scope of the pool, closed, for what fn enters and
// leaves by itself.
func (h *Heap) withScope(ctx context.Context, fn func(s *heap.Scope)) error {
	s := h.core.Acquire(ctx)
	defer h.core.Release(s)
	fn(s)
	return s.Err()
}

// Prefetch brings the elements from i to j that are far into local memory, as far as half of that has
// room for them, in as few reads of the store as it can, and returns when they are there: using them need
// not wait. It waits within ctx, and must not be called in a scope. That an element is lost or corrupt,
// whoever uses it is told.
func (a *Array[T]) Prefetch(ctx context.Context, i, j int) error {
	_ = a.idx[i:j]
	return a.tr.prefetch(ctx, i>>a.shift, (j+a.tr.group-1)>>a.shift)
}

// DontNeed says that the elements from i to j will not be used soon: they are
// among the first to be evacuated.
func (a *Array[T]) DontNeed(i, j int) {
	_ = a.idx[i:j]
	for c := i >> a.shift; c < (j+a.tr.group-1)>>a.shift; c++ {
		objects.Chill(&a.words[c])
	}
}

// prefetch brings the objects from i to j, as far as half of local memory has room for them: more
// would displace one another.
func (tr *tracker) prefetch(ctx context.Context, i, j int) error {
	room := int(tr.h.Local() / 2)
	refs := make([]uint64, 0, prefetchJobObjects)
	for ; i < j && room > 0; i++ {
		if p := tr.word(i); p != nil && (objects.Load(p).Far() || objects.Load(p).Asleep()) {
			refs = append(refs, tr.h.objects.Number(p))
			room -= tr.c.Size + object.Header
		}
		if len(refs) == cap(refs) || i == j-1 || room <= 0 {
			if err := tr.h.objects.Prefetch(ctx, refs); err != nil {
				return err
			}
			refs = refs[:0]
		}
	}
	return nil
}

// Clear makes all elements zero, and gives up what memory they have.
func (a *Array[T]) Clear() {
	for i := range a.words {
		a.tr.h.objects.Reset(&a.words[i], a.tr.c)
	}
}

// Free frees the array and gives its memory back, local and far. Nobody may be using
// it. Afterwards its length is 0, and an iteration fails with ErrFreed. To free it again does nothing.
func (a *Array[T]) Free() {
	for i := range a.words {
		a.tr.h.objects.Free(&a.words[i])
	}
	a.tr.h.untrack(a.tr)
	a.words, a.idx, a.n = nil, nil, 0
}

// Stats returns what the array has been through.
func (a *Array[T]) Stats() StructureStats { return a.tr.structure() }
