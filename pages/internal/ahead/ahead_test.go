package ahead

import (
	"math/rand/v2"
	"testing"
)

// run has a stream of accesses and returns how many of its pages were read ahead in time, and
// how many that were not used.
func run(s *Streams, pages []int64, n int64) (hits, waste int) {
	there := map[int64]bool{}
	for _, page := range pages {
		for p := page; p < page+n; p++ {
			if there[p] {
				hits++
				delete(there, p)
			}
		}
		w := s.Access(page, n)
		for i := range w.Count {
			for p := w.First + i*w.Stride; p < w.First+i*w.Stride+w.N; p++ {
				there[p] = true
			}
		}
	}
	return hits, len(there)
}

func series(from, stride int64, count int) (all []int64) {
	for i := range count {
		all = append(all, from+int64(i)*stride)
	}
	return all
}

// TestStreamsAreFollowed: all but the first pages are there before they are used, whatever the
// distance, also if several streams alternate, and no more than a window in vain.
func TestStreamsAreFollowed(t *testing.T) {
	for _, c := range []struct {
		name   string
		pages  []int64
		n      int64
		missed int
	}{
		{"in a row", series(1000, 1, 500), 1, 3},
		{"backwards", series(100_000, -1, 500), 1, 3},
		{"every seventh", series(3, 7, 500), 1, 3},
		{"eight pages at a time", series(16, 8, 100), 8, 3 * 8},
		{"eight pages of every hundred", series(16, 100, 100), 8, 3 * 8},
	} {
		s := &Streams{Most: 64}
		hits, waste := run(s, c.pages, c.n)
		if want := len(c.pages)*int(c.n) - c.missed; hits < want || waste > 96 {
			t.Errorf("%s: %d pages were read in time, want %d; and %d in vain", c.name, hits, want, waste)
		}
	}
	s, mixed := &Streams{Most: 64}, []int64{}
	for i := range int64(300) {
		mixed = append(mixed, 10_000+i, 200_000-3*i, 500_000+2*i)
	}
	if hits, _ := run(s, mixed, 1); hits < len(mixed)-9 {
		t.Errorf("of three streams that alternate %d of %d pages were read in time", hits, len(mixed))
	}
}

// TestWhatIsWrongEnds: next to nothing is read ahead of accesses at random, and of one that
// was a stream no more than a window.
func TestWhatIsWrongEnds(t *testing.T) {
	random, pages := rand.New(rand.NewPCG(1, 2)), []int64(nil)
	for range 10_000 {
		pages = append(pages, random.Int64N(1<<20))
	}
	if _, waste := run(&Streams{Most: 64}, pages, 1); waste > 100 {
		t.Errorf("%d pages were read ahead of accesses at random", waste)
	}
	s := &Streams{Most: 64}
	run(s, series(0, 1, 1000), 1)
	if _, waste := run(s, pages, 1); waste > 100 {
		t.Errorf("%d pages were read ahead after a stream had ended", waste)
	}
	total := 0
	for seed := range uint64(100) { // where the stream was
		random, s := rand.New(rand.NewPCG(seed, 3)), &Streams{Most: 64}
		run(s, series(0, 1, 500), 1)
		for range 300 {
			total += int(s.Access(random.Int64N(1500), 1).Count)
		}
	}
	if total > 1000 {
		t.Errorf("%d pages were read ahead of 30000 at random where a stream had been, want next to none", total)
	}
}

// TestTheMarkIsHeard: who sees only accesses to what is not there, and the mark, reads as much ahead as who sees all.
func TestTheMarkIsHeard(t *testing.T) {
	for _, stride := range []int64{1, -3} {
		s, there, mark, missed, windows := &Streams{Most: 64}, map[int64]bool{}, int64(-1), 0, 0
		for _, page := range series(50_000, stride, 1000) {
			if there[page] && page != mark {
				continue
			}
			if !there[page] {
				missed++
			}
			w := s.Access(page, 1)
			if w.Count > 0 {
				mark = w.Mark()
				windows++
			}
			for i := range w.Count {
				there[w.First+i*w.Stride] = true
			}
		}
		if missed > 3 || windows > 25 {
			t.Errorf("with a stride of %d, %d pages of 1000 were missed, and %d windows read", stride, missed, windows)
		}
	}
}
