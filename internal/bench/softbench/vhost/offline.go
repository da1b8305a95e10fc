package vhost

import "context"

// BestShares is the best fixed partition that Best has found, by service in
// the order of Apps.
var BestShares = []float64{0.68, 0.07, 0.05, 0.02, 0.14, 0.04}

// Fixed evaluates a fixed partition in its steady state: caches are warm
// before time begins.
func (h *Host) Fixed(shares []float64) (float64, error) {
	s, err := h.start(Memory)
	if err != nil {
		return 0, err
	}
	for i, v := range s.services {
		v.cache.resize(int64(shares[i] * Memory))
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

// Best finds the best fixed partition of the memory offline: it knows the
// applications' throughput at every size, where a policy has to find out. The
// search climbs on the simulation itself, moving memory between each two
// services, in steps that become finer.
func (h *Host) Best(ctx context.Context, start []float64) ([]float64, float64, error) {
	best := append([]float64(nil), start...)
	n := len(best)
	score := h.Fixed
	top, err := score(best)
	if err != nil {
		return nil, 0, err
	}
	for _, d := range []float64{0.1, 0.03, 0.01} {
		for improved := true; improved; {
			improved = false
			for i := range n {
				for j := range n {
					if i == j || best[j] < d {
						continue
					}
					if err := ctx.Err(); err != nil {
						return nil, 0, err
					}
					try := append([]float64(nil), best...)
					try[i], try[j] = try[i]+d, try[j]-d
					v, err := score(try)
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
