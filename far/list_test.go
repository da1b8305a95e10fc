package far

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"polder/far/heap"
)

func newTestList[T any](t testing.TB, h *Heap, cfg StructureConfig) *List[T] {
	t.Helper()
	l, err := NewList[T](h, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// checkList fails unless l holds want, in both directions.
func checkList(t *testing.T, l *List[int64], s *heap.Scope, want []int64) {
	t.Helper()
	var got, back []int64
	for p := range l.All(s) {
		got = append(got, *p)
	}
	for p := range l.Backward(s) {
		back = append(back, *p)
	}
	slices.Reverse(back)
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) || !slices.Equal(back, want) || l.Len() != len(want) {
		t.Fatalf("the list has %d elements, %d backwards, Len %d; want %d", len(got), len(back), l.Len(), len(want))
	}
}

// A list is what a slice with the same changes is.
func TestAListIsWhatWasDoneToIt(t *testing.T) {
	t.Parallel()
	for _, group := range []int{0, 1, 2, 8} {
		t.Run(fmt.Sprint("group ", group), func(t *testing.T) {
			h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 24)
			l := newTestList[int64](t, h, StructureConfig{Group: group})
			s := h.NewScope()
			defer s.Close()
			ctx := t.Context()
			var want []int64
			r := rand.New(rand.NewPCG(uint64(group), 5))
			rounds := ofModel(20_000)
			if group == 0 {
				for i := range int64(60_000) {
					if err := l.PushBack(ctx, i); err != nil {
						t.Fatal(err)
					}
					want = append(want, i)
				}
				rounds = ofModel(3000)
			}
			c, at := l.Front(), 0
			fresh := func() { // a cursor at a place that is known
				c, at = l.Front(), 0
				if r.IntN(2) == 0 {
					c, at = l.Back(), max(len(want)-1, 0)
				}
				for range r.IntN(60) {
					if at+1 < len(want) && c.Next() {
						at++
					}
				}
				for range r.IntN(60) {
					if at > 0 && c.Prev() {
						at--
					}
				}
			}
			check := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			for round := range rounds {
				v := int64(round)<<32 | 7
				switch r.IntN(12) {
				case 0, 1:
					check(l.PushBack(ctx, v))
					want = append(want, v)
				case 2:
					check(l.PushFront(ctx, v))
					want = slices.Insert(want, 0, v)
				case 3:
					s.Enter()
					check(l.PushBackIn(s, v))
					check(l.PushFrontIn(s, v))
					s.Leave()
					want = append(slices.Insert(want, 0, v), v)
				case 4:
					x, ok, err := l.PopFront(ctx)
					if ok != (len(want) > 0) || ok && x != want[0] || err != nil {
						t.Fatalf("PopFront: %d, %v, %v", x, ok, err)
					}
					want = want[min(1, len(want)):]
				case 5:
					x, ok, err := l.PopBack(ctx)
					if ok != (len(want) > 0) || ok && x != want[len(want)-1] || err != nil {
						t.Fatalf("PopBack: %d, %v, %v", x, ok, err)
					}
					want = want[:max(len(want)-1, 0)]
				case 6, 7:
					fresh()
					check(c.InsertBefore(ctx, v))
					want = slices.Insert(want, at, v)
					at++
				case 8:
					fresh()
					check(c.InsertAfter(ctx, v))
					want = slices.Insert(want, min(at+1, len(want)), v)
				case 9, 10:
					if fresh(); len(want) == 0 {
						break
					}
					check(c.Remove(ctx))
					want = slices.Delete(want, at, at+1)
					if at < len(want) {
						if x, err := c.Load(ctx); err != nil || x != want[at] {
							t.Fatalf("after Remove the cursor is at %d (%v), want %d", x, err, want[at])
						}
						break
					}
					if c.Valid() {
						t.Fatal("after Remove of the last element the cursor is at an element")
					}
				case 11:
					if fresh(); len(want) == 0 {
						break
					}
					want[at] = v
					check(c.Store(ctx, v))
				}
				if round%1000 == 0 {
					checkList(t, l, s, want)
				}
			}
			checkList(t, l, s, want)
			if h.Stats().Fetches == 0 && group == 0 {
				t.Error("nothing was fetched")
			}
			l.Free()
			if n := h.Stats().Pointers; n != 0 {
				t.Errorf("%d pointers are left", n)
			}
		})
	}
}

