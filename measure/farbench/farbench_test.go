package farbench

import (
	"context"
	"sync"
	"testing"

	"polder/far"
	"polder/internal/failpoint"
)

func TestMedian(t *testing.T) {
	if got := median([]float64{9, 1, 5}); got != 5 {
		t.Errorf("got %v, want 5", got)
	}
}

// Mutators write to every page as often as they say, whether the evacuator
// stops the world or not.
func TestMutatorsWriteEveryPage(t *testing.T) {
	for name, w := range map[string]*world{"pauseless": nil, "stop-the-world": newWorld()} {
		t.Run(name, func(t *testing.T) {
			if w != nil {
				failpoint.Set(w.hit)
				defer failpoint.Set(nil)
			}
			a, err := newArray(context.Background(), far.NewMemStore(2<<20, 76), 8<<20, 12<<20, 256<<10)
			if err != nil {
				t.Fatal(err)
			}
			defer a.heap.Close()
			const mutators, rounds = 4, 3
			n := a.pages.Len() / mutators
			var wg sync.WaitGroup
			for id := range mutators {
				wg.Go(func() {
					s := a.heap.NewScope()
					defer s.Close()
					for range rounds {
						for at := id * n; at < (id+1)*n; at += 32 {
							if err := a.dirty(s, w, at, min(32, (id+1)*n-at)); err != nil {
								t.Error(err)
								return
							}
						}
					}
				})
			}
			wg.Wait()
			for i := range n * mutators {
				p, err := a.pages.At(i).Load(context.Background())
				if err != nil || p[0] != byte(i)+rounds || p[64] != rounds {
					t.Fatalf("page %d begins with %d, %d (%v), want %d, %d", i, p[0], p[64], err, byte(i)+rounds, rounds)
				}
			}
			if a.heap.Stats().Evacuated == 0 {
				t.Error("nothing was evacuated")
			}
		})
	}
}
