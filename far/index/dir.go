package index

import (
	"encoding/binary"

	"polder/internal/arena"
)

// Ref says where the leaf of a range is. The zero Ref says that there is no leaf, and that the table has all words of
// the range.
//
//	63      shared: since the directory was doubled, the leaf is also that of the neighbouring range
//	62      lost: a leaf of the range was lost with its far memory; if there is an address, another leaf has been
//	        written since then
//	61..48  count: how many of the leaf's entries the table does not know; if the leaf is shared, the Ref of the
//	        even range has the count
//	47..40  class of the size of the leaf's record
//	39..0   address of the leaf's record
type Ref uint64

const (
	addrMask   = 1<<40 - 1
	classShift = 40
	countShift = 48
	countMask  = 1<<14 - 1

	refLost   Ref = 1 << 62
	refShared Ref = 1 << 63
)

// NewRef is the reference to a leaf at addr, whose record is of that size class.
func NewRef(addr uint64, class uint8) Ref { return Ref(addr) | Ref(class)<<classShift }

func (r Ref) Addr() uint64 { return uint64(r & addrMask) }
func (r Ref) Class() uint8 { return uint8(r >> classShift) }
func (r Ref) Count() int   { return int(r >> countShift & countMask) }
func (r Ref) Lost() bool   { return r&refLost != 0 }
func (r Ref) Shared() bool { return r&refShared != 0 }

// WithCount is r with count n, or the nearest that fits. A wrong count is noticed, and counted again, when the leaf
// is read.
func (r Ref) WithCount(n int) Ref {
	return r&^(countMask<<countShift) | Ref(min(max(n, 0), countMask))<<countShift
}

// AsLost is a reference to no leaf, which says that the range has lost one. It is shared if r is.
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

// Count is how many entries are known by leaves alone.
func (d *Dir) Count() (n int) {
	for _, r := range d.refs {
		n += r.Count()
	}
	return n
}

// Append appends the ranges to b, and before them how many they are.
func (d *Dir) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(d.refs)))
	for _, r := range d.refs {
		b = binary.LittleEndian.AppendUint64(b, uint64(r))
	}
	return b
}

// Due returns the ranges, in ascending order, whose leaves are to be written anew: those that t has words of to be
// settled, and those that share a leaf.
func (d *Dir) Due(t *Table) (ranges []int) {
	if len(d.refs) == 0 {
		return nil
	}
	due := make([]bool, len(d.refs))
	for p := range t.All() {
		if w := *t.Word(p); w&Settled == 0 && (w.Settles() || w.IsGone()) {
			due[d.Of(t.Tag(p))] = true
		}
	}
	for i, r := range d.refs {
		if due[i] || r.Shared() {
			ranges = append(ranges, i)
		}
	}
	return ranges
}

// Group returns the ranges that have the same leaf as range i: range i alone, or it and its neighbour.
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

// Double gives d twice as many ranges, and an empty d its first ones. The two halves of a range share its leaf. No
// leaf may be shared before. The budget must have room for DoubledBytes beside what d has.
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
	for i := len(old) - 1; i >= 0; i-- { // from the end, since old and refs may be the same memory
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

// Load makes an empty directory the directory of refs, whose number is a power of two. The budget must have room for
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
