package far

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/bits"

	"polder/far/bytemap"
	"polder/far/farlog"
	"polder/far/heap"
	"polder/far/object"
	"polder/far/objects"
	"polder/far/store"
	"polder/internal/offload"
)

// Values is a Vector, an Array, or the values of a Map: elements of type T that can be looked through where they are.
type Values[T any] interface {
	// Len is the number of elements.
	Len() int

	looked(*T) looker
}

// Elements is a Vector or an Array, whose elements have indices.
type Elements[T any] interface {
	Values[T]
	// At returns the pointer to element i.
	At(i int) Elem[T]

	scanned() *tracker
}

// looker is what Values has elements in.
type looker interface {
	// aggregate adds up what q says of the elements from i to j.
	aggregate(ctx context.Context, q *offload.Scan, i, j int) (offload.Aggregate, error)
	named() string
}

func (a *Array[T]) scanned() *tracker  { return a.tr }
func (v *Vector[T]) scanned() *tracker { return v.tr }
func (a *Array[T]) looked(*T) looker   { return a.tr }
func (v *Vector[T]) looked(*T) looker  { return v.tr }
func (m *Map[K, V]) looked(*V) looker  { return &mapValues{m.b, m.name, m.value.Plain()} }
func (tr *tracker) named() string      { return tr.Class.Name() }

// mapValues is the values of a map.
type mapValues struct {
	m     *bytemap.Map
	name  string
	plain bool // they are stored as they are in memory
}

func (v *mapValues) named() string { return fmt.Sprintf("map %q", v.name) }

// aggregate implements looker. A map has all of its elements looked through.
func (v *mapValues) aggregate(ctx context.Context, q *offload.Scan, _, _ int) (a offload.Aggregate, err error) {
	if !v.plain {
		return a, errors.New("its values are not stored as they are in memory")
	}
	return bytemap.Aggregate(ctx, v.m, q)
}

// Number is a type that a number in an element may have.
type Number interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | float32 | float64
}

func kindOf[T Number]() offload.Kind {
	switch any(*new(T)).(type) {
	case int8:
		return offload.Int8
	case int16:
		return offload.Int16
	case int32:
		return offload.Int32
	case int64:
		return offload.Int64
	case uint8:
		return offload.Uint8
	case uint16:
		return offload.Uint16
	case uint32:
		return offload.Uint32
	case uint64:
		return offload.Uint64
	case float32:
		return offload.Float32
	}
	return offload.Float64
}

// A Comparison is how an element compares with an operand.
type Comparison uint8

// Comparisons of elements with an operand.
const (
	IfAll            = Comparison(offload.Any)
	IfEqual          = Comparison(offload.Equal)
	IfNotEqual       = Comparison(offload.NotEqual)
	IfLess           = Comparison(offload.Less)
	IfLessOrEqual    = Comparison(offload.LessOrEqual)
	IfGreater        = Comparison(offload.Greater)
	IfGreaterOrEqual = Comparison(offload.GreaterOrEqual)
)

// Summary is what elements come to.
type Summary[T Number] struct {
	Count    int
	Min, Max T // zero if there are no elements
	// Sum is of the elements as int64, uint64 or float64, as they are signed,
	// unsigned or floating, of which only that one is set. Those of integers
	// wrap around.
	SumInt   int64
	SumUint  uint64
	SumFloat float64
}

// A Field is a number in every element of type T: the element itself, or a field of a struct.
type Field[T any, N Number] struct {
	off int
	err error // it is not in the element
}

// FieldOf returns the field that at returns a pointer to, as in
//
//	fare := far.FieldOf(func(t *Trip) *float64 { return &t.Fare })
//
// It is called once, with an element of zeros.
func FieldOf[T any, N Number](at func(*T) *N) Field[T, N] {
	off, ok := offsetIn(at)
	if !ok {
		return Field[T, N]{err: fmt.Errorf("a field of type %T that is not in the element", *new(N))}
	}
	return Field[T, N]{off: off}
}

// Itself is the field of elements that are numbers.
func Itself[N Number]() Field[N, N] { return Field[N, N]{} }

// Is says that an element counts only if its field compares so with x.
func (f Field[T, N]) Is(how Comparison, x N) Condition[T] {
	c := Condition[T]{c: offload.Condition{Off: f.off, Kind: kindOf[N](), Compare: offload.Compare(how)}, err: f.err}
	if f.err == nil && how > IfGreaterOrEqual {
		c.err = fmt.Errorf("comparison %d, want one of IfAll to IfGreaterOrEqual", how)
	}
	copy(c.c.Operand[:], elementBytes([]N{x}))
	return c
}

// A Condition says which elements count: see Field.Is and Within. Of several all must be met.
type Condition[T any] struct {
	c      offload.Condition
	within bool
	i, j   int
	err    error
}

