package index

import (
	"cmp"
	"slices"
)

// Merged is what becomes of a leaf when the words that a table knows of its tags are settled.
type Merged struct {
	Slots   []Slot // of the new leaf
	Cold    int    // of those, of tags that the table does not know, without the lost
	Changed bool   // they are not those of the old one
}

// Merge sets m to the leaf of the tags from lo up to hi, of which old, that of perhaps more tags, has had words so far, and
// a table has those of hot[from:], which it sorts. Those that cannot be settled stay out: then the leaf keeps what
// it has of their tag. Lost says that the range has lost a leaf. It appends to groups those of hot's words, from the
// one to the other, of which the leaf knows the tag as they say.
func (m *Merged) Merge(old Leaf, lo, hi uint64, hot []Slot, from int, lost bool, groups [][2]int) [][2]int {
	slices.SortFunc(hot[from:], func(a, b Slot) int {
		return cmp.Or(cmp.Compare(a.Tag, b.Tag), cmp.Compare(a.Word.AsSettled(), b.Word.AsSettled()))
	})
	m.Slots, m.Cold, m.Changed = m.Slots[:0], 0, false
	at, end := old.Find(uint32(lo)), old.Len()
	if hi <= 1<<32-1 {
		end = old.Find(uint32(hi))
	}
	keep := func(before uint64, known bool) { // what the leaf has of tags before that one
		for ; at < end && uint64(old.At(at).Tag) < before; at++ {
			s := old.At(at)
			m.Slots = append(m.Slots, s)
			if !known && !s.Word.IsLost() {
				m.Cold++
			}
		}
	}
	for g := from; g < len(hot); {
		tag, e := hot[g].Tag, g
		for e < len(hot) && hot[e].Tag == tag {
			e++
		}
		words := hot[g:e]
		keep(uint64(tag), false)
		due, clean := true, true
		for _, x := range words {
			// What was removed from a range that was lost stays: otherwise it would be lost again.
			due = due && (x.Word.Settles() || x.Word.IsGone() && !lost)
			clean = clean && x.Word&Settled != 0
		}
		if !due || clean && len(words) == 1 {
			keep(uint64(tag)+1, true)
		} else {
			first := at
			for at < end && old.At(at).Tag == tag {
				at++
			}
			n := 0
			for _, x := range words {
				if x.Word.IsGone() {
					continue
				}
				s := Slot{Word: x.Word.AsSettled(), Tag: tag}
				m.Slots = append(m.Slots, s)
				m.Changed = m.Changed || first+n >= at || old.At(first+n) != s
				n++
			}
			m.Changed = m.Changed || n != at-first
			groups = append(groups, [2]int{g, e})
		}
		g = e
	}
	keep(hi, false)
	return groups
}
