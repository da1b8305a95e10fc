package ordered

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"polder/codec"
	"polder/far"
)

// tree is a counted B+-tree of byte strings.
type tree struct {
	h     *far.Heap
	pages *far.Class[page]
	room  int       // bytes of a page that are used: all of them but in tests; immutable
	ops   sync.Pool // of *op

	mu   sync.RWMutex
	root far.Ptr[page] // nil if there are no keys; under mu
	n    int           // keys, under mu
}

// op is a call on a tree.
type op struct {
	t *tree
	s *far.Scope // of the try that runs

	path    []step       // from the root to the leaf that find has found
	missing []far.AnyRef // pages that this try needs and that are far
	fresh   []step       // pages that Set has made and not used yet, zero

	sets bool  // it is a Set, and takes nothing of the memory that is kept for scopes
	walk *walk // the iteration that the op belongs to, nil if there is none

	num   [8]byte // a key that is a number
	value []byte
}

// step is a page on the way to a leaf.
type step struct {
	ptr far.Ptr[page]
	pg  *page
	i   int // the child that the way leads to
}

func (t *tree) begin() *op {
	if o, ok := t.ops.Get().(*op); ok {
		return o
	}
	return &op{t: t}
}

func (o *op) end() {
	const keep = 4 << 10 // bytes of a buffer
	if cap(o.value) > keep {
		o.value = nil
	}
	for _, st := range o.fresh {
		st.ptr.Free()
	}
	o.s, o.walk, o.fresh, o.sets = nil, nil, nil, false
	clear(o.path[:cap(o.path)]) // no op remembers pages
	o.t.ops.Put(o)
}

// patience is how often a call fetches the same page without the lock.
const patience = 3

// try calls fn in a scope and with the lock held, until fn has had all pages that it needs. Pages that fn lacks are
// fetched between two calls, while neither is held. If that does not help, because a page goes far again or the heap
// is full, fn may wait for them itself. Fn changes nothing before it has all pages.
func (o *op) try(ctx context.Context, write bool, fn func()) error {
	var last far.AnyRef
	for again := 0; ; {
		wait := again >= patience
		err := o.t.h.One(ctx, func(s *far.Scope) {
			o.s, o.missing = s, o.missing[:0]
			if !wait {
				s.SetContext(far.NoWait)
				defer s.SetContext(ctx)
			}
			if write {
				o.t.mu.Lock()
				defer o.t.mu.Unlock()
			} else {
				o.t.mu.RLock()
				defer o.t.mu.RUnlock()
			}
			fn()
		})
		if wait || len(o.missing) == 0 || !errors.Is(err, far.ErrWouldBlock) {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("cannot fetch a page: %w", context.Cause(ctx))
		}
		if again++; o.missing[0] != last {
			last, again = o.missing[0], 1
		}
		switch err := o.t.h.Prefetch(ctx, o.missing...); {
		case errors.Is(err, far.ErrFull) && !o.sets:
			again = patience // in its scope, fn can use the memory that is kept for scopes
		case err != nil:
			return err
		case o.walk != nil:
			o.walk.passed = append(o.walk.passed[:0], o.missing...)
		}
	}
}

// page returns the page of p. If it cannot be had, or not now, page returns nil and notes that it is missing.
func (o *op) page(p far.Ptr[page]) *page {
	var pg *page
	if o.walk != nil && slices.Contains(o.walk.passed, p.Any()) {
		pg = p.DerefStream(o.s) // it goes far again before pages that others use
	} else {
		pg = p.Deref(o.s)
	}
	if pg == nil {
		o.missing = append(o.missing, p.Any())
	}
	return pg
}

// find walks to the leaf that key belongs to or, with before set, to the leaf of the last key that is less than key;
// a nil key is then greater than all. It reports whether it has got there. There must be a root.
func (o *op) find(key []byte, before bool) bool {
	o.path = o.path[:0]
	for p := o.t.root; ; {
		pg := o.page(p)
		if pg == nil {
			if o.walk != nil {
				o.walk.lookAhead()
			}
			return false
		}
		i := 0
		switch {
		case pg.level > 0 && key == nil && before:
			i = int(pg.n) - 1
		case pg.level > 0:
			i = pg.below(key, before)
		}
		o.path = append(o.path, step{p, pg, i})
		if pg.level == 0 {
			return true
		}
		p = pg.child(i).ref.Ptr(o.t.h)
	}
}

// leaf is the page at which find has arrived.
func (o *op) leaf() *page { return o.path[len(o.path)-1].pg }

