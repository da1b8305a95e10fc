package partition

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"polder/internal/invariants"
)

// wrong says why the world is not as it should be when the servers that live had time, "" if it is.
func (w *world) wrong(living map[string]*host) string {
	m := w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(m.Servers) != len(living) || !noneLeaves(m) || moves(m) > 0 {
		return "there are other servers, or something moves"
	}
	least, most := extremes(m)
	if low, high := bounds(m.Partitions, len(living)); w.load != nil && least >= low && most <= high {
		// load has shifted some, perhaps
	} else if most-least > 1 {
		return fmt.Sprintf("servers have %d to %d partitions", least, most)
	}
	for p, owner := range m.Owner {
		if living[owner] == nil || w.open[p] != living[owner] {
			return fmt.Sprintf("partition %d is not open at %s", p, owner)
		}
		for id, h := range living {
			if have := h.parts[p]; have == serving && id != owner || have == fenced || have != serving && id == owner {
				return fmt.Sprintf("%s has partition %d in state %d, and %s owns it", id, p, have, owner)
			}
		}
	}
	for _, h := range living {
		if now := h.m.Map(); !now.sameOwners(m) || now.Epoch != m.Epoch {
			return h.id + " does not know the map"
		}
	}
	return ""
}

// TestServersComeToAnAgreement while they join, leave, crash and come back, the register is slow, does not answer, or cannot be reached, and
// opening and closing fails now and then, with load and without: in the end every partition is open at the server that the map names, and there alone, and then all is calm.
func TestServersComeToAnAgreement(t *testing.T) {
	seeds := uint64(8)
	if invariants.Enabled { // "make plain" has them all
		seeds = 2
	}
	for seed := range seeds {
		for _, loaded := range []bool{false, true} {
			t.Run(fmt.Sprint(seed, " with load ", loaded), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { agree(t, seed, loaded) })
			})
		}
	}
}

func agree(t *testing.T, seed uint64, loaded bool) {
	w := newWorld(t)
	w.rng = rand.New(rand.NewPCG(seed, 1))
	rng := rand.New(rand.NewPCG(seed, 2))
	partitions := 1 + rng.IntN(24)
	if loaded {
		w.load = func(p int) float64 { return 0.01 * float64(1+p*p%7) }
	}
	living := map[string]*host{}
	leaving := map[int]chan struct{}{} // closed when the server has left
	var wg sync.WaitGroup
	start := func(n int) {
		if left := leaving[n]; left != nil {
			<-left
		}
		living[id(n)] = w.start(n, partitions)
	}
	start(0)
	for range 25 {
		n := rng.IntN(5)
		h := living[id(n)]
		switch what := rng.IntN(6); {
		case h == nil:
			start(n)
		case what == 0:
			h.setCut(false)
			delete(living, h.id)
			left := make(chan struct{})
			leaving[n] = left
			wg.Go(func() {
				h.leave()
				close(left)
			})
		case what == 1:
			h.kill()
			delete(living, h.id)
		case what == 2:
			h.setCut(true)
		case what == 3:
			h.setCut(false)
		default:
			time.Sleep(time.Duration(rng.Int64N(int64(6 * time.Second))))
		}
	}
	if len(living) == 0 {
		start(0)
	}
	for _, h := range living {
		h.setCut(false)
	}
	wg.Wait()
	time.Sleep(10 * time.Second) // until those that were cut off have beaten, or have been taken out
	why := "?"
	for began := time.Now(); why != "" && time.Since(began) < 5*time.Minute; time.Sleep(50 * time.Millisecond) {
		why = w.wrong(living)
	}
	if why != "" {
		t.Fatalf("%s: %+v", why, w.now())
	}

	if loaded {
		time.Sleep(10 * time.Minute) // in which load may move some
		if why = w.wrong(living); why != "" {
			t.Fatalf("when load was shared: %s: %+v", why, w.now())
		}
	}
	settled := w.now()
	time.Sleep(time.Minute)
	if now := w.now(); !now.sameOwners(settled) || !slices.Equal(now.Next, settled.Next) || now.Epoch != settled.Epoch {
		t.Errorf("a map that was agreed on changes: %+v becomes %+v", settled, now)
	}

	for _, h := range living {
		wg.Go(h.leave)
	}
	wg.Wait()
	if m := w.now(); len(m.Servers) > 0 || len(w.open) > 0 {
		t.Errorf("when all have left the map is %+v, and %d partitions are open", m, len(w.open))
	}
}
