package far

import (
	"context"
	"iter"
	"sync"

	"polder/far/ahead"
	"polder/far/heap"
	"polder/far/objects"
)

// List is a doubly linked list of elements of type T, which must not hold Go pointers. Each of its nodes holds a
// group of elements. The links are local: 24 bytes a node on the Go heap, which the garbage collector does not scan
// and which count in the budget.
//
// All methods may be called by any number of goroutines, and each is atomic. So is each step of an iteration. An
// iteration ends with ErrModified if others insert or remove elements meanwhile; pushing elements does not disturb
// it. Whoever writes an element through a pointer while others use it needs a lock.
//
// Pushing and popping take constant time; inserting and removing through a Cursor also moves at most one group. Pops
// and iterations take one read of the store for a group that is far, unless it was prefetched: they prefetch the
// groups ahead, in the direction in which they go.
type List[T any] struct {
	tr *tracker

	mu       sync.Mutex
	nodes    listNodes // by number; node 0 is the root, between the last node and the first; under mu
	n        int       // elements; under mu
	version  uint64    // changes when elements move or go; under mu
	crossing int       // nodes that pops have emptied since they last prefetched; under mu
}

const listGroup = 4 << 10 // bytes

// NewList makes an empty list.
func NewList[T any](h *Heap, cfg StructureConfig) (*List[T], error) {
	return newList[T](h, "list", cfg)
}

func newList[T any](h *Heap, kind string, cfg StructureConfig) (*List[T], error) {
	tr, err := newTracker[T](h, kind, cfg, min(listGroup, h.objects.MaxObject()))
	if err != nil {
		return nil, err
	}
	l := &List[T]{tr: tr, nodes: listNodes{tr: tr}}
	tr.index = func(*uint64) int { return -1 } // the objects of a list have no indices
	tr.len = l.Len
	h.track(tr)
	return l, nil
}

// Len is the number of elements.
func (l *List[T]) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

// PushBack appends v. It needs no scope, and waits within ctx, as all methods
// with a context do.
func (l *List[T]) PushBack(ctx context.Context, v T) error {
	return l.tr.locked(ctx, &l.mu, func(s *heap.Scope) *uint64 { return l.push(s, v, true) })
}

// PushFront puts v in front of all elements.
func (l *List[T]) PushFront(ctx context.Context, v T) error {
	return l.tr.locked(ctx, &l.mu, func(s *heap.Scope) *uint64 { return l.push(s, v, false) })
}

// PushBackIn is PushBack in s, which must be open and from which it takes local memory. It fails as Deref does.
func (l *List[T]) PushBackIn(s *heap.Scope, v T) error {
	return l.tr.in(s, &l.mu, func(s *heap.Scope) *uint64 { return l.push(s, v, true) })
}

// PushFrontIn is PushFront in s, which must be open.
func (l *List[T]) PushFrontIn(s *heap.Scope, v T) error {
	return l.tr.in(s, &l.mu, func(s *heap.Scope) *uint64 { return l.push(s, v, false) })
}

// PopFront removes the first element and returns it, or false if there is none.
func (l *List[T]) PopFront(ctx context.Context) (v T, ok bool, err error) {
	err = l.tr.locked(ctx, &l.mu, func(s *heap.Scope) (p *uint64) {
		v, ok, p = l.pop(s, false, true)
		return p
	})
	return v, ok, err
}

// PopBack removes the last element and returns it, or false if there is none.
func (l *List[T]) PopBack(ctx context.Context) (v T, ok bool, err error) {
	err = l.tr.locked(ctx, &l.mu, func(s *heap.Scope) (p *uint64) {
		v, ok, p = l.pop(s, true, true)
		return p
	})
	return v, ok, err
}

// PopFrontIn is PopFront in s, which must be open.
func (l *List[T]) PopFrontIn(s *heap.Scope) (v T, ok bool, err error) { return l.popIn(s, false, true) }

