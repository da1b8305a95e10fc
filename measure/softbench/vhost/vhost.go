// Package vhost is a host in virtual time: table 1's four applications share
// too little memory under a policy, on a machine 256 times smaller than the
// published one. It answers in seconds what takes a real host hours, and the
// answer is the same every time.
//
// Nothing here is for concurrent use.
package vhost

import (
	"context"
	"math/rand/v2"
	"time"

	"polder/measure/softbench/rivals"
	"polder/soft/mrc"
	"polder/soft/policy"
)

// Memory is what the applications share: 20 GiB, scaled.
const Memory = 20 * gib / Scale

const (
	unit    = 64 * kib // bytes of a step of the curves
	samples = 4096     // number of keys whose reuse distances are measured
	step    = time.Second
)

// stats is what a service reports.
type stats struct {
	hits, misses, victims float64 // since the last report
	rebuild               float64
	typical               float64 // seconds of rebuilding an object, on average lately
	sampler               *mrc.Sampler
	salt                  uint64
}

// get asks for an object and returns how many seconds it takes to rebuild it, or 0
// if it is cached. That includes nested, which the reconstructor asks of other services.
func (s *Service) get(k int32, nested func() float64) float64 {
	hit, victim := s.cache.access(k)
	cost := s.typical
	if hit {
		s.hits++
	} else {
		s.misses++
		if victim {
			s.victims++
		}
		cost = s.Rebuild(nested)
		s.typical += (cost - s.typical) / 100
		s.rebuild += cost
	}
	s.sampler.Count(1)
	if x := mix(uint64(k) ^ s.salt); x <= s.sampler.Threshold() {
		s.sampler.Access(x, int64(s.Sizes[k]), cost)
	}
	if hit {
		return 0
	}
	return cost
}

func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Result is how a policy did.
type Result struct {
	Throughput  float64            // of ideal, the applications' mean, in the last third
	Apps        map[string]float64 // of ideal, each application's, in the last third
	Memory      int64              // used at the end
	Shares      map[string]int64   // budgets at the end
	Settled     time.Duration      // from then on no budget is off its final mean by over 5 % of Memory
	Equilibrium time.Duration      // from then on the throughput, smoothed over 20 s, is at 97 % of Throughput
	Series      []Point
}

// Point is the state at a time.
type Point struct {
	At         time.Duration
	Throughput float64
	Memory     int64
}

// Host runs policies over the same applications and requests.
type Host struct {
	ideal       map[string]float64 // requests a second
	idealMemory int64
}

// New computes the ideal: each application's throughput with everything in memory, and how much memory that takes.
func New(ctx context.Context) (*Host, error) {
	h := &Host{}
	apps, err := Apps()
	if err != nil {
		return nil, err
	}
	h.ideal = make(map[string]float64)
	for _, w := range apps {
		h.ideal[w.Name] = w.cores / w.base / Scale
		for _, s := range w.Services {
			for _, x := range s.Sizes {
				h.idealMemory += int64(x)
			}
		}
	}
	return h, ctx.Err()
}

// IdealMemory returns the bytes of all objects together.
func (h *Host) IdealMemory() int64 { return h.idealMemory }

// sim is a simulation that is running.
type sim struct {
	apps     []*App
	services []*Service
	rand     *rand.Rand
}

func (h *Host) start(memory int64) (*sim, error) {
	apps, err := Apps()
	if err != nil {
		return nil, err
	}
	s := &sim{apps: apps, rand: rand.New(rand.NewPCG(11, 13))}
	for _, w := range apps {
		for _, v := range w.Services {
			v.stats = &stats{sampler: mrc.New(unit, 2*Memory, samples), salt: uint64(len(s.services)) << 40, typical: v.cost}
			v.cache = newCache(v.Sizes, memory/100)
			s.services = append(s.services, v)
		}
	}
	return s, nil
}

// tick lets every application work for one step. It returns the mean of their
// throughputs, each as a part of its ideal.
func (s *sim) tick(h *Host) (mean float64) {
	for _, w := range s.apps {
		// In a second the scaled application has cores/Scale seconds of work.
		w.spent -= w.cores / Scale * step.Seconds()
		n := 0.0
		for w.spent < 0 {
			w.spent += w.base + w.request((*Service).get, s.rand)
			n++
		}
		w.requests = n / step.Seconds() / h.ideal[w.Name]
		mean += w.requests / float64(len(s.apps))
	}
	return mean
}