// own makes the pages of the path from d on writable, and reports whether it could. They are local, and stay where
// they are while the scope is open.
func (o *op) own(d int) bool {
	for ; d < len(o.path); d++ {
		if o.path[d].ptr.DerefMut(o.s) == nil {
			return false
		}
	}
	return true
}

// get copies the value of key to o.value, and reports whether there is one.
func (o *op) get(key []byte) (found bool) {
	if o.t.root.IsNil() || !o.find(key, false) {
		return false
	}
	i, found := o.leaf().search(key)
	if found {
		_, value := o.leaf().at(i)
		o.value = append(o.value[:0], value...)
	}
	return found
}

// rank returns how many keys are less than key.
func (o *op) rank(key []byte) (n int) {
	if o.t.root.IsNil() || !o.find(key, false) {
		return 0
	}
	for _, st := range o.path[:len(o.path)-1] {
		for i := range st.i {
			n += int(st.pg.child(i).count)
		}
	}
	i, _ := o.leaf().search(key)
	return n + i
}

// nth returns the leaf that has the key of rank n, nil if it cannot be had now, and which of its keys that is.
func (o *op) nth(n int) (*page, int) {
	for p := o.t.root; ; {
		pg := o.page(p)
		if pg == nil || pg.level == 0 {
			return pg, n
		}
		i := 0
		for c := pg.child(i); ; c = pg.child(i) {
			if n < int(c.count) {
				p = c.ref.Ptr(o.t.h)
				break
			}
			n -= int(c.count)
			i++
		}
	}
}

// set makes value the value of key. It takes new pages from fresh. If there are too few, it changes nothing, and
// returns how many it needs.
func (o *op) set(key, value []byte) (need int) {
	t := o.t
	if t.root.IsNil() {
		if !o.ownFresh(1) {
			return 1
		}
		o.fresh[0].pg.insert(0, key, value)
		t.root, t.n, o.fresh = o.fresh[0].ptr, 1, o.fresh[1:]
		return 0
	}
	if !o.find(key, false) {
		return 0
	}
	depth := len(o.path)
	i, found := o.leaf().search(key)
	grows, changed := cost(key, value), 0 // a new key changes the counts in all pages of the path
	if found {
		_, old := o.leaf().at(i)
		grows, changed = len(value)-len(old), depth-1
	}
	whole := depth - 1 // the lowest page that need not be split
	if o.leaf().used()+grows > t.room {
		for changed, whole = 0, whole-1; whole >= 0 && o.path[whole].pg.used()+t.room/4 > t.room; {
			whole--
		}
	}
	if need = depth - 1 - whole; whole < 0 {
		need++ // a new root
	}
	if !o.ownFresh(need) || !o.own(changed) {
		return need
	}
	if need > 0 {
		i = o.split(key, i, found, whole)
	}
	leaf := o.leaf()
	if found {
		if _, old := leaf.at(i); len(old) == len(value) {
			copy(old, value)
			return 0
		}
		leaf.remove(i)
	} else {
		for _, st := range o.path[:len(o.path)-1] {
			st.pg.addTo(st.i, 1)
		}
		t.n++
	}
	leaf.insert(i, key, value)
	return 0
}

// ownFresh makes the first n fresh pages writable, and reports whether there are that many.
func (o *op) ownFresh(n int) bool {
	if len(o.fresh) < n {
		return false
	}
	for i := range o.fresh[:n] {
		st := &o.fresh[i]
		if st.pg = st.ptr.DerefMut(o.s); st.pg == nil {
			o.missing = append(o.missing, st.ptr.Any())
			return false
		}
	}
	return true
}

// make makes fresh pages until there are n. It waits for room, and so must not be called in a scope. It takes nothing
// of the memory that is kept for scopes, which is for reading and deleting when the heap is full.
func (o *op) make(ctx context.Context, n int) error {
	for len(o.fresh) < n {
		p, err := o.t.pages.New(ctx, page{})
		if err != nil {
			return err
		}
		o.fresh = append(o.fresh, step{ptr: p})
	}
	return nil
}

