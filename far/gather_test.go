package far

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"polder/far/heap"
	"polder/far/objects"
	"polder/far/store/storetest"
)

// checkGathered gathers n elements at random, of the first ones of v.
func checkGathered(t *testing.T, v Elements[int64], r *rand.Rand, n, of int, want func(i int) int64) {
	t.Helper()
	indices, got := make([]int, n), make([]int64, n)
	for k := range indices {
		indices[k] = r.IntN(of)
	}
	if err := Gather(t.Context(), got, v, indices); err != nil {
		t.Fatal(err)
	}
	for k, i := range indices {
		if got[k] != want(i) {
			t.Fatalf("element %d is %d, want %d", i, got[k], want(i))
		}
	}
}

// What is local, far, dirty, was never used, or has a word that is far itself is gathered from a store that does not compute,
// and local memory stays within its budget.
func TestElementsAreGatheredByReading(t *testing.T) {
	t.Parallel()
	h := openDrowsy(t, heap.NewMemStore(tinySegment, 1<<10), 24)
	const n, used = 400_000, 300_000
	a := newArray[int64](t, h, n, StructureConfig{Group: 16})
	vs := make([]int64, used)
	for i := range vs {
		vs[i] = int64(i) + 1
	}
	if err := a.Write(t.Context(), vs, 0); err != nil {
		t.Fatal(err)
	}
	want := func(i int) int64 {
		if i < used {
			return int64(i) + 1
		}
		return 0
	}
	r := rand.New(rand.NewPCG(1, 2))
	awaitAsleep(t, h, 1000)
	for range 3 {
		for range 50 { // what is dirty
			i := r.IntN(used)
			if err := a.Set(t.Context(), i, want(i)); err != nil {
				t.Fatal(err)
			}
		}
		checkGathered(t, a, r, 5000, n, want)
		checkGathered(t, a, r, 500, 1000, want) // most of some objects
	}
	if st := h.Stats(); st.Resident > st.Budget {
		t.Errorf("%d bytes are resident with a budget of %d", st.Resident, st.Budget)
	}
	a.Clear()
	checkGathered(t, a, r, 100, n, func(int) int64 { return 0 })
}

// A segment that is lost takes its elements with it, and no others.
func TestWhatIsGatheredOfLostSegmentsIsLost(t *testing.T) {
	t.Parallel()
	store := storetest.New(tinySegment, 1<<10)
	h := openObjects(t, store, 16)
	const n = 60_000
	a := newArray[int64](t, h, n, StructureConfig{})
	vs := make([]int64, n)
	for i := range vs {
		vs[i] = int64(i)
	}
	if err := a.Write(t.Context(), vs, 0); err != nil {
		t.Fatal(err)
	}
	if store.Lose(func(i int, _ heap.Segment) bool { return i%4 == 0 }) == 0 {
		t.Fatal("nothing could be lost")
	}
	var lost *LostError
	found := 0
	for i := 0; i < n; i += 500 {
		var got [1]int64
		switch err := Gather(t.Context(), got[:], a, []int{i}); {
		case err == nil && got[0] == int64(i):
			found++
		case err == nil:
			t.Fatalf("element %d is %d", i, got[0])
		case !errors.As(err, &lost):
			t.Fatalf("element %d: got %v, want a LostError", i, err)
		}
	}
	if lost == nil || found == 0 {
		t.Errorf("of elements some of which are lost %d were found, and the error was %v", found, lost)
	}
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	if err := Gather(t.Context(), vs, a, all); !errors.As(err, &lost) {
		t.Errorf("all elements: got %v, want a LostError", err)
	}
	b := newArray[int64](t, h, n, StructureConfig{})
	if k, err := Copy(t.Context(), b, a); !errors.As(err, &lost) {
		t.Errorf("%d elements were copied, %v, want a LostError", k, err)
	}
}

func TestWhatCannotBeMovedSaysSo(t *testing.T) {
	t.Parallel()
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	a, b := newArray[int64](t, h, 100, StructureConfig{Name: "a"}), newArray[int64](t, h, 100, StructureConfig{Name: "b"})
	order := newArray[int](t, h, 100, StructureConfig{Name: "order"})
	long := newArray[int](t, h, 101, StructureConfig{Name: "long"})
	huge := newArray[uint64](t, h, 100, StructureConfig{Name: "huge"})
	gone := newArray[int64](t, h, 100, StructureConfig{Name: "gone"})
	goneVector, err := NewVector[int64](h, StructureConfig{Name: "gone, too"})
	if err != nil {
		t.Fatal(err)
	}
	gone.Free()
	goneVector.Free()
	ctx := t.Context()
	if err := order.Set(ctx, 70, -1); err != nil {
		t.Fatal(err)
	}
	if err := huge.Set(ctx, 3, 1<<63); err != nil {
		t.Fatal(err)
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	copied := func(_ int, err error) error { return err }
	x := Itself[int64]()
	for _, c := range []struct {
		err  error
		says string
		is   error
	}{
		{Gather(ctx, make([]int64, 2), a, []int{0, 1, 2}), `cannot gather a: 3 elements are wanted, and there is room for 2`, nil},
		{Gather(ctx, make([]int64, 3), a, []int{0, 100, 2}), `index 1 is 100, and there are 100 elements`, nil},
		{Gather(ctx, make([]int64, 3), a, []int{0, 1, -5}), `index 2 is -5, and there are 100 elements`, nil},
		{Gather(ctx, nil, gone, nil), "cannot gather gone", ErrFreed},
		{Gather(ctx, nil, goneVector, nil), "", ErrFreed},
		{Gather(done, make([]int64, 1), a, []int{0}), "", context.Canceled},
		{copied(Copy(ctx, a, gone)), "cannot copy gone to a", ErrFreed},
		{copied(Copy(ctx, gone, a, x.Is(IfLess, 1))), "cannot copy a to gone", ErrFreed},
		{copied(Copy(ctx, b, a, Within[int64](5, 4))), "want a range", nil},
		{copied(Copy(done, b, a, x.Is(IfLess, 1))), "", context.Canceled},
		{Shuffle(ctx, a, a, order), "they must not be the same", nil},
		{Shuffle(ctx, a, b, a), "they must not be the same", nil},
		{Shuffle(ctx, a, b, long), "cannot shuffle b to a by long: the order is of 101 elements, want 100", nil},
		{Shuffle(ctx, a, b, order), "element 70 of the order is -1, and there are 100 elements", nil},
		{Shuffle(ctx, a, b, huge), "element 3 of the order is 9223372036854775808, and there are 100 elements", nil},
		{Shuffle(ctx, gone, b, order), "", ErrFreed},
		{Shuffle(done, a, b, huge), "", nil},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.says) || c.is != nil && !errors.Is(c.err, c.is) {
			t.Errorf("got %v, want %v, %s", c.err, c.is, c.says)
		}
	}
	if n, err := Copy(ctx, a, a); n != 100 || err != nil {
		t.Errorf("a copy to itself: got %d, %v", n, err)
	}
	none := newArray[struct{}](t, h, 10, StructureConfig{})
	if err := Gather(ctx, make([]struct{}, 2), none, []int{0, 9}); err != nil {
		t.Errorf("elements without bytes: %v", err)
	}
}

