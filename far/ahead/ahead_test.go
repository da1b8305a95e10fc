package ahead

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/far/heap"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

// plain is a heap with a large budget, of which nothing else is used.
func plain() *heap.Heap {
	core := new(heap.Heap)
	core.Budget.Store(1 << 34)
	core.Logs.SegSize = 64 << 10 // for Expect
	return core
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
		core := plain()
		var e Engine
		e.Init(core, nil)
		for range 2000 {
			// All that is in flight comes in within the latency, or as long as it
			// takes on the wire.
			flight := e.InFlight()
			took := max(c.latency, time.Duration(float64(flight)/c.bandwidth*1e9))
			before := e.delivered.Load()
			for range goroutines - 1 {
				e.delivered.Add(flight / goroutines)
			}
			e.measure(before, flight/goroutines, took)
			e.adjust()
		}
		if got := e.InFlight(); got < c.least || got > c.most {
			t.Errorf("%d bytes are in flight over a link of %.0e B/s and %v, want %d to %d", got, c.bandwidth, c.latency, c.least, c.most)
		}
		core.Budget.Store(1 << 20)
		e.measure(e.delivered.Load(), 1<<20, time.Millisecond)
		e.adjust()
		if got := e.InFlight(); got != 1<<20/8 {
			t.Errorf("%d bytes are in flight with a budget of 1 MiB, want an eighth of it", got)
		}
	}
}

// With little in flight, all jobs may come too late. That must not keep it little.
func TestJobsThatComeTooLateDoNotKeepTheWindowSmall(t *testing.T) {
	core := plain()
	var e Engine
	e.Init(core, nil)
	e.rate.Store(1e9)
	e.latency.Store(int64(100 * time.Microsecond))
	for e.adjust(); e.InFlight() >= usualAhead; {
		e.adjust()
	}
	for range 8 {
		e.run(&job{n: 1, refs: [JobObjects]uint64{7}}) // object 7 has been used meanwhile
	}
	if got := e.InFlight(); got != usualAhead {
		t.Errorf("after 8 jobs that came too late %d bytes may be in flight, want %d", got, usualAhead)
	}
}

// While much is fetched ahead, the evacuator keeps room for that; while little is, it does not.
func TestRoomIsKeptWhileObjectsAreFetchedAhead(t *testing.T) {
	var e Engine
	e.Init(plain(), nil)
	for _, c := range []struct{ came, at, after int64 }{{40 << 10, 10 << 10, 10 << 10}, {100 << 20, usualAhead, usualAhead}, {40 << 10, usualAhead, 10 << 10}, {0, 10 << 10, 0}} {
		e.delivered.Add(c.came)
		if e.adjust(); e.expected.Load() != c.at {
			t.Errorf("when %d bytes have come in, room is kept for %d, want %d", c.came, e.expected.Load(), c.at)
		}
		if e.Chores(); e.expected.Load() != c.after {
			t.Errorf("after %d bytes have come in, room is kept for %d, want %d", c.came, e.expected.Load(), c.after)
		}
	}
}

// Objects of which each is a power of two behind the last have slots of their own.
func TestObjectsOfAStrideHaveSlotsOfTheirOwn(t *testing.T) {
	var e Engine
	for stride := uint64(1); stride <= 1<<20; stride *= 2 {
		has := map[*atomic.Uint64]bool{}
		for i := range uint64(Most) {
			has[e.slot(12345+i*stride)] = true
		}
		if len(has) < Most*3/4 {
			t.Errorf("%d objects with a stride of %d have %d slots", Most, stride, len(has))
		}
	}
}
