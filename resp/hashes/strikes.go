package hashes

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// Strikes are the fields of a hash that are struck out. The upper 32 bits of a strike are a block (0 in a small
// hash); the lower ones are the number of a field in the stored list, from 1. The number 0 says that the block has
// been stored since: strikes of the block in older runs are void. Runs are sorted, and each is much shorter than the
// one before, so that n changes take n log n. Neither a run nor the list of runs is ever changed in place, since the
// undo of a command remembers them.
type Strikes [][]uint64

// Stored returns the strike that makes older strikes of block b void.
func Stored(b uint32) uint64 { return uint64(b) << 32 }

// Add returns s with one more run, which must be sorted.
func (s Strikes) Add(run []uint64) Strikes {
	n := len(s)
	for ; n > 0 && len(s[n-1]) <= 2*len(run); n-- {
		both := slices.DeleteFunc(slices.Clone(s[n-1]), func(older uint64) bool {
			_, void := slices.BinarySearch(run, Stored(uint32(older>>32)))
			return void
		})
		both = append(both, run...)
		slices.Sort(both)
		run = slices.Compact(both)
	}
	return append(s[:n:n], run)
}

// of returns the strikes of block b, ascending.
func (s Strikes) of(b uint32) (list []uint64) {
	for _, run := range s {
		from, void := slices.BinarySearch(run, Stored(b))
		if void {
			list = list[:0]
			from++
		}
		to, _ := slices.BinarySearch(run, Stored(b+1))
		list = append(list, run[from:to]...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Before returns s without the strikes of block b and of the blocks after it.
func (s Strikes) Before(b uint32) (left Strikes) {
	for _, run := range s {
		if n, _ := slices.BinarySearch(run, Stored(b)); n > 0 {
			left = append(left, run[:n:n])
		}
	}
	return left
}

// Last returns the last block that has strikes.
func (s Strikes) Last() (b uint32) {
	for _, run := range s {
		b = max(b, uint32(run[len(run)-1]>>32))
	}
	return b
}

// Len is how many strikes all runs have. A strike in several runs counts several times.
func (s Strikes) Len() (n int) {
	for _, run := range s {
		n += len(run)
	}
	return n
}

// Rest removes the struck-out fields from l, which is stored in block b, and returns what is left. It does so in
// place.
func (s Strikes) Rest(b uint32, l List) List {
	gone := s.of(b)
	if len(gone) == 0 {
		return l
	}
	n, end := Stored(b), listHead
	for at := listHead; at < len(l); {
		n++
		_, val := l.bytesAt(at)
		_, next := l.bytesAt(val)
		if len(gone) > 0 && gone[0] == n {
			gone = gone[1:]
			binary.LittleEndian.PutUint32(l, uint32(l.Len()-1))
		} else {
			end += copy(l[end:], l[at:next])
		}
		at = next
	}
	return l[:end]
}

// StrikesOf returns the strikes that make left of list, which is stored in block b. The fields of both are in the
// same order.
func StrikesOf(b uint32, list, left List) (run []uint64) {
	n, at := Stored(b), listHead
	for f := range list.All() {
		n++
		if at < len(left) {
			if g, val := left.bytesAt(at); bytes.Equal(f, g) {
				_, at = left.bytesAt(val)
				continue
			}
		}
		run = append(run, n)
	}
	return run
}
