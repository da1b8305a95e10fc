package far

import (
	"testing"

	"polder/far/heap"
	"polder/far/object"
	"polder/far/objects"
	"polder/far/store/storetest"
	"polder/internal/failpoint"
)

// A mutator may have an object that the evacuator is at work on: between any two
// steps, as here after it has looked at the object, and before it goes on.
func TestAnObjectIsTakenWhileItIsEvacuated(t *testing.T) {
	for _, test := range []struct {
		name string
		take func(h *Heap, s *heap.Scope, ps []Ptr[point], i int)
		lose bool // the far copies
	}{
		{"freed with all the others in its far segment", func(h *Heap, _ *heap.Scope, ps []Ptr[point], _ int) {
			for _, p := range ps {
				p.Free()
			}
			if reapDead(h) == 0 {
				t.Error("no far segment died")
			}
		}, false},
		{"moved, after its far copy was lost", func(h *Heap, s *heap.Scope, ps []Ptr[point], i int) {
			s.Enter()
			defer s.Leave()
			if v := ps[i].Deref(s); v == nil || v.X != int64(i) {
				t.Errorf("got %v (%v)", v, s.Err())
			}
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			store := storetest.New(tinySegment, 1<<10)
			h := openObjects(t, store, 16)
			ps := fillFar(t, h, 8000)
			h.core.Cancel() // what the evacuator does is done here
			h.core.Wg.Wait()
			s := h.NewScope()
			defer s.Close()

			i := 0
			for ps[i].IsLocal() {
				i++
			}
			s.Enter()
			if ps[i].Deref(s) == nil {
				t.Fatal(s.Err())
			}
			s.Leave()
			if test.lose {
				store.Lose(func(int, heap.Segment) bool { return true })
			}
			if !h.core.FarReady(object.FarSize(sizeOf[point]())) {
				t.Fatal("there is no far memory")
			}
			p := ps[i].word()
			w := objects.Load(p)
			h.objects.Owner().Mark(h.objects.Number(p), w.Addr(), 1)
			seg := h.core.Logs.SegmentOf(w.Addr())
			seg.Phase.Store(heap.PhaseMoving)
			taken := false
			failpoint.Set(func(name string) {
				if name == "far.evacuating" && !taken {
					taken = true
					test.take(h, s, ps, i)
				}
			})
			h.core.Pass.Ev.Tight = true // nothing is kept
			h.core.Empty(int(w.Addr()-h.core.Logs.Base)/h.core.Logs.SegSize, &h.core.Pass.Ev, heap.Evict)
			h.core.Drain()
			failpoint.Set(nil)
			if err := h.core.Logs.Why(); err != nil {
				t.Fatal(err)
			}
			if !taken {
				t.Error("the object was not evacuated")
			}
			if err := h.audit(); err != nil {
				t.Error(err)
			}
		})
	}
}

// reapDead does what the janitor does with dead segments.
func reapDead(h *Heap) (n int) {
	h.core.Far.All(func(s *heap.FarSegment) {
		if s.Dead() {
			h.core.Drop(s)
			n++
		}
	})
	return n
}

// An object without data may be the last of its segment: then its address is that
// of the next one.
func TestObjectsOfNoSizeAreOfTheirSegment(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	c := got(NewClass[struct{}](h, ClassConfig{}))(t)
	var ps []Ptr[struct{}]
	for range 3 * h.core.Logs.SegSize / object.Size(0) {
		ps = append(ps, got(c.New(t.Context(), struct{}{}))(t))
	}
	for _, p := range ps {
		p.Free()
	}
	for i := range h.core.Logs.Segs {
		if live := h.core.Logs.Segs[i].Live.Load(); live != 0 {
			t.Errorf("all is freed, and %d bytes are live in segment %d", live, i)
		}
	}
}
