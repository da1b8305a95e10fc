package far

import (
	"context"

	"polder/far/ahead"
	"polder/far/heap"
	"polder/far/objects"
)

// Cursor is a place in a List: an element, or the end, which lies beyond the last element and before the first. A
// Cursor belongs to one user at a time. If others insert, remove or pop, a Cursor does not know any more where it is,
// and its methods fail with ErrModified. Changes that are made through the Cursor itself do not have that effect. At
// the end, the methods that use the element fail with ErrEnd.
type Cursor[T any] struct {
	l       *List[T]
	node    int32 // 0 is the end
	at      int32
	version uint64
}

// Front returns a cursor at the first element, or at the end if there is none.
func (l *List[T]) Front() Cursor[T] {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := Cursor[T]{l: l, version: l.version}
	c.enter(l.nodes.at(0).next, false)
	return c
}

// Back returns a cursor at the last element, or at the end if there is none.
func (l *List[T]) Back() Cursor[T] {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := Cursor[T]{l: l, version: l.version}
	c.enter(l.nodes.at(0).prev, true)
	return c
}

// enter goes to node i or, if that is empty, to the next node that has elements. l.mu must be held.
func (c *Cursor[T]) enter(i int32, back bool) {
	for i != 0 && c.l.nodes.at(i).count == 0 {
		i = c.l.beyond(i, back)
	}
	nd := c.l.nodes.at(i)
	if c.node, c.at = i, nd.first; back {
		c.at = nd.first + nd.count - 1
	}
}

// Valid reports whether the cursor is at an element, and others have not changed the list.
func (c *Cursor[T]) Valid() bool {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	return c.node != 0 && c.version == c.l.version
}

// Next moves to the next element, and reports whether there is one. From the end it moves to the first element.
func (c *Cursor[T]) Next() bool { return c.move(false) }

// Prev moves to the element before, and reports whether there is one. From the end it moves to the last element.
func (c *Cursor[T]) Prev() bool { return c.move(true) }

func (c *Cursor[T]) move(back bool) bool {
	l := c.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.version != l.version {
		return false
	}
	nd := l.nodes.at(c.node)
	switch {
	case c.node != 0 && back && c.at > nd.first:
		c.at--
	case c.node != 0 && !back && c.at+1 < nd.first+nd.count:
		c.at++
	default:
		c.enter(l.beyond(c.node, back), back)
		var words [ahead.Most]*uint64
		n := l.walk(&words, c.node, back, min(l.tr.h.ahead.Window(&l.tr.Structure), cursorAhead))
		l.tr.h.ahead.Fetch(&l.tr.Structure, words[:n], false)
	}
	return c.node != 0
}

// cursorAhead is for how many nodes ahead of it a cursor asks.
const cursorAhead = 4

// Deref returns the element, to be read until s is left, as Ptr.Deref does. If others changed the list, or the cursor
// is at the end, Deref returns nil, and s.Err is ErrModified or ErrEnd.
func (c *Cursor[T]) Deref(s *heap.Scope) *T { return c.deref(s, 0) }

// DerefMut returns the element, to be read and written until s is left.
func (c *Cursor[T]) DerefMut(s *heap.Scope) *T { return c.deref(s, objects.Mut) }

func (c *Cursor[T]) deref(s *heap.Scope, what int) *T {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	v, _ := c.element(s, what)
	return v
}

// element returns the element. If it cannot be had, element returns nil and the word that could not be dereferenced,
// or failed. l.mu must be held.
func (c *Cursor[T]) element(s *heap.Scope, what int) (*T, *uint64) {
	if c.version != c.l.version {
		s.H.Fail(s, ErrModified)
		return nil, failed
	}
	if c.node == 0 {
		s.H.Fail(s, ErrEnd)
		return nil, failed
	}
	b, p := c.l.elements(s, c.node, what)
	if p != nil {
		return nil, p
	}
	return &b[c.at], nil
}

// Load returns a copy of the element.
func (c *Cursor[T]) Load(ctx context.Context) (v T, err error) {
	err = c.l.tr.locked(ctx, &c.l.mu, func(s *heap.Scope) *uint64 {
		o, p := c.element(s, 0)
		if o != nil {
			v = *o
		}
		return p
	})
	return v, err
}

