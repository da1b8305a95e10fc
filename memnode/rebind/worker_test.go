package rebind

import (
	"iter"
	"math/rand/v2"
	"testing"

	"polder/memnode/twolayer"
)

// A turnOf is who takes steps in a world of a worker and of clients that free.
type turnOf struct {
	next  func() (struct{}, bool)
	stop  func()
	ready func() bool // it can take its next step; nil: always
	over  bool
}

// TestNoFreeIsMissed: the worker and two clients that free, in many orders of their
// steps. In the end the worker sleeps and has seen all, and no doorbell came that
// there was no receive for.
func TestNoFreeIsMissed(t *testing.T) {
	for seed := range uint64(2000) {
		if sleepWorld(t, []int{2, 2}, rand.New(rand.NewPCG(seed, 0))); t.Failed() {
			t.Fatalf("with the seed %d", seed)
		}
	}
}

// sleepWorld runs a world of clients that free so often each.
func sleepWorld(t *testing.T, frees []int, rng *rand.Rand) {
	l, err := twolayer.NewLayout(1<<20, twolayer.DefaultUnit)
	if err != nil {
		t.Fatal(err)
	}
	table, err := twolayer.NewTable(make([]byte, l.Bytes()), l)
	if err != nil {
		t.Fatal(err)
	}
	w := &Worker{backlog: newBacklog(l.Sections()), table: table, seen: make([]uint64, l.Sections())}
	bells := make([]int, len(frees)) // since their receives were posted
	rang := func() (any bool) {
		for _, n := range bells {
			any = any || n > 0
		}
		return any
	}
	actor := func(f func(step func())) *turnOf {
		a := &turnOf{}
		a.next, a.stop = iter.Pull(func(yield func(struct{}) bool) {
			defer func() {
				if r := recover(); r != nil && r != any(a) {
					panic(r)
				}
			}()
			f(func() {
				if !yield(struct{}{}) {
					panic(any(a))
				}
			})
		})
		return a
	}
	var node *turnOf
	node = actor(func(step func()) {
		w.step = step
		for {
			node.ready = nil
			clear(bells)
			rest := w.Turn()
			for !w.empty() {
				w.dequeue()
			}
			if rest == SlowPoll {
				node.ready = rang
			}
			step()
		}
	})
	all := []*turnOf{node}
	for i, n := range frees {
		all = append(all, actor(func(step func()) {
			last := uint64(0)
			for range n {
				step()
				table.Release(1, twolayer.Extent{}, func(string) {}) // counts a free
				step()
				if state := table.Worker(); state&1 == 1 && state != last {
					last = state
					step()
					if bells[i]++; bells[i] > Doorbells {
						t.Errorf("%d doorbells, and the node has %d receives", bells[i], Doorbells)
					}
				}
			}
		}))
	}
	defer func() {
		for _, a := range all {
			a.stop()
		}
	}()
	for range 1000 {
		var ready []*turnOf
		for _, a := range all {
			if !a.over && (a.ready == nil || a.ready()) {
				ready = append(ready, a)
			}
		}
		if len(ready) == 0 {
			for i := range w.seen {
				if n := table.Frees(uint32(i)); n != w.seen[i] {
					t.Errorf("the worker sleeps and has seen %d frees of %d", w.seen[i], n)
				}
			}
			return
		}
		a := ready[rng.IntN(len(ready))]
		if _, on := a.next(); !on {
			a.over = true
		}
	}
	t.Error("the worker does not come to rest")
}
