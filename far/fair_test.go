package far

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// However many scopes there are, none waits much longer to be let in than its
// turn takes: in virtual time, in which nothing takes any but the work that is
// done in scopes.
func TestScopesAreLetInInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lay := tiny
		lay.logs = 256 * int64(lay.segSize)
		local := lay.logs + int64(2*lay.staging+lay.fetch)
		const each = 8<<10 + 16*wordCost
		h, err := newHeap(NewMemStore(tinySegment, 1<<13), Config{Local: local, MaxLocal: local, ScopeBytes: each, HeldTooLong: time.Minute}, lay)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		type block [496]byte // 512 with its header
		c, err := NewClass[block](h, ClassConfig{})
		if err != nil {
			t.Fatal(err)
		}
		const crowd, rounds, work = 100, 40, 4 * time.Millisecond
		scopes := make([]*Scope, crowd)
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
					var made []Ptr[block]
					for range each / 512 {
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
		st := h.Stats()
		t.Logf("%v for %d scopes; waits p50 %v, p99 %v, longest %v; %d passes, %d segments", time.Since(begin), n, waits[n/2], waits[n*99/100], waits[n-1], st.Passes, st.EvacuatedSegments)
	})
}
