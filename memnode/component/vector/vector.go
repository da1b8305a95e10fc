// Package vector is a vector of numbers as an active component of a memory node:
// the three operations that AIFM's data frame offloads (section 8.1.2), copy,
// shuffle and aggregate, and a filter, run where the data is.
//
// Elements lie one behind the other in blocks of 1 MiB. See package active for
// what goes in and comes out.
package vector

import (
	"encoding/binary"
	"fmt"

	"polder/internal/offload"
	"polder/memnode/component"
)

// blockSize is a multiple of every element's size.
const blockSize = 1 << 20

// look is after how many bytes an operation looks at the clock.
const look = 64 << 10

// vector is the component's object.
type vector struct {
	env    *component.Env
	kind   offload.Kind
	width  int
	scan   offload.Scanner
	len    uint64
	blocks [][]byte
}

// Component is the vector.
var Component = component.Component{New: New, SharedReads: true, Portable: true}

// New constructs a vector. It is a component.Constructor.
func New(env *component.Env, _ *component.Call, params []byte) (component.Object, error) {
	if len(params) != 1 || !offload.Kind(params[0]).Valid() {
		return nil, fmt.Errorf("a vector takes the kind of its elements, one byte; got %x", params)
	}
	v := &vector{env: env, kind: offload.Kind(params[0])}
	v.width, v.scan = v.kind.Size(), v.kind.Scanner()
	return v, nil
}

// most is the most elements that v could have.
func (v *vector) most() uint64 {
	return v.len + uint64(v.env.Left())/uint64(v.width) + uint64(blockSize/v.width)
}

// at returns the elements from i on that lie together.
//
// Preconditions: i < v.len.
func (v *vector) at(i uint64) []byte {
	off := i * uint64(v.width)
	b := v.blocks[off/blockSize][off%blockSize:]
	if left := (v.len - i) * uint64(v.width); left < uint64(len(b)) {
		b = b[:left]
	}
	return b
}

// pieces calls f with the elements [first, end), up to look bytes at a time.
//
// Preconditions: first <= end <= v.len.
func (v *vector) pieces(c *component.Call, first, end uint64, f func(i uint64, b []byte) (more bool)) error {
	for i := first; i < end; {
		if c.Expired() {
			return component.ErrExpired
		}
		b := v.at(i)
		n := min(uint64(len(b)), look, (end-i)*uint64(v.width))
		if !f(i, b[:n]) {
			return nil
		}
		i += n / uint64(v.width)
	}
	return nil
}

// resize makes v so long. New elements are zero.
func (v *vector) resize(n uint64) error {
	if n > v.most() {
		return component.ErrNoMemory
	}
	need := int((n*uint64(v.width) + blockSize - 1) / blockSize)
	had := len(v.blocks)
	for len(v.blocks) < need {
		b, err := v.env.Alloc(blockSize)
		if err != nil {
			v.shrink(had)
			return err
		}
		v.blocks = append(v.blocks, b)
	}
	v.shrink(need)
	if n < v.len && need > 0 { // zeros again, for when it grows
		if off := n * uint64(v.width) % blockSize; off > 0 {
			clear(v.blocks[need-1][off:])
		}
	}
	v.len = n
	return nil
}

func (v *vector) shrink(blocks int) {
	for i := len(v.blocks) - 1; i >= blocks; i-- {
		v.env.Free(v.blocks[i])
	}
	v.blocks = v.blocks[:blocks]
}

// Read implements component.Object.
func (v *vector) Read(c *component.Call, key, out []byte) ([]byte, error) {
	if len(key) != 12 {
		return nil, fmt.Errorf("a key of %d bytes, want an index of 8 and a number of 4", len(key))
	}
	first, n := binary.LittleEndian.Uint64(key), uint64(binary.LittleEndian.Uint32(key[8:]))
	if first > v.len {
		return nil, fmt.Errorf("element %d of %d", first, v.len)
	}
	n = min(n, v.len-first)
	if n*uint64(v.width) > uint64(cap(out)-len(out)) {
		return nil, component.ErrTooLarge
	}
	err := v.pieces(c, first, first+n, func(_ uint64, b []byte) bool {
		out = append(out, b...)
		return true
	})
	return out, err
}

// Write implements component.Object.
func (v *vector) Write(_ *component.Call, key, data []byte) error {
	if len(key) != 8 {
		return fmt.Errorf("a key of %d bytes, want an index of 8", len(key))
	}
	if len(data)%v.width != 0 {
		return fmt.Errorf("%d bytes are no number of elements of %d", len(data), v.width)
	}
	first := binary.LittleEndian.Uint64(key)
	if first > v.len {
		return fmt.Errorf("element %d of %d: a vector has no holes", first, v.len)
	}
	if end := first + uint64(len(data)/v.width); end > v.len {
		if err := v.resize(end); err != nil {
			return err
		}
	}
	for len(data) > 0 {
		n := copy(v.at(first), data)
		data, first = data[n:], first+uint64(n/v.width)
	}
	return nil
}

// Delete implements component.Object.
func (v *vector) Delete(_ *component.Call, key []byte) error {
	if len(key) != 8 {
		return fmt.Errorf("a key of %d bytes, want a length of 8", len(key))
	}
	n := binary.LittleEndian.Uint64(key)
	if n > v.len {
		return fmt.Errorf("cannot cut a vector of %d elements to %d", v.len, n)
	}
	return v.resize(n)
}

