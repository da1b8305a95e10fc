package policy

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"polder/soft/mrc"
)

// curve makes a curve from 1 MiB in which f says what a size saves.
func curve(points int, f func(size int64) float64) mrc.Curve {
	c := mrc.Curve{Unit: 1 << 20, Saved: make([]float64, points)}
	for i := range c.Saved {
		c.Saved[i] = f(c.Size(i))
	}
	c.Accesses = 1000
	c.Total = c.Saved[points-1]
	return c
}

func sum(list []int64) (n int64) {
	for _, v := range list {
		n += v
	}
	return n
}

func TestCurvesKeepWithinTheirBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &Curves{}
		total := rapid.Int64Range(0, 1<<34).Draw(t, "total")
		n := rapid.IntRange(1, 8).Draw(t, "apps")
		apps := make([]App, n)
		var mins int64
		for i := range apps {
			apps[i] = App{
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
				a.HasUtility, a.Utility = rapid.Bool().Draw(t, "reports"), rapid.Float64Range(-1e3, 1e3).Draw(t, "utility")
				a.Busy = rapid.Float64Range(0, 1e3).Draw(t, "busy")
				slope := rapid.Float64Range(0, 1).Draw(t, "slope")
				a.Curve = curve(rapid.IntRange(1, 100).Draw(t, "points"), func(s int64) float64 { return slope * math.Sqrt(float64(s)) })
			}
			out := p.Divide(time.Duration(step)*time.Second, total, apps)
			if len(out) != n {
				t.Fatalf("%d budgets for %d applications", len(out), n)
			}
			if got := sum(out); got > total+int64(n) {
				t.Fatalf("gave %d of %d bytes", got, total)
			}
			for i, m := range out {
				if m < 0 || m > apps[i].Max {
					t.Fatalf("gave %d bytes to an application that may have %d", m, apps[i].Max)
				}
				if m < apps[i].Min && mins <= total {
					t.Fatalf("left %d bytes to an application that must have %d", m, apps[i].Min)
				}
				apps[i].Memory = m
			}
		}
	})
}

// TestWhatMustBeComesBeforeProbes: who reports a utility begins with an even share, of
// which here the last byte is part of what another must have.
func TestWhatMustBeComesBeforeProbes(t *testing.T) {
	apps := []App{{ID: 1, Weight: 1, Min: 36, Max: 36}, {ID: 2, Weight: 1, Max: 4, HasUtility: true}, {ID: 3, Weight: 1, Min: 53, Max: 53}}
	out := (&Curves{}).Divide(0, 92, apps)
	if out[0] != 36 || out[1] != 3 || out[2] != 53 {
		t.Errorf("got %v, want [36 3 53]", out)
	}
}

func TestCurvesGiveMemoryToWhoGainsMost(t *testing.T) {
	const total = 1 << 30
	steep := App{ID: 1, Weight: 1, Max: total, Curve: curve(81, func(s int64) float64 { return 10 * math.Min(float64(s)/(700<<20), 1) })}
	flat := App{ID: 2, Weight: 1, Max: total, Curve: curve(81, func(s int64) float64 { return math.Min(float64(s)/(700<<20), 1) })}
	out := (&Curves{}).Divide(0, total, []App{steep, flat})
	if out[0] < 690<<20 || sum(out) < total-2 {
		t.Errorf("got %v MiB, want about 700 for the first and the rest for the second", []int64{out[0] >> 20, out[1] >> 20})
	}
	flat.Weight = 100
	out = (&Curves{}).Divide(0, total, []App{steep, flat})
	if out[1] < 690<<20 {
		t.Errorf("with a weight of 100: got %v MiB", []int64{out[0] >> 20, out[1] >> 20})
	}
}

func TestTheHullSeesBehindACliff(t *testing.T) {
	const total = 1 << 30
	// Worth nothing until all of it fits, and then a lot.
	cliff := App{ID: 1, Weight: 1, Max: total, Curve: curve(81, func(s int64) float64 {
		if s < 600<<20 {
			return 0
		}
		return 100
	})}
	slope := App{ID: 2, Weight: 1, Max: total, Curve: curve(81, func(s int64) float64 { return float64(s) / (1 << 28) })}
	out := (&Curves{}).Divide(0, total, []App{cliff, slope})
	if out[0] < 600<<20 {
		t.Errorf("the cliff got %d MiB, want at least 600", out[0]>>20)
	}
}

func TestCurvesDoNotMoveMemoryForNothing(t *testing.T) {
	const total = 1 << 30
	noisy := func(k float64) []App {
		f := func(s int64) float64 { return k * math.Sqrt(float64(s)) }
		g := func(s int64) float64 { return math.Sqrt(float64(s)) }
		return []App{{ID: 1, Weight: 1, Max: total, Curve: curve(81, f)}, {ID: 2, Weight: 1, Max: total, Curve: curve(81, g)}}
	}
	p := &Curves{}
	first := p.Divide(0, total, noisy(1))
	for i := range 10 {
		if out := p.Divide(0, total, noisy(1+0.01*float64(i%3))); out[0] != first[0] {
			t.Fatalf("a change of 1 %% moved the first from %d to %d", first[0], out[0])
		}
	}
	if out := p.Divide(0, total, noisy(3)); out[0] <= first[0] {
		t.Error("a change of 200 % moved nothing")
	}
}