// Run lets a policy divide the memory for length of virtual time.
func (h *Host) Run(ctx context.Context, p policy.Policy, length time.Duration) (Result, error) {
	s, err := h.start(Memory)
	if err != nil {
		return Result{}, err
	}
	budgets := make([]int64, len(s.services))
	for i := range budgets {
		budgets[i] = Memory / int64(len(budgets))
		s.services[i].cache.resize(budgets[i])
	}
	var history [][]int64
	perApp := make(map[string]float64)
	counted := 0.0
	var res Result
	for now := step; now <= length; now += step {
		if err := ctx.Err(); err != nil {
			return res, err
		}
		mean := s.tick(h)
		var used int64
		for _, v := range s.services {
			used += v.cache.used
		}
		res.Series = append(res.Series, Point{now, mean, used})
		if now > length*2/3 {
			counted++
			res.Throughput += mean
			for _, w := range s.apps {
				perApp[w.Name] += w.requests
			}
		}
		if c, ok := p.(*rivals.Cliffhanger); ok {
			c.Victims = s.victims()
		}
		for i, m := range p.Divide(now, Memory, s.report()) {
			budgets[i] = m
			s.services[i].cache.resize(m)
		}
		history = append(history, append([]int64(nil), budgets...))
		res.Memory = used
	}
	res.Apps, res.Shares = make(map[string]float64), make(map[string]int64)
	for name, v := range perApp {
		res.Apps[name] = v / counted
	}
	res.Throughput /= counted
	for i, v := range s.services {
		res.Shares[v.Name] = budgets[i]
	}
	res.Settled = settled(history)
	res.Equilibrium = equilibrium(res.Series, 0.97*res.Throughput)
	return res, nil
}

// report returns what the policy is told of each service, and begins the next interval.
func (s *sim) report() []policy.App {
	var out []policy.App
	for _, w := range s.apps {
		for _, v := range w.Services {
			v.sampler.Advance(step.Seconds(), 1)
			// Rebuild, the curve and Busy are all the scaled application's.
			c := v.sampler.Curve()
			v.sampler.Advance(0, 0.995)
			out = append(out, policy.App{
				ID: uint64(len(out) + 1), Name: v.Name, Weight: 1,
				Memory: v.cache.capacity, Used: v.cache.used, Max: 2 * Memory,
				Min:  Memory / 400,
				Hits: v.hits, Misses: v.misses,
				Rebuild: v.stats.rebuild, Curve: c, Busy: w.cores / Scale,
			})
			v.hits, v.misses, v.victims, v.stats.rebuild = 0, 0, 0, 0
		}
	}
	return out
}

// victims returns how often each service missed an object that it had evicted lately, since the
// last report and in the report's order.
func (s *sim) victims() (out []float64) {
	for _, v := range s.services {
		out = append(out, v.victims)
	}
	return out
}

// settled returns the time from which on no budget is more than a twentieth of the
// memory off its mean over the last quarter.
func settled(history [][]int64) (at time.Duration) {
	last := history[len(history)*3/4:]
	for i := range history[0] {
		var mean int64
		for _, b := range last {
			mean += b[i] / int64(len(last))
		}
		for t, b := range history {
			if d := b[i] - mean; d > Memory/20 || d < -Memory/20 {
				at = max(at, time.Duration(t+1)*step)
			}
		}
	}
	return at
}

// equilibrium returns the time from which on the throughput, smoothed over 20 s,
// stays at or above level.
func equilibrium(series []Point, level float64) time.Duration {
	const window = 20
	at := time.Duration(0)
	sum := 0.0
	for i, p := range series {
		sum += p.Throughput
		if i >= window {
			sum -= series[i-window].Throughput
		}
		if sum/float64(min(i+1, window)) < level {
			at = p.At
		}
	}
	return at
}

// Reaches returns the time from which on the throughput of a stays at or above part
// times that of b at the same moment, both smoothed over smooth. Both take the same
// time to fill caches, so what counts is how long a takes to find out who should have
// the memory. ok is false if a is still below in the last tenth of the time, or if
// there are no points. The points must be evenly spaced.
func Reaches(a, b []Point, part float64, smooth time.Duration) (at time.Duration, ok bool) {
	n := min(len(a), len(b))
	if n == 0 {
		return 0, false
	}
	window := max(int(smooth/a[0].At), 1)
	var sa, sb float64
	for i := range n {
		sa += a[i].Throughput
		sb += b[i].Throughput
		if i >= window {
			sa -= a[i-window].Throughput
			sb -= b[i-window].Throughput
		}
		if sa < part*sb {
			at = a[i].At
		}
	}
	return max(at, smooth), at < a[n-1].At*9/10
}
