package far

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"polder/far/heap"
)

// However many scopes there are, none waits much longer to be let in than its
// turn takes: in virtual time, in which nothing takes any but the work that is
// done in scopes.
func TestScopesAreLetInInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, c := openBricks(t, 256)
		defer h.Close()
		const crowd, rounds, work = 100, 40, 4 * time.Millisecond
		scopes := make([]*heap.Scope, crowd)
		for i := range scopes {
			scopes[i] = h.NewScope()
			defer scopes[i].Close()
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		var waits []time.Duration
		begin := time.Now()
		for id, s := range scopes {
			wg.Go(func() {
				for round := range rounds {
					start := time.Now()
					s.Enter()
					waited := time.Since(start)
					mu.Lock()
					waits = append(waits, waited)
					mu.Unlock()
					var made []Ptr[brick]
					for range bricksBytes / 512 {
						p, _, err := c.NewIn(s)
						if err != nil {
							t.Errorf("goroutine %d, round %d: %v", id, round, err)
							break
						}
						made = append(made, p)
					}
					time.Sleep(work)
					s.Leave()
					for _, p := range made[:len(made)*3/4] {
						p.Free()
					}
				}
			})
		}
		wg.Wait()
		slices.Sort(waits)
		n := len(waits)
		t.Logf("%v for %d scopes; waits p50 %v, p99 %v, longest %v", time.Since(begin), n, waits[n/2], waits[n*99/100], waits[n-1])
		// The reserve is for about half of them at a time.
		if got, most := time.Since(begin), rounds*2*work*5/4; got > most {
			t.Errorf("%d scopes of %v by %d goroutines took %v, want at most %v", n, work, crowd, got, most)
		}
		if got, most := waits[n-1], 10*work; got > most {
			t.Errorf("one waited %v to be let in, want at most %v", got, most)
		}
	})
}

// Whoever waits to be let in keeps its place, though its turn may come when there
// is no memory yet, and nobody comes before it.
func TestScopesKeepTheirPlaces(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	if _, err := NewClass[point](h, ClassConfig{}); err != nil {
		t.Fatal(err)
	}
	var scopes []*heap.Scope
	for range 64 {
		s := h.NewScope()
		defer s.Close()
		scopes = append(scopes, s)
	}
	sc := &h.core.Scopes
	if !sc.Counted {
		t.Fatalf("%d scopes need not be admitted", len(scopes))
	}
	var in []*heap.Scope
	var waiting []*heap.Ticket
	for _, s := range scopes {
		if ok, wait := h.core.TryAdmit(s, nil); ok {
			in = append(in, s)
		} else {
			waiting = append(waiting, wait)
		}
	}
	if len(in) == 0 || len(waiting) < 4 {
		t.Fatalf("%d scopes are in and %d wait, want some and at least 4", len(in), len(waiting))
	}
	places := func(when string) {
		t.Helper()
		sc.Mu.Lock()
		defer sc.Mu.Unlock()
		if !slices.Equal(sc.Queue, waiting) {
			t.Errorf("%s the queue is not in the order of those who came", when)
		}
	}
	places("at first")
	for range 3 {
		sc.RoomMade()
	}
	for _, i := range []int{1, 2, 0} { // there is no room
		<-waiting[i].Called
		if ok, _ := h.core.TryAdmit(scopes[len(in)+i], waiting[i]); ok {
			t.Fatalf("%d scopes are in, and another one is let in", len(in))
		}
	}
	places("after three were called in vain")
	// One leaves, and before the first has noticed comes another one.
	sc.Dismiss()
	if ok, _ := h.core.TryAdmit(scopes[0], nil); ok {
		t.Error("a scope is let in before those that wait")
	}
	<-waiting[0].Called
	if ok, _ := h.core.TryAdmit(scopes[len(in)], waiting[0]); !ok {
		t.Error("the first is not let in though there is room")
	}
	for range in {
		sc.Dismiss()
	}
	for _, s := range scopes {
		s.ClearExtra(heap.ScopeCounted)
	}
}
