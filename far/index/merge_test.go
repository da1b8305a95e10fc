package index

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// A leaf is merged with the words of a table as the rules say, tag by tag.
func TestALeafHasWhatTheTableSays(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	key := NewKey(NewSecret())
	kinds := []Word{Far, Far | Settled, Far | TTL, Gone, Gone | Settled, 0}
	settled := 0
	for round := range 3000 {
		var slots, hot []Slot
		for tag := uint32(100); tag < 120; tag++ {
			for range r.IntN(3) {
				slots = append(slots, Slot{NewWord(uint64(r.IntN(50))+1, 100, Far), tag})
			}
			for range max(0, r.IntN(5)-2) {
				w := kinds[r.IntN(len(kinds))]
				if !w.IsGone() {
					w |= NewWord(uint64(r.IntN(50))+1, 100, 0)
				}
				hot = append(hot, Slot{w, tag})
			}
		}
		b := make([]byte, Size(slots))
		key.Seal(b, slots, 1, 16)
		leaf, err := key.Open(b, 1, 16)
		if err != nil {
			t.Fatal(err)
		}
		r.Shuffle(len(hot), func(i, j int) { hot[i], hot[j] = hot[j], hot[i] })
		lo, hi, lost := uint64(100+r.IntN(5)), uint64(115+r.IntN(5)), r.IntN(4) == 0
		hot = slices.DeleteFunc(hot, func(s Slot) bool { return uint64(s.Tag) < lo || uint64(s.Tag) >= hi })

		var want, before []Slot
		var groups []string
		cold := 0
		for tag := uint32(lo); uint64(tag) < hi; tag++ {
			var has, knows []Slot
			for _, s := range slots {
				if s.Tag == tag {
					has = append(has, s)
				}
			}
			due, clean := true, true
			for _, s := range hot {
				if s.Tag == tag {
					knows = append(knows, s)
					due = due && (s.Word.Settles() || s.Word.IsGone() && !lost)
					clean = clean && s.Word&Settled != 0
				}
			}
			before = append(before, has...)
			switch {
			case len(knows) == 0:
				cold += len(has)
				want = append(want, has...)
			case !due || clean && len(knows) == 1:
				want = append(want, has...)
			default:
				groups = append(groups, fmt.Sprint(tag, len(knows)))
				for _, s := range knows {
					if !s.Word.IsGone() {
						want = append(want, Slot{s.Word.AsSettled(), tag})
					}
				}
			}
		}
		slices.SortFunc(want, func(a, b Slot) int { return cmp.Or(cmp.Compare(a.Tag, b.Tag), cmp.Compare(a.Word, b.Word)) })

		var m Merged
		var got []string
		for _, g := range m.Merge(leaf, lo, hi, hot, 0, lost, nil) {
			got = append(got, fmt.Sprint(hot[g[0]].Tag, g[1]-g[0]))
		}
		changed := !slices.Equal(m.Slots, before)
		slices.SortFunc(m.Slots, func(a, b Slot) int { return cmp.Or(cmp.Compare(a.Tag, b.Tag), cmp.Compare(a.Word, b.Word)) })
		if !slices.Equal(m.Slots, want) || m.Cold != cold || !slices.Equal(got, groups) || m.Changed != changed {
			t.Fatalf("round %d: %v with %v from %d to %d, lost %v: got %+v of %v, want %v, %d cold, of %v, changed %v", round, slots, hot, lo, hi, lost, m, got, want, cold, groups, changed)
		}
		settled += len(groups)
	}
	if settled < 1000 {
		t.Errorf("%d tags were settled", settled)
	}
}
