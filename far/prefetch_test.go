package far

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"polder/far/heap"
)

func TestStridesAreFound(t *testing.T) {
	for _, c := range []struct {
		name string
		seen []int
		want []int // asked for at the last one
	}{
		{"one access", []int{5}, nil},
		{"two accesses", []int{5, 6}, nil},
		{"in sequence", []int{5, 6, 7}, []int{8, 9, 10, 11}},
		{"backwards", []int{9, 8, 7}, []int{6, 5, 4, 3}},
		{"a stride", []int{0, 10, 20}, []int{30, 40, 50, 60}},
		{"the same again", []int{5, 6, 6, 6, 7}, []int{8, 9, 10, 11}},
		{"most of the window is left", []int{5, 6, 7, 8}, nil},
		{"half is left", []int{5, 6, 7, 8, 9}, []int{12, 13}},
		{"hot ones are skipped", []int{5, 6, 7, 10}, []int{12, 13, 14}},
		{"another stride", []int{5, 6, 7, 20, 22, 24}, []int{26, 28, 30, 32}},
		{"no stride", []int{5, 9, 2, 30, 1}, nil},
	} {
		var p Stride
		var got []int
		for _, i := range c.seen {
			got = p.Access(i, 4, nil)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: after %v got %v, want %v", c.name, c.seen, got, c.want)
		}
	}
}

// A random order asks for little.
func TestRandomAccessIsLeftAlone(t *testing.T) {
	var p Stride
	r := rand.New(rand.NewPCG(1, 2))
	asked := 0
	for range 10_000 {
		asked += len(p.Access(r.IntN(1<<20), 16, nil))
	}
	if asked > 100 {
		t.Errorf("%d objects were asked for in 10,000 random accesses", asked)
	}
}

// What is in flight grows to what bandwidth and latency take, and no further;
// where they take little, to usualAhead.
func TestTheWindowFollowsBandwidthTimesLatency(t *testing.T) {
	for _, c := range []struct {
		bandwidth   float64 // bytes a second
		latency     time.Duration
		least, most int64
	}{
		{1e9, 100 * time.Microsecond, usualAhead, usualAhead}, // it takes 100 KB
		{1e9, 10 * time.Millisecond, 10e6, 30e6},
		{10e9, 10 * time.Millisecond, 100e6, 300e6},
	} {
		h := openObjects(t, heap.NewMemStore(tinySegment, 16), 16)
		h.core.Budget.Store(1 << 34)
		ph := &h.ahead
		for range 2000 {
			// All that is in flight comes in within the latency, or as long as it
			// takes on the wire.
			flight := ph.inFlight()
			took := max(c.latency, time.Duration(float64(flight)/c.bandwidth*1e9))
			before := ph.delivered.Load()
			for range prefetchers - 1 {
				ph.delivered.Add(flight / prefetchers)
			}
			ph.measure(h, before, flight/prefetchers, took)
		}
		if got := ph.inFlight(); got < c.least || got > c.most {
			t.Errorf("%d bytes are in flight over a link of %.0e B/s and %v, want %d to %d", got, c.bandwidth, c.latency, c.least, c.most)
		}
		h.core.Budget.Store(1 << 20)
		ph.measure(h, ph.delivered.Load(), 1<<20, time.Millisecond)
		if got := ph.inFlight(); got != 1<<20/8 {
			t.Errorf("%d bytes are in flight with a budget of 1 MiB, want an eighth of it", got)
		}
	}
}

// recorder is a Prefetcher that sees everything and asks for the next one.
type recorder struct{ seen *[]int }

func (r recorder) Access(i, window int, dst []int) []int {
	*r.seen = append(*r.seen, i)
	return append(dst, i+1, -5, 1<<40) // two of which are nowhere
}

func TestPrefetchersArePluggable(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	var seen []int
	a := newArray[int64](t, h, 60_000, StructureConfig{Group: 128, NewPrefetcher: func() Prefetcher { return recorder{&seen} }})
	s := h.NewScope()
	defer s.Close()
	for _, b := range a.MutChunks(s, 0, a.Len()) {
		b[0]++
	}
	seen = seen[:0]
	for range a.Chunks(s, 0, a.Len()) {
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	want := make([]int, (60_000+127)/128)
	for i := range want {
		want[i] = i
	}
	if !slices.Equal(seen, want) {
		t.Errorf("the prefetcher saw %d objects, want %d in order", len(seen), len(want))
	}
	if st := a.Stats(); st.Prefetch.Issued == 0 {
		t.Errorf("nothing was prefetched: %+v", st)
	}
}

// A walk through elements by At is a sequence, too, and hints are heeded.
func TestHintsAndElementsPrefetch(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	a := newArray[int64](t, h, 60_000, StructureConfig{Group: 128})
	s := h.NewScope()
	defer s.Close()
	for _, b := range a.MutChunks(s, 0, a.Len()) {
		b[0]++
	}
	before := a.Stats().Prefetch.Issued
	for i := 0; i < a.Len(); i += 64 {
		s.Enter()
		if p := a.At(i).Deref(s); p == nil || i%128 == 0 && *p != 1 {
			t.Fatalf("element %d: %v, %v", i, p, s.Err())
		}
		s.Leave()
	}
	walked := a.Stats().Prefetch.Issued
	if walked == before {
		t.Error("a walk by At was not found to be one")
	}
	a.DontNeed(0, a.Len())
	wait := 0
	for i := range 1000 / 128 {
		if !a.At(i * 128).IsLocal() {
			wait++
		}
	}
	if err := a.Prefetch(t.Context(), 0, 1000); err != nil {
		t.Fatal(err)
	}
	for i := range 1000 / 128 {
		if !a.At(i * 128).IsLocal() {
			t.Errorf("element %d is far after Prefetch, as %d groups were before", i*128, wait)
		}
	}
}
