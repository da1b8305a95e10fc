package resource

import (
	"fmt"
	"slices"
)

// Extents is a range of numbers from which contiguous extents are carved by
// first fit. The zero value is an empty range.
type Extents struct {
	size int64
	free []extent // disjoint, not adjacent, in order
}

type extent struct{ off, len int64 }

// Grow adds [size, to) to the range.
func (x *Extents) Grow(to int64) {
	if to > x.size {
		from := x.size
		x.size = to
		x.put(extent{from, to - from})
	}
}

// Size returns the size of the range.
func (x *Extents) Size() int64 { return x.size }

// Free returns how much of the range is free, and the largest free extent.
func (x *Extents) Free() (total, largest int64) {
	for _, e := range x.free {
		total += e.len
		largest = max(largest, e.len)
	}
	return total, largest
}

// Take carves the first extent of n that begins at a multiple of align. It
// returns false if there is none.
func (x *Extents) Take(n, align int64) (off int64, ok bool) {
	for i, e := range x.free {
		start := (e.off + align - 1) / align * align
		if start+n <= e.off+e.len {
			x.cut(i, start, n)
			return start, true
		}
	}
	return 0, false
}

// TakeAt carves [off, off+n), as a replayed record says.
func (x *Extents) TakeAt(off, n int64) error {
	for i, e := range x.free {
		if e.off <= off && off+n <= e.off+e.len {
			x.cut(i, off, n)
			return nil
		}
	}
	return fmt.Errorf("cannot carve [%d, %d): it is not free", off, off+n)
}

// cut takes [off, off+n) out of the i-th free extent.
func (x *Extents) cut(i int, off, n int64) {
	e := x.free[i]
	var left []extent
	if off > e.off {
		left = append(left, extent{e.off, off - e.off})
	}
	if end := off + n; end < e.off+e.len {
		left = append(left, extent{end, e.off + e.len - end})
	}
	x.free = slices.Replace(x.free, i, i+1, left...)
}

// Put gives an extent back.
func (x *Extents) Put(off, n int64) { x.put(extent{off, n}) }

func (x *Extents) put(e extent) {
	i, _ := slices.BinarySearchFunc(x.free, e.off, func(f extent, off int64) int {
		return int(min(1, max(-1, f.off-off)))
	})
	if i > 0 && x.free[i-1].off+x.free[i-1].len > e.off || i < len(x.free) && e.off+e.len > x.free[i].off {
		panic(fmt.Sprintf("BUG: extent [%d, %d) is given back twice", e.off, e.off+e.len))
	}
	if i < len(x.free) && e.off+e.len == x.free[i].off {
		e.len += x.free[i].len
		x.free = slices.Delete(x.free, i, i+1)
	}
	if i > 0 && x.free[i-1].off+x.free[i-1].len == e.off {
		x.free[i-1].len += e.len
		return
	}
	x.free = slices.Insert(x.free, i, e)
}
