package far

import (
	"slices"
	"testing"

	"polder/far/heap"
)

// recorder is a Prefetcher that sees everything and asks for the next one.
type recorder struct{ seen *[]int }

func (r recorder) Access(i, window int, dst []int) []int {
	*r.seen = append(*r.seen, i)
	return append(dst, i+1, -5, 1<<40) // two of which are nowhere
}

func TestPrefetchersArePluggable(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	var seen []int
	a := newArray[int64](t, h, 60_000, StructureConfig{Group: 128, NewPrefetcher: func() Prefetcher { return recorder{&seen} }})
	s := h.NewScope()
	defer s.Close()
	for _, b := range a.MutChunks(s, 0, a.Len()) {
		b[0]++
	}
	seen = seen[:0]
	for range a.Chunks(s, 0, a.Len()) {
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	want := make([]int, (60_000+127)/128)
	for i := range want {
		want[i] = i
	}
	if !slices.Equal(seen, want) {
		t.Errorf("the prefetcher saw %d objects, want %d in order", len(seen), len(want))
	}
	if st := a.Stats(); st.Prefetch.Issued == 0 {
		t.Errorf("nothing was prefetched: %+v", st)
	}
}

// A walk through elements by At is a sequence, too, and hints are heeded.
func TestHintsAndElementsPrefetch(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	a := newArray[int64](t, h, 60_000, StructureConfig{Group: 128})
	s := h.NewScope()
	defer s.Close()
	for _, b := range a.MutChunks(s, 0, a.Len()) {
		b[0]++
	}
	before := a.Stats().Prefetch.Issued
	for i := 0; i < a.Len(); i += 64 {
		s.Enter()
		if p := a.At(i).Deref(s); p == nil || i%128 == 0 && *p != 1 {
			t.Fatalf("element %d: %v, %v", i, p, s.Err())
		}
		s.Leave()
	}
	walked := a.Stats().Prefetch.Issued
	if walked == before {
		t.Error("a walk by At was not found to be one")
	}
	a.DontNeed(0, a.Len())
	wait := 0
	for i := range 1000 / 128 {
		if !a.At(i * 128).IsLocal() {
			wait++
		}
	}
	if err := a.Prefetch(t.Context(), 0, 1000); err != nil {
		t.Fatal(err)
	}
	for i := range 1000 / 128 {
		if !a.At(i * 128).IsLocal() {
			t.Errorf("element %d is far after Prefetch, as %d groups were before", i*128, wait)
		}
	}
}
