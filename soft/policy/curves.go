package policy

import (
	"container/heap"
	"slices"
	"time"
)

// Curves divides memory by what each application's miss-ratio curve says it
// would save. The paper's policy learns one point of that curve in each
// period, by probing; sampled reuse distances say all of it at once, without
// taking memory from anybody. So the whole division is computed, not climbed
// to.
//
// The division is greedy on the curves' concave hulls, which is optimal for
// them: the next bytes go to whoever gains most by them. On the hull, a step
// of a curve (a working set that is worth nothing until all of it fits) is
// taken as a whole, where climbing would stop in front of it.
//
// If every application says how busy it is, and none reports a utility, Curves maximises the sum of their
// throughputs, each relative to what it would be if nothing had to be rebuilt. Otherwise it maximises the time of
// rebuilding that is saved, as in the paper.
//
// There is no curve of a utility that an application reports. For such an application, Curves climbs as in the paper,
// within what the others' curves leave: a byte is taken to be worth what the last bytes changed its utility by. A
// utility is compared with the seconds of rebuilding that others save in each second.
type Curves struct {
	climb  climbing // for those who report a utility
	target map[uint64]int64
	base   map[uint64]float64 // seconds that a request takes if nothing is rebuilt
	saved  bool               // maximise the time of rebuilding that is saved
}

// hysteresis is the relative gain below which nothing moves.
const hysteresis = 0.01

// Divide implements Policy.
func (c *Curves) Divide(now time.Duration, total int64, apps []App) []int64 {
	c.saved = slices.ContainsFunc(apps, func(a App) bool { return a.HasUtility || a.Busy <= 0 })
	apps = slices.Clone(apps)
	slopes := c.climb.step(now, total, apps)
	gains := make([][]step, len(apps))
	for i := range apps {
		a := &apps[i]
		if a.HasUtility {
			gains[i] = []step{{a.Max - a.Min, slopes[i] * float64(a.Max-a.Min)}}
			continue
		}
		c.observe(a)
		gains[i] = c.steps(a)
	}
	want := greedy(total, apps, gains)
	out := Fit(total, apps, want)
	c.climb.keep(total, apps, out)

	// Moving memory costs the rebuilding of what it held: so nothing moves for a gain below the hysteresis.
	if len(c.target) == len(apps) {
		old := make([]int64, len(apps))
		same := true
		for i, a := range apps {
			t, ok := c.target[a.ID]
			if a.HasUtility {
				t = out[i]
			}
			old[i], same = t, same && ok
		}
		old = Fit(total, apps, old)
		if same && c.value(apps, out) < c.value(apps, old)+hysteresis*c.scale(apps) {
			out = old
		}
	}
	c.target = make(map[uint64]int64, len(apps))
	for i, a := range apps {
		c.target[a.ID] = out[i]
	}
	return out
}

// worth is what an application achieves with memory.
func (c *Curves) worth(a *App, memory int64) float64 {
	saved := a.Curve.At(memory)
	if c.saved || c.base[a.ID] == 0 || a.Curve.Accesses <= 0 {
		return a.Weight * saved
	}
	// Whatever the memory, a request takes the time base in which nothing is rebuilt. With memory m it also rebuilds
	// for all - saved(m). All three are seconds per request, not per second.
	saved /= a.Curve.Accesses
	all := a.Curve.Total / a.Curve.Accesses
	base := c.base[a.ID]
	return a.Weight * base / (base + max(all-saved, 0))
}

// observe updates base, the seconds that a request takes if nothing is rebuilt.
func (c *Curves) observe(a *App) {
	n := a.Hits + a.Misses
	if a.Busy <= 0 || n <= 0 {
		return
	}
	now := max(a.Busy-a.Rebuild, a.Busy/1000) / n
	if c.base == nil {
		c.base = make(map[uint64]float64)
	}
	if old, ok := c.base[a.ID]; ok {
		now = 0.8*old + 0.2*now
	}
	c.base[a.ID] = now
}

func (c *Curves) value(apps []App, memory []int64) (v float64) {
	for i := range apps {
		if !apps[i].HasUtility {
			v += c.worth(&apps[i], memory[i])
		}
	}
	return v
}

// scale is what all applications together could achieve.
func (c *Curves) scale(apps []App) (v float64) {
	for i := range apps {
		if n := len(apps[i].Curve.Saved); n > 0 {
			v += c.worth(&apps[i], apps[i].Curve.Size(n-1))
		}
	}
	return v
}

// step is a piece of an application's curve: so many bytes more bring so much
// more.
type step struct {
	bytes int64
	gain  float64
}

func (s step) slope() float64 { return s.gain / float64(s.bytes) }

// steps cuts an application's worth beyond its Min into pieces of falling
// slope.
func (c *Curves) steps(a *App) []step {
	type point struct {
		m int64
		v float64
	}
	pts := []point{{a.Min, c.worth(a, a.Min)}}
	add := func(m int64) {
		if m > pts[len(pts)-1].m && m <= a.Max {
			pts = append(pts, point{m, max(c.worth(a, m), pts[len(pts)-1].v)})
		}
	}
	for i := range a.Curve.Saved {
		add(a.Curve.Size(i))
	}
	if n := len(a.Curve.Saved); n > 0 && a.Curve.Size(n-1) > a.Max {
		add(a.Max)
	}
	var out []step
	for i := 0; i < len(pts)-1; {
		j := i + 1
		for k := i + 2; k < len(pts); k++ { // the farthest point that is seen along the hull
			if (pts[k].v-pts[i].v)*float64(pts[j].m-pts[i].m) >= (pts[j].v-pts[i].v)*float64(pts[k].m-pts[i].m) {
				j = k
			}
		}
		out = append(out, step{pts[j].m - pts[i].m, pts[j].v - pts[i].v})
		i = j
	}
	return out
}

// greedy spends the memory where it brings most.
func greedy(total int64, apps []App, gains [][]step) []int64 {
	out := make([]int64, len(apps))
	left := total
	q := &frontier{}
	for i, a := range apps {
		out[i] = a.Min
		left -= a.Min
		if len(gains[i]) > 0 {
			*q = append(*q, next{i, 0, gains[i][0].slope()})
		}
	}
	heap.Init(q)
	for q.Len() > 0 && left > 0 {
		n := heap.Pop(q).(next)
		s := gains[n.app][n.step]
		if s.gain <= 0 {
			continue
		}
		take := min(s.bytes, left)
		out[n.app] += take
		left -= take
		if k := n.step + 1; k < len(gains[n.app]) {
			heap.Push(q, next{n.app, k, gains[n.app][k].slope()})
		}
	}
	return out
}

// frontier is the next piece of each application, the steepest first.
type frontier []next

type next struct {
	app, step int
	slope     float64
}

func (f frontier) Len() int           { return len(f) }
func (f frontier) Less(i, j int) bool { return f[i].slope > f[j].slope }
func (f frontier) Swap(i, j int)      { f[i], f[j] = f[j], f[i] }
func (f *frontier) Push(x any)        { *f = append(*f, x.(next)) }
func (f *frontier) Pop() any {
	old := *f
	n := old[len(old)-1]
	*f = old[:len(old)-1]
	return n
}