// Within says that of all elements only those from i to j count, j not included, as far as there
// are any.
func Within[T any](i, j int) Condition[T] {
	if i < 0 || j < i {
		return Condition[T]{err: fmt.Errorf("elements %d to %d, want a range", i, j)}
	}
	return Condition[T]{within: true, i: i, j: j}
}

// Aggregate adds up a field of those elements of v that meet all conditions, and finds the least and
// the greatest. Those that are not a number are neither, unless all are.
//
// What is local is looked through here, and what is far where it lies, if the store can compute: a memory node
// with memory for components (polder node --component-memory), or one on this machine,
// whose memory is mapped. Then a sum moves 32 bytes for every MiB. Otherwise the same call reads, as
// StreamChunks does. It takes and displaces no local memory for what the store looks through, up to 8
// conditions, and elements of up to 256 KiB.
//
// Of a Map it adds up values, which must be stored as they are in memory: numbers, and structs and arrays of such, of up to
// 64 KiB. Of what is far, the leaves of its index are read, if those are far, too. It fails with a *LostError if
// an entry is lost; those that have expired do not count, nor can Within be used.
//
// It is one pass over v and no instant: every element counts once, as it was at some time between the call and
// the return, so that what was written before the call is seen. Whoever writes elements meanwhile needs
// a lock if that matters. Elements that are appended meanwhile do not count, and those that are removed may count as
// zeros. Sums of floating-point numbers are added up in any order.
//
// It waits within ctx, and must not be called in a scope.
func Aggregate[T any, N Number](ctx context.Context, v Values[T], f Field[T, N], conditions ...Condition[T]) (s Summary[N], err error) {
	q, i, j, err := scanOf(v, conditions)
	if err == nil {
		err = f.err
	}
	var a offload.Aggregate
	if err == nil {
		q.Off, q.Kind = f.off, kindOf[N]()
		a, err = v.looked(nil).aggregate(ctx, q, i, j)
	}
	if err != nil {
		return s, fmt.Errorf("cannot aggregate %s: %w", v.looked(nil).named(), err)
	}
	return summary[N](&a), nil
}

// Count is how many elements of v meet all conditions. Otherwise it is as Aggregate.
func Count[T any](ctx context.Context, v Values[T], conditions ...Condition[T]) (int, error) {
	q, i, j, err := scanOf(v, conditions)
	var a offload.Aggregate
	if err == nil {
		a, err = v.looked(nil).aggregate(ctx, q, i, j)
	}
	if err != nil {
		return 0, fmt.Errorf("cannot count %s: %w", v.looked(nil).named(), err)
	}
	return int(a.Count), nil
}

// Filter iterates over the indices of those elements of v that meet all conditions, in order. It
// looks through some megabytes at a time, as Aggregate does, and through the next ones while the loop's body runs; what
// comes from the store is a bit for every element. An error is the last thing that it gives.
func Filter[T any](ctx context.Context, v Elements[T], conditions ...Condition[T]) iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		q, i, j, err := scanOf(v, conditions)
		if err == nil {
			var more bool
			if more, err = v.scanned().filter(ctx, q, i, j, func(i int) bool { return yield(i, nil) }); !more {
				return
			}
		}
		if err != nil {
			yield(0, fmt.Errorf("cannot filter %s: %w", v.scanned().Class.Name(), err))
		}
	}
}

// scanOf is what conditions mean for v: which elements, and what has to be looked at.
func scanOf[T any](v Values[T], conditions []Condition[T]) (q *offload.Scan, i, j int, err error) {
	q = &offload.Scan{Stride: sizeOf[T]()}
	j = v.Len()
	for _, c := range conditions {
		switch {
		case c.err != nil:
			return nil, 0, 0, c.err
		case c.within:
			if _, ok := v.(Elements[T]); !ok {
				return nil, 0, 0, errors.New("the elements of a map have no indices")
			}
			i, j = max(i, c.i), min(j, c.j)
		default:
			q.Conditions = append(q.Conditions, c.c)
		}
	}
	if err := q.Check(); err != nil {
		return nil, 0, 0, err
	}
	return q, min(i, j), j, nil
}

// summary is a for numbers of type N.
func summary[N Number](a *offload.Aggregate) (s Summary[N]) {
	s.Count = int(a.Count)
	kind := kindOf[N]()
	var ends [2]N
	copy(elementBytes(ends[:1]), a.Least[:kind.Size()])
	copy(elementBytes(ends[1:]), a.Greatest[:kind.Size()])
	s.Min, s.Max = ends[0], ends[1]
	switch kind {
	case offload.Int8, offload.Int16, offload.Int32, offload.Int64:
		s.SumInt = int64(a.Sum)
	case offload.Float32, offload.Float64:
		s.SumFloat = math.Float64frombits(a.Sum)
	default:
		s.SumUint = a.Sum
	}
	return s
}

