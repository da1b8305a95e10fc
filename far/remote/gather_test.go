package remote

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"polder/far"
	"polder/far/copies"
	"polder/far/remote/scan"
	"polder/far/store"
	"polder/internal/invariants"
	"polder/memnode"
	"polder/memnode/component"
	"polder/pool"
	"polder/pool/pooltest"
)

// trips makes a vector of trips, and what is in it, most of it far, some of it dirty.
func trips(t *testing.T, h *far.Heap, n, group int) (*far.Vector[trip], []trip) {
	t.Helper()
	r := rand.New(rand.NewPCG(5, 6))
	v, err := far.NewVector[trip](h, far.StructureConfig{Name: "trips", Group: group})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Free)
	model := make([]trip, n)
	for i := range model {
		model[i] = trip{id: uint64(i), zone: int16(r.IntN(200) - 100), fare: float64(i % 1000)}
	}
	if err := v.Append(t.Context(), model...); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		i := r.IntN(n)
		model[i].fare += 0.5
		if err := v.Set(t.Context(), i, model[i]); err != nil {
			t.Fatal(err)
		}
	}
	return v, model
}

// checkGathered gathers the elements at indices, which must be those of the model.
func checkGathered(t *testing.T, v *far.Vector[trip], model []trip, indices []int) {
	t.Helper()
	got := make([]trip, len(indices))
	if err := far.Gather(t.Context(), got, v, indices); err != nil {
		t.Fatal(err)
	}
	for k, i := range indices {
		if got[k] != model[i] {
			t.Fatalf("got %+v for element %d, want %+v", got[k], i, model[i])
		}
	}
}

// TestElementsAreGatheredAsFromASlice: at random and in runs, once and many times, of groups of every size, and with and without
// nodes that compute.
func TestElementsAreGatheredAsFromASlice(t *testing.T) {
	for _, c := range setups {
		t.Run(c.name, func(t *testing.T) {
			cfgs := make([]memnode.Config, c.nodes)
			for i := range cfgs {
				cfgs[i] = lends(c.components)
			}
			h := newFarHeap(t, NewStore(pooltest.NewCluster(t, c.setup, cfgs...).Open(pool.Config{}).Pool))
			r := rand.New(rand.NewPCG(7, 8))
			for _, group := range []int{1, 0, 1 << 10} {
				if invariants.Enabled && group > 1 {
					continue // "make plain" has them all
				}
				n := 100_001
				if group == 1 {
					n = 60_000
				}
				v, model := trips(t, h, n, group)
				for _, want := range [][]int{
					nil,
					{n - 1},
					picked(3000, func() int { return r.IntN(n) }),
					picked(70_000, func() int { return r.IntN(n) }), // more than one window
					picked(3000, func() int { return 7 + r.IntN(500) }),
					picked(3000, func() int { return 5 }),
					slices.Sorted(slices.Values(picked(5000, func() int { return r.IntN(n) }))),
				} {
					checkGathered(t, v, model, want)
				}
				v.Free()
			}
			if here := c.components > 0 || c.setup.Name == pooltest.SHM.Name; here != (computed(h) > 0) {
				t.Errorf("the store has looked at %d objects, want some: %v", computed(h), here)
			}
		})
	}
}

// picked is n numbers that pick returns.
func picked(n int, pick func() int) []int {
	is := make([]int, n)
	for k := range is {
		is[k] = pick()
	}
	return is
}

