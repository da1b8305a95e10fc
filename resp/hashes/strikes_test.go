package hashes

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestStrikesAreThoseOfTheModel compares strikes with sets.
func TestStrikesAreThoseOfTheModel(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var s Strikes
		model := make([]map[uint64]bool, 8)
		for range r.IntN(60) {
			var run []uint64
			for b := range model {
				if model[b] == nil || r.IntN(8) == 0 {
					if model[b] != nil {
						run = append(run, Stored(uint32(b)))
					}
					model[b] = map[uint64]bool{}
				}
				for f := range r.IntN(3) {
					n := Stored(uint32(b)) + uint64(1+r.IntN(20)+f*20)
					run = append(run, n)
					model[b][n] = true
				}
			}
			slices.Sort(run)
			s = s.Add(slices.Compact(run))
		}
		for b := range model {
			want := slices.Sorted(maps.Keys(model[b]))
			if got := s.of(uint32(b)); !slices.Equal(got, want) {
				t.Fatalf("block %d: got %x, want %x", b, got, want)
			}
		}
		if n := len(s); n > 12 {
			t.Fatalf("%d strikes are in %d runs", s.Len(), n)
		}
		for len(s) > 0 {
			b := s.Last()
			s = s.Before(b)
			for i := range model {
				if got := len(s.of(uint32(i))); i >= int(b) && got > 0 || i < int(b) && got != len(model[i]) {
					t.Fatalf("block %d has %d strikes before block %d, of %d", i, got, b, len(model[i]))
				}
			}
		}
	}
}
