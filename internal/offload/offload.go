// Package offload is what a far heap looks for in elements of its structures, where the elements are: here, or at the
// node that has them (package far/remote/scan). Everything is little-endian.
package offload

import "encoding/binary"

// Kind is the type of a number.
type Kind uint8

const (
	Int8 Kind = 1 + iota
	Int16
	Int32
	Int64
	Uint8
	Uint16
	Uint32
	Uint64
	Float32
	Float64

	kindEnd
)

// Valid reports whether k is a kind.
func (k Kind) Valid() bool { return k >= Int8 && k < kindEnd }

// Size is how many bytes a number has.
func (k Kind) Size() int {
	switch k {
	case Int8, Uint8:
		return 1
	case Int16, Uint16:
		return 2
	case Int32, Uint32, Float32:
		return 4
	}
	return 8
}

// Compare is how a Condition compares a number with its operand.
type Compare uint8

const (
	Any Compare = iota // every element matches
	Equal
	NotEqual
	Less
	LessOrEqual
	Greater
	GreaterOrEqual

	compareEnd
)

// Aggregate is the result over the elements that count. Sum is an int64, a uint64 or a float64, as the elements are
// signed, unsigned or floating; the least and the greatest are elements, padded with zeros. Integer sums wrap around.
type Aggregate struct {
	Count           uint64
	Sum             uint64 // its bits
	Least, Greatest [8]byte
}

// AggregateSize is the size of an Aggregate in bytes.
const AggregateSize = 32

// Append appends a's encoding to b.
func (a *Aggregate) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, a.Count)
	b = binary.LittleEndian.AppendUint64(b, a.Sum)
	b = append(b, a.Least[:]...)
	return append(b, a.Greatest[:]...)
}

// Decode sets a from b, and reports whether b is an Aggregate.
func (a *Aggregate) Decode(b []byte) bool {
	if len(b) != AggregateSize {
		return false
	}
	*a = Aggregate{
		Count: binary.LittleEndian.Uint64(b), Sum: binary.LittleEndian.Uint64(b[8:]),
		Least: [8]byte(b[16:]), Greatest: [8]byte(b[24:]),
	}
	return true
}
