package far

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"polder/far/heap"
	"polder/far/store/storetest"
)

func newArray[T any](t testing.TB, h *Heap, n int, cfg StructureConfig) *Array[T] {
	t.Helper()
	a, err := NewArray[T](t.Context(), h, n, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// An array several times as large as local memory is what was written.
func TestAnArrayIsWhatWasWritten(t *testing.T) {
	t.Parallel()
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	const n = 100_003
	a := newArray[int64](t, h, n, StructureConfig{})
	want := make([]int64, n)
	r := rand.New(rand.NewPCG(1, 1))
	s := h.NewScope()
	defer s.Close()
	for i := range ofModel(50_000) {
		j := r.IntN(n)
		v := r.Int64()
		want[j] = v
		if i%2 == 0 {
			if err := a.Set(t.Context(), j, v); err != nil {
				t.Fatal(err)
			}
			continue
		}
		s.Enter()
		p := a.At(j).DerefMut(s)
		if p == nil {
			t.Fatalf("element %d: %v", j, s.Err())
		}
		*p = v
		s.Leave()
	}
	check := func(how string, i int, v int64) {
		if v != want[i] {
			t.Fatalf("%s: element %d is %d, want %d", how, i, v, want[i])
		}
	}
	seen := 0
	for i, p := range a.All(s) {
		check("All", i, *p)
		seen++
	}
	for i, p := range a.Backward(s) {
		check("Backward", i, *p)
		seen++
	}
	for i, p := range a.Stream(s) {
		check("Stream", i, *p)
		seen++
	}
	for i, b := range a.Chunks(s, 5, n-5) {
		for j := range b {
			check("Chunks", i+j, b[j])
			seen++
		}
	}
	if err := s.Err(); err != nil || seen != 4*n-10 {
		t.Fatalf("%d elements were seen, want %d (%v)", seen, 4*n-10, err)
	}
	buf := make([]int64, 1000)
	if err := a.Read(t.Context(), buf, 777); err != nil {
		t.Fatal(err)
	}
	for i, v := range buf {
		check("Read", 777+i, v)
	}
	if err := a.Write(t.Context(), want[:1000], 500); err != nil {
		t.Fatal(err)
	}
	copy(want[500:], want[:1000])
	for range 1000 {
		i := r.IntN(n)
		v, err := a.Get(t.Context(), i)
		if err != nil {
			t.Fatal(err)
		}
		if i < 500 || i >= 1500 {
			check("Get", i, v)
		}
	}
	a.Clear()
	if v, err := a.Get(t.Context(), 3); v != 0 || err != nil {
		t.Errorf("after Clear: got %d, %v", v, err)
	}
	a.Free()
	if n := h.Stats().Pointers; n != 0 {
		t.Errorf("%d pointers are left", n)
	}
}

func TestAnArrayHasBounds(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	a := newArray[int32](t, h, 10, StructureConfig{})
	for _, i := range []int{-1, 10, 11, 1 << 40} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("element %d of 10 is there", i)
				}
			}()
			a.At(i)
		}()
	}
	if _, err := NewArray[[]int](t.Context(), h, 1, StructureConfig{Name: "bad"}); err == nil || !strings.Contains(err.Error(), "bad") {
		t.Errorf("an array of slices: got %v", err)
	}
	if _, err := NewArray[int](t.Context(), h, -1, StructureConfig{}); err == nil {
		t.Error("an array of -1 elements is made")
	}
}

func TestAnArrayTellsOfFaults(t *testing.T) {
	store := storetest.New(tinySegment, 1<<10)
	h := openObjects(t, store, 16)
	const n = 60_000
	a := newArray[int64](t, h, n, StructureConfig{NewPrefetcher: func() Prefetcher { return NoPrefetch{} }})
	s := h.NewScope()
	defer s.Close()
	for i, b := range a.MutChunks(s, 0, n) {
		for j := range b {
			b[j] = int64(i + j)
		}
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	store.FailRead.Store(true)
	seen := 0
	for range a.All(s) {
		seen++
	}
	if err := s.Err(); !errors.Is(err, storetest.ErrInjected) || seen == n {
		t.Errorf("a failing store: %d elements, %v", seen, err)
	}
	store.FailRead.Store(false)
	seen = 0
	for i, p := range a.All(s) {
		if *p != int64(i) {
			t.Fatalf("element %d is %d", i, *p)
		}
		seen++
	}
	if err := s.Err(); err != nil || seen != n {
		t.Errorf("afterwards: %d elements, %v", seen, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.SetContext(ctx)
	for range a.All(s) {
	}
	if err := s.Err(); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: got %v", err)
	}
}

func TestArrayAccessDoesNotAllocate(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	a := newArray[int64](t, h, 4096, StructureConfig{})
	s := h.NewScope()
	defer s.Close()
	ctx := context.Background()
	// An iteration takes a few allocations, however long it is.
	if n := testing.AllocsPerRun(100, func() {
		for range a.All(s) {
		}
	}); n > 4 {
		t.Errorf("All allocates %v times", n)
	}
	for name, fn := range map[string]func(){
		"Deref":    func() { s.Enter(); _ = *a.At(3).Deref(s); s.Leave() },
		"DerefMut": func() { s.Enter(); *a.At(3).DerefMut(s)++; s.Leave() },
		"Get":      func() { _, _ = a.Get(ctx, 3) },
		"Set":      func() { _ = a.Set(ctx, 3, 4) },
	} {
		if n := testing.AllocsPerRun(100, fn); n >= 1 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func BenchmarkArray(b *testing.B) {
	h, err := NewHeap(heap.NewMemStore(1<<20, 64), Config{Local: 64 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	a, err := NewArray[int64](context.Background(), h, 1<<12, StructureConfig{})
	if err != nil {
		b.Fatal(err)
	}
	s := h.NewScope()
	defer s.Close()
	for _, c := range a.MutChunks(s, 0, a.Len()) {
		clear(c)
	}
	s.Enter()
	for i := range a.Len() {
		a.At(i).Deref(s)
	}
	s.Leave()
	var sum int64
	b.Run("at", func(b *testing.B) {
		s.Enter()
		for i := range b.N {
			sum += *a.At(i & 4095).Deref(s)
		}
		s.Leave()
	})
	b.Run("mut", func(b *testing.B) {
		s.Enter()
		for i := range b.N {
			*a.At(i & 4095).DerefMut(s) = 1
		}
		s.Leave()
	})
	b.Run("scope", func(b *testing.B) {
		for i := range b.N {
			s.Enter()
			sum += *a.At(i & 4095).Deref(s)
			s.Leave()
		}
	})
	b.Run("get", func(b *testing.B) {
		for i := range b.N {
			v, _ := a.Get(context.Background(), i&4095)
			sum += v
		}
	})
	b.Run("all", func(b *testing.B) {
		for n := 0; n < b.N; {
			for _, p := range a.All(s) {
				sum += *p
				n++
			}
		}
	})
	_ = sum
}

func TestImpossibleSizesAreRefused(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<11), 24)
	for _, n := range []int{-1, math.MaxInt, math.MaxInt - 100, 1 << 50} {
		if _, err := NewArray[int64](t.Context(), h, n, StructureConfig{}); err == nil {
			t.Errorf("there is an array of %d elements", n)
		}
	}
	for _, g := range []int{-1, math.MaxInt, 1<<62 + 1, 1 << 62, 1 << 61, 1 << 40} {
		if _, err := NewVector[int64](h, StructureConfig{Group: g}); err == nil {
			t.Errorf("there is a vector of groups of %d elements", g)
		}
	}
}
