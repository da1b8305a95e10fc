package vhost

import (
	"testing"
	"time"

	"polder/soft/policy"
)

func TestPolicies(t *testing.T) {
	h, err := New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("ideal %v, %d MiB of %d", h.ideal, Memory>>20, h.IdealMemory()>>20)
	length := 1800 * time.Second
	began := time.Now()
	best := []float64{.68, .07, .05, .02, .14, .04}
	top, err := h.Fixed(best)
	t.Log(best, top, err, time.Since(began))
	for i, v := range best {
		BestShares[i] = v
	}
	for _, h.Hopeful = range []bool{false, true} {
		for _, p := range []policy.Policy{
			&policy.Static{Shares: map[uint64]float64{1: best[0], 2: best[1], 3: best[2], 4: best[3], 5: best[4], 6: best[5]}}, policy.Even{}, &policy.Static{Shares: map[uint64]float64{1: .25, 2: .25, 3: .25, 4: .25 / 3, 5: .25 / 3, 6: .25 / 3}},
			&policy.Cliffhanger{}, &policy.HillClimbing{}, &policy.Curves{NoHull: true}, &policy.Curves{}, &policy.Curves{Objective: policy.Throughput},
		} {
			began := time.Now()
			r, err := h.Run(t.Context(), p, length)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%v %s: %.3f in %v, %v, %v (%v)", h.Hopeful, p.Name(), r.Throughput, []time.Duration{r.Settled, r.Equilibrium}, r.Apps, r.Shares, time.Since(began))
		}
	}
}