func TestAnIterationTellsOfChanges(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	l := newTestList[int64](t, h, StructureConfig{Group: 4})
	for i := range int64(20) {
		if err := l.PushBack(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	s := h.NewScope()
	defer s.Close()
	n := 0
	for range l.All(s) {
		if n++; n == 6 {
			if _, _, err := l.PopFrontIn(s); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Err(); !errors.Is(err, ErrModified) || n != 8 {
		t.Errorf("after %d elements: got %v, want ErrModified after 8", n, err)
	}
	n = 0
	for range l.All(s) {
		if n++; n <= 5 {
			if err := l.PushBackIn(s, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Err(); err != nil || n != 24 {
		t.Errorf("with elements pushed meanwhile: %d elements, %v; want 24", n, err)
	}
	c := l.Front()
	l.Clear()
	if c.Valid() || c.Next() || !errors.Is(c.Remove(t.Context()), ErrModified) {
		t.Error("a cursor of a list that was cleared is good")
	}
}

// What goes in comes out once, in the order of each goroutine.
func TestAQueueIsUsedByManyGoroutines(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 24)
	q, err := NewQueue[[4]int32](h, StructureConfig{})
	if err != nil {
		t.Fatal(err)
	}
	const producers, each = 4, 8000
	var wg sync.WaitGroup
	for id := range producers {
		wg.Go(func() {
			for i := range each {
				if err := q.Push(t.Context(), [4]int32{int32(id), int32(i)}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	var next [producers]int32
	for n := range producers * each {
		v, ok, err := q.Pop(t.Context())
		if !ok || err != nil || v[1] != next[v[0]] {
			t.Fatalf("element %d: got %v, %v, %v, want number %d", n, v, ok, err, next[v[0]])
		}
		next[v[0]]++
	}
	if _, ok, err := q.Pop(t.Context()); ok || err != nil || q.Len() != 0 {
		t.Errorf("the queue is not empty: %v, %v", ok, err)
	}
	if st := q.Stats(); st.Evacuated == 0 || st.Prefetch.Used == 0 {
		t.Errorf("the test tested nothing: %+v", st)
	}
}

func TestAStackIsLastInFirstOut(t *testing.T) {
	t.Parallel()
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	st, err := NewStack[int](h, StructureConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	s := h.NewScope()
	defer s.Close()
	const n = 60_000
	for i := range n {
		if err := st.Push(ctx, i); err != nil {
			t.Fatal(err)
		}
	}
	i := n
	for p := range st.All(s) {
		if i--; *p != i {
			t.Fatalf("All: got %d, want %d", *p, i)
		}
	}
	for i := n - 1; i >= 0; i-- {
		if v, ok, err := st.Peek(ctx); !ok || err != nil || v != i {
			t.Fatalf("Peek: got %d, %v, %v, want %d", v, ok, err, i)
		}
		var v int
		var ok bool
		var err error
		if i%2 == 0 {
			v, ok, err = st.Pop(ctx)
		} else {
			s.Enter()
			v, ok, err = st.PopIn(s)
			s.Leave()
		}
		if !ok || err != nil || v != i {
			t.Fatalf("Pop: got %d, %v, %v, want %d", v, ok, err, i)
		}
	}
	if _, ok, err := st.Pop(ctx); ok || err != nil {
		t.Errorf("Pop of an empty stack: %v, %v", ok, err)
	}
}

func TestListsDoNotAllocate(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	q, err := NewQueue[int64](h, StructureConfig{})
	if err != nil {
		t.Fatal(err)
	}
	s := h.NewScope()
	defer s.Close()
	ctx := t.Context()
	for name, fn := range map[string]func(){
		"Push and Pop": func() {
			_ = q.Push(ctx, 1)
			_, _, _ = q.Pop(ctx)
		},
		"PushIn and PopIn": func() {
			s.Enter()
			_ = q.PushIn(s, 1)
			_, _, _ = q.PopIn(s)
			s.Leave()
		},
	} {
		if n := testing.AllocsPerRun(2000, fn); n >= 1 {
			t.Errorf("%s allocate %v times", name, n)
		}
	}
}

func BenchmarkQueue(b *testing.B) {
	h, err := NewHeap(heap.NewMemStore(1<<20, 64), Config{Local: 64 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	q, err := NewQueue[int64](h, StructureConfig{})
	if err != nil {
		b.Fatal(err)
	}
	s := h.NewScope()
	defer s.Close()
	ctx := b.Context()
	b.Run("copying", func(b *testing.B) {
		for i := range b.N {
			_ = q.Push(ctx, int64(i))
			_, _, _ = q.Pop(ctx)
		}
	})
	b.Run("scope", func(b *testing.B) {
		for i := range b.N {
			s.Enter()
			_ = q.PushIn(s, int64(i))
			_, _, _ = q.PopIn(s)
			s.Leave()
		}
	})
}

func TestLookingAtAnEndDoesNotDisturbAnIteration(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<11), 24)
	q, err := NewQueue[int](h, StructureConfig{Group: 4})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 16 {
		if err := q.Push(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	for range 4 { // the first group is used up
		if _, _, err := q.Pop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s := h.NewScope()
	defer s.Close()
	want := 4
	for v := range q.All(s) {
		if *v != want {
			t.Fatalf("got %d, want %d", *v, want)
		}
		want++
		if first, ok, err := q.Peek(t.Context()); first != 4 || !ok || err != nil {
			t.Fatalf("Peek: got %d, %v, %v; want 4", first, ok, err)
		}
	}
	if err := s.Err(); err != nil || want != 16 {
		t.Errorf("the iteration ended before %d, with %v; want 16", want, err)
	}
}

// What links the nodes of a list counts in the budget, and is given back.
func TestNodesOfListsCountInTheBudget(t *testing.T) {
	t.Parallel()
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<12), 40)
	ctx := t.Context()
	l := newTestList[int64](t, h, StructureConfig{Group: 1})
	index := func() int64 {
		st := h.Stats()
		return st.Index - st.Lines[heap.Words]
	}
	before := index()
	const n = 3000
	fill := func() {
		t.Helper()
		for i := range int64(n) {
			if err := l.PushBack(ctx, i); err != nil {
				t.Fatal(err)
			}
		}
		if got := index() - before; got < n*24 || got > n*24*11/10 {
			t.Errorf("%d nodes count as %d bytes, want %d and little more", n, got, n*24)
		}
	}
	fill()
	l.Clear()
	if got := index(); got != before {
		t.Errorf("after Clear %d bytes of index are left, want %d", got, before)
	}
	fill()
	for i := range int64(n) {
		if v, ok, err := l.PopFront(ctx); v != i || !ok || err != nil {
			t.Fatalf("element %d: got %d, %v, %v", i, v, ok, err)
		}
	}
	if got := index(); got != before {
		t.Errorf("after the last element was popped %d bytes of index are left, want %d", got, before)
	}
	// It fails rather than exceed the budget, and is what it was.
	var err error
	i := int64(0)
	for err == nil {
		if err = l.PushBack(ctx, i); err == nil {
			i++
		}
	}
	if !errors.Is(err, heap.ErrFull) || l.Len() != int(i) {
		t.Errorf("after %d elements: got %v and %d elements, want %v", i, err, l.Len(), heap.ErrFull)
	}
	if st := h.Stats(); st.Resident > st.Budget {
		t.Errorf("%d bytes are resident with a budget of %d", st.Resident, st.Budget)
	}
	s := h.NewScope()
	defer s.Close()
	want := int64(0)
	for v := range l.All(s) {
		if *v != want {
			t.Fatalf("got %d, want %d", *v, want)
		}
		want++
	}
	if want != i || s.Err() != nil {
		t.Errorf("got %d elements, want %d (%v)", want, i, s.Err())
	}
	l.Free()
}

func TestACursorAtTheEndSaysSo(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	l := newTestList[int64](t, h, StructureConfig{})
	c := l.Front()
	s := h.NewScope()
	defer s.Close()
	s.Enter()
	defer s.Leave()
	_, load := c.Load(t.Context())
	c.Deref(s)
	for name, err := range map[string]error{"Load": load, "Store": c.Store(t.Context(), 1), "Remove": c.Remove(t.Context()), "Deref": s.Err()} {
		if !errors.Is(err, ErrEnd) {
			t.Errorf("%s: got %v, want ErrEnd", name, err)
		}
	}
}