const (
	// lookBytes is about how much far memory is asked for at a time, whose segments are pinned
	// meanwhile.
	lookBytes = 4 << 20
	// lookRun is the most bytes of a run of records that the store looks through, and finds
	// all right or not.
	lookRun = 128 << 10
	// lookBits is the most bytes of a filter's bits of a run.
	lookBits = 32 << 10
	// lookStep is about how many bytes are looked through here in a scope.
	lookStep = 64 << 10
)

// looking is a part of a structure of which what is far is looked at by the store, while the next part is looked at here.
type looking struct {
	tr    *tracker
	q     offload.Scan
	store store.Computer // nil if it does not compute
	pins  *farlog.Pins
	parts []store.ScanPart // to be looked at by the store
	bytes int              // of these

	done chan error  // there has returned that
	then func() bool // called after that; it reports whether to go on
}

// newLooking makes a part of tr in which the store is asked q.
func (tr *tracker) newLooking(q *offload.Scan) looking {
	l := looking{tr: tr, q: *q, pins: tr.h.core.Far.NewPins(), done: make(chan error, 1)}
	l.store, _ = tr.h.core.Far.Store.(store.Computer)
	return l
}

// begin does what can be done here, and begins there, as a call that Close waits for. l.done says how that has ended,
// unless begin fails.
func (l *looking) begin(here func() error, there func() error) error {
	core := &l.tr.h.core
	if err := core.Begin(); err != nil {
		return err
	}
	if err := here(); err != nil {
		l.pins.Release()
		core.End()
		return err
	}
	go func() {
		defer core.End()
		l.done <- there()
	}()
	return nil
}

// hold returns the part of the store that the far object is whose word p was w, and pins its segment; or false: it is to be read.
func (l *looking) hold(p *uint64, w objects.Word) (store.ScanPart, bool) {
	tr := l.tr
	if l.store == nil || w.FarClass() != tr.Class.ID {
		return store.ScanPart{}, false
	}
	seg := l.pins.Hold(w.FarAddr(), func() bool { return objects.Load(p) == w })
	if seg == nil {
		return store.ScanPart{}, false
	}
	return store.ScanPart{Seg: seg.Seg, Seed: seg.Seed, Off: tr.h.core.Far.Offset(w.FarAddr()), Number: tr.h.objects.Number(p), N: 1}, true
}

// scan has the store look at the parts.
func (l *looking) scan(ctx context.Context, a *offload.Aggregate) {
	c := l.tr.Class
	limited, cancel := context.WithTimeout(ctx, heap.StoreTimeout)
	defer cancel()
	l.store.Scan(limited, &l.q, store.Objects{Owner: c.Owner(), Born: c.Born, Size: c.Size}, l.parts, a)
	l.pins.Release()
	for k := range l.parts {
		if p := &l.parts[k]; p.Err == nil {
			c.Computed.Add(uint64(p.N))
		}
	}
}

// inTurns has parts of a structure looked at, of which begin begins the next one, or returns nil when there is none, and
// calls what comes then for each in order, until that reports false. While the store looks at a part, the next
// one is looked at here, and while that is called, the store looks at the next one.
func inTurns(ctx context.Context, begin func(ctx context.Context) (*looking, error)) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	var next *looking
	defer func() { // then may be a loop of the program's, which ends, or panics
		cancel()
		if next != nil {
			<-next.done
		}
	}()
	for more := true; more || next != nil; {
		l := next
		next = nil
		if more {
			next, err = begin(ctx)
			more = next != nil
		}
		if l == nil {
			continue
		}
		if failed := <-l.done; failed != nil {
			return failed
		}
		if !l.then() {
			return nil
		}
	}
	return err
}

// window is a part of a structure that is being looked through.
type window struct {
	looking
	i, j int // elements

	a     offload.Aggregate
	zeros []byte // an object that was never used
	bits  []byte // of a filter: per bytes for each object from i's on
	per   int
	first []int  // the first object of each part
	next  uint64 // address behind the last part
}

// aggregate adds up what q says of the elements from i to j.
func (tr *tracker) aggregate(ctx context.Context, q *offload.Scan, i, j int) (a offload.Aggregate, err error) {
	err = tr.windows(ctx, q, i, j, 0, func(w *window) bool {
		q.Merge(&a, &w.a)
		return true
	})
	return a, err
}

// filter calls yield with the indices of the elements from i to j that count. It reports false if yield did not
// want any more.
func (tr *tracker) filter(ctx context.Context, q *offload.Scan, i, j int, yield func(i int) bool) (more bool, err error) {
	more = true
	err = tr.windows(ctx, q, i, j, offload.BitsSize(tr.group), func(w *window) bool {
		more = w.eachBit(yield)
		return more
	})
	return more, err
}

