package far

import (
	"context"
	"testing"

	"polder/far/heap"
)

// freeing is a MemStore that calls fn when a segment is given back.
type freeing struct {
	*MemStore
	fn func()
}

type freeingSegment struct {
	Segment
	store *freeing
}

func (f *freeing) Alloc(ctx context.Context) (Segment, error) {
	s, err := f.MemStore.Alloc(ctx)
	return freeingSegment{s, f}, err
}

func (f *freeing) Read(ctx context.Context, ops []ReadOp) {
	for i := range ops {
		op := ops[i]
		op.Seg = op.Seg.(freeingSegment).Segment
		f.MemStore.Read(ctx, []ReadOp{op})
	}
}

func (s freeingSegment) Free(ctx context.Context) error {
	s.store.fn()
	return s.Segment.Free(ctx)
}

// While Close gives far memory back, objects are gone already, although the heap can still be found.
func TestASharedMayBeClonedWhileItsHeapIsClosed(t *testing.T) {
	store := &freeing{MemStore: heap.NewMemStore(tinySegment, 1<<10)}
	h := openObjects(t, store, 16)
	p, err := New(t.Context(), h, point{})
	if err != nil {
		t.Fatal(err)
	}
	s := Share(p)
	n := 0
	store.fn = func() {
		if n++; h.core.Shut.Load() {
			s.Clone().Free()
		}
	}
	for range 1000 {
		if _, err := New(t.Context(), h, [1000]byte{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Close(); err != nil || n == 0 {
		t.Errorf("got %v, and %d segments were given back", err, n)
	}
}
