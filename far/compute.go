package far

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"

	"polder/far/bytemap"
	"polder/far/look"
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

// aggregate implements looker.
func (tr *tracker) aggregate(ctx context.Context, q *offload.Scan, i, j int) (offload.Aggregate, error) {
	return look.Aggregate(ctx, &tr.h.ahead, &tr.Structure, q, i, j)
}

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

// filter calls yield with the indices of the elements from i to j that count. It reports false if yield did not
// want any more.
func (tr *tracker) filter(ctx context.Context, q *offload.Scan, i, j int, yield func(i int) bool) (more bool, err error) {
	return look.Filter(ctx, &tr.h.ahead, &tr.Structure, q, i, j, yield)
}
