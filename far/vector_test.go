package far

import (
	"iter"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"polder/far/heap"
)

func newVector[T any](t testing.TB, h *Heap, cfg StructureConfig) *Vector[T] {
	t.Helper()
	v, err := NewVector[T](h, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestPartsOfAVectorFollowOneAnother(t *testing.T) {
	part, i := 0, 0
	for c := range 10 * vectorPart {
		if p, j := partOf(c); p != part || j != i {
			t.Fatalf("object %d is number %d of part %d, want %d of %d", c, j, p, i, part)
		}
		if i++; i == max(vectorPart<<part>>1, vectorPart) {
			part, i = part+1, 0
		}
	}
}

func TestAVectorIsWhatWasAppended(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<11), 24)
	v := newVector[int64](t, h, StructureConfig{})
	var want []int64
	r := rand.New(rand.NewPCG(3, 3))
	ctx := t.Context()
	s := h.NewScope()
	defer s.Close()
	for round := range 3000 {
		switch r.IntN(12) {
		case 0, 1, 2, 3, 4:
			xs := make([]int64, r.IntN(400))
			for i := range xs {
				xs[i] = r.Int64()
			}
			if err := v.Append(ctx, xs...); err != nil {
				t.Fatal(err)
			}
			want = append(want, xs...)
		case 5:
			s.Enter()
			if err := v.AppendIn(s, int64(round), int64(-round)); err != nil {
				t.Fatal(err)
			}
			s.Leave()
			want = append(want, int64(round), int64(-round))
		case 6:
			x, ok, err := v.Pop(ctx)
			if err != nil || ok != (len(want) > 0) || ok && x != want[len(want)-1] {
				t.Fatalf("Pop: got %d, %v, %v", x, ok, err)
			}
			want = want[:max(len(want)-1, 0)]
		case 7:
			if len(want) > 0 && r.IntN(100) == 0 {
				n := r.IntN(len(want))
				v.Truncate(n)
				want = want[:n]
			}
		default:
			if len(want) == 0 {
				break
			}
			i := r.IntN(len(want))
			if x, err := v.Get(ctx, i); err != nil || x != want[i] {
				t.Fatalf("Get(%d): got %d, %v, want %d", i, x, err, want[i])
			}
			want[i] = r.Int64()
			if err := v.Set(ctx, i, want[i]); err != nil {
				t.Fatal(err)
			}
		}
		if v.Len() != len(want) {
			t.Fatalf("Len is %d, want %d", v.Len(), len(want))
		}
	}
	n := 0
	for i, p := range v.All(s) {
		if *p != want[i] {
			t.Fatalf("All: element %d is %d, want %d", i, *p, want[i])
		}
		n++
	}
	for i, p := range v.Backward(s) {
		if *p != want[i] {
			t.Fatalf("Backward: element %d is %d, want %d", i, *p, want[i])
		}
		n++
	}
	if err := s.Err(); err != nil || n != 2*len(want) {
		t.Fatalf("saw %d elements, want %d (%v)", n, 2*len(want), err)
	}
	if h.Stats().Fetches == 0 {
		t.Error("nothing was fetched")
	}
	v.Free()
	if n := h.Stats().Pointers; n != 0 {
		t.Errorf("%d pointers are left", n)
	}
}

func TestAVectorIsAppendedToByMany(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 24)
	v := newVector[int32](t, h, StructureConfig{})
	const workers, each = 8, 2000
	var wg sync.WaitGroup
	for id := range workers {
		wg.Go(func() {
			for i := range each {
				if err := v.Append(t.Context(), int32(id*each+i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	seen := map[int32]bool{}
	last := map[int32]int32{}
	s := h.NewScope()
	defer s.Close()
	for _, p := range v.All(s) {
		x := *p
		if id := x / each; x < last[id] {
			t.Fatalf("%d came after %d", x, last[id])
		}
		seen[x], last[x/each] = true, x
	}
	if len(seen) != workers*each || s.Err() != nil {
		t.Errorf("%d elements, want %d", len(seen), workers*each)
	}
}

func TestAVectorHasBounds(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	v := newVector[int32](t, h, StructureConfig{})
	if err := v.Append(t.Context(), 1, 2, 3); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if e, ok := recover().(error); !ok || e.Error() != "index out of range [3] with length 3" {
			t.Errorf("element 3 of 3: got %v", e)
		}
	}()
	v.At(3)
}

func TestAVectorMayShrinkWhileItIsIterated(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<11), 24)
	s := h.NewScope()
	defer s.Close()
	for name, all := range map[string]func(v *Vector[int64]) iter.Seq2[int, *int64]{
		"All":      func(v *Vector[int64]) iter.Seq2[int, *int64] { return v.All(s) },
		"Backward": func(v *Vector[int64]) iter.Seq2[int, *int64] { return v.Backward(s) },
	} {
		want := map[string]int{"All": 4, "Backward": 8}[name] // the group at hand, and the first
		v := newVector[int64](t, h, StructureConfig{Group: 4})
		if err := v.Append(t.Context(), make([]int64, 40)...); err != nil {
			t.Fatal(err)
		}
		seen := 0
		for i, x := range all(v) {
			if *x != 0 {
				t.Fatalf("%s: element %d: got %d, want 0", name, i, *x)
			}
			if seen++; seen == 2 {
				v.Truncate(1)
			}
		}
		if err := s.Err(); err != nil || seen != want {
			t.Errorf("%s: %d elements, %v; want %d and no error", name, seen, err, want)
		}
		v.Free()
	}
}

func TestAdviceBeyondAVectorIsPassedOver(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<11), 24)
	v := newVector[int64](t, h, StructureConfig{})
	if err := v.Append(t.Context(), make([]int64, 1000)...); err != nil {
		t.Fatal(err)
	}
	for _, r := range [][2]int{{math.MinInt, math.MaxInt}, {-5, 5}, {999, 1 << 50}, {7, 3}, {2000, 3000}} {
		done(t, v.Prefetch(t.Context(), r[0], r[1]))
		v.DontNeed(r[0], r[1])
	}
	if p := v.word(1 << 62); p != nil {
		t.Error("there is a word beyond the end")
	}
}

func TestARangeOutsideOfAVectorPanics(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<11), 24)
	v := newVector[int64](t, h, StructureConfig{})
	defer func() {
		err, ok := recover().(runtime.Error)
		if want := "slice bounds out of range [-1:0] with length 0"; !ok || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}()
	v.Chunks(h.NewScope(), -1, 0)
}
