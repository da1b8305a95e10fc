package coordinator

import (
	"math"
	"testing"
	"time"

	"polder/soft/mrc"
	"polder/soft/wire"
)

// costs lets a client say that it is asked for so much in a second that each access
// costs so many seconds; 0 if it does not know.
func (s *session) costs(cost float64) {
	s.first = false
	s.report = wire.Report{Assumed: cost == 0, Misses: s.report.Misses + 100, Curve: mrc.Curve{
		Unit: 1 << 20, Saved: make([]float64, 81), Accesses: 1000,
	}}
	if cost == 0 {
		cost = mrc.AssumedCost
	}
	c := &s.report.Curve
	c.Total = c.Accesses * cost
	for i := range c.Saved {
		c.Saved[i] = c.Total * math.Sqrt(float64(c.Size(i))/float64(c.Size(80)))
	}
}

func TestWhoDoesNotKnowWhatAMissCostsIsTakenForTheMedian(t *testing.T) {
	for name, c := range map[string]struct {
		costs []float64
		want  float64
	}{
		"nobody knows":             {[]float64{0, 0}, mrc.AssumedCost},
		"one knows":                {[]float64{0, 0.5}, 0.5},
		"two know":                 {[]float64{0, 0.5, 0.1}, 0.3},
		"three know, one too well": {[]float64{0, 0.5, 0.1, 1e300}, 0.5},
		"who lies has no cost":     {[]float64{0, 0.5, math.Inf(1), -1}, 0.5},
	} {
		t.Run(name, func(t *testing.T) {
			r := restart(t, reserve+256<<20, 256<<20)
			for _, cost := range c.costs {
				s, _ := r.come(16, 0)
				s.costs(cost)
			}
			r.pass(6 * time.Second)
			st := r.Stats()
			if math.Abs(st.MissCost-c.want) > 1e-9 || st.MoreByClient[0].MissCost != st.MissCost {
				t.Fatalf("got a median of %v s, and %v s for who does not know, want %v", st.MissCost, st.MoreByClient[0].MissCost, c.want)
			}
			unknown := r.sessions[1]
			unknown.before = wire.Report{Misses: unknown.report.Misses - 100}
			a := unknown.app(r.now, 1, st.MissCost)
			if got := a.Curve.MeanCost(); math.Abs(got-c.want) > 1e-9 || math.Abs(a.Curve.At(1<<30)-1000*c.want) > 1e-6 {
				t.Errorf("who does not know is taken to pay %v s for a miss, and to save %v s in a second with everything: want %v and %v", got, a.Curve.At(1<<30), c.want, 1000*c.want)
			}
			if math.Abs(a.Rebuild-100*c.want) > 1e-9 {
				t.Errorf("who does not know is taken to rebuild for %v s in a second, want %v", a.Rebuild, 100*c.want)
			}
		})
	}
}

// TestMemoryGoesWhereMissesCostMore: two clients are asked for as much, and would save
// as many misses, which cost one of them more.
func TestMemoryGoesWhereMissesCostMore(t *testing.T) {
	for name, c := range map[string]struct {
		costs [2]float64
		more  bool
	}{
		"ten times as much": {[2]float64{1e-2, 1e-3}, true},
		"the same":          {[2]float64{1e-2, 1e-2}, false},
		"unknown":           {[2]float64{1e-2, 0}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := restart(t, reserve+256<<20, 256<<20)
			dear, _ := r.come(16, 16)
			cheap, _ := r.come(16, 16)
			for range 20 {
				dear.costs(c.costs[0])
				cheap.costs(c.costs[1])
				r.pass(time.Second)
			}
			if dear.target+cheap.target < 100 || (dear.target > cheap.target*3) != c.more {
				t.Errorf("the first one has %d segments and the second %d: more for the first is wanted: %v", dear.target, cheap.target, c.more)
			}
		})
	}
}

// TestWhoSaysNothingLeavesItsMemoryToOthers: a client is stopped, which saved most before.
func TestWhoSaysNothingLeavesItsMemoryToOthers(t *testing.T) {
	r := restart(t, reserve+256<<20, 256<<20)
	stopped, _ := r.come(16, 16)
	other, _ := r.come(16, 16)
	for second := range 40 {
		if second < 20 {
			stopped.costs(1e-1)
			stopped.told = r.now
		}
		other.costs(1e-3)
		other.told = r.now
		r.pass(time.Second)
		if second == 20 && stopped.target < 3*other.target {
			t.Errorf("one that saves a hundred times as much has %d segments, the other %d", stopped.target, other.target)
		}
	}
	if other.target < 3*stopped.target {
		t.Errorf("one that has said nothing for 20 s has %d segments, the other %d", stopped.target, other.target)
	}
}
