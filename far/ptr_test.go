package far

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"polder/far/heap"
	"polder/internal/invariants"
)

type point struct{ X, Y int64 }

// openObjects makes a heap whose logs hold little, of segments of 16 KiB.
func openObjects(t testing.TB, store heap.Store, segments int) *Heap {
	t.Helper()
	return openObjectsWith(t, store, segments, tiny)
}

func openObjectsWith(t testing.TB, store heap.Store, segments int, lay layout) *Heap {
	t.Helper()
	lay.Logs = int64(segments) * int64(lay.SegSize)
	lay.Most = 4 * lay.Logs
	local := lay.Local()
	h, err := newHeap(store, Config{Local: local, MaxLocal: local + 3*lay.Logs, MaxValue: 1 << 20, HeldTooLong: time.Minute}, lay)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// Objects go far and come back unchanged, several times
// more than fit into local memory.
func TestObjectsComeBackFromFarMemory(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	ctx := context.Background()
	const n = 10000
	ps := make([]Ptr[point], n)
	for i := range ps {
		p, err := New(ctx, h, point{int64(i), int64(-i)})
		if err != nil {
			t.Fatalf("New %d: %v", i, err)
		}
		ps[i] = p
	}
	s := h.NewScope()
	defer s.Close()
	r := rand.New(rand.NewPCG(1, 2))
	want := make([]int64, n)
	for range 3 * n {
		i := r.IntN(n)
		s.Enter()
		if r.IntN(2) == 0 {
			p := ps[i].DerefMut(s)
			if p == nil {
				t.Fatalf("DerefMut of %d: %v", i, s.Err())
			}
			p.X++
			want[i]++
		}
		p := ps[i].Deref(s)
		if p == nil {
			t.Fatalf("Deref of %d: %v", i, s.Err())
		}
		if got := *p; got != (point{int64(i) + want[i], int64(-i)}) {
			t.Fatalf("object %d: got %v, want X %d", i, got, int64(i)+want[i])
		}
		s.Leave()
	}
	st := h.Stats()
	if st.Fetches == 0 || st.Evacuated == 0 {
		t.Fatalf("nothing was evacuated or fetched: %+v", st)
	}
	for _, p := range ps {
		p.Free()
	}
	if n := h.Stats().Pointers; n != 0 {
		t.Errorf("%d objects are left, want 0", n)
	}
}

// What is used again and again stays local, while others come and go.
func TestObjectsThatAreUsedStay(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<11), 16)
	ctx := context.Background()
	var hot [16]Ptr[point]
	for i := range hot {
		var err error
		if hot[i], err = New(ctx, h, point{X: int64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	s := h.NewScope()
	defer s.Close()
	const others = 30_000 // as much as fits into local memory, ten times
	var cold [5000]Ptr[[10]int64]
	for n := range others {
		p, err := New(ctx, h, [10]int64{int64(n)})
		if err != nil {
			t.Fatal(err)
		}
		if n >= len(cold) {
			cold[n%len(cold)].Free()
		}
		cold[n%len(cold)] = p
		s.Enter()
		if i := n % len(hot); hot[i].Deref(s) == nil {
			t.Fatalf("hot object %d: %v", i, s.Err())
		}
		s.Leave()
	}
	// Nothing but hot objects was used again.
	st := h.Stats()
	if st.Evacuated < others/2 {
		t.Fatalf("%d objects were evacuated of %d", st.Evacuated, others)
	}
	if st.Fetches > 40 {
		t.Errorf("hot objects were fetched %d times, want hardly ever", st.Fetches)
	}
}

func TestTypesWithGoPointersAreRefused(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 16), 16)
	type inner struct{ Names [2]string }
	_, err := New(context.Background(), h, struct {
		A int
		B inner
	}{})
	if err == nil || !strings.Contains(err.Error(), "B.Names[]") {
		t.Errorf("got %v, want an error that names B.Names[]", err)
	}
	if _, err := New(context.Background(), h, struct {
		Next Ref[point]
		F    [3]float64
	}{}); err != nil {
		t.Errorf("a type with a Ref: %v", err)
	}
}

func TestTooLargeAnObject(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 16), 16)
	if _, err := New(context.Background(), h, [64 << 10]byte{}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v, want ErrTooLarge", err)
	}
}