// TestCurvesFollowAUtilityThatIsOnNoCurve: the first application gains by every
// byte, which only it knows.
func TestCurvesFollowAUtilityThatIsOnNoCurve(t *testing.T) {
	const total = 1 << 30
	flat := curve(81, func(int64) float64 { return 0 })
	apps := []App{
		{ID: 1, Weight: 1, Max: total, Memory: total / 2, Curve: flat, HasUtility: true},
		{ID: 2, Weight: 1, Max: total, Memory: total / 2, Curve: flat, HasUtility: true},
	}
	p := &Curves{}
	for s := range 1200 {
		for i := range apps {
			apps[i].Used = apps[i].Memory
		}
		apps[0].Utility = float64(apps[0].Memory) / total
		apps[1].Utility = 0.1 * float64(apps[1].Memory) / total
		for i, m := range p.Divide(time.Duration(s)*time.Second, total, apps) {
			apps[i].Memory = m
		}
	}
	if apps[0].Memory < total*3/4 {
		t.Errorf("it was given %d of %d MiB, want most", apps[0].Memory>>20, total>>20)
	}
}

// TestAUtilityIsWeighedAgainstCurves: the first application reports a utility, as it
// gains by memory, the second has a curve. Where both gain as much by a byte is known.
func TestAUtilityIsWeighedAgainstCurves(t *testing.T) {
	const total = 1 << 30
	gain := func(m int64, k float64) float64 { return k * (1 - math.Exp(-float64(m)/(200<<20))) }
	for _, c := range []struct {
		utility, saved float64
		difference     int64 // MiB that the first has more than the second, optimally
	}{{10, 1, 460}, {1, 10, -460}, {3, 3, 0}} {
		apps := []App{
			{ID: 1, Weight: 1, Max: total, Memory: total / 2, HasUtility: true},
			{ID: 2, Weight: 1, Max: total, Memory: total / 2, Curve: curve(81, func(m int64) float64 { return gain(m, c.saved) })},
		}
		p := &Curves{}
		for s := range 1200 {
			for i := range apps {
				apps[i].Used = apps[i].Memory
			}
			apps[0].Utility = gain(apps[0].Memory, c.utility)
			for i, m := range p.Divide(time.Duration(s)*time.Second, total, apps) {
				apps[i].Memory = m
			}
		}
		if d := (apps[0].Memory - apps[1].Memory) >> 20; d < c.difference-100 || d > c.difference+100 {
			t.Errorf("a utility of %v beside a curve of %v: the first has %d MiB more, want about %d", c.utility, c.saved, d, c.difference)
		}
	}
}

// TestWhoReportsAUtilityLeavesTheOthersToTheirCurves: the division between two
// applications with curves is the best one at once, not after minutes of climbing.
func TestWhoReportsAUtilityLeavesTheOthersToTheirCurves(t *testing.T) {
	const total = 3 << 29
	steep := curve(81, func(s int64) float64 { return 10 * math.Min(float64(s)/(900<<20), 1) })
	flat := curve(81, func(s int64) float64 { return math.Min(float64(s)/(900<<20), 1) })
	out := (&Curves{}).Divide(0, total, []App{
		{ID: 1, Weight: 1, Max: total, HasUtility: true, Utility: 1},
		{ID: 2, Weight: 1, Max: total, Curve: steep},
		{ID: 3, Weight: 1, Max: total, Curve: flat},
	})
	if out[0] < 500<<20 || out[0] > 520<<20 || out[1] < 890<<20 || sum(out) > total {
		t.Errorf("got %v MiB, want about 512 for who reports, and 900 of the rest for the steep curve", []int64{out[0] >> 20, out[1] >> 20, out[2] >> 20})
	}
}

// TestWhoReportsAUtilityShrinksWithTheMemory: half of it has gone between two probes.
func TestWhoReportsAUtilityShrinksWithTheMemory(t *testing.T) {
	apps := []App{
		{ID: 1, Weight: 1, Max: 1 << 30, HasUtility: true, Utility: 1},
		{ID: 2, Weight: 1, Max: 1 << 30, Curve: curve(81, func(s int64) float64 { return math.Sqrt(float64(s)) })},
	}
	p := &Curves{}
	p.Divide(0, 1<<30, apps)
	if out := p.Divide(time.Second, 1<<29, apps); out[0] > 1<<28+1<<20 || out[1] < 1<<28-1<<20 {
		t.Errorf("of 512 MiB got %v MiB, want 256 each", []int64{out[0] >> 20, out[1] >> 20})
	}
}
