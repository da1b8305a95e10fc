package load

import (
	"math"
	"math/bits"
	"math/rand/v2"
)

// Theta is the skew of YCSB's Zipfian distribution.
const Theta = 0.99

// Keys chooses among n keys, numbered from 0.
type Keys interface {
	Next(r *rand.Rand) int
}

// Uniform chooses each of n keys equally often.
func Uniform(n int) Keys { return uniform(n) }

type uniform int

func (u uniform) Next(r *rand.Rand) int { return r.IntN(int(u)) }

// Zipfian chooses rank i with a probability proportional to 1/(i+1)^theta:
// rank 0 is the most frequent. It is the algorithm of Gray et al., "Quickly
// generating billion-record synthetic databases" (SIGMOD 1994), as YCSB's
// ZipfianGenerator has it: exact for the first two ranks, up to 15 % off for
// those that follow, and close beyond.
type Zipfian struct {
	items                   int64
	theta, zetan            float64
	alpha, eta, secondBound float64
}

// NewZipfian makes a Zipfian over the given number of items. It takes time
// in proportion to items.
func NewZipfian(items int64, theta float64) *Zipfian {
	n, zetan := float64(items), zeta(items, theta)
	return &Zipfian{
		items:       items,
		theta:       theta,
		zetan:       zetan,
		alpha:       1 / (1 - theta),
		eta:         (1 - math.Pow(2/n, 1-theta)) / (1 - zeta(2, theta)/zetan),
		secondBound: 1 + math.Pow(0.5, theta),
	}
}

// zeta is the generalised harmonic number: the sum of 1/i^theta to n.
func zeta(n int64, theta float64) float64 {
	sum := 0.0
	for i := n; i > 0; i-- { // smallest terms first: less rounding
		sum += 1 / math.Pow(float64(i), theta)
	}
	return sum
}

// Rank returns the next rank.
func (z *Zipfian) Rank(r *rand.Rand) int64 {
	u := r.Float64()
	uz := u * z.zetan
	if uz < 1 {
		return 0
	}
	if uz < z.secondBound {
		return 1
	}
	rank := int64(float64(z.items) * math.Pow(z.eta*u-z.eta+1, z.alpha))
	return min(rank, z.items-1)
}

// Next is Rank as a key's number.
func (z *Zipfian) Next(r *rand.Rand) int { return int(z.Rank(r)) }

// Scattered is a Zipfian with theta 0.99 over n keys of which the popular lie
// anywhere: ranks are permuted. YCSB's own scrambled generator draws from ten
// billion ranks instead and hashes them onto the keys, which makes it much
// flatter than its name says.
func Scattered(n int) Keys {
	s := &scattered{n: uint64(n), z: NewZipfian(int64(n), Theta)}
	for s.step = scatterStep % s.n; gcd(s.step, s.n) != 1; s.step++ {
	}
	return s
}

// scatterStep, modulo the number of keys, is how far successive ranks lie
// apart: the golden ratio of 2^32, so that they are spread evenly.
const scatterStep = 2654435769

type scattered struct {
	n, step uint64 // without a common divisor: rank*step mod n is a permutation
	z       *Zipfian
}

func (s *scattered) Next(r *rand.Rand) int {
	hi, lo := bits.Mul64(uint64(s.z.Rank(r)), s.step)
	return int(bits.Rem64(hi, lo, s.n))
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Sequence draws length keys with a seed: the same sequence for the same
// arguments.
func Sequence(keys Keys, length int, seed uint64) []uint32 {
	r := rand.New(rand.NewPCG(seed, seed^0x9E3779B97F4A7C15))
	seq := make([]uint32, length)
	for i := range seq {
		seq[i] = uint32(keys.Next(r))
	}
	return seq
}

// Ascending is each of n keys once, in order: what fills a server.
func Ascending(n int) []uint32 {
	seq := make([]uint32, n)
	for i := range seq {
		seq[i] = uint32(i)
	}
	return seq
}
