package far

import "math/rand/v2"

// sampled is how many buckets of an index Stats looks at to say how much of what is
// local was used of late, and four times the pointers that it looks at. The
// estimate is off by a few per cent; to look at all of them would hold up who uses
// the heap.
const sampled = 2048

// temperature is an estimate, in bytes, of the entries of maps that are local, and of
// those of them that the evacuator would keep, since they were used of late.
type temperature struct{ local, hot float64 }

// sample looks at some n buckets of sh. sh.mu must be held.
func (sh *shard) sample(t *temperature, n int) {
	all := len(sh.t.Buckets)
	step := max(all/n, 1)
	if all == 0 {
		return
	}
	// Where an entry lies follows from the hash of its key, so that buckets at
	// equal distances are as good as random ones.
	for b := rand.IntN(step); b < all; b += step {
		for _, w := range sh.t.Buckets[b].Words {
			if w != 0 && !w.Far() {
				n := float64(w.Size() * step)
				t.local += n
				if w.Hot() > 0 {
					t.hot += n
				}
			}
		}
	}
}

// hot estimates the bytes of local memory that were used of late, of live in all.
func (h *Heap) hot(maps temperature, live int64) int64 {
	hot, objects := maps.hot, max(float64(live)-maps.local, 0)
	if part, found := h.objects.Sample(sampled / 4); found > 0 {
		hot += part * objects
	} else if maps.local > 0 {
		hot *= float64(live) / maps.local
	}
	return min(int64(hot), live)
}
