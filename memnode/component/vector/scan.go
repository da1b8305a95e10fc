package vector

import (
	"encoding/binary"
	"math"

	"polder/internal/offload"
)

// integer and float are the types of elements.
type (
	integer interface {
		int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64
	}
	float  interface{ float32 | float64 }
	number interface{ integer | float }
)

// scanner looks through elements of one type.
type scanner interface {
	// aggregate adds the elements of b that match q to a.
	aggregate(a *offload.Aggregate, b []byte, q *offload.Query)
	// filter appends the indices of those elements of b that match q, the
	// first of which is i. It stops before there would be more than room,
	// and returns how many elements it has looked at.
	filter(out, b []byte, i uint64, q *offload.Query, room int) ([]byte, int)
}

// scanners has one for every kind.
var scanners = [...]scanner{
	offload.Int8: integers[int8]{}, offload.Int16: integers[int16]{}, offload.Int32: integers[int32]{}, offload.Int64: integers[int64]{},
	offload.Uint8: integers[uint8]{}, offload.Uint16: integers[uint16]{}, offload.Uint32: integers[uint32]{}, offload.Uint64: integers[uint64]{},
	offload.Float32: floats[float32]{}, offload.Float64: floats[float64]{},
}

type integers[T integer] struct{}

func (integers[T]) aggregate(a *offload.Aggregate, b []byte, q *offload.Query) {
	low, high, outside := bounds(q.Compare, elements[T](q.Operand[:])[0])
	least, greatest := elements[T](a.Least[:]), elements[T](a.Greatest[:])
	lo, hi := least[0], greatest[0]
	if a.Count == 0 {
		lo, hi = limits[T]()
		lo, hi = hi, lo // whatever comes is less, and greater
	}
	vs := elements[T](b)
	count, sum := 0, a.Sum
	switch {
	case q.Compare == offload.Any:
		count = len(vs)
		for _, v := range vs {
			sum += uint64(v) // sign-extended, if there is a sign
			lo, hi = min(lo, v), max(hi, v)
		}
	default:
		for _, v := range vs {
			if (v >= low && v <= high) != outside {
				sum += uint64(v)
				lo, hi = min(lo, v), max(hi, v)
				count++
			}
		}
	}
	if count > 0 {
		least[0], greatest[0] = lo, hi
		a.Count, a.Sum = a.Count+uint64(count), sum
	}
}

// bounds says that a value matches which is from low to high, or outside of that.
func bounds[T integer](op offload.Compare, operand T) (low, high T, outside bool) {
	least, greatest := limits[T]()
	switch op {
	case offload.Equal, offload.NotEqual:
		return operand, operand, op == offload.NotEqual
	case offload.LessOrEqual, offload.Greater:
		return least, operand, op == offload.Greater
	case offload.Less, offload.GreaterOrEqual:
		return operand, greatest, op == offload.Less
	}
	return least, greatest, false
}

// limits are the least and the greatest T.
func limits[T integer]() (least, greatest T) {
	if greatest = ^T(0); greatest > 0 {
		return 0, greatest
	}
	least = 1
	for least > 0 {
		least <<= 1
	}
	return least, ^least
}

func (integers[T]) filter(out, b []byte, i uint64, q *offload.Query, room int) ([]byte, int) {
	return filter[T](out, b, i, q, room)
}

type floats[T float] struct{}

func (floats[T]) aggregate(a *offload.Aggregate, b []byte, q *offload.Query) {
	sum := math.Float64frombits(a.Sum)
	var buf [256]T
	for vs := elements[T](b); len(vs) > 0; {
		var chosen []T
		chosen, vs = choose(a, buf[:], vs, q)
		for _, v := range chosen {
			sum += float64(v)
		}
	}
	a.Sum = math.Float64bits(sum)
}

func (floats[T]) filter(out, b []byte, i uint64, q *offload.Query, room int) ([]byte, int) {
	return filter[T](out, b, i, q, room)
}

// choose returns the elements that match q of some from vs on, in buf or where
// they are, and what is left of vs. It counts them, and finds the least and the
// greatest: what is not a number is either only where there is nothing else.
func choose[T float](a *offload.Aggregate, buf, vs []T, q *offload.Query) (chosen, rest []T) {
	n := min(len(vs), len(buf)) // few enough to stay in the cache until they are added up
	chosen, rest = vs[:n], vs[n:]
	if op := q.Compare; op != offload.Any {
		operand := elements[T](q.Operand[:])[0]
		k := 0
		for _, v := range chosen {
			if matches(op, v, operand) {
				buf[k] = v
				k++
			}
		}
		chosen = buf[:k]
	}
	if len(chosen) > 0 {
		extremes(a.Count, elements[T](a.Least[:]), elements[T](a.Greatest[:]), chosen)
		a.Count += uint64(len(chosen))
	}
	return chosen, rest
}

// extremes lets least and greatest, of count elements so far, take account of vs.
func extremes[T float](count uint64, least, greatest, vs []T) {
	lo, hi := least[0], greatest[0]
	if count == 0 {
		lo, hi = vs[0], vs[0]
	}
	for _, v := range vs {
		if v < lo || lo != lo {
			lo = v
		}
		if v > hi || hi != hi {
			hi = v
		}
	}
	least[0], greatest[0] = lo, hi
}

func filter[T number](out, b []byte, i uint64, q *offload.Query, room int) ([]byte, int) {
	vs := elements[T](b)
	op, operand := q.Compare, elements[T](q.Operand[:])[0]
	for n, v := range vs {
		if !matches(op, v, operand) {
			continue
		}
		if room == 0 {
			return out, n
		}
		room--
		out = binary.LittleEndian.AppendUint64(out, i+uint64(n))
	}
	return out, len(vs)
}

func matches[T number](op offload.Compare, v, operand T) bool {
	switch op {
	case offload.Equal:
		return v == operand
	case offload.NotEqual:
		return v != operand
	case offload.Less:
		return v < operand
	case offload.LessOrEqual:
		return v <= operand
	case offload.Greater:
		return v > operand
	case offload.GreaterOrEqual:
		return v >= operand
	}
	return true
}
