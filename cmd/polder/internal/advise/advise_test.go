package advise

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// population is keys that are used independently of each other, each at its own rate, as
// a sample of a server finds them after a time.
func population(keys int, perSecond, after float64, size func(i int) int64) (s *Sample, rates []float64) {
	r := rand.New(rand.NewPCG(1, 2))
	sum := 0.0
	for i := range keys {
		rates = append(rates, 1/float64(i+1))
		sum += rates[i]
	}
	s = &Sample{Keys: int64(keys), Accesses: perSecond}
	for i := range keys {
		rates[i] *= perSecond / sum
		idle := min(r.ExpFloat64()/rates[i], after)
		s.Looked = append(s.Looked, Key{Idle: int(idle + r.Float64()), Bytes: size(i)})
	}
	return s, rates
}

// lru is the hit ratio of a cache of so many bytes for such keys, by Che's approximation.
func lru(rates []float64, size func(i int) int64, bytes, perSecond float64) float64 {
	lo, hi := 0.0, 1e6
	for range 40 {
		mid := (lo + hi) / 2
		sum := 0.0
		for i, rate := range rates {
			sum += float64(size(i)) * (1 - math.Exp(-rate*mid))
		}
		if sum < bytes {
			lo = mid
		} else {
			hi = mid
		}
	}
	hits := 0.0
	for _, rate := range rates {
		hits += rate / perSecond * (1 - math.Exp(-rate*lo))
	}
	return hits
}

func TestCurveIsThatOfACacheOfWhatWasUsedLast(t *testing.T) {
	const keys, perSecond = 20_000, 1000
	for name, size := range map[string]func(int) int64{
		"of one size":       func(int) int64 { return 1000 },
		"large are hot":     func(i int) int64 { return 200 + 4000/int64(1+i/1000) },
		"large are not hot": func(i int) int64 { return 200 + int64(i)/10 },
	} {
		s, rates := population(keys, perSecond, math.Inf(1), size)
		c := NewCurve(s)
		for _, part := range []float64{0.1, 0.2, 0.4, 0.6, 0.8} {
			bytes := part * float64(c.Bytes)
			got, want := c.of(bytes), lru(rates, size, bytes, perSecond)
			if math.Abs(got-want) > 0.03 {
				t.Errorf("keys %s: a cache of %.1f of the bytes: got a hit ratio of %.3f, want %.3f", name, part, got, want)
			}
		}
	}
}

// TestABulkLoadIsNoTraffic: what was loaded a minute ago and has not been used since does
// not look as if it had been missed.
func TestABulkLoadIsNoTraffic(t *testing.T) {
	size := func(int) int64 { return 1000 }
	const perSecond = 1000
	s, rates := population(20_000, perSecond, 60, size)
	c := NewCurve(s)
	for _, part := range []float64{0.1, 0.2, 0.3} {
		bytes := part * float64(c.Bytes)
		got, want := c.of(bytes), lru(rates, size, bytes, perSecond)
		if math.Abs(got-want) > 0.03 {
			t.Errorf("a cache of %.1f of the bytes: got a hit ratio of %.3f, want %.3f", part, got, want)
		}
	}
	for _, part := range []float64{0.9, 0.95} {
		bytes := part * float64(c.Bytes)
		if got, want := c.of(bytes), lru(rates, size, bytes, perSecond); got > want+0.01 {
			t.Errorf("a cache of %.2f of the bytes: got a hit ratio of %.3f, want no more than %.3f", part, got, want)
		}
	}
	if _, atLeast := c.Hits(c.Budget(1) - 1<<20); !atLeast {
		t.Error("it does not say that there could be more hits than it knows of")
	}
}

// TestAPauseOfTheLoadChangesLittle: nothing was used for a second, four seconds ago.
func TestAPauseOfTheLoadChangesLittle(t *testing.T) {
	size := func(int) int64 { return 1000 }
	const perSecond = 1000
	s, rates := population(20_000, perSecond, math.Inf(1), size)
	for i := range s.Looked {
		if s.Looked[i].Idle >= 4 {
			s.Looked[i].Idle++
		}
	}
	c := NewCurve(s)
	for _, part := range []float64{0.2, 0.4, 0.6} {
		bytes := part * float64(c.Bytes)
		got, want := c.of(bytes), lru(rates, size, bytes, perSecond)
		if math.Abs(got-want) > 0.05 {
			t.Errorf("a cache of %.1f of the bytes: got a hit ratio of %.3f, want %.3f", part, got, want)
		}
	}
}

func TestALargerBudgetHitsMore(t *testing.T) {
	s, _ := population(20_000, 1000, 60, func(int) int64 { return 100 })
	c := NewCurve(s)
	last := -1.0
	for _, n := range c.Budgets() {
		hits, _ := c.Hits(n)
		if hits < last || hits < 0 || hits > 1 {
			t.Errorf("%d bytes: hit ratio %v after %v", n, hits, last)
		}
		last = hits
	}
	if last != 1 {
		t.Errorf("the largest budget has hit ratio %v, want 1", last)
	}
	var b strings.Builder
	if err := c.Print(&b, s); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if len(line) > 81 {
			t.Errorf("a line is longer than a terminal: %q", line)
		}
	}
}

func TestUsesAreReadsThatFoundAKeyAndWrites(t *testing.T) {
	info := "# Stats\r\nkeyspace_hits:100\r\nkeyspace_misses:7\r\n# Commandstats\r\ncmdstat_set:calls=20,usec=1\r\ncmdstat_get:calls=100,usec=1\r\ncmdstat_config|get:calls=3,usec=1\r\n"
	if got := used(info, func(c string) bool { return c == "set" }); got != 120 {
		t.Errorf("got %v uses, want 120", got)
	}
}
