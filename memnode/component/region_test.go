package component

import (
	"math/rand/v2"
	"slices"
	"testing"

	"polder/internal/arena"
)

// What a region gives out is zero, nobody else's, and there to be had again.
func TestARegionGivesEverythingOnce(t *testing.T) {
	const pages = 64
	fd, err := arena.NewMemfd("test", pages*arena.PageSize)
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRegion(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	rnd := rand.New(rand.NewPCG(1, 2))
	var taken [][]byte
	used := 0
	for step := range 5000 {
		if n := 1 + rnd.IntN(8); rnd.IntN(2) == 0 {
			b := r.take(n * arena.PageSize)
			if b == nil {
				if free := pages - used; free >= 8*8 {
					t.Fatalf("step %d: no %d pages of %d", step, n, free)
				}
				continue
			}
			used += n
			for _, page := range slices.Collect(slices.Chunk(b, arena.PageSize)) {
				if page[0] != 0 || page[arena.PageSize-1] != 0 {
					t.Fatalf("step %d: memory that somebody has written to", step)
				}
				page[0], page[arena.PageSize-1] = 1, 1
			}
			taken = append(taken, b)
		} else if len(taken) > 0 {
			i := rnd.IntN(len(taken))
			b := taken[i]
			taken = slices.Delete(taken, i, i+1)
			used -= len(b) / arena.PageSize
			r.give(&b[0], len(b))
		}
	}
	for _, b := range taken {
		r.give(&b[0], len(b))
	}
	if want := []span{{0, pages * arena.PageSize}}; !slices.Equal(r.free, want) {
		t.Errorf("at the end %v is free, want %v", r.free, want)
	}
	if b := r.take((pages + 1) * arena.PageSize); b != nil {
		t.Error("more than there is was given")
	}
}
