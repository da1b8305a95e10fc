package far

import (
	"context"
	"errors"
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

// Nothing can be made on a heap that was closed, not even on one on which nothing was made before.
func TestNothingIsMadeOnAClosedHeap(t *testing.T) {
	for name, fn := range map[string]func(h *Heap) error{
		"New":      func(h *Heap) error { _, err := New(t.Context(), h, point{}); return err },
		"NewBytes": func(h *Heap) error { _, err := NewBytes(t.Context(), h, make([]byte, 10)); return err },
		"NewArray": func(h *Heap) error { _, err := NewArray[int](t.Context(), h, 100, StructureConfig{}); return err },
		"Map.Set": func(h *Heap) error {
			m, err := NewMap(h, MapConfig[int, int]{})
			if err != nil {
				return err
			}
			return m.Set(t.Context(), 1, 1)
		},
		"Vector.Append": func(h *Heap) error {
			v, err := NewVector[int](h, StructureConfig{})
			if err != nil {
				return err
			}
			return v.Append(t.Context(), 1)
		},
		"List.PushBack": func(h *Heap) error {
			l, err := NewList[int](h, StructureConfig{})
			if err != nil {
				return err
			}
			return l.PushBack(t.Context(), 1)
		},
		"NewRun": func(h *Heap) error {
			c, err := NewClass[int](h, ClassConfig{})
			if err != nil {
				return err
			}
			_, err = c.NewRun(t.Context(), 10)
			return err
		},
		"NewIn": func(h *Heap) error {
			s := h.NewScope()
			defer s.Close()
			s.Enter()
			defer s.Leave()
			_, _, err := NewIn[point](s)
			return err
		},
	} {
		for _, used := range []bool{false, true} {
			h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
			if used {
				if _, err := New(t.Context(), h, point{}); err != nil {
					t.Fatal(err)
				}
			}
			if err := h.Close(); err != nil {
				t.Fatal(err)
			}
			if err := fn(h); !errors.Is(err, ErrClosed) {
				t.Errorf("%s: got %v, want ErrClosed; the heap was used: %v", name, err, used)
			}
		}
	}
}
