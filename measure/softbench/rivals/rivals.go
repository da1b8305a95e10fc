// Package rivals has the policies with which the coordinator's own, policy.Curves, is compared:
// the paper's, Cliffhanger's, fixed partitions, and policy.Curves with the paper's objective.
//
// Nothing here is for concurrent use.
package rivals

import (
	"slices"
	"time"

	"polder/soft/policy"
)

// Even divides the memory by weight alone. What an application's bounds do not let
// it have goes to the others.
type Even struct{}

// Divide implements policy.Policy.
func (Even) Divide(_ time.Duration, total int64, apps []policy.App) []int64 {
	return policy.Fit(total, apps, policy.ByWeight(total, apps))
}

// Static gives each application a fixed share, by weight: memory that an
// application does not use is used by nobody. Shares are computed anew only when
// applications come or go.
type Static struct {
	// Shares, if set, are the operator's, by Name, as fractions of the memory.
	Shares map[string]float64

	shares map[uint64]float64
}

// Divide implements policy.Policy.
func (s *Static) Divide(_ time.Duration, total int64, apps []policy.App) []int64 {
	out := make([]int64, len(apps))
	if s.Shares != nil {
		for i, a := range apps {
			out[i] = min(int64(s.Shares[a.Name]*float64(total)), a.Max)
		}
		return out
	}
	known := len(s.shares) == len(apps)
	for _, a := range apps {
		_, ok := s.shares[a.ID]
		known = known && ok
	}
	if !known {
		s.shares = make(map[uint64]float64)
		var sum float64
		for _, a := range apps {
			sum += a.Weight
		}
		for _, a := range apps {
			s.shares[a.ID] = a.Weight / sum
		}
	}
	for i, a := range apps {
		out[i] = min(int64(s.shares[a.ID]*float64(total)), a.Max)
	}
	return out
}

// Saved is policy.Curves without knowing how busy the applications are: so it maximises the
// rebuilding time that is saved, as the paper does, and not the applications' throughput.
type Saved struct{ policy.Curves }

// Divide implements policy.Policy.
func (s *Saved) Divide(now time.Duration, total int64, apps []policy.App) []int64 {
	apps = slices.Clone(apps)
	for i := range apps {
		apps[i].Busy = 0
	}
	return s.Curves.Divide(now, total, apps)
}
