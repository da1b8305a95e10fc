package rivals

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"polder/soft/mrc"
	"polder/soft/policy"
)

func sum(list []int64) (n int64) {
	for _, v := range list {
		n += v
	}
	return n
}

func TestEveryRivalKeepsWithinItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom([]string{"hill", "cliffhanger", "even", "static", "saved"}).Draw(t, "policy")
		p := map[string]policy.Policy{"hill": &HillClimbing{}, "cliffhanger": &Cliffhanger{}, "even": Even{}, "static": &Static{}, "saved": &Saved{}}[name]
		total := rapid.Int64Range(0, 1<<34).Draw(t, "total")
		n := rapid.IntRange(1, 8).Draw(t, "apps")
		apps := make([]policy.App, n)
		var mins int64
		for i := range apps {
			apps[i] = policy.App{
				ID: uint64(i + 1), Weight: rapid.Float64Range(0.1, 10).Draw(t, "weight"),
				Min: rapid.Int64Range(0, 1<<28).Draw(t, "min"),
			}
			apps[i].Max = apps[i].Min + rapid.Int64Range(0, 1<<34).Draw(t, "max")
			mins += apps[i].Min
		}
		for step := range 20 {
			for i := range apps {
				a := &apps[i]
				a.Used = min(a.Memory, rapid.Int64Range(0, 1<<34).Draw(t, "used"))
				a.Hits = rapid.Float64Range(0, 1e6).Draw(t, "hits")
				a.Misses = rapid.Float64Range(0, 1e6).Draw(t, "misses")
				a.Rebuild = rapid.Float64Range(0, 1e3).Draw(t, "rebuild")
				a.Busy = rapid.Float64Range(0, 1e3).Draw(t, "busy")
				a.Curve = mrc.Curve{Unit: 1 << 20, Saved: []float64{0, rapid.Float64Range(0, 1e3).Draw(t, "saved")}}
			}
			if c, ok := p.(*Cliffhanger); ok {
				c.Victims = rapid.SliceOfN(rapid.Float64Range(0, 1e6), n, n).Draw(t, "victims")
			}
			out := p.Divide(time.Duration(step)*time.Second, total, apps)
			if len(out) != n {
				t.Fatalf("%d budgets for %d applications", len(out), n)
			}
			if got := sum(out); got > total+int64(n) {
				t.Fatalf("%s gave %d of %d bytes", name, got, total)
			}
			for i, m := range out {
				if m < 0 || m > apps[i].Max {
					t.Fatalf("%s gave %d bytes to an application that may have %d", name, m, apps[i].Max)
				}
				if m < apps[i].Min && mins < total && name != "static" {
					t.Fatalf("%s left %d bytes to an application that must have %d", name, m, apps[i].Min)
				}
				apps[i].Memory = m
			}
		}
	})
}

// climb runs a policy on applications whose cost of rebuilding is known.
func climb(p policy.Policy, total int64, seconds int, cost ...func(m int64) float64) []int64 {
	apps := make([]policy.App, len(cost))
	for i := range apps {
		apps[i] = policy.App{ID: uint64(i + 1), Weight: 1, Max: total, Memory: total / int64(len(apps))}
	}
	var out []int64
	for s := range seconds {
		for i := range apps {
			a := &apps[i]
			a.Used = a.Memory
			a.Rebuild = cost[i](a.Memory)
		}
		if c, ok := p.(*Cliffhanger); ok {
			c.Victims = nil
			for i, a := range apps {
				c.Victims = append(c.Victims, cost[i](a.Memory)-cost[i](a.Memory+total/100))
			}
		}
		out = p.Divide(time.Duration(s)*time.Second, total, apps)
		for i := range apps {
			apps[i].Memory = out[i]
		}
	}
	return out
}

func TestHillClimbingComesNearTheTop(t *testing.T) {
	const total = 1 << 30
	a := func(m int64) float64 { return 10 * math.Exp(-float64(m)/(200<<20)) }
	b := func(m int64) float64 { return math.Exp(-float64(m) / (200 << 20)) }
	for _, p := range []policy.Policy{&HillClimbing{}, &Cliffhanger{}} {
		out := climb(p, total, 1200, a, b)
		// Optimal is where both gain the same: 230 MiB apart from the middle.
		if d := (out[0] - out[1]) >> 20; d < 300 || d > 620 {
			t.Errorf("%T: the first has %d MiB more than the second, want about 460", p, d)
		}
	}
}

func TestHillClimbingDoesNotGiveMoreToWhoDoesNotUseIt(t *testing.T) {
	const total = 1 << 30
	p := &HillClimbing{}
	apps := []policy.App{{ID: 1, Weight: 1, Max: total, Memory: total / 2}, {ID: 2, Weight: 1, Max: total, Memory: total / 2}}
	for s := range 600 {
		apps[0].Used = 10 << 20 // far less than it has
		apps[0].Rebuild = 100 - float64(apps[0].Memory)/1e7
		apps[1].Used = apps[1].Memory
		apps[1].Rebuild = 100 - float64(apps[1].Memory)/1e9
		for i, m := range p.Divide(time.Duration(s)*time.Second, total, apps) {
			apps[i].Memory = m
		}
	}
	if apps[0].Memory > total/2+total/16 {
		t.Errorf("an application that uses 10 MiB was given %d MiB", apps[0].Memory>>20)
	}
}
