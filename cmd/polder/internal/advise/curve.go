package advise

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"

	"polder/far/heap"
	"polder/far/store"
)

// Curve says what part of the uses of keys local memory of a given size answers.
type Curve struct {
	Keys     int64   // keys that there are
	Bytes    int64   // bytes that the keys take
	Accesses float64 // uses of keys, a second
	points   []point // ascending; all but the first, of no bytes, and the last, of all bytes, are estimates
}

// point is a size of a cache, in bytes of entries, and its hit ratio.
type point struct {
	bytes, hits float64
}

const (
	// fewestOfStep is the least number of keys from which a step of the curve is made:
	// with fewer keys, chance would decide how steep the step is.
	fewestOfStep = 100
	// burst is a factor: if a step has more than burst times as many keys for a second of
	// age as the ages before it, this is not chance.
	burst = 1.5
)

// step is the keys of a range of ages.
type step struct {
	to     float64 // the end of the range, in seconds: no key of the step is older
	keys   float64 // keys that are younger than to
	bytes  float64 // bytes of the keys of the step
	behind float64 // bytes of all keys that are younger than the step
	// misses is how many keys a second grow older than the ages of the step, divided by all uses a second: the miss
	// ratio of a cache of the younger keys.
	misses float64
	weight float64 // length of the range in seconds
}

// NewCurve makes the curve of a sample.
//
// Preconditions: s is as Look returns it.
func NewCurve(s *Sample) *Curve {
	c := &Curve{Keys: s.Keys, Accesses: s.Accesses, points: []point{{0, 0}}}
	steps := stepsOf(s)
	for _, st := range level(steps) {
		c.points = append(c.points, point{st.behind + st.bytes/2, 1 - st.misses})
	}
	last := steps[len(steps)-1]
	c.Bytes = int64(last.behind + last.bytes)
	c.points = append(c.points, point{last.behind + last.bytes, 1})
	return c
}

// stepsOf divides the keys of a sample by their ages.
func stepsOf(s *Sample) (steps []step) {
	keys := slices.Clone(s.Looked)
	slices.SortFunc(keys, func(a, b Key) int { return cmp.Compare(a.Idle, b.Idle) })
	scale := float64(s.Keys) / float64(len(keys))
	least := max(fewestOfStep, len(keys)/100)
	uses, from, bytes := s.Accesses, 0.0, 0.0
	for i := 0; i < len(keys); {
		// Redis cuts the time of use and the time of the look to whole seconds. So an age
		// of n is n seconds, give or take one, and we take keys with an age up to n to be
		// younger than n and a half.
		j, size := i, 0.0
		for j < len(keys) && (j-i < least || keys[j].Idle == keys[j-1].Idle) {
			size += float64(keys[j].Bytes) * scale
			j++
		}
		st := step{to: float64(keys[j-1].Idle) + 0.5, keys: float64(j) * scale, bytes: size, behind: bytes}
		st.weight = st.to - from
		aged := float64(j-i) * scale / st.weight
		if i == 0 {
			uses = max(uses, aged) // there are at least as many uses as keys that were used
		}
		st.misses = aged / uses
		steps = append(steps, st)
		i, from, bytes = j, st.to, bytes+size
	}
	return steps
}

// level makes the miss ratios descend, since a larger cache misses less. Ratios that
// ascend by chance, or because the load was not quite steady, are replaced by their mean.
// If a step has many more keys than the steps before it, these keys were loaded together
// and not missed: such a step says nothing, and is left out.
func level(steps []step) []step {
	var level [][]step // of one miss ratio each
	for i, st := range steps {
		if i > 0 {
			from := steps[i-1].to
			if mean := (steps[i-1].keys - younger(steps, from/2)) / (from / 2); (st.keys-steps[i-1].keys)/st.weight > burst*mean {
				continue
			}
		}
		run := []step{st}
		for len(level) > 0 && level[len(level)-1][0].misses < run[0].misses {
			run = append(level[len(level)-1], run...)
			level = level[:len(level)-1]
			sum, weight := 0.0, 0.0
			for _, st := range run {
				sum, weight = sum+st.misses*st.weight, weight+st.weight
			}
			for k := range run {
				run[k].misses = sum / weight
			}
		}
		level = append(level, run)
	}
	return slices.Concat(level...)
}

// younger is how many keys are younger than age, in seconds.
func younger(steps []step, age float64) float64 {
	from, keys := 0.0, 0.0
	for _, st := range steps {
		if age < st.to {
			return keys + (st.keys-keys)*(age-from)/(st.to-from)
		}
		from, keys = st.to, st.keys
	}
	return keys
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

// Hits is the hit ratio with a local budget of so many bytes. atLeast reports whether the
// true ratio may be higher, because Redis counts ages in seconds, or because the data was
// loaded a short time ago. A curve is never below the straight line between two of its
// points.
func (c *Curve) Hits(local int64) (ratio float64, atLeast bool) {
	bytes := c.entries(local)
	ratio = c.of(bytes)
	return ratio, ratio < 1 && (bytes < c.points[1].bytes || bytes > c.points[len(c.points)-2].bytes)
}

const (
	// indexBytes is how many bytes of the index an entry takes, with its share of empty places.
	indexBytes = 20
	// filled is the part of the logs that holds entries. The rest is in segments that
	// are being filled or are kept empty.
	filled = 0.9
)

// entries is how many bytes of entries there is room for in a local budget.
func (c *Curve) entries(local int64) float64 {
	sz, err := heap.SizesFor(store.NewMemStore(1<<20, 0), heap.Config{Local: local, MaxLocal: local})
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

// Budgets are the sizes to show, from the smallest possible budget to the one with which
// everything is local. Each is √2 times the size before it.
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