// Store makes the element v.
func (c *Cursor[T]) Store(ctx context.Context, v T) error {
	return c.l.tr.locked(ctx, &c.l.mu, func(s *heap.Scope) *uint64 {
		o, p := c.element(s, objects.Mut)
		if o != nil {
			*o = v
		}
		return p
	})
}

// Remove removes the element and moves to the next one, or to the end.
func (c *Cursor[T]) Remove(ctx context.Context) error {
	return c.l.tr.locked(ctx, &c.l.mu, func(s *heap.Scope) *uint64 {
		_, p := c.element(s, objects.Mut)
		if p != nil {
			return p
		}
		l := c.l
		b, p := l.elements(s, c.node, objects.Mut)
		if p != nil {
			return p
		}
		nd := l.nodes.at(c.node)
		if last := nd.first + nd.count - 1; c.at == nd.first {
			nd.first++
			c.at++
		} else {
			copy(b[c.at:last], b[c.at+1:last+1])
		}
		nd.count--
		l.n--
		l.version++
		c.version = l.version
		if i := c.node; c.at == nd.first+nd.count {
			c.enter(nd.next, false)
			if l.nodes.at(i).count == 0 {
				l.unlink(i)
			}
		}
		return nil
	})
}

// InsertBefore puts v before the element, or last if the cursor is at the end.
// The cursor stays at its element.
func (c *Cursor[T]) InsertBefore(ctx context.Context, v T) error { return c.insert(ctx, v, 0) }

// InsertAfter puts v behind the element, or first if the cursor is at the end.
func (c *Cursor[T]) InsertAfter(ctx context.Context, v T) error { return c.insert(ctx, v, 1) }

func (c *Cursor[T]) insert(ctx context.Context, v T, after int32) error {
	l := c.l
	return l.tr.locked(ctx, &l.mu, func(s *heap.Scope) *uint64 {
		if c.version != l.version {
			s.H.Fail(s, ErrModified)
			return failed
		}
		var p *uint64
		if c.node == 0 {
			p = l.push(s, v, after == 0)
		} else {
			p = c.shift(s, v, after)
		}
		if p == nil {
			l.version++
			c.version = l.version
		}
		return p
	})
}

// shift inserts v beside the element: behind it if after is 1, and before it if after is 0. l.mu must be held.
func (c *Cursor[T]) shift(s *heap.Scope, v T, after int32) *uint64 {
	l, g := c.l, int32(c.l.tr.Group)
	nd := l.nodes.at(c.node)
	if nd.count == g {
		if p := c.split(s); p != nil {
			return p
		}
		nd = l.nodes.at(c.node)
		if nd.count == g { // groups of one element cannot be split
			prev := c.node
			if after == 0 {
				prev = nd.prev
			}
			i, ok := l.link(s, prev, 0)
			if !ok {
				return failed
			}
			b, p := l.elements(s, i, objects.Mut)
			if p != nil {
				l.unlink(i)
				return p
			}
			b[0] = v
			l.nodes.at(i).count = 1
			l.n++
			return nil
		}
	}
	b, p := l.elements(s, c.node, objects.Mut)
	if p != nil {
		return p
	}
	at := c.at + after // the place of v if the elements behind it move
	if end := nd.first + nd.count; end < g {
		copy(b[at+1:end+1], b[at:end])
		if after == 0 {
			c.at++
		}
	} else {
		at--
		copy(b[nd.first-1:at], b[nd.first:at+1])
		nd.first--
		if after == 1 {
			c.at--
		}
	}
	b[at] = v
	nd.count++
	l.n++
	return nil
}

// split moves the second half of a full node to a new node behind it. If c's element is in that half, c moves with
// it. A node with room for only one element stays as it is. l.mu must be held.
func (c *Cursor[T]) split(s *heap.Scope) *uint64 {
	l, half := c.l, int32(c.l.tr.Group/2)
	if half == 0 {
		return nil
	}
	b, p := l.elements(s, c.node, objects.Mut)
	if p != nil {
		return p
	}
	i, ok := l.link(s, c.node, 0)
	if !ok {
		return failed
	}
	to, p := l.elements(s, i, objects.Mut)
	if p != nil {
		l.unlink(i)
		return p
	}
	nd := l.nodes.at(c.node)
	l.nodes.at(i).count = int32(copy(to, b[half:nd.first+nd.count]))
	nd.count = half
	if c.at >= half {
		c.node, c.at = i, c.at-half
	}
	l.version++
	c.version = l.version
	return nil
}
