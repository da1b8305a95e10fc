package far

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"math"

	"polder/internal/offload"
)

// Number is a type that elements of a RemoteVector may have.
type Number interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | float32 | float64
}

// A RemoteVector is a vector of numbers that lies at a memory node, and that can
// be copied, shuffled, filtered and added up there (AIFM, section 8.1.2): what
// goes over the network is the result. It is the column of a data frame.
//
// Reading and writing n elements takes a round trip for every 60 KiB. Other
// operations take one, and time that is in proportion to the elements that they
// look at: about 1 ms for 4 MiB. A node ends requests that run for too long, and
// the objects with them; ask for parts of very long vectors.
//
// It may be used by any number of goroutines. What one round trip does happens
// at once.
type RemoteVector[T Number] struct {
	device Device
	object Component
}

// NewRemoteVector makes an empty vector at a node of d's.
func NewRemoteVector[T Number](ctx context.Context, d Device) (*RemoteVector[T], error) {
	return newRemoteVector[T](ctx, d, nil)
}

func newRemoteVector[T Number](ctx context.Context, d Device, beside Component) (*RemoteVector[T], error) {
	o, err := d.Construct(ctx, offload.Vector, []byte{byte(kindOf[T]())}, beside)
	if err != nil {
		return nil, err
	}
	return &RemoteVector[T]{device: d, object: o}, nil
}

// RemoteVectorBeside is NewRemoteVector at the node where other is, so that one
// can order the rows of the other.
func RemoteVectorBeside[T, U Number](ctx context.Context, other *RemoteVector[U]) (*RemoteVector[T], error) {
	return newRemoteVector[T](ctx, other.device, other.object)
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

// Len is how many elements there are.
func (v *RemoteVector[T]) Len(ctx context.Context) (int, error) {
	out, err := v.object.Compute(ctx, Computation{Op: offload.VectorLen, Repeat: true}, nil)
	if err != nil {
		return 0, err
	}
	return decodeLen(v.object, out)
}

// Resize makes v so long. New elements are zero.
func (v *RemoteVector[T]) Resize(ctx context.Context, n int) error {
	if n < 0 {
		return fmt.Errorf("cannot resize %s to %d elements", v.object.Name(), n)
	}
	_, err := v.object.Compute(ctx, Computation{
		Op: offload.VectorResize, In: binary.LittleEndian.AppendUint64(nil, uint64(n)), Repeat: true,
	}, nil)
	return err
}

// transfer is how many bytes of elements go in one message.
const transfer = offload.MaxValue

// Write sets the elements from i on, of which the vector has i at least: what
// goes beyond its end is appended. When it fails some may have been set.
func (v *RemoteVector[T]) Write(ctx context.Context, i int, values []T) error {
	if i < 0 {
		return fmt.Errorf("cannot write %s: element %d", v.object.Name(), i)
	}
	width := kindOf[T]().Size()
	for len(values) > 0 {
		n := min(len(values), transfer/width)
		if err := v.object.Write(ctx, binary.LittleEndian.AppendUint64(nil, uint64(i)), numberBytes(values[:n])); err != nil {
			return err
		}
		values, i = values[n:], i+n
	}
	return nil
}

// Read fills values with the elements from i on, and returns how many there
// were.
func (v *RemoteVector[T]) Read(ctx context.Context, i int, values []T) (n int, err error) {
	if i < 0 {
		return 0, fmt.Errorf("cannot read %s: element %d", v.object.Name(), i)
	}
	width := kindOf[T]().Size()
	for n < len(values) {
		want := min(len(values)-n, transfer/width)
		part := numberBytes(values[n : n+want])
		key := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(nil, uint64(i+n)), uint32(want))
		out, err := v.object.Read(ctx, key, part[:0])
		if err != nil {
			return n, err
		}
		if len(out) > len(part) || len(out)%width != 0 {
			return n, wrongAnswer(v.object, out)
		}
		n += len(out) / width
		if len(out) < len(part) {
			break
		}
	}
	return n, nil
}

