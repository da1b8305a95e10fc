// Package offload is what far's clients and the components that a memory node
// ships say to each other: names, opcodes, and the layout of what goes in and
// comes out. Everything is little-endian.
//
// # Hash table
//
// Construct takes no parameters. The key of read, write and delete is the
// table's, of up to MaxKey bytes; the data is the value. Compute knows TableLen,
// which gives a u64, and TableClear.
//
// # Vector
//
// Construct takes a Kind, one byte. The key of read is a u64 index and a u32
// number of elements; the data is as many elements as there are, at most. That
// of write is a u64 index of at most the length: elements are replaced and
// appended. That of delete is a u64 length to which the vector is cut. Compute
// knows the Vector opcodes; ranges are a u64 first index and a u64 one behind the
// last.
package offload

import "encoding/binary"

// Names of components.
const (
	Table  = "hashtable"
	Vector = "vector"
)

// MaxKey is the longest key of a hash table, in bytes.
const MaxKey = 1024

// MaxValue is the largest value of a hash table, in bytes.
const MaxValue = 60 << 10

// Opcodes of a hash table.
const (
	TableLen   = 1 // gives a u64
	TableClear = 2
)

// Opcodes of a vector.
const (
	VectorLen       = 1 // gives a u64
	VectorAggregate = 2 // of a Query: gives an Aggregate
	VectorFilter    = 3 // of a Query: gives a u64 index where to go on, and u64 indices that match
	VectorCopy      = 4 // of a range: becomes the range of the other object
	VectorShuffle   = 5 // element i becomes the first other object's element at the second's element i
	VectorResize    = 6 // u64 length; new elements are zero
)

// Kind is the type of a vector's elements.
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

// Size is how many bytes an element has.
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

// Compare is how a Query compares elements with its operand.
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

// Query says which elements of a range are meant.
type Query struct {
	First, End uint64
	Operand    [8]byte // an element, padded with zeros; aligned for any
	Compare    Compare
}

// QuerySize is the size of a Query in bytes.
const QuerySize = 32

// Append appends q's encoding to b.
func (q *Query) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, q.First)
	b = binary.LittleEndian.AppendUint64(b, q.End)
	b = append(b, byte(q.Compare), 0, 0, 0, 0, 0, 0, 0)
	return append(b, q.Operand[:]...)
}

// Decode sets q from b, and reports whether b is a Query.
func (q *Query) Decode(b []byte) bool {
	if len(b) != QuerySize || b[16] >= byte(compareEnd) || [7]byte(b[17:24]) != [7]byte{} {
		return false
	}
	*q = Query{
		First: binary.LittleEndian.Uint64(b), End: binary.LittleEndian.Uint64(b[8:]),
		Compare: Compare(b[16]), Operand: [8]byte(b[24:]),
	}
	return true
}

// Aggregate is what the matching elements of a vector come to. Sum is an int64, a
// uint64 or a float64, as the elements are signed, unsigned or floating; the
// least and the greatest are elements, padded with zeros. Integer sums wrap
// around.
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