// windows looks through the elements from i to j, some megabytes at a time, and calls fn with each window in
// order until it reports false.
func (tr *tracker) windows(ctx context.Context, q *offload.Scan, i, j, per int, fn func(w *window) bool) error {
	return inTurns(ctx, func(ctx context.Context) (*looking, error) {
		if i >= j {
			return nil, nil
		}
		w := &window{looking: tr.newLooking(q), i: i, per: per}
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

// eachBit calls yield with the indices of the elements of w whose bits are set, until it does not want any more.
func (w *window) eachBit(yield func(i int) bool) bool {
	first := w.i / w.tr.group * w.tr.group
	for at, b := range w.bits {
		for ; b != 0; b &= b - 1 {
			e := first + at/w.per*w.tr.group + at%w.per*8 + bits.TrailingZeros8(b)
			if e >= w.i && e < w.j && !yield(e) {
				return false
			}
		}
	}
	return true
}

// here looks through what is local of the elements from w.i up to j, or up to the end of the window, which
// it returns, and finds out what the store is to look through.
func (w *window) here(ctx context.Context, j int) (next int, err error) {
	tr := w.tr
	if w.store == nil {
		w.j = min(j, (w.i/tr.group+max(lookBytes/max(tr.Class.Size, 1), 1))*tr.group)
		w.addBits()
		return w.j, w.read(ctx, w.i, w.j)
	}
	s := tr.h.core.Acquire(ctx)
	defer tr.h.core.Release(s)
	bytes, open := 0, false
	size := tr.Class.Size + object.Header
	for at := w.i; at < j && err == nil; at = w.j {
		c := at / tr.group
		w.j = min((c+1)*tr.group, j)
		w.addBits()
		if !open {
			if err = context.Cause(ctx); err != nil {
				break
			}
			tr.h.core.EnterAtOnce(s)
			open = true
		}
		p := tr.Word(c)
		if p == nil {
			return j, nil // a Vector has become shorter
		}
		word := objects.Load(p)
		switch {
		case word.Far() && w.take(p, word, c, at, w.j):
		case word.Local() && !word.Marked():
			// As in Deref's fast path, the object stays where it is until s is left. What is
			// used here and there is no hotter for that.
			w.look(at, w.j, tr.h.core.Logs.Object(word.Addr())[object.Header:])
		case word.Zero():
			if w.zeros == nil {
				w.zeros = make([]byte, tr.Class.Size)
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
		n := ((w.j-1)/w.tr.group - w.i/w.tr.group + 1) * w.per
		w.bits = append(w.bits, make([]byte, n-len(w.bits))...)
	}
}

// take makes object c, whose word p was w and of which the elements from i to j are asked for, one that the store is to
// look through; or reports false: it is to be read.
func (w *window) take(p *uint64, word objects.Word, c, i, j int) bool {
	tr := w.tr
	if j-i != tr.group {
		return false
	}
	part, ok := w.hold(p, word)
	if !ok {
		return false
	}
	size := object.FarSize(tr.Class.Size)
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

// look looks through the elements from i to j, of an object whose data is given.
func (w *window) look(i, j int, data []byte) {
	tr := w.tr
	c := i / tr.group
	from, to := (i-c*tr.group)*w.q.Stride, (j-c*tr.group)*w.q.Stride
	if w.per == 0 {
		w.q.Aggregate(&w.a, data[from:to])
		return
	}
	w.q.Filter(w.bitsOf(c, 1), data[:to])
}

// bitsOf is the bits of n objects from c on.
func (w *window) bitsOf(c, n int) []byte {
	at := (c - w.i/w.tr.group) * w.per
	return w.bits[at : at+n*w.per : at+n*w.per]
}

// read looks through the elements from i to j, which is done when they have been read, as who iterates
// over them reads.
func (w *window) read(ctx context.Context, i, j int) error {
	tr := w.tr
	return tr.h.withScope(ctx, func(s *heap.Scope) {
		for i < j {
			c := i / tr.group
			end := min((c+1)*tr.group, j)
			p := tr.Word(c)
			if p == nil {
				return // a Vector has become shorter
			}
			o := tr.chunkEnter(s, p, c, (j-1)/tr.group+1, objects.Stream)
			if o == nil {
				return
			}
			w.look(i, end, o[object.Header:])
			s.Leave()
			i = end
		}
	})
}

// there has the store look through what here has left to it, and reads what that could not.
func (w *window) there(ctx context.Context) error {
	if len(w.parts) == 0 {
		return nil
	}
	tr := w.tr
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
		if err := w.read(ctx, from*tr.group, to*tr.group); err != nil {
			return err
		}
	}
	return nil
}
