package vhost

import (
	"flag"
	"testing"
	"time"

	"polder/measure/softbench/rivals"
	"polder/soft/policy"
)

var offline = flag.Bool("offline", false, "search for a fixed partition that is better than BestShares")

func newHost(t *testing.T) *Host {
	t.Helper()
	h, err := New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestCacheHoldsWhatItHasRoomFor(t *testing.T) {
	c := newCache(uniform(10, 100), 200)
	c.resize(300)
	for k := range int32(5) {
		if hit, _ := c.access(k); hit {
			t.Fatalf("key %d was there before it was asked for", k)
		}
	}
	// 2, 3 and 4 are there, 0 and 1 in the shadow.
	if hit, _ := c.access(3); !hit {
		t.Error("3 is not there")
	}
	if hit, victim := c.access(0); hit || !victim {
		t.Errorf("0: hit %v, in the shadow %v, want the latter", hit, victim)
	}
	if hit, victim := c.access(7); hit || victim {
		t.Errorf("7: hit %v, in the shadow %v, want neither", hit, victim)
	}
	if hit, _ := c.access(3); !hit {
		t.Error("3 was read and is gone all the same")
	}
	c.resize(100)
	if c.used != 100 {
		t.Errorf("%d bytes are used of 100", c.used)
	}
	if hit, _ := c.access(3); !hit {
		t.Error("what was used last is gone")
	}
}

// TestTheIdealMemoryOfAHostIsKnown, also if the applications cannot be made once more.
func TestTheIdealMemoryOfAHostIsKnown(t *testing.T) {
	h := newHost(t)
	defer func(f []byte) { graphFile = f }(graphFile)
	graphFile = nil
	if got := h.IdealMemory(); got < Memory {
		t.Errorf("got %d bytes, want more than the %d that the applications share", got, Memory)
	}
}

func TestTheSameRunTwiceIsTheSame(t *testing.T) {
	h := newHost(t)
	var got [2]float64
	for i := range got {
		r, err := h.Run(t.Context(), &policy.Curves{}, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		got[i] = r.Throughput
	}
	if got[0] != got[1] || got[0] <= 0 {
		t.Errorf("got %v and %v", got[0], got[1])
	}
}

func TestCurvesComeNearTheBestFixedPartition(t *testing.T) {
	h := newHost(t)
	const length = 10 * time.Minute
	best, err := h.Run(t.Context(), &rivals.Static{Shares: BestShares}, length)
	if err != nil {
		t.Fatal(err)
	}
	got, err := h.Run(t.Context(), &policy.Curves{}, length)
	if err != nil {
		t.Fatal(err)
	}
	if got.Throughput < 0.95*best.Throughput {
		t.Errorf("%.1f %% of ideal, want at least 95 %% of %.1f %%", 100*got.Throughput, 100*best.Throughput)
	}
	if at, ok := Reaches(got.Series, best.Series, 0.95, time.Minute); !ok || at > 2*time.Minute {
		t.Errorf("equilibrium after %v (%v), want at most 2 minutes", at, ok)
	}
}

func TestBestSharesAreTheBest(t *testing.T) {
	h := newHost(t)
	top, err := h.Fixed(BestShares)
	if err != nil {
		t.Fatal(err)
	}
	evenly := make(map[string]float64)
	for name := range BestShares {
		evenly[name] = 1. / float64(len(BestShares))
	}
	even, err := h.Fixed(evenly)
	if err != nil {
		t.Fatal(err)
	}
	if top <= even {
		t.Errorf("the best partition has %.3f, the even one %.3f", top, even)
	}
	if !*offline {
		return
	}
	shares, v, err := h.Best(t.Context(), evenly)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("found %v: %.4f", shares, v)
	if v > top*1.005 {
		t.Errorf("%v is better: %.4f, not %.4f", shares, v, top)
	}
}
