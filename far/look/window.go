package look

import (
	"context"
	"math/bits"

	"polder/far/ahead"
	"polder/far/heap"
	"polder/far/object"
	"polder/far/objects"
	"polder/internal/offload"
)

const (
	// lookBytes is about how much far memory the store is asked for at a time. Its segments are pinned meanwhile.
	lookBytes = 4 << 20
	// lookRun is how many bytes of records a part has at most, unless one object has more. If the store finds one of
	// them wrong, the whole part fails.
	lookRun = 128 << 10
	// lookBits is how many bytes of a filter's bits a part has at most.
	lookBits = 32 << 10
	// lookStep is about how many bytes are looked through here before the scope is left.
	lookStep = 64 << 10
)

// window is a part of a structure that is being looked through.
type window struct {
	looking
	i, j int // the window is the elements from i up to j

	a     offload.Aggregate
	zeros []byte // the data of an object that was never used
	bits  []byte // of a filter: per bytes for each object, from that of element i on
	per   int
	first []int  // the first object of each part
	next  uint64 // far address behind the last part
}

// Aggregate adds up what q says of the elements from i to j.
func Aggregate(ctx context.Context, e *ahead.Engine, st *ahead.Structure, q *offload.Scan, i, j int) (a offload.Aggregate, err error) {
	err = windows(ctx, e, st, q, i, j, 0, func(w *window) bool {
		q.Merge(&a, &w.a)
		return true
	})
	return a, err
}

// Filter calls yield with the indices of the elements from i to j that count. It reports false if yield did not
// want any more.
func Filter(ctx context.Context, e *ahead.Engine, st *ahead.Structure, q *offload.Scan, i, j int, yield func(i int) bool) (more bool, err error) {
	more = true
	err = windows(ctx, e, st, q, i, j, offload.BitsSize(st.Group), func(w *window) bool {
		more = w.eachBit(yield)
		return more
	})
	return more, err
}

// windows looks through the elements from i to j, some megabytes at a time, and calls fn with each window in
// order until it reports false.
func windows(ctx context.Context, e *ahead.Engine, st *ahead.Structure, q *offload.Scan, i, j, per int, fn func(w *window) bool) error {
	return inTurns(ctx, func(ctx context.Context) (*looking, error) {
		if i >= j {
			return nil, nil
		}
		w := &window{looking: newLooking(e, st, q), i: i, per: per}
		w.then = func() bool { return fn(w) }
		err := w.begin(func() (err error) {
			i, err = w.here(ctx, j)
			return err
		}, func() error { return w.there(ctx) })
		if err != nil {
			return nil, err
		}
		return &w.looking, nil
	})
}

// eachBit calls yield with the indices of the elements of w whose bits are set, until it returns false.
func (w *window) eachBit(yield func(i int) bool) bool {
	first := w.i / w.st.Group * w.st.Group
	for at, b := range w.bits {
		for ; b != 0; b &= b - 1 {
			e := first + at/w.per*w.st.Group + at%w.per*8 + bits.TrailingZeros8(b)
			if e >= w.i && e < w.j && !yield(e) {
				return false
			}
		}
	}
	return true
}

// here looks through the local ones of the elements from w.i up to j, or up to the end of the window if that comes
// first, and finds out what the store is to look through. It returns the element at which the next window begins.
func (w *window) here(ctx context.Context, j int) (next int, err error) {
	e, st := w.e, w.st
	if w.store == nil {
		w.j = min(j, (w.i/st.Group+max(lookBytes/max(st.Class.Size, 1), 1))*st.Group)
		w.addBits()
		return w.j, w.read(ctx, w.i, w.j)
	}
	s := e.Core.Acquire(ctx)
	defer e.Core.Release(s)
	bytes, open := 0, false
	size := st.Class.Size + object.Header
	for at := w.i; at < j && err == nil; at = w.j {
		c := at / st.Group
		w.j = min((c+1)*st.Group, j)
		w.addBits()
		if !open {
			if err = context.Cause(ctx); err != nil {
				break
			}
			e.Core.EnterAtOnce(s)
			open = true
		}
		p := st.Word(c)
		if p == nil {
			return j, nil // a Vector has become shorter
		}
		word := objects.Load(p)
		switch {
		case word.Far() && w.take(p, word, c, at, w.j):
		case word.Local() && !word.Marked():
			// As in Deref's fast path, the object stays where it is until s is left. Being looked through, here or by
			// the store, makes an object no hotter.
			w.look(at, w.j, e.Core.Logs.Object(word.Addr())[object.Header:])
		case word.Zero():
			if w.zeros == nil {
				w.zeros = make([]byte, st.Class.Size)
			}
			w.look(at, w.j, w.zeros)
		default:
			s.Leave()
			open = false
			err = w.read(ctx, at, w.j)
		}
		if bytes += size; open && bytes%lookStep < size {
			s.Leave()
			open = false
		}
		if w.bytes >= lookBytes || bytes >= 4*lookBytes {
			break
		}
	}
	if open {
		s.Leave()
	}
	return w.j, err
}

