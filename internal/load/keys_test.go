package load

import (
	"math"
	"math/rand/v2"
	"slices"
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
	// zeta(10^10) from a partial sum and the Euler-Maclaurin remainder.
	const m = 1_000_000
	n := float64(scrambledItems)
	tail := (math.Pow(n, 1-Theta)-math.Pow(m, 1-Theta))/(1-Theta) + (math.Pow(n, -Theta)-math.Pow(m, -Theta))/2
	if got := zeta(m, Theta) + tail; math.Abs(got-scrambledZetan) > 1e-5 {
		t.Errorf("zeta(10^10) = %v, want %v", got, scrambledZetan)
	}
}

func TestFNVIsYCSBs(t *testing.T) {
	// Eight zero bytes: the offset basis times the prime to the eighth.
	h := uint64(0xCBF29CE484222325)
	for range 8 {
		h *= 1099511628211
	}
	want := h
	if int64(h) < 0 {
		want = -h
	}
	if got := fnv64(0); got != want {
		t.Errorf("fnv64(0) = %d, want %d", got, want)
	}
	for v := range int64(10_000) {
		if int64(fnv64(v)) < 0 {
			t.Fatalf("fnv64(%d) is negative as a signed number", v)
		}
	}
}

// TestZipfianFollowsTheory compares the share of each rank with 1/(i^theta
// zeta(n)). The first two ranks are exact; the rest come from a continuous
// approximation, so they are compared in groups: exactly with what the
// approximation should give, and with Zipf's law with room for its error.
func TestZipfianFollowsTheory(t *testing.T) {
	const n, draws = 1000, 2_000_000
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

// TestScrambledFollowsTheory draws from ten billion ranks over few keys: the
// most frequent key has at least the share of rank 0, the shares of the
// hottest keys are those of the first ranks plus an even part of the rest.
func TestScrambledFollowsTheory(t *testing.T) {
	const n, draws = 10_000, 2_000_000
	keys := Scrambled(n)
	r := rand.New(rand.NewPCG(3, 4))
	count := make([]float64, n)
	for range draws {
		k := keys.Next(r)
		if k < 0 || k >= n {
			t.Fatalf("key %d is not among %d", k, n)
		}
		count[k]++
	}
	// The share that the first ranks give each key, and what is left.
	const exact = 100_000
	want := make([]float64, n)
	left := 1.0
	for i := range int64(exact) {
		p := 1 / (math.Pow(float64(i+1), Theta) * scrambledZetan)
		want[fnv64(i)%n] += p
		left -= p
	}
	for i := range want {
		want[i] += left / n
	}
	hottest := make([]int, n)
	for i := range hottest {
		hottest[i] = i
	}
	slices.SortFunc(hottest, func(a, b int) int {
		if want[a] > want[b] {
			return -1
		}
		return 1
	})
	for _, k := range hottest[:2] {
		sigma := math.Sqrt(want[k] / draws)
		if got := count[k] / draws; math.Abs(got-want[k]) > 5*sigma {
			t.Errorf("key %d: share %.5f, want %.5f within %.5f", k, got, want[k], 5*sigma)
		}
	}
	for lo, hi := 2, 4; hi <= n; lo, hi = hi, hi*2 {
		var g, w float64
		for _, k := range hottest[lo:hi] {
			g += count[k] / draws
			w += want[k]
		}
		if math.Abs(g/w-1) > 0.2 {
			t.Errorf("keys %d to %d by heat: share %.4f, want %.4f within 20 %%", lo, hi, g, w)
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
