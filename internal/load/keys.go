package load

import (
	"math"
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
	return newZipfian(items, theta, zeta(items, theta))
}

func newZipfian(items int64, theta, zetan float64) *Zipfian {
	n := float64(items)
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

// YCSB's ScrambledZipfianGenerator draws from this many items, whatever the
// number of keys, so that zeta need not be computed again as keys are added.
const (
	scrambledItems = 10_000_000_000
	scrambledZetan = 26.46902820178302
)

// Scrambled is YCSB's scrambled Zipfian over n keys with theta 0.99: ranks of
// ten billion items, hashed onto the keys, so that the popular keys lie
// anywhere. It is flatter than a Zipfian over n items, as the many unpopular
// of the ten billion spread over all keys.
func Scrambled(n int) Keys {
	return &scrambled{n: uint64(n), z: newZipfian(scrambledItems, Theta, scrambledZetan)}
}

type scrambled struct {
	n uint64
	z *Zipfian
}

func (s *scrambled) Next(r *rand.Rand) int { return int(fnv64(s.z.Rank(r)) % s.n) }

// fnv64 is YCSB's Utils.hash: FNV-1a over the eight bytes, lowest first, and
// the absolute value of the result as a signed number.
func fnv64(v int64) uint64 {
	h := uint64(0xCBF29CE484222325)
	for range 8 {
		h ^= uint64(v & 0xff)
		h *= 1099511628211
		v >>= 8
	}
	if int64(h) < 0 {
		return -h
	}
	return h
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
