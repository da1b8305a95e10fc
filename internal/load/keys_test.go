package load

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestZetaAgreesWithYCSBsConstants(t *testing.T) {
	// The values that YCSB's sources and the paper give or imply.
	for _, tt := range []struct {
		n    int64
		want float64
	}{
		{1, 1},
		{2, 1 + math.Pow(0.5, Theta)},
		{3, 1 + math.Pow(0.5, Theta) + math.Pow(1.0/3, Theta)},
	} {
		if got := zeta(tt.n, Theta); math.Abs(got-tt.want) > 1e-12 {
			t.Errorf("zeta(%d) = %v, want %v", tt.n, got, tt.want)
		}
	}
}

// TestZipfianFollowsTheory compares the share of each rank with 1/(i^theta
// zeta(n)). The first two ranks are exact; the rest come from a continuous
// approximation, so they are compared in groups: exactly with what the
// approximation should give, and with Zipf's law with room for its error.
func TestZipfianFollowsTheory(t *testing.T) {
	const n, draws = 1000, 500_000
	z := NewZipfian(n, Theta)
	r := rand.New(rand.NewPCG(1, 2))
	count := make([]float64, n)
	for range draws {
		count[z.Rank(r)]++
	}
	zetan := zeta(n, Theta)
	for i := range 2 {
		p := 1 / (math.Pow(float64(i+1), Theta) * zetan)
		sigma := math.Sqrt(p * (1 - p) / draws)
		if got := count[i] / draws; math.Abs(got-p) > 5*sigma {
			t.Errorf("rank %d: share %.5f, want %.5f within %.5f", i, got, p, 5*sigma)
		}
	}
	for lo, hi := 2, 4; hi <= n; lo, hi = hi, hi*2 {
		var got, want float64
		for i := lo; i < hi; i++ {
			got += count[i] / draws
			want += 1 / (math.Pow(float64(i+1), Theta) * zetan)
		}
		if math.Abs(got/want-1) > 0.2 {
			t.Errorf("ranks %d to %d: share %.4f, want %.4f within 20 %%", lo, hi, got, want)
		}
		// rank < k exactly when u is below this.
		below := func(k int) float64 {
			return (math.Pow(float64(k)/n, 1/z.alpha) + z.eta - 1) / z.eta
		}
		p := below(min(hi, n)) - math.Max(below(lo), z.secondBound/zetan)
		if sigma := math.Sqrt(p * (1 - p) / draws); math.Abs(got-p) > 5*sigma {
			t.Errorf("ranks %d to %d: share %.5f, want %.5f within %.5f", lo, hi, got, p, 5*sigma)
		}
	}
}

// TestScatteredIsAPermutation: every key has the rank of exactly one other,
// and the most frequent keys are the images of the first ranks.
func TestScatteredIsAPermutation(t *testing.T) {
	for _, n := range []int{1, 2, 3, 10, 97, 1000, 4096, 99991} {
		keys := Scattered(n).(*scattered)
		seen := make([]bool, n)
		for rank := range n {
			k := rank * int(keys.step) % n
			if seen[k] {
				t.Fatalf("%d keys: key %d has two ranks", n, k)
			}
			seen[k] = true
		}
	}
	const n, draws = 10_000, 500_000
	keys := Scattered(n)
	r := rand.New(rand.NewPCG(3, 4))
	count := make([]int, n)
	for range draws {
		count[keys.Next(r)]++
	}
	step := int(keys.(*scattered).step)
	for rank := range 2 { // exact for these
		p := 1 / (math.Pow(float64(rank+1), Theta) * zeta(n, Theta))
		got := float64(count[rank*step%n]) / draws
		if sigma := math.Sqrt(p * (1 - p) / draws); math.Abs(got-p) > 5*sigma {
			t.Errorf("rank %d: share %.5f, want %.5f within %.5f", rank, got, p, 5*sigma)
		}
	}
}

func TestUniformReachesEveryKey(t *testing.T) {
	const n = 100
	keys := Uniform(n)
	r := rand.New(rand.NewPCG(5, 6))
	var count [n]int
	for range 100 * n {
		count[keys.Next(r)]++
	}
	for k, c := range count {
		if c == 0 {
			t.Errorf("key %d was never chosen", k)
		}
	}
}
