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

// Values is a Vector, an Array, or the values of a Map: elements of type T that can be looked through where they lie.
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

// looker is what the elements of a Values lie in.
type looker interface {
	// aggregate aggregates those elements from i to j that meet the conditions of q, as q says.
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
	plain bool // values are stored as they are in memory
}

func (v *mapValues) named() string { return fmt.Sprintf("map %q", v.name) }

// aggregate implements looker.
func (tr *tracker) aggregate(ctx context.Context, q *offload.Scan, i, j int) (offload.Aggregate, error) {
	if tr.freed() {
		return offload.Aggregate{}, ErrFreed
	}
	return look.Aggregate(ctx, &tr.h.ahead, &tr.Structure, q, i, j)
}

// aggregate implements looker. It ignores i and j: all values of a map are looked through.
func (v *mapValues) aggregate(ctx context.Context, q *offload.Scan, _, _ int) (a offload.Aggregate, err error) {
	if !v.plain {
		return a, errors.New("its values are not stored as they are in memory")
	}
	return bytemap.Aggregate(ctx, v.m, q)
}

// Number is the types that a number in an element may have.
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

// Summary is the result of aggregating numbers.
type Summary[T Number] struct {
	Count    int
	Min, Max T // zero if there are no elements
	// One of the three sums is set: SumInt if T is signed, SumUint if it is unsigned, SumFloat if it is
	// floating-point. Sums of integers wrap around.
	SumInt   int64
	SumUint  uint64
	SumFloat float64
}

// A Field is a number in every element of type T: the element itself, or a field of a struct.
type Field[T any, N Number] struct {
	off int
	err error // not nil if the number is not in the element
}

// FieldOf returns the field to which at returns a pointer, as in
//
//	fare := far.FieldOf(func(t *Trip) *float64 { return &t.Fare })
//
// FieldOf calls at once, with a zero element.
func FieldOf[T any, N Number](at func(*T) *N) Field[T, N] {
	off, ok := offsetIn(at)
	if !ok {
		return Field[T, N]{err: fmt.Errorf("a field of type %T that is not in the element", *new(N))}
	}
	return Field[T, N]{off: off}
}

// Itself is the field of elements that are themselves numbers.
func Itself[N Number]() Field[N, N] { return Field[N, N]{} }

// Is is the condition that the element's field compares with x as how says. Elements that do not meet it do not
// count.
func (f Field[T, N]) Is(how Comparison, x N) Condition[T] {
	c := Condition[T]{c: offload.Condition{Off: f.off, Kind: kindOf[N](), Compare: offload.Compare(how)}, err: f.err}
	if f.err == nil && how > IfGreaterOrEqual {
		c.err = fmt.Errorf("comparison %d, want one of IfAll to IfGreaterOrEqual", how)
	}
	copy(c.c.Operand[:], elementBytes([]N{x}))
	return c
}

// A Condition says which elements count: see Field.Is and Within. If there are several, an element has to meet all of
// them.
type Condition[T any] struct {
	c      offload.Condition
	within bool
	i, j   int
	err    error
}

// Within is the condition that the index of an element is at least i and less than j. The range may go beyond the
// last element.
func Within[T any](i, j int) Condition[T] {
	if i < 0 || j < i {
		return Condition[T]{err: fmt.Errorf("elements %d to %d, want a range", i, j)}
	}
	return Condition[T]{within: true, i: i, j: j}
}

// Aggregate adds up a field of those elements of v that meet all conditions, and finds the least and the greatest
// value. A NaN is the least or the greatest only if all values are NaN.
//
// Elements that are local are looked through here. Elements that are far are looked through where they lie, if the
// store can compute: if it is a memory node with memory for components (polder node --component-memory), or one on
// this machine whose memory is mapped. Then a sum moves 32 bytes for every MiB, and takes and displaces no local
// memory for what the store looks through. Objects that the store cannot look through, and those of more than 256
// KiB, Aggregate reads as StreamChunks does. There may be up to 8 conditions.
//
// Of a Map, Aggregate adds up the values, which must be stored as they are in memory: numbers, and structs and arrays
// of numbers, of up to 64 KiB. If leaves of the map's index are far, it reads them. It fails with a *LostError if an
// entry is lost. Entries that have expired do not count. Within cannot be used.
//
// Aggregate is one pass over v, and not a snapshot: every element counts once, with the value that it had at some
// time between the call and the return, so that writes before the call are seen. If it matters that others write
// elements meanwhile, they need a lock. Elements that are appended meanwhile do not count; elements that are removed
// meanwhile may count as zeros. Floating-point numbers are added up in any order.
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
		err = q.Check() // a zero Field may be larger than an element
	}
	if err == nil {
		a, err = v.looked(nil).aggregate(ctx, q, i, j)
	}
	if err != nil {
		return s, fmt.Errorf("cannot aggregate %s: %w", v.looked(nil).named(), err)
	}
	return summary[N](&a), nil
}

// Count is how many elements of v meet all conditions. Otherwise it is like Aggregate.
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

// Filter iterates over the indices of those elements of v that meet all conditions, in order. It looks through some
// megabytes at a time, as Aggregate does, and through the next ones while the loop's body runs. The store sends one
// bit for every element. If there is an error, it comes last, and ends the iteration.
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

// scanOf translates conditions for v: i and j are the range of elements that Within leaves, and q has the other
// conditions.
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

// summary converts a to the Summary of numbers of type N.
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

// filter calls yield with the index of each element from i to j that meets the conditions of q. It returns false for
// more if yield returned false.
func (tr *tracker) filter(ctx context.Context, q *offload.Scan, i, j int, yield func(i int) bool) (more bool, err error) {
	if tr.freed() {
		return true, ErrFreed
	}
	return look.Filter(ctx, &tr.h.ahead, &tr.Structure, q, i, j, yield)
}
