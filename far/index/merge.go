package index

import (
	"cmp"
	"slices"
)

// Merged is the leaf that results when the words that a table has of the tags of a leaf are settled.
type Merged struct {
	Slots   []Slot // of the new leaf
	Cold    int    // how many of Slots have tags that the table does not know, without lost ones
	Changed bool   // Slots differ from those of the old leaf
}

// Merge sets m to the new leaf of the tags from lo up to hi. The old leaf, which may be one of more tags, has had
// their words so far. hot[from:] are the words that a table has of these tags; Merge sorts them. A tag of which not
// all words can be settled stays as it is in the old leaf. lost says that the range has lost a leaf. For each tag
// whose words Merge takes from the table, it appends to groups the range of these words in hot, from the first one up
// to the one behind the last.
func (m *Merged) Merge(old Leaf, lo, hi uint64, hot []Slot, from int, lost bool, groups [][2]int) [][2]int {
	slices.SortFunc(hot[from:], func(a, b Slot) int {
		return cmp.Or(cmp.Compare(a.Tag, b.Tag), cmp.Compare(a.Word.AsSettled(), b.Word.AsSettled()))
	})
	m.Slots, m.Cold, m.Changed = m.Slots[:0], 0, false
	at, end := old.Find(uint32(lo)), old.Len()
	if hi <= 1<<32-1 {
		end = old.Find(uint32(hi))
	}
	keep := func(before uint64, known bool) { // takes over what the old leaf has of tags below before
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
			// Where a leaf was lost, the word of a removed entry stays: without it, the entry would count as lost
			// again.
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