// Goroutines use objects of the same heap, each its own and all of them a few
// hot ones, while the heap goes through everything.
func TestManyGoroutinesShareAHeap(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 24)
	ctx := context.Background()
	const workers, each, rounds = 8, 800, 4000
	var hot [16]Ptr[[8]int64]
	for i := range hot {
		var err error
		if hot[i], err = New(ctx, h, [8]int64{7: int64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for id := range workers {
		wg.Go(func() {
			s := h.NewScope()
			defer s.Close()
			r := rand.New(rand.NewPCG(uint64(id), 7))
			ps := make([]Ptr[[10]int64], each)
			for i := range ps {
				var err error
				if ps[i], err = New(ctx, h, [10]int64{0: int64(i), 9: int64(id)}); err != nil {
					t.Errorf("worker %d: %v", id, err)
					return
				}
			}
			for range rounds {
				i := r.IntN(each)
				s.Enter()
				v := ps[i].DerefMut(s)
				if v == nil {
					t.Errorf("worker %d: object %d: %v", id, i, s.Err())
					s.Leave()
					return
				}
				if v[0] != int64(i) || v[9] != int64(id) || v[1] != v[8] {
					t.Errorf("worker %d: object %d is %v", id, i, *v)
				}
				v[1]++
				v[8]++
				j := r.IntN(len(hot))
				if v := hot[j].Deref(s); v == nil {
					t.Errorf("worker %d: hot object %d: %v", id, j, s.Err())
				} else if v[7] != int64(j) {
					t.Errorf("worker %d: hot object %d is %v", id, j, *v)
				}
				s.Leave()
			}
			for _, p := range ps {
				p.Free()
			}
		})
	}
	wg.Wait()
}

// TestAPointerOfAClosedHeapRefersToNothing: it is said by an error where it is used, and by no panic.
func TestAPointerOfAClosedHeapRefersToNothing(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 8), 16)
	p, err := New(t.Context(), h, 7)
	if err != nil {
		t.Fatal(err)
	}
	if p.Ref().IsNil() {
		t.Error("a pointer refers to nothing")
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if !p.Ref().IsNil() || p.Any() != (AnyRef{}) {
		t.Error("a pointer of a closed heap refers to something")
	}
}

// Clear frees the objects of its class, local and far, and no others.
func TestAClassIsCleared(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	mine, err := NewClass[point](h, ClassConfig{Name: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	const n = 3000
	others := make([]Ptr[point], 0, n)
	for i := range n {
		if _, err := mine.New(t.Context(), point{}); err != nil {
			t.Fatal(err)
		}
		p, err := New(t.Context(), h, point{int64(i), 1})
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, p)
	}
	mine.Clear()
	if got := h.Stats().Pointers; got != n {
		t.Errorf("%d pointers are left, want %d", got, n)
	}
	for i, p := range others {
		if v, err := p.Load(t.Context()); err != nil || v.X != int64(i) {
			t.Fatalf("object %d of the other class: got %v, %v", i, v, err)
		}
	}
	if err := mine.Free(); err != nil {
		t.Error(err)
	}
}

func TestObjectsOnAFullStore(t *testing.T) {
	t.Parallel()
	h := openObjects(t, heap.NewMemStore(tinySegment, 8), 16)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var ps []Ptr[[5000]byte]
	for {
		p, err := New(ctx, h, [5000]byte{byte(len(ps))})
		if err != nil {
			if !errors.Is(err, heap.ErrFull) {
				t.Fatalf("object %d: got %v, want ErrFull", len(ps), err)
			}
			break
		}
		ps = append(ps, p)
	}
	// What is far can be read all the same, in a scope or without.
	s := h.NewScope()
	defer s.Close()
	s.SetContext(ctx)
	step := 1
	if invariants.Enabled { // each makes the evacuator look for room in vain; "make plain" reads all of them
		step = 6
	}
	for i := 0; i < len(ps); i += step {
		p, want := ps[i], byte(i)
		if err := h.Do(ctx, func(s *heap.Scope) error {
			if v := ps[len(ps)-1-i].Deref(s); v != nil && v[0] != byte(len(ps)-1-i) {
				t.Errorf("object %d of a full heap, in Do: got %d", len(ps)-1-i, v[0])
			}
			return nil
		}); err != nil {
			t.Fatalf("object %d of a full heap, in Do: %v", len(ps)-1-i, err)
		}
		if v, err := p.Load(ctx); err != nil || v[0] != want {
			t.Fatalf("object %d of a full heap: got %d, %v", i, v[0], err)
		}
		s.Enter()
		if v := p.Deref(s); v == nil || v[0] != want {
			t.Fatalf("object %d of a full heap: Deref: %v", i, s.Err())
		}
		s.Leave()
	}
	// With half of them freed, the rest can be read.
	for i := 0; i < len(ps); i += 2 {
		ps[i].Free()
	}
	for i := 1; i < len(ps); i += 2 {
		if v, err := ps[i].Load(ctx); err != nil || v[0] != byte(i) {
			t.Fatalf("object %d: got %d, %v", i, v[0], err)
		}
		ps[i].Free()
	}
	for range 100 {
		p, err := New(ctx, h, [5000]byte{})
		if err != nil {
			t.Fatalf("after all were freed: %v", err)
		}
		p.Free()
	}
}

// Builds with invariants compare a pointer's generation before they use its word, which the nil pointer has not.
func TestANilPointerIsSaid(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	s := h.NewScope()
	defer s.Close()
	s.Enter()
	defer s.Leave()
	var p Ptr[point]
	for name, fn := range map[string]func(){
		"Deref":          func() { p.Deref(s) },
		"DerefMut":       func() { p.DerefMut(s) },
		"DerefStream":    func() { p.DerefStream(s) },
		"DerefMutStream": func() { p.DerefMutStream(s) },
		"Load":           func() { _, _ = p.Load(t.Context()) },
		"Store":          func() { _ = p.Store(t.Context(), point{}) },
		"Free":           p.Free,
		"Shared.Deref":   func() { Share(p).Deref(s) },
		"Shared.Clone":   func() { Share(p).Clone() },
	} {
		if got := fmt.Sprint(panics(t, fn)); !strings.Contains(got, "nil Ptr") && !strings.Contains(got, "nil pointer") {
			t.Errorf("%s of a nil pointer panics with %q", name, got)
		}
	}
}
