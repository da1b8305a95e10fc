package offload

import "math"

// integer and float are the types of elements.
type (
	integer interface {
		int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64
	}
	float  interface{ float32 | float64 }
	number interface{ integer | float }
)

// A scanner looks through elements of one kind, which lie one behind the other
// and are aligned.
type scanner interface {
	// aggregate adds the elements of b that match c to a.
	aggregate(a *Aggregate, b []byte, c *Condition)
	// pick writes the places of the elements of b that match c into places, which has room for all elements, and
	// returns those that it has written.
	pick(places []uint16, b []byte, c *Condition) []uint16
	// keep drops from places those whose elements do not match c; b has these elements in the same order. It returns
	// the places that are left.
	keep(places []uint16, b []byte, c *Condition) []uint16
	// merge adds aggregate b to a.
	merge(a, b *Aggregate)
}

// scanner is the scanner of elements of kind k, which is Valid.
func (k Kind) scanner() scanner { return scanners[k] }

// scanners has one for every kind.
var scanners = [...]scanner{
	Int8: integers[int8]{}, Int16: integers[int16]{}, Int32: integers[int32]{}, Int64: integers[int64]{},
	Uint8: integers[uint8]{}, Uint16: integers[uint16]{}, Uint32: integers[uint32]{}, Uint64: integers[uint64]{},
	Float32: floats[float32]{}, Float64: floats[float64]{},
}

type integers[T integer] struct{}

func (integers[T]) aggregate(a *Aggregate, b []byte, c *Condition) {
	low, high, outside := bounds(c.Compare, elements[T](c.Operand[:])[0])
	least, greatest := elements[T](a.Least[:]), elements[T](a.Greatest[:])
	lo, hi := least[0], greatest[0]
	if a.Count == 0 {
		lo, hi = limits[T]()
		lo, hi = hi, lo // whatever comes is less, and greater
	}
	vs := elements[T](b)
	count, sum := 0, a.Sum
	switch {
	case c.Compare == Any:
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
func bounds[T integer](op Compare, operand T) (low, high T, outside bool) {
	least, greatest := limits[T]()
	switch op {
	case Equal, NotEqual:
		return operand, operand, op == NotEqual
	case LessOrEqual, Greater:
		return least, operand, op == Greater
	case Less, GreaterOrEqual:
		return operand, greatest, op == Less
	}
	return least, greatest, false
}

// limits are the least and the greatest T.
func limits[T integer]() (least, greatest T) {
	if greatest = ^T(0); greatest > 0 {
		return 0, greatest
	}
	for top := 7; ; top += top + 1 { // of 8, 16, 32 or 64 bits
		if least = 1 << top; least < 0 {
			return least, ^least
		}
	}
}

func (integers[T]) pick(places []uint16, b []byte, c *Condition) []uint16 {
	low, high, outside := bounds(c.Compare, elements[T](c.Operand[:])[0])
	k := 0
	for i, v := range elements[T](b)[:len(places)] {
		// Without a branch on the elements, which may be in any order.
		places[k] = uint16(i)
		if (v >= low && v <= high) != outside {
			k++
		}
	}
	return places[:k]
}

func (integers[T]) keep(places []uint16, b []byte, c *Condition) []uint16 {
	low, high, outside := bounds(c.Compare, elements[T](c.Operand[:])[0])
	k := 0
	for i, v := range elements[T](b)[:len(places)] {
		places[k] = places[i]
		if (v >= low && v <= high) != outside {
			k++
		}
	}
	return places[:k]
}

func (integers[T]) merge(a, b *Aggregate) {
	a.Sum += b.Sum
	least, greatest := elements[T](a.Least[:]), elements[T](a.Greatest[:])
	least[0] = min(least[0], elements[T](b.Least[:])[0])
	greatest[0] = max(greatest[0], elements[T](b.Greatest[:])[0])
	a.Count += b.Count
}

type floats[T float] struct{}

func (floats[T]) pick(places []uint16, b []byte, c *Condition) []uint16 {
	operand := elements[T](c.Operand[:])[0]
	k := 0
	for i, v := range elements[T](b)[:len(places)] {
		places[k] = uint16(i)
		if matches(c.Compare, v, operand) {
			k++
		}
	}
	return places[:k]
}

func (floats[T]) keep(places []uint16, b []byte, c *Condition) []uint16 {
	operand := elements[T](c.Operand[:])[0]
	k := 0
	for i, v := range elements[T](b)[:len(places)] {
		places[k] = places[i]
		if matches(c.Compare, v, operand) {
			k++
		}
	}
	return places[:k]
}

func (floats[T]) merge(a, b *Aggregate) {
	a.Sum = math.Float64bits(math.Float64frombits(a.Sum) + math.Float64frombits(b.Sum))
	ends := [2]T{elements[T](b.Least[:])[0], elements[T](b.Greatest[:])[0]}
	extremes(a.Count, elements[T](a.Least[:]), elements[T](a.Greatest[:]), ends[:])
	a.Count += b.Count
}

func (floats[T]) aggregate(a *Aggregate, b []byte, c *Condition) {
	sum := math.Float64frombits(a.Sum)
	var buf [256]T
	for vs := elements[T](b); len(vs) > 0; {
		var chosen []T
		chosen, vs = choose(a, buf[:], vs, c)
		for _, v := range chosen {
			sum += float64(v)
		}
	}
	a.Sum = math.Float64bits(sum)
}

// choose returns the elements that match c of some from vs on, in buf or where
// they are, and what is left of vs. It counts them, and finds the least and the
// greatest: what is not a number is either only where there is nothing else.
func choose[T float](a *Aggregate, buf, vs []T, c *Condition) (chosen, rest []T) {
	n := min(len(vs), len(buf)) // few enough to stay in the cache until they are added up
	chosen, rest = vs[:n], vs[n:]
	if op := c.Compare; op != Any {
		operand := elements[T](c.Operand[:])[0]
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

func matches[T number](op Compare, v, operand T) bool {
	switch op {
	case Equal:
		return v == operand
	case NotEqual:
		return v != operand
	case Less:
		return v < operand
	case LessOrEqual:
		return v <= operand
	case Greater:
		return v > operand
	case GreaterOrEqual:
		return v >= operand
	}
	return true
}