// Compute implements component.Object.
func (v *vector) Compute(c *component.Call, op uint16, in, out []byte) ([]byte, error) {
	if cap(out)-len(out) < 64 {
		return nil, component.ErrTooLarge
	}
	if (op == offload.VectorLen || op == offload.VectorShuffle) && len(in) != 0 {
		return nil, fmt.Errorf("operation %d takes nothing, got %d bytes", op, len(in))
	}
	switch op {
	case offload.VectorLen:
		return binary.LittleEndian.AppendUint64(out, v.len), nil
	case offload.VectorResize:
		if len(in) != 8 {
			return nil, fmt.Errorf("%d bytes, want a length of 8", len(in))
		}
		return out, v.resize(binary.LittleEndian.Uint64(in))
	case offload.VectorAggregate, offload.VectorFilter:
		q, err := v.query(in)
		if err != nil {
			return nil, err
		}
		if op == offload.VectorFilter {
			return v.filter(c, &q, out)
		}
		return v.aggregate(c, &q, out)
	case offload.VectorCopy:
		return out, v.copyFrom(c, in)
	case offload.VectorShuffle:
		return out, v.shuffle(c)
	}
	return nil, fmt.Errorf("a vector has no operation %d", op)
}

// query decodes and checks a query. An end beyond the last element is the last
// element's.
func (v *vector) query(in []byte) (q offload.Query, err error) {
	if !q.Decode(in) {
		return q, fmt.Errorf("%d bytes that are no query", len(in))
	}
	if q.End = min(q.End, v.len); q.First > q.End {
		return q, fmt.Errorf("elements %d to %d of %d", q.First, q.End, v.len)
	}
	return q, nil
}

func (v *vector) aggregate(c *component.Call, q *offload.Query, out []byte) ([]byte, error) {
	var a offload.Aggregate
	err := v.pieces(c, q.First, q.End, func(_ uint64, b []byte) bool {
		v.scan.Aggregate(&a, b, q)
		return true
	})
	return a.Append(out), err
}

func (v *vector) filter(c *component.Call, q *offload.Query, out []byte) ([]byte, error) {
	at := len(out)
	next := q.First
	out = binary.LittleEndian.AppendUint64(out, 0)
	err := v.pieces(c, q.First, q.End, func(i uint64, b []byte) bool {
		n := 0
		out, n = v.scan.Filter(out, b, i, q, (cap(out)-len(out))/8)
		next = i + uint64(n)
		return n == len(b)/v.width
	})
	binary.LittleEndian.PutUint64(out[at:], next)
	return out, err
}

// other returns one of the other objects of a call.
func other(c *component.Call, i int) (*vector, error) {
	o, ok := c.Others[i].(*vector)
	if !ok {
		return nil, fmt.Errorf("other object %d is no vector", i)
	}
	return o, nil
}

// copyFrom makes v a copy of a range of another vector.
func (v *vector) copyFrom(c *component.Call, in []byte) error {
	src, err := other(c, 0)
	switch {
	case err != nil:
		return err
	case src == v:
		return fmt.Errorf("a vector cannot become a copy of itself")
	case src.kind != v.kind:
		return fmt.Errorf("the vectors' elements are not of the same kind")
	case len(in) != 16:
		return fmt.Errorf("%d bytes, want a range of 16", len(in))
	}
	first, end := binary.LittleEndian.Uint64(in), min(binary.LittleEndian.Uint64(in[8:]), src.len)
	if first > end {
		return fmt.Errorf("elements %d to %d of %d", first, end, src.len)
	}
	if err := v.resize(end - first); err != nil {
		return err
	}
	return src.pieces(c, first, end, func(i uint64, b []byte) bool {
		for i -= first; len(b) > 0; {
			n := copy(v.at(i), b)
			b, i = b[n:], i+uint64(n/v.width)
		}
		return true
	})
}

// shuffle makes v the rows of the first other vector in the order that the
// second says.
func (v *vector) shuffle(c *component.Call) error {
	src, err := other(c, 0)
	if err != nil {
		return err
	}
	order, err := other(c, 1)
	switch {
	case err != nil:
		return err
	case src == v || order == v:
		return fmt.Errorf("a vector cannot be shuffled into itself")
	case src.kind != v.kind:
		return fmt.Errorf("the vectors' elements are not of the same kind")
	case order.kind != offload.Uint32 && order.kind != offload.Uint64:
		return fmt.Errorf("rows are numbered by a vector of unsigned elements of 4 or 8 bytes")
	}
	if err := v.resize(order.len); err != nil {
		return err
	}
	width := uint64(v.width)
	var wrong error
	err = order.pieces(c, 0, order.len, func(i uint64, b []byte) bool {
		for ; len(b) > 0; i++ {
			var row uint64
			if order.width == 4 {
				row = uint64(binary.LittleEndian.Uint32(b))
			} else {
				row = binary.LittleEndian.Uint64(b)
			}
			b = b[order.width:]
			if row >= src.len {
				wrong = fmt.Errorf("row %d is number %d of %d", i, row, src.len)
				return false
			}
			copy(v.at(i)[:width], src.at(row)[:width])
		}
		return true
	})
	if wrong != nil {
		return wrong
	}
	return err
}
