package far

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"reflect"
	"sync/atomic"

	"polder/far/ahead"
	"polder/far/heap"
	"polder/far/object"
	"polder/far/objects"
)

// A Prefetcher guesses which objects of a data structure a goroutine will use
// next: see package ahead.
type Prefetcher = ahead.Prefetcher

// NoPrefetch is a Prefetcher that never asks for anything.
type NoPrefetch = ahead.NoPrefetch

// Stride is the Prefetcher of structures that are given no other. It finds sequences and strides, in both directions.
type Stride = ahead.Stride

// PrefetchStats says how well the prefetching of a structure did.
type PrefetchStats = ahead.Stats

// StructureConfig configures an Array, a Vector, a List, a Stack or a Queue. The
// zero value is good. A heap has up to 16,384 structures and classes at a time.
type StructureConfig struct {
	// Name appears in statistics.
	Name string
	// Keep says that on a heap made by Open the structure outlives the process: it is part of checkpoints. In the
	// next process, whoever makes a structure with the Name gets it back, if T still has the same layout. Only an
	// Array or a Vector can be kept.
	Keep bool
	// Group is how many elements lie in one far object, rounded up to a power of two. An object is fetched and
	// evacuated as a whole, and costs 24 bytes of header and pointer. Zero means as many elements as fit into 1 KiB
	// for an Array or a Vector, and into 4 KiB for the others, but at least one.
	Group int
	// HotBits is how many passes of the evacuator an object survives unused,
	// 1 to 8. Zero means 1, and 2 for an Array and a Vector.
	HotBits int
	// NewPrefetcher makes the prefetcher of a goroutine. Nil means a Stride.
	NewPrefetcher func() Prefetcher
}

// newTracker makes the class and the tracker of a structure of elements of type T. An object has cfg.Group elements
// or, if that is 0, as many as fit into room bytes.
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
	tr := &tracker{h: h, kind: kind}
	tr.Group, tr.New = group, cfg.NewPrefetcher
	c, err := h.objects.NewClass(objects.Config{Name: cfg.Name, HotBits: cfg.HotBits, Evacuated: func(n uint64) { h.ahead.Evacuated(&tr.Structure, n) }, Outlives: cfg.Keep, Layout: kind + " of " + layout}, group*size)
	if err != nil {
		return nil, err
	}
	tr.Class = c
	return tr, nil
}

// tracker is what a structure knows of its objects, for prefetching and for statistics. An object has the index of
// its group.
type tracker struct {
	ahead.Structure
	h     *Heap
	kind  string              // such as "array"
	index func(p *uint64) int // the index of the object of a word, -1 if it has none
	len   func() int          // number of elements

	nodeParts atomic.Int64 // number of parts of a List's table of nodes
}

// object returns the object of p for the use what, and tells the prefetcher of the use. If it cannot, it returns nil,
// and s.Err says why.
func (tr *tracker) object(s *heap.Scope, p *uint64, what int) object.Object {
	tr.touch(s, p)
	return tr.use(s, p, what)
}

// use is object for callers that hold a lock. It does not tell the prefetcher, which may be the program's and must
// not be called with a lock held.
func (tr *tracker) use(s *heap.Scope, p *uint64, what int) object.Object {
	if s.H != &tr.h.core {
		panic("BUG: a far structure is used in a scope of another heap")
	}
	o, err := tr.h.objects.Deref(s, p, what)
	if err != nil {
		tr.h.core.Fail(s, err)
		return nil
	}
	return o
}

// touch tells the prefetcher of the use of an object, if it is the object's first use in a while.
func (tr *tracker) touch(s *heap.Scope, p *uint64) {
	w := objects.Load(p)
	if w.Warm() {
		return
	}
	tr.h.ahead.Used(&tr.Structure, p)
	if i := tr.index(p); i >= 0 {
		tr.h.ahead.Access(s, &tr.Structure, i, w.Local() && w.Coldness() == objects.Coldest)
	}
}

// part iterates over the elements of tr from i to j, a group at a time.
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
			c, first := at/tr.Group, at%tr.Group
			n := min(tr.Group-first, j-at)
			p := tr.Word(c)
			if p == nil {
				return // a Vector has become shorter
			}
			b := chunkEnter[T](tr, s, p, c, (j-1)/tr.Group+1, what)
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

// read copies elements of tr from i on to dst, and returns how many it has copied: fewer than len(dst) if a Vector
// has become shorter.
func read[T any](ctx context.Context, tr *tracker, dst []T, i int) (n int, err error) {
	err = tr.h.ahead.WithScope(ctx, func(s *heap.Scope) {
		for _, b := range part[T](tr, s, i, i+len(dst), objects.Stream) {
			n += copy(dst[n:], b)
		}
	})
	return n, err
}