// PopBackIn is PopBack in s, which must be open.
func (l *List[T]) PopBackIn(s *heap.Scope) (v T, ok bool, err error) { return l.popIn(s, true, true) }

func (l *List[T]) popIn(s *heap.Scope, back, remove bool) (v T, ok bool, err error) {
	err = l.tr.in(s, &l.mu, func(s *heap.Scope) (p *uint64) {
		v, ok, p = l.pop(s, back, remove)
		return p
	})
	return v, ok, err
}

// First returns a copy of the first element, or false if there is none.
func (l *List[T]) First(ctx context.Context) (v T, ok bool, err error) { return l.peek(ctx, false) }

// Last returns a copy of the last element, or false if there is none.
func (l *List[T]) Last(ctx context.Context) (v T, ok bool, err error) { return l.peek(ctx, true) }

func (l *List[T]) peek(ctx context.Context, back bool) (v T, ok bool, err error) {
	err = l.tr.locked(ctx, &l.mu, func(s *heap.Scope) (p *uint64) {
		v, ok, p = l.pop(s, back, false)
		return p
	})
	return v, ok, err
}

// For the methods below, up to pop, l.mu must be held. Those that return a word return nil if they succeed. If they
// fail, s.Err says why, and they return the word that could not be dereferenced; or failed, if the failure was
// another one.

// failed is a word that is never far.
var failed = new(uint64)

// word returns the word of the object of a node.
func (l *List[T]) word(nd *listNode) *uint64 { return l.tr.h.objects.At(nd.word) }

// elements returns the elements of a node, those in use and those not; or nil and the word that could not be
// dereferenced.
func (l *List[T]) elements(s *heap.Scope, node int32, what int) ([]T, *uint64) {
	p := l.word(l.nodes.at(node))
	o := l.tr.object(s, p, what)
	if o == nil {
		return nil, p
	}
	return elementsOf[T](o, l.tr.Group), nil
}

// link makes an empty node after node prev. The places of its elements will begin at first.
func (l *List[T]) link(s *heap.Scope, prev int32, first int32) (int32, bool) {
	h := l.tr.h
	i, err := l.nodes.take(l.tr.h.core.Claim(s, nodeCost))
	if err != nil {
		l.tr.h.core.Fail(s, l.tr.h.core.NoRoom(s, err, nodePartBytes))
		return 0, false
	}
	p, err := h.objects.New(l.tr.Class, s, l.tr.Class.Size, 0, nil)
	if err != nil {
		l.nodes.give(i)
		l.tr.h.core.Fail(s, l.tr.h.core.NoRoom(s, err, l.tr.Class.Size))
		return 0, false
	}
	next := l.nodes.at(prev).next
	*l.nodes.at(i) = listNode{word: h.objects.Number(p), prev: prev, next: next, first: first}
	l.nodes.at(prev).next, l.nodes.at(next).prev = i, i
	return i, true
}

// unlink frees a node.
func (l *List[T]) unlink(i int32) {
	nd := l.nodes.at(i)
	l.nodes.at(nd.prev).next, l.nodes.at(nd.next).prev = nd.next, nd.prev
	l.tr.h.objects.Free(l.word(nd))
	l.nodes.give(i)
}

// push adds v at one end.
func (l *List[T]) push(s *heap.Scope, v T, back bool) *uint64 {
	g := int32(l.tr.Group)
	i := l.nodes.at(0).next
	if back {
		i = l.nodes.at(0).prev
	}
	if nd := l.nodes.at(i); i != 0 && nd.count == 0 {
		nd.first = 0
		if !back {
			nd.first = g
		}
	}
	if nd := l.nodes.at(i); i == 0 || back && nd.first+nd.count == g || !back && nd.first == 0 {
		prev, first := l.nodes.at(0).prev, int32(0)
		if !back {
			prev, first = 0, g
		}
		var ok bool
		if i, ok = l.link(s, prev, first); !ok {
			return failed
		}
	}
	b, p := l.elements(s, i, objects.Mut)
	if p != nil {
		return p
	}
	nd := l.nodes.at(i)
	if back {
		b[nd.first+nd.count] = v
	} else {
		nd.first--
		b[nd.first] = v
	}
	nd.count++
	l.n++
	return nil
}

