package ordered

import (
	"bytes"
	"context"

	"polder/far"
)

// walk is an iteration over a tree, leaf by leaf. It works on copies of leaves, and holds no lock between two of
// them: it goes on by keys, wherever these lie by then.
type walk struct {
	o    *op
	back bool

	// Still to come are the keys that are not less than from or, with back set, those that are less; a nil from is
	// then greater than all keys.
	from  []byte
	until []byte // the walk ends before it, if it is not nil
	done  bool   // nothing is to come

	leaf   page // its records from i to j, j excluded, are to be yielded
	i, j   int
	ahead  int          // how many leaves were asked for beside the last one that was far
	passed []far.AnyRef // pages that were brought for this walk alone
}

// mostAhead is how many leaves are brought beside one that is far.
const mostAhead = 31

// next copies the next leaf and waits for it within ctx.
func (w *walk) next(ctx context.Context, user *far.Scope) error {
	o := w.o
	return o.try(ctx, false, func() {
		if user.H != o.s.H {
			panic("BUG: an ordered map is used in a scope of another heap")
		}
		w.i, w.j = 0, 0
		if w.done = o.t.root.IsNil(); w.done || !o.find(w.from, w.back) {
			return
		}
		w.leaf = *o.leaf()
		w.j = int(w.leaf.n)
		switch {
		case !w.back:
			w.i, _ = w.leaf.search(w.from)
		case w.from != nil:
			w.j, _ = w.leaf.search(w.from)
		}
		if w.until != nil {
			w.j, _ = w.leaf.search(w.until)
		}
		w.onward()
	})
}

// record returns the next record of the leaf.
func (w *walk) record() (key, value []byte) {
	if w.back {
		w.j--
		return w.leaf.at(w.j)
	}
	w.i++
	return w.leaf.at(w.i - 1)
}

// onward sets from to where the next leaf begins or, with back set, to where the leaf before ends. The key for that
// is in the lowest page of the path that has another child in that direction. If there is none, or the next leaf
// begins at until or beyond, the walk is done.
func (w *walk) onward() {
	w.done = true
	for d := len(w.o.path) - 2; d >= 0 && w.done; d-- {
		st := w.o.path[d]
		switch {
		case w.back && st.i > 0:
			w.from, w.done = append([]byte(nil), st.pg.key(st.i)...), false
		case !w.back && st.i+1 < int(st.pg.n):
			w.from = append([]byte(nil), st.pg.key(st.i+1)...)
			w.done = w.until != nil && bytes.Compare(w.from, w.until) >= 0
			return
		}
	}
}

// lookAhead adds leaves to o.missing, in which is the leaf that find was about to come to: the leaves that follow it,
// about twice as many each time, up to mostAhead. So the walk waits for one leaf, and brings many.
func (w *walk) lookAhead() {
	o := w.o
	if len(o.path) == 0 || o.path[len(o.path)-1].pg.level != 1 {
		return
	}
	w.ahead = min(2*w.ahead+1, mostAhead)
	up := o.path[len(o.path)-1]
	for k := 1; k <= w.ahead; k++ {
		i := up.i + k
		if w.back {
			i = up.i - k
		}
		if i < 0 || i >= int(up.pg.n) || w.until != nil && bytes.Compare(up.pg.key(i), w.until) >= 0 {
			return
		}
		if p := up.pg.child(i).ref.Ptr(o.t.h); !p.IsLocal() {
			o.missing = append(o.missing, p.Any())
		}
	}
}
