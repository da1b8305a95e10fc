package soft

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"polder/internal/invariants"
)

func newPointers[T any](t testing.TB, h *Heap, f func(context.Context, int) (T, error)) *Pointers[T, int] {
	t.Helper()
	p, err := NewPointers(h, f)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPtrLoadsWhatWasStored(t *testing.T) {
	h := open(t, 8)
	pool := newPointers[[4]uint64](t, h, nil)
	ptrs := make([]Ptr[[4]uint64], 10000)
	for i := range ptrs {
		if err := pool.Init(&ptrs[i], [4]uint64{uint64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range ptrs {
		var v [4]uint64
		if !ptrs[i].Load(&v) || v[0] != uint64(i) {
			t.Fatalf("pointer %d: got %v", i, v)
		}
	}
	if err := ptrs[3].Store([4]uint64{33}); err != nil {
		t.Fatal(err)
	}
	if ok, err := ptrs[3].CompareAndSwap([4]uint64{3}, [4]uint64{4}); ok || err != nil {
		t.Fatalf("swapped against a wrong value: %v, %v", ok, err)
	}
	if ok, err := ptrs[3].CompareAndSwap([4]uint64{33}, [4]uint64{34}); !ok || err != nil {
		t.Fatalf("not swapped: %v, %v", ok, err)
	}
	var v [4]uint64
	if !ptrs[3].Load(&v) || v[0] != 34 {
		t.Fatalf("got %v, want 34", v)
	}
	for i := range ptrs {
		ptrs[i].Free()
		ptrs[i].Free()
		if ptrs[i].Load(&v) {
			t.Fatal("a freed pointer answers")
		}
	}
	if s := h.Stats(); s.Objects != 0 {
		t.Fatalf("%d objects are left", s.Objects)
	}
}

func TestPtrIsRebuiltOnceHoweverManyAsk(t *testing.T) {
	h := open(t, 8)
	var built atomic.Int32
	release := make(chan struct{})
	pool := newPointers(t, h, func(_ context.Context, i int) (uint64, error) {
		built.Add(1)
		<-release
		return uint64(i), nil
	})
	var p Ptr[uint64]
	if err := pool.Init(&p, 1); err != nil {
		t.Fatal(err)
	}
	dropCell(h, p.cell) // as an eviction does
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if v, err := pool.Read(context.Background(), &p, 7); err != nil || v != 7 {
				t.Errorf("got %d, %v, want 7", v, err)
			}
		})
	}
	close(release)
	wg.Wait()
	if n := built.Load(); n != 1 {
		t.Errorf("built %d times, want once", n)
	}
	var v uint64
	if !p.Load(&v) || v != 7 {
		t.Errorf("what was rebuilt is not kept: %d", v)
	}
}

func TestPtrOfLargeValues(t *testing.T) {
	h := open(t, 32)
	type big [4 << 20]byte
	pool := newPointers[big](t, h, nil)
	v := new(big)
	for i := range v {
		v[i] = byte(i >> 8)
	}
	var p Ptr[big]
	if err := pool.Init(&p, *v); err != nil {
		t.Fatal(err)
	}
	w := new(big)
	if !p.Load(w) || *w != *v {
		t.Fatal("a large value differs")
	}
	p.Free()
	if s := h.Stats(); s.Objects != 0 {
		t.Fatalf("%d objects are left", s.Objects)
	}
}

func TestSharedFreesWithTheLastReference(t *testing.T) {
	h := open(t, 8)
	pool := newPointers[int](t, h, nil)
	var a, b, c Shared[int]
	if err := pool.InitShared(&a, 5); err != nil {
		t.Fatal(err)
	}
	if err := a.CloneTo(&b); err != nil {
		t.Fatal(err)
	}
	if err := b.CloneTo(&c); err != nil {
		t.Fatal(err)
	}
	a.Free()
	b.Free()
	var v int
	if !c.Load(&v) || v != 5 {
		t.Fatalf("got %d, want 5", v)
	}
	c.Free()
	if s := h.Stats(); s.Objects != 0 {
		t.Fatalf("%d objects are left", s.Objects)
	}
	if err := c.CloneTo(&a); err == nil {
		t.Fatal("a freed pointer was cloned")
	}
}

func TestReleasingAParentReleasesWhatItOwns(t *testing.T) {
	h := open(t, 8)
	pool := newPointers[[100]byte](t, h, nil)
	for _, how := range []string{"freed", "evicted", "overwritten"} {
		var parent, child, grandchild Ptr[[100]byte]
		var shared Shared[[100]byte]
		if err := errors.Join(
			pool.Init(&grandchild, [100]byte{3}),
			pool.Init(&child, [100]byte{2}, &grandchild),
			pool.InitShared(&shared, [100]byte{4})); err != nil {
			t.Fatal(err)
		}
		var kept Shared[[100]byte]
		if err := shared.CloneTo(&kept); err != nil {
			t.Fatal(err)
		}
		if err := pool.Init(&parent, [100]byte{1}, &child, &shared); err != nil {
			t.Fatal(err)
		}
		if s := h.Stats(); s.Objects != 4 { // parent, child, grandchild, shared
			t.Fatalf("%s: %d objects, want 4", how, s.Objects)
		}
		want := int64(1) // what kept refers to
		switch how {
		case "freed":
			parent.Free()
		case "evicted":
			w := word(parent.cell.Load())
			h.markDead(w)
			if !pool.table.swing(parent.ref, w, 0) {
				t.Fatal("nothing to evict")
			}
			h.release(w, granulesFor(100))
		case "overwritten":
			if err := parent.Store([100]byte{2}); err != nil {
				t.Fatal(err)
			}
			want++
		}
		if s := h.Stats(); s.Objects != want {
			t.Errorf("%s: %d objects are left, want %d", how, s.Objects, want)
		}
		var v [100]byte
		if child.Load(&v) {
			t.Errorf("%s: the child is still there", how)
		}
		if !kept.Load(&v) {
			t.Errorf("%s: what somebody else refers to is gone", how)
		}
		kept.Free()
		parent.Free()
		if s := h.Stats(); s.Objects != 0 {
			t.Errorf("%s: %d objects are left at the end", how, s.Objects)
		}
	}
}

func TestClosingAPoolReleasesWhatItsPointersOwn(t *testing.T) {
	h := open(t, 8)
	stays, goes := newPointers[[100]byte](t, h, nil), newPointers[[100]byte](t, h, nil)
	var parent, child Ptr[[100]byte]
	if err := errors.Join(stays.Init(&child, [100]byte{2}), goes.Init(&parent, [100]byte{1}, &child)); err != nil {
		t.Fatal(err)
	}
	goes.Close()
	if s := h.Stats(); s.Objects != 0 {
		t.Errorf("%d objects are left", s.Objects)
	}
	var v [100]byte
	if child.Load(&v) {
		t.Error("what a pointer of a closed pool owned is still there")
	}
}

func TestLoadAndStoreAllocateNothing(t *testing.T) {
	t.Run("small", func(t *testing.T) { allocatesNothing[[4]uint64](t, 0) })
	// What leads to the pieces of a large value is made anew by Store.
	t.Run("large", func(t *testing.T) { allocatesNothing[[4 << 20]byte](t, 16) })
}

func allocatesNothing[T any](t *testing.T, toStore float64) {
	h := open(t, 16)
	pool := newPointers[T](t, h, nil)
	v := new(T)
	var p Ptr[T]
	if err := pool.Init(&p, *v); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if n := testing.AllocsPerRun(100, func() {
		if !p.Load(v) {
			t.Error("Load misses")
		}
	}); n != 0 {
		t.Errorf("Load allocates %v times", n)
	}
	if n := testing.AllocsPerRun(100, func() { _ = p.StoreFrom(v) }); n > toStore {
		t.Errorf("StoreFrom allocates %v times, want at most %v", n, toStore)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("200 accesses allocate %d bytes", n)
	}
}

func TestArrayRebuildsFromTheIndex(t *testing.T) {
	if invariants.Enabled {
		return // one goroutine does much; "make plain" runs it
	}
	h := open(t, 8)
	const elements = 60_000 // more than there is room for
	a, err := NewArray(h, elements, func(_ context.Context, i int) ([100]int32, error) {
		return [100]int32{int32(i)}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		for i := range a.Len() {
			v, err := a.Read(t.Context(), i)
			if err != nil || v[0] != int32(i) {
				t.Fatalf("round %d, element %d: got %d, %v", round, i, v[0], err)
			}
		}
	}
	if s := h.Stats(); s.Rebuilds <= elements {
		t.Errorf("%d rebuilds of more than fits", s.Rebuilds)
	}
	if err := a.Store(5, [100]int32{55}); err != nil {
		t.Fatal(err)
	}
	if ok, err := a.CompareAndSwap(5, [100]int32{55}, [100]int32{56}); !ok || err != nil {
		t.Fatalf("not swapped: %v, %v", ok, err)
	}
	if v, _ := a.Read(t.Context(), 5); v[0] != 56 {
		t.Fatalf("got %d, want 56", v[0])
	}
	a.Close()
	h.evac.mu.Lock()
	defer h.evac.mu.Unlock()
	if s := h.Stats(); s.Objects != 0 {
		t.Errorf("%d objects are left", s.Objects)
	}
}

func TestQueueKeepsOrderAndRebuildsWhatVanished(t *testing.T) {
	h := open(t, 8)
	q, err := NewQueue(h, 100, func(_ context.Context, seq uint64) (string, error) {
		return fmt.Sprintf("rebuilt %d", seq), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if _, ok, err := q.Push(fmt.Sprint(i)); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if _, ok, _ := q.Push("one more"); ok {
		t.Fatal("a full queue took one more")
	}
	if n := q.Len(); n != 100 {
		t.Errorf("%d values wait, want 100", n)
	}
	dropCell(h, &q.ring.list[3])
	for i := range 100 {
		want := fmt.Sprint(i)
		if i == 3 {
			want = "rebuilt 3"
		}
		if v, ok, err := q.Pop(t.Context()); !ok || err != nil || v != want {
			t.Fatalf("value %d: got %q, %v, %v, want %q", i, v, ok, err, want)
		}
	}
	if _, ok, _ := q.Pop(t.Context()); ok {
		t.Fatal("an empty queue answers")
	}
	if n, lost := q.Len(), q.Lost(); n != 0 || lost != 0 {
		t.Errorf("%d values wait in an empty queue, and %d were lost", n, lost)
	}
}

// A value that vanished and that nobody can rebuild is left out, and counted; closing a queue frees what waits in it.
func TestAQueueLeavesOutWhatIsLost(t *testing.T) {
	h := open(t, 8)
	q, err := NewQueue[string](h, 4, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"a", "b", "c"} {
		if _, ok, err := q.Push(v); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	dropCell(h, &q.ring.list[0])
	if v, ok, err := q.Pop(t.Context()); v != "b" || !ok || err != nil || q.Len() != 1 || q.Lost() != 1 {
		t.Errorf("got %q, %v, %v, with %d waiting and %d lost; want b, 1 and 1", v, ok, err, q.Len(), q.Lost())
	}
	q.Close()
	h.evac.mu.Lock()
	defer h.evac.mu.Unlock()
	if s := h.Stats(); s.Objects != 0 {
		t.Errorf("%d objects are left", s.Objects)
	}
}

// family makes a pointer that is owned by another one.
func family[T any](t *testing.T, pool *Pointers[T, int]) (parent, child *Ptr[T]) {
	t.Helper()
	parent, child = new(Ptr[T]), new(Ptr[T])
	var v T
	if err := errors.Join(pool.Init(child, v), pool.Init(parent, v, child)); err != nil {
		t.Fatal(err)
	}
	return parent, child
}

// TestAPointerThatIsFreedWithItsOwnerLeavesOthersAlone: the one who takes its
// place is not read, written or rebuilt through it.
func TestAPointerThatIsFreedWithItsOwnerLeavesOthersAlone(t *testing.T) {
	h := open(t, 8)
	pool := newPointers(t, h, func(_ context.Context, arg int) (words4, error) { return words4{uint64(arg)}, nil })
	parent, child := family(t, pool)
	parent.Free()
	if v, err := pool.Read(context.Background(), child, 7); err != nil || v != (words4{7}) {
		t.Errorf("read: got %v, %v, want what was rebuilt", v, err)
	}
	var other Ptr[words4]
	if err := pool.Init(&other, words4{1}); err != nil {
		t.Fatal(err)
	}
	if other.ref != child.ref {
		t.Fatalf("the other one is at %d, want %d", other.ref, child.ref)
	}
	var v words4
	if child.Load(&v) {
		t.Errorf("the freed one reads %v", v)
	}
	if child.Store(words4{2}) == nil {
		t.Error("the freed one can be stored through")
	}
	other.Free()
	if s := h.Stats(); s.Objects != 0 {
		t.Errorf("%d objects are left", s.Objects)
	}
}

func TestAPointerIsNotFreedWhileItIsStoredThrough(t *testing.T) {
	h := open(t, 8)
	pool := newPointers[[maxInPlace + 1]byte](t, h, nil)
	parent, child := family(t, pool)
	for i := range h.append {
		h.append[i].mu.Lock()
	}
	stored := make(chan error)
	go func() { stored <- child.Store([maxInPlace + 1]byte{1}) }()
	_, meta := child.t.at(child.ref)
	held := func() bool { return uint32(meta.Load()) == 2 }
	for n := 0; !held() && n < 100_000; n++ {
		runtime.Gosched()
	}
	if !held() {
		t.Error("nobody holds it")
	}
	parent.Free()
	if ref, _, _ := pool.table.alloc(); ref == child.ref {
		t.Error("it is another pointer's by now")
	}
	for i := range h.append {
		h.append[i].mu.Unlock()
	}
	if err := <-stored; err != nil {
		t.Error(err)
	}
	if s := h.Stats(); s.Objects != 0 {
		t.Errorf("%d objects are left", s.Objects)
	}
}

func TestAReadOfNothingSaysSo(t *testing.T) {
	pool := newPointers(t, open(t, 8), func(_ context.Context, arg int) (int, error) { return arg, nil })
	var p Ptr[int]
	_, err := pool.Read(context.Background(), &p, 1)
	if crash := new(PanicError); err == nil || errors.As(err, &crash) {
		t.Errorf("got %v, want an error that says that it points to nothing", err)
	}
}
