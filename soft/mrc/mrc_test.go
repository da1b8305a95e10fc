package mrc

import (
	"container/list"
	"math"
	"math/rand/v2"
	"testing"
)

// lru is the cache that the curve is about.
type lru struct {
	size, used int64
	order      *list.List
	at         map[int]*list.Element
}

func (l *lru) hit(k int, size int64) bool {
	if e, ok := l.at[k]; ok {
		l.order.MoveToFront(e)
		return true
	}
	l.at[k] = l.order.PushFront(k)
	l.used += size
	for l.used > l.size {
		e := l.order.Back()
		delete(l.at, e.Value.(int))
		l.order.Remove(e)
		l.used -= size
	}
	return false
}

func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func TestCurvePredictsWhatCachesOfEverySizeSave(t *testing.T) {
	const n, accesses, size = 20000, 400000, 1000
	for _, capacity := range []int{1 << 20, 1024} {
		z := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 8, n-1)
		s := New(64<<10, 64<<20, capacity)
		s.Advance(1, 0)
		sizes := []int64{200 * size, 2000 * size, 10000 * size}
		caches := make([]*lru, len(sizes))
		for i := range caches {
			caches[i] = &lru{size: sizes[i], order: list.New(), at: map[int]*list.Element{}}
		}
		for k := range n { // what nobody has asked for is in no cache, and on no curve
			s.Insert(mix(uint64(k)), size)
			for _, c := range caches {
				c.hit(k, size)
			}
		}
		hits := make([]int, len(caches))
		for range accesses {
			k := int(z.Uint64())
			s.Access(mix(uint64(k)), size, 1)
			for i, c := range caches {
				if c.hit(k, size) {
					hits[i]++
				}
			}
		}
		tolerance := 0.02
		if capacity < n {
			tolerance = 0.12 // eight keys in the sample of the smallest cache
		}
		s.Count(accesses)
		c := s.Curve()
		for i, size := range sizes {
			got, want := c.At(size)/accesses, float64(hits[i])/accesses
			if math.Abs(got-want) > tolerance {
				t.Errorf("capacity %d: a cache of %d bytes: predicted hit ratio %.3f, want %.3f ± %.2f", capacity, size, got, want, tolerance)
			}
		}
	}
}

func TestSamplerStaysWithinItsCapacity(t *testing.T) {
	s := New(1, 1<<30, 100)
	r := rand.New(rand.NewPCG(3, 4))
	for range 100000 {
		s.Access(r.Uint64(), 10, 1)
		if len(s.keys) > 100 {
			t.Fatalf("the sampler remembers %d keys, want at most 100", len(s.keys))
		}
	}
}

func TestAdvanceForgets(t *testing.T) {
	s := New(1, 1024, 100)
	s.Advance(1, 0)
	s.Access(1, 1, 8)
	s.Access(1, 1, 8)
	s.Count(2)
	if got := s.Curve().At(1024); got != 16 {
		t.Fatalf("saved %v a second, want 16", got)
	}
	s.Advance(1, 0.5)
	if got := s.Curve().At(1024); got != 16.0/2/1.5 {
		t.Fatalf("after an idle second at weight 0.5: saved %v a second, want %v", got, 16.0/2/1.5)
	}
}

// TestABusyCacheForgetsWhatItWas: after a time in which a few keys were asked
// for very often, all are asked for alike, and not so often.
func TestABusyCacheForgetsWhatItWas(t *testing.T) {
	const keys, size, keep = 2000, 1000, 0.99
	r := rand.New(rand.NewPCG(3, 4))
	s := New(64<<10, 64<<20, 1<<20)
	interval := func(accesses int, draw func() int) {
		s.Advance(1, 1)
		s.Count(accesses)
		for range accesses {
			s.Access(mix(uint64(draw())), size, 1)
		}
	}
	for k := range keys {
		s.Access(mix(uint64(k)), size, 1)
	}
	for range 20 {
		interval(20000, func() int { return r.IntN(keys / 20) })
		s.Advance(0, keep)
	}
	for range 6 {
		interval(2000, func() int { return r.IntN(keys) })
		s.Advance(0, keep)
	}
	c := s.Curve()
	if got := c.At(keys*size/2) / c.Accesses; math.Abs(got-0.5) > 0.15 {
		t.Errorf("half of the memory is said to save %.0f %% of the accesses, want about 50 %%", 100*got)
	}
}