// TestElementsAreCopiedAndShuffledAsThoseOfASlice: of vectors and arrays, to others and to themselves, with few and with many
// elements that count.
func TestElementsAreCopiedAndShuffledAsThoseOfASlice(t *testing.T) {
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.SHM} {
		t.Run("over "+s.Name, func(t *testing.T) {
			ctx, r := t.Context(), rand.New(rand.NewPCG(9, 10))
			h := newFarHeap(t, NewStore(pooltest.NewCluster(t, s, lends(16<<20)).Open(pool.Config{}).Pool))
			const n = 60_001
			src, model := trips(t, h, n, 0)
			zone := far.FieldOf(func(x *trip) *int16 { return &x.zone })
			for _, c := range []struct {
				name       string
				room       int
				conditions []far.Condition[trip]
				counts     func(i int, x trip) bool
			}{
				{"all", n, nil, func(int, trip) bool { return true }},
				{"all, to more", n + 1000, nil, func(int, trip) bool { return true }},
				{"as many as there is room for", 20_000, nil, func(int, trip) bool { return true }},
				{"a part", n, []far.Condition[trip]{far.Within[trip](777, 40_003)}, func(i int, _ trip) bool { return i >= 777 && i < 40_003 }},
				{"some", n, []far.Condition[trip]{zone.Is(far.IfEqual, 7)}, func(_ int, x trip) bool { return x.zone == 7 }},
				{"most", n, []far.Condition[trip]{zone.Is(far.IfNotEqual, 7)}, func(_ int, x trip) bool { return x.zone != 7 }},
				{"some of a part, until it is full", 100, []far.Condition[trip]{zone.Is(far.IfLess, -90), far.Within[trip](100, n)}, func(i int, x trip) bool { return i >= 100 && x.zone < -90 }},
				{"nothing", n, []far.Condition[trip]{zone.Is(far.IfLess, -1000)}, func(int, trip) bool { return false }},
				{"to nowhere", 0, []far.Condition[trip]{zone.Is(far.IfLess, 0)}, func(int, trip) bool { return false }},
			} {
				dst, err := far.NewArray[trip](ctx, h, c.room, far.StructureConfig{})
				if err != nil {
					t.Fatal(err)
				}
				want := make([]trip, c.room)
				was := trip{id: 1 << 40}
				for i := range want {
					want[i] = was
				}
				if err := dst.Write(ctx, want, 0); err != nil {
					t.Fatal(err)
				}
				count := 0
				for i, x := range model {
					if c.counts(i, x) && count < c.room {
						want[count] = x
						count++
					}
				}
				if got, err := far.Copy(ctx, dst, src, c.conditions...); err != nil || got != count {
					t.Fatalf("%s: %d elements were copied, %v, want %d", c.name, got, err, count)
				}
				got := make([]trip, c.room)
				if err := dst.Read(ctx, got, 0); err != nil || !slices.Equal(got, want) {
					t.Fatalf("%s: the copy differs, %v", c.name, err)
				}
				dst.Free()
			}

			// Another order, which names some elements more than once.
			ids := make([]int32, n)
			want := make([]trip, n)
			for i := range ids {
				ids[i] = int32(r.IntN(n))
				want[i] = model[ids[i]]
			}
			order, err := far.NewVector[int32](h, far.StructureConfig{})
			if err == nil {
				err = order.Append(ctx, ids...)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer order.Free()
			dst, got := must(far.NewVector[trip](h, far.StructureConfig{})), make([]trip, n)
			defer dst.Free()
			if err := dst.Append(ctx, got...); err != nil {
				t.Fatal(err)
			}
			if err := far.Shuffle(ctx, dst, src, order); err != nil {
				t.Fatal(err)
			}
			if err := dst.Read(ctx, got, 0); err != nil || !slices.Equal(got, want) {
				t.Fatalf("the other order differs, %v", err)
			}

			// What counts moves to the front.
			want = slices.DeleteFunc(want, func(x trip) bool { return x.zone < 50 })
			if k, err := far.Copy(ctx, dst, dst, zone.Is(far.IfGreaterOrEqual, 50)); err != nil || k != len(want) {
				t.Fatalf("%d elements were moved to the front, %v, want %d", k, err, len(want))
			}
			if err := dst.Read(ctx, got, 0); err != nil || !slices.Equal(got[:len(want)], want) {
				t.Fatalf("what was moved to the front differs, %v", err)
			}
			if computed(h) == 0 {
				t.Error("the store has looked at nothing")
			}
		})
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestElementsAreGatheredFromCopies: from the copies that are read, or, where those are at places that do not compute, by reading.
func TestElementsAreGatheredFromCopies(t *testing.T) {
	var places []copies.Place
	for i := range 2 {
		s := pooltest.NewCluster(t, pooltest.Inproc, lends(16<<20)).Open(pool.Config{}).Pool
		places = append(places, copies.Place{Name: fmt.Sprint(i), Store: NewStore(s)})
	}
	places = append(places, copies.Place{Name: "memory", Store: far.NewMemStore(1<<20, 64)})
	s, err := copies.Open(copies.Config{Places: places, Copies: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	h := newFarHeap(t, s)
	r := rand.New(rand.NewPCG(3, 4))
	v, model := trips(t, h, 100_001, 0)
	want := picked(20_000, func() int { return r.IntN(len(model)) })
	checkGathered(t, v, model, want)
	if n := computed(h); n == 0 || n >= 20_000 {
		t.Errorf("%d objects were looked at where they are, want those of two places of three", n)
	}
}

// distorted is a node's scanner that does with Gather what the environment says: POLDER_TEST_GATHER.
type distorted struct{ component.Object }

// newScanner makes one. The first is made only after a while if there is a file POLDER_TEST_SLOW, which it removes.
func newScanner(env *component.Env, c *component.Call, params []byte) (component.Object, error) {
	if f := os.Getenv("POLDER_TEST_SLOW"); f != "" && os.Remove(f) == nil {
		time.Sleep(500 * time.Millisecond)
	}
	o, err := scan.New(env, c, params)
	return distorted{o}, err
}

func (d distorted) Compute(c *component.Call, op uint16, in, out []byte) ([]byte, error) {
	how := os.Getenv("POLDER_TEST_GATHER")
	if op == scan.Gather && how == "unknown" {
		return nil, errors.New("a scanner has no operation 4")
	}
	got, err := d.Object.Compute(c, op, in, out)
	if op == scan.Gather && err == nil {
		switch how {
		case "short":
			got = got[:len(got)-1]
		case "long":
			got = append(got, 0)
		case "nothing":
			got = got[:0]
		}
	}
	return got, err
}

// TestANodeThatDoesNotGatherIsRead: one that does not know how, as an older one, or whose answer makes no sense. It still adds up.
func TestANodeThatDoesNotGatherIsRead(t *testing.T) {
	for _, how := range []string{"unknown", "short", "long", "nothing"} {
		t.Run(how, func(t *testing.T) {
			t.Setenv("POLDER_TEST_GATHER", how)
			h := newFarHeap(t, NewStore(pooltest.NewCluster(t, pooltest.TCP, lends(16<<20)).Open(pool.Config{}).Pool))
			v, model := trips(t, h, 100_000, 0)
			r := rand.New(rand.NewPCG(3, 4))
			want := picked(5000, func() int { return r.IntN(len(model)) })
			checkGathered(t, v, model, want)
			if n := computed(h); n > 0 {
				t.Errorf("%d objects count as looked at by a node that did not", n)
			}
			if n, err := far.Count(t.Context(), v); err != nil || n != len(model) || computed(h) == 0 {
				t.Errorf("counted %d, %v, of which the node has looked at %d objects, want most of %d", n, err, computed(h), len(model))
			}
		})
	}
}

// TestAnElementIsGatheredAsItWasMeanwhile: elements only grow, so that each that is gathered, or copied because of a condition,
// is between what it was before and after.
func TestAnElementIsGatheredAsItWasMeanwhile(t *testing.T) {
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.SHM} {
		t.Run("over "+s.Name, func(t *testing.T) {
			ctx := context.Background()
			h := newFarHeap(t, NewStore(pooltest.NewCluster(t, s, lends(16<<20)).Open(pool.Config{}).Pool))
			const n = 3 << 18
			a, err := far.NewArray[int64](ctx, h, n, far.StructureConfig{})
			if err == nil {
				err = a.Write(ctx, make([]int64, n), 0)
			}
			if err != nil {
				t.Fatal(err)
			}
			dst, err := far.NewArray[int64](ctx, h, n, far.StructureConfig{})
			if err != nil {
				t.Fatal(err)
			}
			// The elements that are used are every so-many-th. Each is written by one goroutine.
			const used, apart = 1024, n / 1024
			var begun, ended [used]atomic.Int64
			var wg sync.WaitGroup
			stop := make(chan struct{})
			for id := range 2 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(id), 9))
					for {
						select {
						case <-stop:
							return
						default:
						}
						k := r.IntN(used/2)*2 + id
						x := begun[k].Add(1)
						if err := a.Set(ctx, k*apart, x); err != nil {
							t.Error(err)
							return
						}
						ended[k].Store(x)
					}
				})
			}
			indices, got := make([]int, used), make([]int64, used)
			for k := range indices {
				indices[k] = k * apart
			}
			for range 30 {
				var least [used]int64
				for k := range least {
					least[k] = ended[k].Load()
				}
				if err := far.Gather(ctx, got, a, indices); err != nil {
					t.Fatal(err)
				}
				for k, x := range got {
					if most := begun[k].Load(); x < least[k] || x > most {
						t.Fatalf("element %d is %d, want %d to %d", k, x, least[k], most)
					}
				}
			}
			odd := far.Itself[int64]().Is(far.IfLess, 4)
			for range 5 {
				k, err := far.Copy(ctx, dst, a, odd, far.Within[int64](0, n/4))
				if err != nil {
					t.Fatal(err)
				}
				copied := make([]int64, k)
				if err := dst.Read(ctx, copied, 0); err != nil || slices.ContainsFunc(copied, func(x int64) bool { return x >= 4 }) {
					t.Fatalf("elements were copied that did not count: %v", err)
				}
			}
			close(stop)
			wg.Wait()
			if computed(h) == 0 {
				t.Error("the store has looked at nothing")
			}
		})
	}
}

