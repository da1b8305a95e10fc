package vhost

import (
	"context"
	"maps"
	"slices"
)

// BestShares is the best fixed partition that Best has found, by service.
var BestShares = map[string]float64{
	"HDSearch":            0.68,
	"WiredTiger":          0.07,
	"Storage":             0.05,
	"SocialNet sessions":  0.02,
	"SocialNet timelines": 0.14,
	"SocialNet posts":     0.04,
}

// Fixed returns the throughput with a fixed partition, of ideal, in steady state: caches
// are warm before time begins.
func (h *Host) Fixed(shares map[string]float64) (float64, error) {
	s, err := h.start(Memory)
	if err != nil {
		return 0, err
	}
	for _, v := range s.services {
		v.cache.resize(int64(shares[v.Name] * Memory))
	}
	for _, w := range s.apps {
		for range 150000 {
			w.request((*Service).get, s.rand)
		}
	}
	const seconds = 60
	var sum float64
	for range seconds {
		sum += s.tick(h)
	}
	return sum / seconds, nil
}

// Best searches for the best fixed partition of the memory, offline: it can try
// any partition, where a policy has to find out while the applications run. The
// search is hill climbing from start: it moves memory between any two services as
// long as the simulated throughput rises, in steps that become finer.
func (h *Host) Best(ctx context.Context, start map[string]float64) (map[string]float64, float64, error) {
	best := maps.Clone(start)
	names := slices.Sorted(maps.Keys(start))
	top, err := h.Fixed(best)
	if err != nil {
		return nil, 0, err
	}
	for _, d := range []float64{0.1, 0.03, 0.01} {
		for improved := true; improved; {
			improved = false
			for _, to := range names {
				for _, from := range names {
					if to == from || best[from] < d {
						continue
					}
					if err := ctx.Err(); err != nil {
						return nil, 0, err
					}
					try := maps.Clone(best)
					try[to] += d
					try[from] -= d
					v, err := h.Fixed(try)
					if err != nil {
						return nil, 0, err
					}
					if v > top+2e-4 {
						top, best, improved = v, try, true
					}
				}
			}
		}
	}
	return best, top, nil
}