// split splits all pages of the path below the one at whole, or, if whole is -1, all pages under a new root, so that
// the leaf has room for key at i. It returns where key belongs in the leaf that the path then leads to.
//
// Preconditions: the page at whole has room for a child; fresh has as many pages as are made.
func (o *op) split(key []byte, i int, found bool, whole int) int {
	t := o.t
	// Keys that come in order would leave every page half empty. So a page is not halved if key comes behind all keys
	// of the map.
	last := !found && i == int(o.leaf().n)
	for _, st := range o.path[:len(o.path)-1] {
		last = last && st.i == int(st.pg.n)-1
	}
	o.path[len(o.path)-1].i = i
	if whole < 0 {
		root := o.fresh[0]
		o.fresh, whole = o.fresh[1:], 0
		root.pg.level = o.path[0].pg.level + 1
		c := child{o.path[0].ptr.Ref(), uint64(t.n)}
		root.pg.insert(0, nil, codec.Bytes(&c))
		t.root = root.ptr
		o.path = slices.Insert(o.path, 0, root)
	}
	for d := whole + 1; d < len(o.path); d++ {
		up, left, right := &o.path[d-1], &o.path[d], o.fresh[0]
		o.fresh = o.fresh[1:]
		at := left.pg.middle()
		switch {
		case last && left.pg.level == 0:
			at = int(left.pg.n)
		case last:
			at = int(left.pg.n) - 1 // an inner page is never empty
		}
		right.pg.level = left.pg.level
		left.pg.moveTo(right.pg, at)
		first := key // of right
		if right.pg.n > 0 {
			first = right.pg.key(0)
		}
		if left.pg.level == 0 {
			first = between(left.pg.key(int(left.pg.n)-1), first)
		}
		c := child{right.ptr.Ref(), uint64(right.pg.keys())}
		up.pg.addTo(up.i, -int(c.count))
		up.pg.insert(up.i+1, first, codec.Bytes(&c))
		beyond := bytes.Compare(key, first) >= 0
		if right.pg.level > 0 {
			right.pg.bareFirst()
		}
		if beyond {
			right.i = left.i - at
			*left = right
			up.i++
		}
	}
	return o.path[len(o.path)-1].i
}

// between returns the shortest prefix of b that is above a. A is less than b.
func between(a, b []byte) []byte {
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	return b[:i+1]
}

// remove removes key and reports whether it was there, and whether a page is now so empty that tidy should look at
// it.
func (o *op) remove(key []byte) (found, thin bool) {
	t := o.t
	if t.root.IsNil() || !o.find(key, false) {
		return false, false
	}
	i, found := o.leaf().search(key)
	if !found || !o.own(0) {
		return false, false
	}
	o.leaf().remove(i)
	for _, st := range o.path[:len(o.path)-1] {
		st.pg.addTo(st.i, -1)
	}
	t.n--
	for d := len(o.path) - 1; d >= 0 && o.path[d].pg.n == 0; d-- {
		o.path[d].ptr.Free()
		if o.path = o.path[:d]; d == 0 {
			t.root = far.Ptr[page]{}
			return true, false
		}
		up := o.path[d-1]
		if up.pg.remove(up.i); up.i == 0 && up.pg.n > 0 {
			up.pg.bareFirst()
		}
	}
	o.lower()
	return true, slices.ContainsFunc(o.path[1:], func(st step) bool { return st.pg.used() < t.room/4 })
}

// lower makes the root's only child the root, if the root has only one.
func (o *op) lower() {
	if root := o.path[0]; root.pg.level > 0 && root.pg.n == 1 {
		o.t.root = root.pg.child(0).ref.Ptr(o.t.h)
		root.ptr.Free()
	}
}

// tidy joins pages on the way to key that are less than a quarter full with a neighbour, so that
// a map which shrinks gives memory back. The keys stay what they are.
func (o *op) tidy(key []byte) {
	t := o.t
	if t.root.IsNil() || !o.find(key, false) {
		return
	}
	for d := len(o.path) - 1; d > 0; d-- {
		st, up := o.path[d], o.path[d-1]
		if st.pg.used() >= t.room/4 || up.pg.n < 2 {
			continue
		}
		i := min(up.i, int(up.pg.n)-2) // the left one of the two
		other := i
		if other == up.i {
			other++
		}
		p := up.pg.child(other).ref.Ptr(t.h)
		pg := o.page(p)
		if pg == nil {
			return
		}
		// A joined page must not have to be split again soon.
		if st.pg.used()+pg.used() > t.room*3/4 {
			continue
		}
		if !o.own(d-1) || p.DerefMut(o.s) == nil {
			return
		}
		left, right := st, step{ptr: p, pg: pg}
		if other == i {
			left, right = right, left
		}
		if right.pg.level > 0 { // the parent has the key of the first child, which is empty in right
			_, first := right.pg.at(0)
			left.pg.insert(int(left.pg.n), up.pg.key(i+1), first)
			right.pg.remove(0)
		}
		right.pg.moveTo(left.pg, 0)
		up.pg.addTo(i, int(up.pg.child(i+1).count))
		up.pg.remove(i + 1)
		right.ptr.Free()
		o.path = o.path[:d] // what is below has moved
	}
	o.lower()
}
