package rivals

import (
	"time"

	"polder/soft/policy"
)

// HillClimbing is the paper's policy (section 4.3.2): in every period it changes
// each application's budget by a small probe and watches how the application's
// utility changes; then it moves memory from the application with the least
// marginal utility to the one with the most.
//
// Published: 64 MiB probes and 256 MiB moves every 5 s on a host with 20 GiB
// to share. Here probes and moves scale with the memory; the period does not.
type HillClimbing struct {
	last  time.Duration
	begun bool
	round int
	state map[uint64]*climber
}

// climber is what HillClimbing remembers about one application.
type climber struct {
	target   int64
	memory   int64   // at the last observation
	utility  float64 // at the last observation
	slope    float64 // utility per byte, smoothed
	observed bool
}

// Divide implements policy.Policy.
func (h *HillClimbing) Divide(now time.Duration, total int64, apps []policy.App) []int64 {
	if h.state == nil {
		h.state = make(map[uint64]*climber)
	}
	even := policy.ByWeight(total, apps)
	current := make(map[uint64]*climber, len(apps))
	for i, a := range apps {
		c := h.state[a.ID]
		if c == nil {
			c = &climber{target: even[i]}
		}
		current[a.ID] = c
	}
	h.state = current
	if !h.begun || now-h.last >= 5*time.Second {
		h.begun, h.last = true, now
		h.step(total, apps)
	}
	want := make([]int64, len(apps))
	for i, a := range apps {
		want[i] = h.state[a.ID].target
	}
	out := policy.Fit(total, apps, want)
	for i, a := range apps {
		h.state[a.ID].target = out[i]
	}
	return out
}

func (h *HillClimbing) step(total int64, apps []policy.App) {
	probe := total / 320
	move := total / 80
	best, worst := -1, -1
	for i := range apps {
		a := &apps[i]
		c := h.state[a.ID]
		g := gamma(a)
		if c.observed && a.Memory != c.memory {
			slope := (g - c.utility) / float64(a.Memory-c.memory)
			c.slope = 0.5*c.slope + 0.5*max(slope, 0)
		}
		c.memory, c.utility, c.observed = a.Memory, g, true
		// An application that has not used what it was given gets no more.
		full := a.Used >= a.Memory*9/10
		if full && a.Memory < a.Max && (best < 0 || c.slope > h.state[apps[best].ID].slope) {
			best = i
		}
		if a.Memory > a.Min && (worst < 0 || c.slope < h.state[apps[worst].ID].slope) {
			worst = i
		}
	}
	if best >= 0 && worst >= 0 && best != worst && h.state[apps[best].ID].slope > h.state[apps[worst].ID].slope {
		h.state[apps[best].ID].target += move
		h.state[apps[worst].ID].target -= min(move, apps[worst].Memory-apps[worst].Min)
	}
	// The next probe: every other application gets a little more, the rest a
	// little less, and the other way round in the next step.
	h.round++
	for i, a := range apps {
		if (i+h.round)%2 == 0 {
			h.state[a.ID].target += probe
		} else {
			h.state[a.ID].target -= probe
		}
	}
}

// gamma returns an application's utility as the paper defines it.
func gamma(a *policy.App) float64 {
	if a.HasUtility {
		return a.Weight * a.Utility
	}
	return -a.Weight * a.Rebuild
}

// Cliffhanger (Cidon et al., NSDI '16) maximises the overall hit rate: each
// application has a shadow of what it evicted lately. Once a second 1/160 of the
// memory moves to the application whose misses hit its shadow most often, from the
// one where they do so least. What a miss costs plays no role.
type Cliffhanger struct {
	// Victims is how often each application missed an object that it had evicted lately,
	// since the last call of Divide. The caller sets it before each call, in the order of
	// the apps that it gives to Divide.
	Victims []float64

	last   time.Duration
	begun  bool
	target map[uint64]int64
}

// Divide implements policy.Policy.
func (c *Cliffhanger) Divide(now time.Duration, total int64, apps []policy.App) []int64 {
	even := policy.ByWeight(total, apps)
	want := make([]int64, len(apps))
	for i, a := range apps {
		t, ok := c.target[a.ID]
		if !ok {
			t = even[i]
		}
		want[i] = t
	}
	if !c.begun || now-c.last >= time.Second {
		c.begun, c.last = true, now
		move := total / 160
		best, worst := -1, -1
		for i, a := range apps {
			if a.Memory < a.Max && (best < 0 || c.Victims[i] > c.Victims[best]) {
				best = i
			}
			if a.Memory > a.Min && (worst < 0 || c.Victims[i] < c.Victims[worst]) {
				worst = i
			}
		}
		if best >= 0 && worst >= 0 && c.Victims[best] > c.Victims[worst] {
			want[best] += move
			want[worst] -= move
		}
	}
	out := policy.Fit(total, apps, want)
	c.target = make(map[uint64]int64, len(apps))
	for i, a := range apps {
		c.target[a.ID] = out[i]
	}
	return out
}