// addBits makes room for the bits of the objects up to element w.j.
func (w *window) addBits() {
	if w.per > 0 {
		n := ((w.j-1)/w.st.Group - w.i/w.st.Group + 1) * w.per
		w.bits = append(w.bits, make([]byte, n-len(w.bits))...)
	}
}

// take adds object c, whose word p was word, to the parts that the store is to look through. The elements from i to j
// are those that are asked for of it. take reports false if the object is to be read instead.
func (w *window) take(p *uint64, word objects.Word, c, i, j int) bool {
	st := w.st
	if j-i != st.Group {
		return false
	}
	part, ok := w.hold(p, word)
	if !ok {
		return false
	}
	size := object.FarSize(st.Class.Size)
	k := len(w.parts) - 1
	if k >= 0 && w.next == word.FarAddr() && w.parts[k].Seg == part.Seg && w.parts[k].Number+uint64(w.parts[k].N) == part.Number &&
		w.first[k]+w.parts[k].N == c && (w.parts[k].N+1)*size <= lookRun && (w.parts[k].N+1)*w.per <= lookBits {
		w.parts[k].N++
	} else {
		w.parts = append(w.parts, part)
		w.first = append(w.first, c)
	}
	w.next = word.FarAddr() + uint64(size/heap.Unit)
	w.bytes += size
	return true
}

// look looks through the elements from i to j, which are of one object that has that data.
func (w *window) look(i, j int, data []byte) {
	st := w.st
	c := i / st.Group
	from, to := (i-c*st.Group)*w.q.Stride, (j-c*st.Group)*w.q.Stride
	if w.per == 0 {
		w.q.Aggregate(&w.a, data[from:to])
		return
	}
	w.q.Filter(w.bitsOf(c, 1), data[:to])
}

// bitsOf is the bits of n objects from c on.
func (w *window) bitsOf(c, n int) []byte {
	at := (c - w.i/w.st.Group) * w.per
	return w.bits[at : at+n*w.per : at+n*w.per]
}

// read looks through the elements from i to j here. It brings their objects in as an iteration over the elements
// does.
func (w *window) read(ctx context.Context, i, j int) error {
	e, st := w.e, w.st
	return e.WithScope(ctx, func(s *heap.Scope) {
		for i < j {
			c := i / st.Group
			end := min((c+1)*st.Group, j)
			p := st.Word(c)
			if p == nil {
				return // a Vector has become shorter
			}
			o := e.Enter(s, st, p, c, (j-1)/st.Group+1, objects.Stream)
			if o == nil {
				return
			}
			w.look(i, end, o[object.Header:])
			s.Leave()
			i = end
		}
	})
}

// there has the store look through the parts that here has left to it, and reads those that the store could not look
// through.
func (w *window) there(ctx context.Context) error {
	if len(w.parts) == 0 {
		return nil
	}
	st := w.st
	for k := range w.parts {
		if p := &w.parts[k]; w.per > 0 {
			p.Out = w.bitsOf(w.first[k], p.N)
		}
	}
	w.scan(ctx, &w.a)
	for k := 0; k < len(w.parts); k++ {
		if w.parts[k].Err == nil {
			continue
		}
		// Parts that follow each other are read together.
		from, to := w.first[k], w.first[k]+w.parts[k].N
		for ; k+1 < len(w.parts) && w.parts[k+1].Err != nil && w.first[k+1] == to; k++ {
			to += w.parts[k+1].N
		}
		if err := w.read(ctx, from*st.Group, to*st.Group); err != nil {
			return err
		}
	}
	return nil
}
