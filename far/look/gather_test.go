package look

import (
	"math/rand/v2"
	"slices"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Elements are in order, and those that are wanted more than once in the order of their places.
func TestPicksAreInTheOrderOfTheirElements(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var spare []pick
	for _, n := range []int{0, 1, few - 1, few, 3000, GatherMost} {
		for _, of := range []int{1, 2, 1000, 1 << 11, 1<<11 + 1, 1 << 22, 1 << 31, 1 << 47} {
			picks := make([]pick, n)
			for k := range picks {
				picks[k] = pick(r.IntN(of))<<16 | pick(k)
			}
			want := slices.Sorted(slices.Values(picks))
			var got []pick
			if got, spare = inOrder(picks, spare); !slices.Equal(got, want) {
				t.Fatalf("%d picks of %d elements are not in order", n, of)
			}
		}
	}
}

func BenchmarkInOrder(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	was, picks := make([]pick, GatherMost), make([]pick, GatherMost)
	for k := range was {
		was[k] = pick(r.IntN(1<<22))<<16 | pick(k)
	}
	var spare []pick
	for name, sort := range map[string]func(){
		"by digits":    func() { picks, spare = inOrder(picks, spare) },
		"by comparing": func() { slices.Sort(picks) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				copy(picks, was)
				sort()
			}
		})
	}
}