// end returns the node that holds the first element, or with back the last one; 0 if there is none. A node at an end
// that has become empty stays until a pop goes beyond it: a caller that pushes and pops by turns uses it again. With
// remove set, end frees the empty nodes that it passes.
func (l *List[T]) end(back, remove bool) int32 {
	i := l.beyond(0, back)
	for i != 0 && l.nodes.at(i).count == 0 && l.n > 0 {
		if !remove {
			i = l.beyond(i, back)
			continue
		}
		l.unlink(i)
		i = l.beyond(0, back)
		l.version++
		// Prefetch once for every half window of nodes, not for every node.
		if l.crossing++; l.crossing > l.tr.h.ahead.Window(&l.tr.Structure)/2 {
			l.crossing = 0
			var words [ahead.Most]*uint64
			n := l.walk(&words, 0, back, l.tr.h.ahead.Window(&l.tr.Structure))
			l.tr.h.ahead.Fetch(&l.tr.Structure, words[:n], false)
		}
	}
	return i
}

// walk fills words with the words of up to n nodes beyond node i, and returns how many there were.
func (l *List[T]) walk(words *[ahead.Most]*uint64, i int32, back bool, n int) int {
	for k := range min(n, ahead.Most) {
		if i = l.beyond(i, back); i == 0 {
			return k
		}
		words[k] = l.word(l.nodes.at(i))
	}
	return min(n, ahead.Most)
}

// beyond returns the node after node i, or with back the one before it.
func (l *List[T]) beyond(i int32, back bool) int32 {
	if back {
		return l.nodes.at(i).prev
	}
	return l.nodes.at(i).next
}

// pop returns the element at one end, and with remove set removes it.
func (l *List[T]) pop(s *heap.Scope, back, remove bool) (v T, ok bool, p *uint64) {
	if l.n == 0 {
		return v, false, nil
	}
	i := l.end(back, remove)
	b, p := l.elements(s, i, 0)
	if p != nil {
		return v, false, p
	}
	nd := l.nodes.at(i)
	at := nd.first
	if back {
		at += nd.count - 1
	}
	v = b[at]
	if remove {
		if !back {
			nd.first++
		}
		nd.count--
		l.n--
		l.version++
		if l.n == 0 && len(l.nodes.parts) > 0 {
			l.drop()
		}
	}
	return v, true, nil
}

// Clear removes all elements.
func (l *List[T]) Clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop()
	l.n = 0
	l.version++
}

// drop frees all nodes.
func (l *List[T]) drop() {
	for i := l.nodes.at(0).next; i != 0; i = l.nodes.at(i).next {
		l.tr.h.objects.Free(l.word(l.nodes.at(i)))
	}
	l.nodes.clear()
}

// Free frees the list and gives its memory back, local and far. Afterwards the list is empty for ever. Calls that
// would use elements fail with ErrFreed, in other goroutines, too, which need not have ended before Free. Freeing it
// again does nothing.
func (l *List[T]) Free() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop()
	l.n = 0
	l.version++
	l.tr.h.untrack(l.tr)
}

// Stats returns the statistics of the list.
func (l *List[T]) Stats() StructureStats { return l.tr.structure() }

// All iterates over the elements in order. An element is for reading only, and valid during its step. The iteration
// enters and leaves s for each group, and prefetches; it waits within the scope's context. If an element cannot be
// had, the iteration ends early, and s.Err says why.
func (l *List[T]) All(s *heap.Scope) iter.Seq[*T] { return l.each(s, false, 0) }

// Mut is All for elements to be read and written.
func (l *List[T]) Mut(s *heap.Scope) iter.Seq[*T] { return l.each(s, false, objects.Mut) }

