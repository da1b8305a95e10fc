package index

import (
	"polder/internal/arena"
)

// Ref says where a leaf is. The zero Ref says that there is none, and no word either.
//
//	63      shared: the leaf is that of the next or the previous range, too, since the directory was
//	        doubled
//	62      lost: what there was before is gone with its far memory; a leaf has been written since then
//	        if there is an address
//	61..48  count: how many of its entries are known by the leaf alone; of a shared leaf, with the
//	        even one of the two
//	47..40  class of the size of its record
//	39..0   address of its record
type Ref uint64

const (
	addrMask   = 1<<40 - 1
	classShift = 40
	countShift = 48
	countMask  = 1<<14 - 1

	refLost   Ref = 1 << 62
	refShared Ref = 1 << 63
)

// NewRef is the reference to a leaf at addr, whose record has a class of size.
func NewRef(addr uint64, class uint8) Ref { return Ref(addr) | Ref(class)<<classShift }

func (r Ref) Addr() uint64 { return uint64(r & addrMask) }
func (r Ref) Class() uint8 { return uint8(r >> classShift) }
func (r Ref) Count() int   { return int(r >> countShift & countMask) }
func (r Ref) Lost() bool   { return r&refLost != 0 }
func (r Ref) Shared() bool { return r&refShared != 0 }

// WithCount is r with another count, or with the nearest that there is: a wrong count is found, and counted again, when
// the leaf is read.
func (r Ref) WithCount(n int) Ref {
	return r&^(countMask<<countShift) | Ref(min(max(n, 0), countMask))<<countShift
}

// AsLost is a reference to nothing, after what r referred to, or what was there before, was lost.
func (r Ref) AsLost() Ref { return r&refShared | refLost }

// firstLeaves is how many leaves a new directory has. It is a power of two.
const firstLeaves = 16

// Dir is a directory. The zero Dir has no ranges.
type Dir struct {
	refs []Ref
	mem  *arena.Mapping
}

// Len is the number of ranges, 0 or a power of two.
func (d *Dir) Len() int { return len(d.refs) }

// Of is the number of the range of tag.
func (d *Dir) Of(tag uint32) int { return int(uint64(tag) * uint64(len(d.refs)) >> 32) }

// Range is the first tag of a range, and the first one behind it.
func (d *Dir) Range(i int) (lo, hi uint64) {
	n := uint64(len(d.refs))
	return uint64(i) << 32 / n, (uint64(i) + 1) << 32 / n
}

func (d *Dir) At(i int) Ref     { return d.refs[i] }
func (d *Dir) Set(i int, r Ref) { d.refs[i] = r }

// Group is the ranges that have the same leaf as range i: it, or it and another one.
func (d *Dir) Group(i int) (first, n int) {
	if d.refs[i].Shared() {
		return i &^ 1, 2
	}
	return i, 1
}

// Bytes is the memory of d.
func (d *Dir) Bytes() int64 {
	if d.mem == nil {
		return 0
	}
	return int64(len(d.mem.Bytes()))
}

// DoubledBytes is the memory of d with twice as many ranges.
func (d *Dir) DoubledBytes() int64 {
	return LoadedBytes(2 * len(d.refs))
}

// Double gives d twice as many ranges, of which two at a time share a leaf; or its first ones. No leaf
// may be shared before. There has to be memory in the budget for DoubledBytes beside what d has.
func (d *Dir) Double() error {
	n := 2 * len(d.refs)
	if n == 0 {
		n = firstLeaves
	}
	old, mem := d.refs, d.mem
	if size := d.DoubledBytes(); size != d.Bytes() {
		var err error
		if mem, err = arena.Anonymous(int(size), false); err != nil {
			return err
		}
	}
	refs := refsOf(mem.Bytes())[:n]
	for i := len(old) - 1; i >= 0; i-- { // it may be the same memory
		r := old[i]
		if r != 0 {
			r |= refShared
		}
		refs[2*i], refs[2*i+1] = r, r
		if r != 0 {
			refs[2*i+1] = r.WithCount(0)
		}
	}
	was := d.mem
	d.refs, d.mem = refs, mem
	if was != nil && was != mem {
		return was.Close()
	}
	return nil
}

// Load makes an empty directory that of refs, of which there is a power of two. There has to be memory in the budget for
// LoadedBytes.
func (d *Dir) Load(refs []Ref) error {
	mem, err := arena.Anonymous(int(LoadedBytes(len(refs))), false)
	if err != nil {
		return err
	}
	d.mem, d.refs = mem, refsOf(mem.Bytes())[:len(refs)]
	copy(d.refs, refs)
	return nil
}

// LoadedBytes is the memory of a directory of n ranges.
func LoadedBytes(n int) int64 { return max(int64(n*refSize), int64(arena.PageSize)) }

// Close gives the memory back, and leaves no ranges.
func (d *Dir) Close() error {
	mem := d.mem
	*d = Dir{}
	if mem == nil {
		return nil
	}
	return mem.Close()
}