// write copies src to the elements of tr from i on, and returns how many it has written: fewer than len(src) if a
// Vector has become shorter. It does not read a group that it overwrites as a whole. The last group of an Array
// counts as whole if it is written up to the Array's last element. A Vector's last group does only if it is full,
// since the Vector may grow meanwhile.
func write[T any](ctx context.Context, tr *tracker, src []T, i int) (n int, err error) {
	err = tr.h.ahead.WithScope(ctx, func(s *heap.Scope) {
		for n < len(src) {
			at, first := i+n, (i+n)%tr.Group
			k := min(tr.Group-first, len(src)-n)
			b := src[n : n+k]
			p := tr.Word(at / tr.Group)
			if p == nil {
				return
			}
			whole := first == 0 && (k == tr.Group || tr.kind == "array" && at+k == tr.len())
			if !whole || !overwrite(tr, s, p, b) {
				written := false
				for _, to := range part[T](tr, s, at, at+k, objects.Mut) {
					written = copy(to, b) == k
				}
				if !written {
					return
				}
			}
			n += k
		}
	})
	return n, err
}

// backward iterates over the first n elements of tr, from the last of them to the first.
func backward[T any](tr *tracker, s *heap.Scope, n int) iter.Seq2[int, *T] {
	return func(yield func(int, *T) bool) {
		if tr.freed() {
			tr.h.core.Fail(s, ErrFreed)
			return
		}
		for c := (n - 1 + tr.Group) / tr.Group; c > 0; c-- {
			at := (c - 1) * tr.Group
			p := tr.Word(c - 1)
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

// each iterates over the elements of chunks one by one.
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

// chunkStep enters s, calls fn with the elements of object i, whose word is p, and leaves s. It reports whether the
// iteration is to go on. If i is negative, the prefetcher is not told.
func chunkStep[T any](tr *tracker, s *heap.Scope, p *uint64, i, what int, fn func(b []T) bool) bool {
	b := chunkEnter[T](tr, s, p, i, i+1, what)
	if b == nil {
		return false
	}
	defer s.Leave()
	return fn(b)
}

// chunkEnter enters s and returns the elements of object i, whose word is p. The caller says by n that it will use
// the objects after i next, up to n, not included. If the object cannot be had, chunkEnter returns nil, s.Err says
// why, and s is as it was. If i is negative, the prefetcher is not told.
func chunkEnter[T any](tr *tracker, s *heap.Scope, p *uint64, i, n, what int) []T {
	o := tr.h.ahead.Enter(s, &tr.Structure, p, i, n, what)
	if o == nil {
		return nil
	}
	return elementsOf[T](o, tr.Group)
}

// overwrite makes b the elements of the object of p, without reading what they were, and reports whether it did. If
// not, nothing has changed.
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

// overwriteIn is overwrite in s. If it is not done and there is no error, the caller may try again.
func overwriteIn[T any](tr *tracker, s *heap.Scope, p *uint64, b []T) (done bool, err error) {
	h := tr.h
	if o := h.objects.DerefLocal(s, p, objects.Mut); o != nil {
		h.ahead.Used(&tr.Structure, p)
		copy(elementsOf[T](o, tr.Group), b)
		return true, nil
	}
	if objects.Load(p).Free() {
		return false, heap.ErrClosed
	}
	o, addr, err := h.core.NewSlot(s, heap.Streamed, object.Head(h.objects.Number(p), tr.Class.Size), object.NewTail(0, tr.Class.Owner()), tr.Class.Size)
	if err != nil {
		return false, err
	}
	clear(o[object.Header+tr.Class.Size:])
	es := elementsOf[T](o, tr.Group)
	clear(es[copy(es, b):])
	return h.objects.Replace(p, addr, tr.Class), nil
}

// prefetch brings the objects from i to j that are far into local memory. It stops when it has brought as much as
// fills half of local memory, since more objects would displace one another.
func (tr *tracker) prefetch(ctx context.Context, i, j int) error {
	room := int(tr.h.Local() / 2)
	refs := make([]uint64, 0, ahead.JobObjects)
	for ; i < j && room > 0; i++ {
		if p := tr.Word(i); p != nil && (objects.Load(p).Far() || objects.Load(p).Asleep()) {
			refs = append(refs, tr.h.objects.Number(p))
			room -= tr.Class.Size + object.Header
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