// Stream is All for elements without temporal locality.
func (l *List[T]) Stream(s *heap.Scope) iter.Seq[*T] { return l.each(s, false, objects.Stream) }

// Backward is All from the last element to the first.
func (l *List[T]) Backward(s *heap.Scope) iter.Seq[*T] { return l.each(s, true, 0) }

// listStep is where an iteration is: at which node, and at which of its places. Forwards, the elements of the node
// from at on have not been seen; backwards, those before at. If at is negative, no element of the node has been seen.
type listStep struct {
	node    int32
	at      int32
	version uint64
	back    bool
	stepped bool  // next has moved to another node
	ordinal int   // of the node, in the order of the iteration
	lead    int32 // the last node that was asked for ahead, 0 for none
	leadAt  int   // the ordinal of lead
	guesses [ahead.Most]int
}

func (l *List[T]) each(s *heap.Scope, back bool, what int) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		it := listStep{back: back, at: -1, leadAt: -1, ordinal: -1}
		pf := Prefetcher(ahead.Onward())
		if l.tr.New != nil {
			pf = l.tr.New()
		}
		for {
			p, i, j, err := l.next(&it)
			if err != nil {
				l.tr.h.core.Fail(s, err)
				return
			}
			if it.stepped {
				// No lock is held here, because the Prefetcher may be the program's.
				guesses := pf.Access(it.ordinal, l.tr.h.ahead.Window(&l.tr.Structure), it.guesses[:0])
				l.prefetch(&it, guesses, what&objects.Stream != 0)
			}
			if it.node == 0 {
				return
			}
			if p == nil {
				continue
			}
			more := chunkStep(l.tr, s, p, -1, what, func(b []T) bool {
				for b = b[i:j]; len(b) > 0; {
					var v *T
					if back {
						v, b = &b[len(b)-1], b[:len(b)-1]
					} else {
						v, b = &b[0], b[1:]
					}
					if !yield(v) {
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

// next returns the word of the iteration's node, and the range of places i to j there whose elements have not been
// seen. If there are none, it moves the iteration to the next node, which is 0 at the end, and returns nil.
func (l *List[T]) next(it *listStep) (p *uint64, i, j int32, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tr.freed() {
		return nil, 0, 0, ErrFreed
	}
	if it.ordinal < 0 {
		it.version = l.version
	} else if it.version != l.version {
		return nil, 0, 0, ErrModified
	}
	it.stepped = false
	if it.node != 0 {
		nd := l.nodes.at(it.node)
		i, j = nd.first, nd.first+nd.count
		switch {
		case it.at < 0:
		case it.back:
			j = min(j, it.at)
		default:
			i = max(i, it.at)
		}
		if i < j {
			if it.at = j; it.back {
				it.at = i
			}
			return l.word(nd), i, j, nil
		}
	}
	if it.node = l.beyond(it.node, it.back); it.node != 0 {
		it.at = -1
		it.ordinal++
		it.stepped = true
	}
	return nil, 0, 0, nil
}

// prefetch asks for the nodes whose ordinals guesses has, as far as they are ahead of the iteration.
func (l *List[T]) prefetch(it *listStep, guesses []int, stream bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if it.version != l.version {
		return // the next call of next fails with ErrModified
	}
	if it.leadAt < it.ordinal {
		it.lead, it.leadAt = it.node, it.ordinal
	}
	var words [ahead.Most]*uint64
	n := 0
	for _, g := range guesses[:min(len(guesses), ahead.Most)] {
		for it.leadAt < g {
			i := l.beyond(it.lead, it.back)
			if i == 0 {
				break
			}
			it.lead, it.leadAt = i, it.leadAt+1
		}
		if it.leadAt == g && g > it.ordinal {
			words[n] = l.word(l.nodes.at(it.lead))
			n++
		}
	}
	l.tr.h.ahead.Fetch(&l.tr.Structure, words[:n], stream)
}