// Where says which elements of a RemoteVector are meant.
type Where[T Number] struct {
	// First and End are the range [First, End), as far as the vector goes.
	// An End of 0 is the vector's.
	First, End int
	// If says how elements must compare with Operand. The zero value takes
	// all.
	If      Comparison
	Operand T
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

func (w *Where[T]) query() (q offload.Query, err error) {
	if w.First < 0 || w.End < 0 || w.If > IfGreaterOrEqual {
		return q, fmt.Errorf("elements %d to %d, compared by %d, want numbers that are not negative, and a Comparison", w.First, w.End, w.If)
	}
	q = offload.Query{First: uint64(w.First), End: uint64(w.End), Compare: offload.Compare(w.If)}
	if w.End == 0 {
		q.End = 1<<63 - 1
	}
	copy(q.Operand[:], numberBytes([]T{w.Operand}))
	return q, nil
}

// Summary is what elements of a vector come to.
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

// Aggregate adds up the elements of w, and finds the least and the greatest. Those
// that are not a number are neither, unless all are.
func (v *RemoteVector[T]) Aggregate(ctx context.Context, w Where[T]) (s Summary[T], err error) {
	q, err := w.query()
	if err != nil {
		return s, fmt.Errorf("cannot aggregate %s: %w", v.object.Name(), err)
	}
	out, err := v.object.Compute(ctx, Computation{Op: offload.VectorAggregate, In: q.Append(nil), Repeat: true}, nil)
	if err != nil {
		return s, err
	}
	var a offload.Aggregate
	if !a.Decode(out) {
		return s, wrongAnswer(v.object, out)
	}
	s.Count = int(a.Count)
	width := kindOf[T]().Size()
	var ends [2]T
	copy(numberBytes(ends[:1]), a.Least[:width])
	copy(numberBytes(ends[1:]), a.Greatest[:width])
	s.Min, s.Max = ends[0], ends[1]
	switch kindOf[T]() {
	case offload.Int8, offload.Int16, offload.Int32, offload.Int64:
		s.SumInt = int64(a.Sum)
	case offload.Float32, offload.Float64:
		s.SumFloat = math.Float64frombits(a.Sum)
	default:
		s.SumUint = a.Sum
	}
	return s, nil
}

// Filter goes through the indices of the elements of w, in order. It asks the node
// for some thousands at a time, each time for those of the vector as it is
// then. An error is the last thing that it gives.
func (v *RemoteVector[T]) Filter(ctx context.Context, w Where[T]) iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		q, err := w.query()
		if err != nil {
			yield(0, fmt.Errorf("cannot filter %s: %w", v.object.Name(), err))
			return
		}
		var out []byte
		for first := true; first || q.First < q.End; first = false {
			out, err = v.object.Compute(ctx, Computation{Op: offload.VectorFilter, In: q.Append(nil), Repeat: true}, out[:0])
			if err == nil && (len(out) < 8 || len(out)%8 != 0) {
				err = wrongAnswer(v.object, out)
			}
			if err != nil {
				yield(0, err)
				return
			}
			next := binary.LittleEndian.Uint64(out)
			for b := out[8:]; len(b) > 0; b = b[8:] {
				if !yield(int(binary.LittleEndian.Uint64(b)), nil) {
					return
				}
			}
			if next <= q.First {
				return // there are no more elements
			}
			q.First = next
		}
	}
}

// Copy makes a new vector of the elements [first, end), as far as there are,
// beside v.
func (v *RemoteVector[T]) Copy(ctx context.Context, first, end int) (*RemoteVector[T], error) {
	if first < 0 || end < first {
		return nil, fmt.Errorf("cannot copy elements %d to %d of %s", first, end, v.object.Name())
	}
	in := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(first)), uint64(end))
	return v.derive(ctx, Computation{Op: offload.VectorCopy, In: in, Others: [2]Component{v.object}, Repeat: true})
}

// Shuffle makes a new vector beside v, of which element i is v's element order[i].
// It is a function because rows are numbered by vectors of either type.
func Shuffle[T Number, I uint32 | uint64](ctx context.Context, v *RemoteVector[T], order *RemoteVector[I]) (*RemoteVector[T], error) {
	return v.derive(ctx, Computation{Op: offload.VectorShuffle, Others: [2]Component{v.object, order.object}, Repeat: true})
}

// derive makes a vector beside v that c fills.
func (v *RemoteVector[T]) derive(ctx context.Context, c Computation) (*RemoteVector[T], error) {
	d, err := newRemoteVector[T](ctx, v.device, v.object)
	if err != nil {
		return nil, err
	}
	if _, err := d.object.Compute(ctx, c, nil); err != nil {
		_ = d.Close(context.WithoutCancel(ctx)) // or it ends with the session
		return nil, err
	}
	return d, nil
}

// Close gives the vector's memory back.
func (v *RemoteVector[T]) Close(ctx context.Context) error { return v.object.Destruct(ctx) }
