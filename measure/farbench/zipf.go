package farbench

import (
	"math"
	"math/rand/v2"
	"sort"
)

// zipf draws numbers below n. The number of rank i, counted from 1, comes with a probability proportional to 1/i^s.
// It is exact for every s from 0 on; closed forms are only for s below 1, or only for s above. Ranks are the numbers
// themselves unless scatter is used.
type zipf struct {
	upTo []float64 // the probability of the ranks up to this one
}

func newZipf(n int, s float64) *zipf {
	z := &zipf{make([]float64, n)}
	sum := 0.0
	for i := range z.upTo {
		sum += math.Pow(float64(i+1), -s)
		z.upTo[i] = sum
	}
	for i := range z.upTo {
		z.upTo[i] /= sum
	}
	return z
}

func (z *zipf) rank(r *rand.Rand) int {
	u := r.Float64()
	return min(sort.SearchFloat64s(z.upTo, u), len(z.upTo)-1)
}

// sequence draws length numbers, of which the popular ones lie anywhere.
func (z *zipf) sequence(length int, seed uint64) []uint32 {
	r := rand.New(rand.NewPCG(seed, 0x5eed))
	places := scatter(len(z.upTo))
	seq := make([]uint32, length)
	for i := range seq {
		seq[i] = places[z.rank(r)]
	}
	return seq
}

// scatter returns which number each of n ranks has: a permutation, always the same.
func scatter(n int) []uint32 {
	places := make([]uint32, n)
	for i := range places {
		places[i] = uint32(i)
	}
	r := rand.New(rand.NewPCG(7, uint64(n)))
	r.Shuffle(n, func(i, j int) { places[i], places[j] = places[j], places[i] })
	return places
}
