package remote

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"polder/far"
	"polder/internal/invariants"
	"polder/memnode"
	"polder/pool"
	"polder/pool/pooltest"
)

// newLeafyHeap makes a heap of 4 MiB and a map of so many entries, of which most leaves are far.
func newLeafyHeap(t testing.TB, s far.Store, keys int) (*far.Heap, *far.Map[int, [64]byte]) {
	t.Helper()
	h := newFarHeap(t, s)
	m, err := far.NewMap(h, far.MapConfig[int, [64]byte]{Name: "numbers"})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for id := range 8 {
		wg.Go(func() {
			for i := id; i < keys; i += 8 {
				if err := m.Set(context.Background(), i, valueOf(i, 0)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return h, m
}

func valueOf(i, version int) (v [64]byte) {
	copy(v[:], fmt.Sprint(i, " ", version))
	return v
}

const leafyKeys = 60_000

// TestAMapIsLookedUpAtTheNode: keys of which the leaves are far, by one and by many, are found by the node that computes, and
// are the same that are read from one that does not.
func TestAMapIsLookedUpAtTheNode(t *testing.T) {
	for _, c := range []struct {
		name       string
		setup      pooltest.Setup
		components int64
		nodes      int
		found      bool
	}{
		{"over inproc, at two nodes", pooltest.Inproc, 16 << 20, 2, true},
		{"over TCP", pooltest.TCP, 16 << 20, 1, true},
		{"over SHM", pooltest.SHM, 16 << 20, 1, false},
		{"by reading, from a node that does not compute", pooltest.Inproc, 0, 1, false},
	} {
		if invariants.Enabled && c.nodes == 1 {
			continue // it is the store that differs, and takes long with the race detector
		}
		t.Run(c.name, func(t *testing.T) {
			cfgs := make([]memnode.Config, c.nodes)
			for i := range cfgs {
				cfgs[i] = lends(c.components)
			}
			h, m := newLeafyHeap(t, NewStore(pooltest.NewCluster(t, c.setup, cfgs...).Open(pool.Config{}).Pool), leafyKeys)
			r := rand.New(rand.NewPCG(5, 6))
			keys := make([]int, 1500)
			vs, ok := make([][64]byte, len(keys)), make([]bool, len(keys))
			for range 2 {
				for i := range keys {
					keys[i] = r.IntN(leafyKeys + leafyKeys/8) // some are absent
				}
				if err := m.GetMany(t.Context(), keys, vs, ok); err != nil {
					t.Fatal(err)
				}
				for i, k := range keys {
					if ok[i] != (k < leafyKeys) || ok[i] && vs[i] != valueOf(k, 0) {
						t.Fatalf("key %d: got %q, %v", k, vs[i][:12], ok[i])
					}
				}
				for range 200 {
					k := r.IntN(leafyKeys + leafyKeys/8)
					if v, ok, err := m.Get(t.Context(), k); err != nil || ok != (k < leafyKeys) || ok && v != valueOf(k, 0) {
						t.Fatalf("key %d: got %q, %v, %v", k, v[:12], ok, err)
					}
				}
			}
			st := h.Stats()
			if (st.Found > 20) != c.found || !c.found && st.Found > 0 {
				t.Errorf("the store has found %d entries, want some: %v; %d leaves were read", st.Found, c.found, st.LeafReads)
			}
			t.Logf("%d found, %d leaves read", st.Found, st.LeafReads)
		})
	}
}

// TestWhatIsFoundIsNeverOlderThanTheCall: values only grow, each key's by one goroutine that knows what it has written.
func TestWhatIsFoundIsNeverOlderThanTheCall(t *testing.T) {
	h, m := newLeafyHeap(t, NewStore(pooltest.NewCluster(t, pooltest.Inproc, lends(16<<20)).Open(pool.Config{}).Pool), leafyKeys)
	var wg sync.WaitGroup
	const workers = 4
	for id := range workers {
		wg.Go(func() {
			ctx, r := context.Background(), rand.New(rand.NewPCG(uint64(id), 7))
			version := map[int]int{}
			keys := make([]int, 64)
			vs, ok := make([][64]byte, len(keys)), make([]bool, len(keys))
			for range 25 {
				for i := range keys {
					keys[i] = r.IntN(leafyKeys/workers)*workers + id
				}
				if err := m.GetMany(ctx, keys, vs, ok); err != nil {
					t.Error(err)
					return
				}
				for i, k := range keys {
					want, written := version[k]
					if written && want < 0 {
						if ok[i] {
							t.Errorf("key %d was deleted, and is %q", k, vs[i][:12])
						}
					} else if !ok[i] || vs[i] != valueOf(k, want) {
						t.Errorf("key %d: got %q, %v, want version %d", k, vs[i][:12], ok[i], want)
					}
				}
				for _, k := range keys[:32] {
					var err error
					if r.IntN(8) == 0 {
						version[k] = -1
						_, err = m.Delete(ctx, k)
					} else {
						version[k] = max(version[k], 0) + 1
						err = m.Set(ctx, k, valueOf(k, version[k]))
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if st := h.Stats(); st.Found == 0 {
		t.Error("the store has found nothing")
	}
}

// TestLookupsOfANodeThatDiesAreRightOrFail: every answer is the right one, or says that something is lost.
func TestLookupsOfANodeThatDiesAreRightOrFail(t *testing.T) {
	if invariants.Enabled {
		return // it takes long with the race detector, which finds nothing in it that the test above has not
	}
	c := pooltest.NewCluster(t, pooltest.Inproc, lends(16<<20))
	_, m := newLeafyHeap(t, NewStore(c.Open(pool.Config{}).Pool), leafyKeys)
	r := rand.New(rand.NewPCG(8, 9))
	keys := make([]int, 256)
	vs, ok := make([][64]byte, len(keys)), make([]bool, len(keys))
	died := make(chan struct{})
	for lost, round := false, 0; !lost; round++ {
		if round == 2 {
			go func() {
				defer close(died)
				c.Nodes[0].Crash()
				c.Nodes[0].Start()
			}()
		}
		for i := range keys {
			keys[i] = r.IntN(leafyKeys)
		}
		err := m.GetMany(t.Context(), keys, vs, ok)
		for i, k := range keys {
			if ok[i] && vs[i] != valueOf(k, 0) {
				t.Fatalf("key %d: got %q", k, vs[i][:12])
			}
			if !ok[i] && err == nil {
				t.Fatalf("key %d is missing, and nothing is lost", k)
			}
		}
		lost = errors.As(err, new(*far.LostError))
		if t.Context().Err() != nil {
			t.Fatal("nothing was lost")
		}
	}
	<-died
}
