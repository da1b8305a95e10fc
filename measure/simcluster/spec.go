package simcluster

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// Spec says what is simulated, and what was published about it.
type Spec struct {
	About   string  `json:"about"`
	Cluster Cluster `json:"cluster"`
	// Order is the order of the kinds of jobs in a mix.
	Order []string         `json:"order_of_mix"`
	Jobs  map[string]*Kind `json:"jobs"`
	// Published are means of the ratio, over many mixes.
	Published map[string]struct {
		Runs int     `json:"runs"`
		Mean float64 `json:"mean_ratio"`
	} `json:"published"`
	Runs []Mix `json:"runs"`

	kinds []*Kind // in Order
}

// Cluster says what machines there are. Sizes are in MiB.
type Cluster struct {
	Servers     int     `json:"servers"`
	CPUs        int     `json:"cpus_per_server"`
	Memory      int     `json:"mem_mib_per_server"`
	Far         int     `json:"far_mib_total"`
	Partition   int     `json:"far_mib_per_server_when_static"`
	Jobs        int     `json:"jobs"`
	Seconds     float64 `json:"arrivals_uniform_over_s"`
	ReclaimCPUs int     `json:"reclaim_cpus_per_server"` // what reclaiming takes if there is far memory
}

// Kind is a kind of job.
type Kind struct {
	Memory   int     `json:"mem_mib"`
	CPUs     int     `json:"cpus"`
	MinLocal float64 `json:"min_local"` // the least share of its memory that must be local
	// Seconds is how long it takes with a share of its memory local.
	Seconds map[string]float64 `json:"seconds_at_local_fraction"`

	at    int // index in Order, and in Mix.Percent
	curve []point
}

// point is a point of a kind's curve.
type point struct{ local, seconds float64 }

// Mix is a published run.
type Mix struct {
	Seed    uint64  `json:"seed"`
	Percent []int   `json:"mix_percent"` // of each kind
	Ratio   float64 `json:"fastswap_over_finemem_makespan"`
}

// Read reads a Spec and checks it.
func Read(r io.Reader) (*Spec, error) {
	s := new(Spec)
	if err := json.NewDecoder(r).Decode(s); err != nil {
		return nil, fmt.Errorf("cannot read a cluster: %w", err)
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("cannot simulate the cluster: %w", err)
	}
	return s, nil
}

// Most that a file may ask for: more would take hours and prove nothing.
const (
	mostServers = 1000
	mostJobs    = 10_000
	mostRuns    = 1000
	mostMiB     = 1 << 30
)

func (s *Spec) check() error {
	c := &s.Cluster
	for _, n := range []struct {
		name      string
		v, lo, hi int
	}{
		{"servers", c.Servers, 1, mostServers}, {"cpus_per_server", c.CPUs, 1, 1 << 16}, {"mem_mib_per_server", c.Memory, 1, mostMiB},
		{"far_mib_total", c.Far, 1, mostMiB}, {"far_mib_per_server_when_static", c.Partition, 0, mostMiB},
		{"jobs", c.Jobs, 1, mostJobs}, {"reclaim_cpus_per_server", c.ReclaimCPUs, 0, c.CPUs - 1},
		{"kinds in order_of_mix", len(s.Order), 1, 100}, {"runs", len(s.Runs), 1, mostRuns},
	} {
		if n.v < n.lo || n.v > n.hi {
			return fmt.Errorf("%s: got %d, want %d to %d", n.name, n.v, n.lo, n.hi)
		}
	}
	if !(c.Seconds >= 0 && c.Seconds <= 1e9) {
		return fmt.Errorf("arrivals_uniform_over_s: got %v, want 0 to 1e9", c.Seconds)
	}
	for i, name := range s.Order {
		k := s.Jobs[name]
		if k == nil {
			return fmt.Errorf("order_of_mix names %q, which is not among the jobs", name)
		}
		if slices.Contains(s.Order[:i], name) {
			return fmt.Errorf("order_of_mix names %q twice", name)
		}
		if err := k.check(c); err != nil {
			return fmt.Errorf("job %q: %w", name, err)
		}
		k.at = i
		s.kinds = append(s.kinds, k)
	}
	for i, m := range s.Runs {
		sum := 0
		for _, p := range m.Percent {
			if p < 0 || p > 100 {
				return fmt.Errorf("run %d: got %d %% of a kind, want 0 to 100", i+1, p)
			}
			sum += p
		}
		if len(m.Percent) != len(s.kinds) || sum != 100 {
			return fmt.Errorf("run %d: mix_percent is %v, want %d numbers that make 100", i+1, m.Percent, len(s.kinds))
		}
		if !(m.Ratio > 0 && m.Ratio < 1000) {
			return fmt.Errorf("run %d: fastswap_over_finemem_makespan is %v, want more than 0 and less than 1000", i+1, m.Ratio)
		}
	}
	return nil
}

func (k *Kind) check(c *Cluster) error {
	switch {
	case k.Memory < 1 || k.Memory > c.Memory:
		return fmt.Errorf("mem_mib is %d, want 1 to %d, which a server has", k.Memory, c.Memory)
	case k.CPUs < 1 || k.CPUs > c.CPUs-c.ReclaimCPUs:
		return fmt.Errorf("cpus is %d, want 1 to %d, which a server has besides those that reclaim", k.CPUs, c.CPUs-c.ReclaimCPUs)
	case !(k.MinLocal > 0 && k.MinLocal <= 1):
		return fmt.Errorf("min_local is %v, want more than 0 and at most 1", k.MinLocal)
	}
	for text, seconds := range k.Seconds {
		local, err := strconv.ParseFloat(text, 64)
		if err != nil || !(local > 0 && local <= 1) || !(seconds > 0 && seconds <= 1e9) {
			return fmt.Errorf("seconds_at_local_fraction has %q: %v, want a share up to 1 and a number of seconds", text, seconds)
		}
		k.curve = append(k.curve, point{local, seconds})
	}
	slices.SortFunc(k.curve, func(a, b point) int {
		return cmp.Compare(a.local, b.local)
	})
	if n := len(k.curve); n == 0 || k.curve[n-1].local != 1 || k.curve[0].local > k.MinLocal {
		return errors.New("seconds_at_local_fraction must reach from min_local to 1")
	}
	return nil
}

// least is how much of its memory must be local, in MiB.
func (k *Kind) least() float64 { return k.MinLocal * float64(k.Memory) }

// seconds is how long a job of the kind takes with a share of its memory local: on the straight line between the two
// measured points around it.
func (k *Kind) seconds(local float64) float64 {
	i, found := slices.BinarySearchFunc(k.curve, local, func(p point, at float64) int {
		return cmp.Compare(p.local, at)
	})
	switch {
	case found:
		return k.curve[i].seconds
	case i == 0:
		return k.curve[0].seconds
	case i == len(k.curve):
		return k.curve[i-1].seconds
	}
	a, b := k.curve[i-1], k.curve[i]
	return a.seconds + (b.seconds-a.seconds)*(local-a.local)/(b.local-a.local)
}