// TestWhatIsGatheredOfANodeThatDiesIsRightOrFails: and so is what is copied.
func TestWhatIsGatheredOfANodeThatDiesIsRightOrFails(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.TCP, lends(16<<20))
	h := newFarHeap(t, NewStore(c.Open(pool.Config{}).Pool))
	v, model := trips(t, h, 200_000, 0)
	r := rand.New(rand.NewPCG(3, 4))
	asked, died := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(died)
		<-asked
		c.Nodes[0].Crash()
		c.Nodes[0].Start()
	}()
	var once sync.Once
	got := make([]trip, 10_000)
	for lost := false; !lost; {
		want := picked(len(got), func() int { return r.IntN(len(model)) })
		err := far.Gather(t.Context(), got, v, want)
		once.Do(func() { close(asked) })
		for k, i := range want {
			if err == nil && got[k] != model[i] {
				t.Fatalf("got %+v for element %d, want %+v", got[k], i, model[i])
			}
		}
		lost = errors.As(err, new(*far.LostError))
		if t.Context().Err() != nil {
			t.Fatal("nothing was lost")
		}
	}
	<-died
	zone := far.FieldOf(func(x *trip) *int16 { return &x.zone })
	dst := must(far.NewArray[trip](t.Context(), h, 1000, far.StructureConfig{}))
	if n, err := far.Copy(t.Context(), dst, v, zone.Is(far.IfEqual, 3)); !errors.As(err, new(*far.LostError)) {
		t.Errorf("%d elements were copied, %v, want a LostError", n, err)
	}
}