// Of a vector that is far, Write reads the last group alone, of which it writes only a part.
func TestAVectorIsWrittenWithoutBeingRead(t *testing.T) {
	t.Parallel()
	store := storetest.New(tinySegment, 1<<10)
	h := openObjects(t, store, 16)
	ctx := t.Context()
	v, err := NewVector[int64](h, StructureConfig{Group: 128})
	if err != nil {
		t.Fatal(err)
	}
	vs := make([]int64, 40*128+5)
	if err := v.Append(ctx, append(vs, 7, 8, 9)...); err != nil {
		t.Fatal(err)
	}
	other, err := NewVector[int64](h, StructureConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for range 100 { // the last group goes far with the segment that it is in, once that is full
		if err := other.Append(ctx, make([]int64, 50_000)...); err != nil {
			t.Fatal(err)
		}
		if objects.Load(v.tr.Word(40)).Far() {
			break
		}
	}
	if !objects.Load(v.tr.Word(40)).Far() {
		t.Fatal("the last group does not go far")
	}
	before := h.Stats().Fetches
	for i := range vs {
		vs[i] = int64(i)
	}
	if err := v.Write(ctx, vs, 0); err != nil {
		t.Fatal(err)
	}
	if n := h.Stats().Fetches - before; n > 1 {
		t.Errorf("%d objects were read, want one at the most", n)
	}
	got := make([]int64, len(vs)+3)
	if err := v.Read(ctx, got, 0); err != nil || !slices.Equal(got, append(vs, 7, 8, 9)) {
		t.Errorf("got other elements than were written, %v", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("elements were written that a vector does not have")
			}
		}()
		_ = v.Write(ctx, vs, 4)
	}()
}

// A vector that becomes shorter has what it lost gathered as zeros, and copied as far as it goes.
func TestAVectorMayBecomeShorterMeanwhile(t *testing.T) {
	t.Parallel()
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 24)
	ctx := context.Background()
	const n = 40_000
	v, err := NewVector[int64](h, StructureConfig{})
	if err != nil {
		t.Fatal(err)
	}
	to := newArray[int64](t, h, n, StructureConfig{})
	fill := func() {
		for i := v.Len(); i < n; i++ {
			if err := v.Append(ctx, int64(i)+1); err != nil {
				t.Fatal(err)
			}
		}
	}
	indices, got := make([]int, 2000), make([]int64, 2000)
	for range 5 {
		fill()
		var wg sync.WaitGroup
		wg.Go(func() { v.Truncate(100) })
		for k := range indices {
			indices[k] = k * (n / 2000)
		}
		err := Gather(ctx, got, v, indices)
		for k, i := range indices {
			if err == nil && got[k] != int64(i)+1 && (got[k] != 0 || i < 100) {
				t.Fatalf("element %d is %d", i, got[k])
			}
		}
		if _, err := Copy(ctx, v, to, Itself[int64]().Is(IfEqual, 0)); err != nil {
			t.Fatal(err)
		}
		if _, err := Copy(ctx, to, v); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		v.Clear()
	}
}

// Many scattered objects are read together, and not one after the other.
func TestScatteredObjectsAreReadTogether(t *testing.T) {
	t.Parallel()
	store := storetest.New(1<<20, 32)
	h, err := NewHeap(store, Config{Local: MinLocal})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	const n = 2 << 20
	a := newArray[int64](t, h, n, StructureConfig{})
	if err := a.Write(t.Context(), make([]int64, n), 0); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	var reads int64
	var fetched uint64
	for range 10 { // while there is no local memory for what comes, it comes one by one
		before, fetches := store.Reads.Load(), h.Stats().Fetches
		checkGathered(t, a, r, 300, n, func(int) int64 { return 0 })
		if reads, fetched = store.Reads.Load()-before, h.Stats().Fetches-fetches; fetched >= 100 && reads <= int64(fetched)/4 {
			return
		}
	}
	t.Errorf("%d objects took %d reads of the store, want a quarter at the most", fetched, reads)
}
