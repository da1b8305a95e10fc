package advise

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"

	"polder/far/heap"
)

// Curve says which part of the uses of keys local memory answers, by its size.
type Curve struct {
	Keys     int64   // that there are
	Bytes    int64   // that they take
	Accesses float64 // uses, a second
	points   []point // ascending; between the second and the last but one they are estimates
}

// point is a size of a cache, in bytes of entries, and its hit ratio.
type point struct {
	bytes, hits float64
}

// burst is how many times as many keys of an age as of those before it are too many
// to be chance.
const burst = 1.5

// ages is how many keys at least a step of the curve is made of: with fewer, chance
// would say how steep it is.
const ages = 100

// NewCurve makes the curve of a sample.
//
// Preconditions: s is as Look returns it.
func NewCurve(s *Sample) *Curve {
	keys := slices.Clone(s.Looked)
	slices.SortFunc(keys, func(a, b Key) int { return cmp.Compare(a.Idle, b.Idle) })
	scale := float64(s.Keys) / float64(len(keys))
	c := &Curve{Keys: s.Keys, Accesses: s.Accesses}

	least := max(ages, len(keys)/100)
	rate := s.Accesses
	var bytes, from float64 // what is younger than from
	misses := 1.0
	c.points = append(c.points, point{0, 0})
	for i := 0; i < len(keys); {
		// A step: the keys of one age or more. Redis cuts the time of use and the time
		// of the look to whole seconds, so that an age of n is n seconds, give or
		// take one, and those up to n are younger than n and a half.
		j, size := i, 0.0
		for j < len(keys) && (j-i < least || keys[j].Idle == keys[j-1].Idle) {
			size += float64(keys[j].Bytes)
			j++
		}
		to := float64(keys[j-1].Idle) + 0.5
		aged := float64(j-i) * scale / (to - from) // keys that grow older than that, a second
		if i == 0 {
			rate = max(rate, aged) // there are at least as many uses as keys that were used
		}
		// The larger the cache, the fewer misses. Where many more keys have one age,
		// they were loaded together, and not missed: they say nothing.
		if aged/rate < burst*misses {
			misses = min(misses, aged/rate)
			c.points = append(c.points, point{bytes + size*scale/2, 1 - misses})
		}
		bytes += size * scale
		from = to
		i = j
	}
	c.points = append(c.points, point{bytes, 1})
	c.Bytes = int64(bytes)
	return c
}

// of interpolates the hit ratio of a cache that holds so many bytes of entries.
func (c *Curve) of(bytes float64) float64 {
	i := sort.Search(len(c.points), func(i int) bool { return c.points[i].bytes >= bytes })
	switch {
	case i == len(c.points):
		return 1
	case i == 0 || bytes <= 0:
		return 0
	}
	a, b := c.points[i-1], c.points[i]
	return a.hits + (b.hits-a.hits)*(bytes-a.bytes)/(b.bytes-a.bytes)
}

// Hits is the hit ratio with a local budget of so many bytes, and whether it could be
// more than that: Redis counts ages in seconds, and the data may have been loaded a
// short time ago. A curve is never below the straight line between two of its points.
func (c *Curve) Hits(local int64) (ratio float64, atLeast bool) {
	bytes := c.entries(local)
	ratio = c.of(bytes)
	return ratio, ratio < 1 && (bytes < c.points[1].bytes || bytes > c.points[len(c.points)-2].bytes)
}

const (
	// indexBytes is what an entry takes of the index, with the places that are empty.
	indexBytes = 20
	// filled is the part of the logs that holds entries: the rest is segments that
	// are being filled, or are kept empty.
	filled = 0.9
)

// entries is how many bytes of entries there is room for in a local budget.
func (c *Curve) entries(local int64) float64 {
	sz, err := heap.SizesFor(heap.NewMemStore(1<<20, 0), heap.Config{Local: local, MaxLocal: local})
	if err != nil {
		return 0 // the budget is too small
	}
	return max(filled*float64(sz.Logs-c.Keys*indexBytes), 0)
}

// Budget is the smallest local budget, in whole MiB, with the hit ratio.
func (c *Curve) Budget(ratio float64) int64 {
	const mib = 1 << 20
	most := 2*(c.Bytes+c.Keys*indexBytes)/mib + 64
	n := sort.Search(int(most), func(n int) bool {
		hits, _ := c.Hits(int64(n) * mib)
		return hits >= ratio
	})
	return int64(n) * mib
}

// Far is how much the nodes should lend: everything, and room to clean in.
func (c *Curve) Far() int64 { return c.Bytes + c.Bytes/4 }

// Budgets are sizes to show: from the smallest that there can be until everything is
// local, each by half an octave larger than the one before.
func (c *Curve) Budgets() []int64 {
	const mib = 1 << 20
	var list []int64
	all := c.Budget(1)
	for x := math.Log2(heap.MinLocal); ; x += 0.5 {
		n := int64(math.Round(math.Exp2(x)/mib)) * mib
		if n >= all {
			return append(list, max(all, heap.MinLocal))
		}
		list = append(list, n)
	}
}

// percent formats a ratio.
func percent(ratio float64) string { return fmt.Sprintf("%.0f %%", 100*ratio) }