// TestBytesThatAreNotRightAreNotGathered: the node finds it out, or this process where the memory is mapped.
func TestBytesThatAreNotRightAreNotGathered(t *testing.T) {
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.SHM} {
		t.Run("over "+s.Name, func(t *testing.T) {
			g := &grabbing{Computer: NewStore(pooltest.NewCluster(t, s, lends(16<<20)).Open(pool.Config{}).Pool).(store.Computer)}
			h := newFarHeap(t, g)
			v, model := trips(t, h, 200_000, 0)
			g.mu.Lock()
			segs := slices.Clone(g.segs)
			g.mu.Unlock()
			for _, s := range segs { // of which some have nothing any more
				for off := 4 << 10; off < 1<<20; off += 64 << 10 {
					if err := s.Write(t.Context(), []byte("wrong"), off); err != nil {
						t.Fatal(err)
					}
				}
			}
			indices := make([]int, len(model)/100)
			for k := range indices {
				indices[k] = k * 100
			}
			got := make([]trip, len(indices))
			if err := far.Gather(t.Context(), got, v, indices); !errors.As(err, new(*far.CorruptError)) {
				t.Errorf("got %v, want a CorruptError", err)
			}
		})
	}
}

// TestWhoGathersWaitsWithinItsContext: the store does not answer, and the caller gives up.
func TestWhoGathersWaitsWithinItsContext(t *testing.T) {
	s := &holding{
		Computer: NewStore(pooltest.NewCluster(t, pooltest.SHM, lends(0)).Open(pool.Config{}).Pool).(store.Computer),
		begun:    make(chan struct{}),
	}
	s.scans.Store(1)
	h := newFarHeap(t, s)
	v, model := trips(t, h, 100_000, 0)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	go func() {
		<-s.begun
		cancel(enough)
	}()
	r := rand.New(rand.NewPCG(3, 4))
	if err := far.Gather(ctx, make([]trip, 1000), v, picked(1000, func() int { return r.IntN(len(model)) })); !errors.Is(err, enough) {
		t.Errorf("got %v, want the cause of the context's end", err)
	}
}
