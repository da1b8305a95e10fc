package far

import (
	"testing"

	"polder/internal/failpoint"
)

// A mutator may have an object that the evacuator is at work on: between any two
// steps, as here after it has looked at the object, and before it goes on.
func TestAnObjectIsTakenWhileItIsEvacuated(t *testing.T) {
	for _, test := range []struct {
		name string
		take func(h *Heap, s *Scope, ps []Ptr[point], i int)
		lose bool // the far copies
	}{
		{"freed with all the others in its far segment", func(h *Heap, _ *Scope, ps []Ptr[point], _ int) {
			for _, p := range ps {
				p.Free()
			}
			if reapDead(h) == 0 {
				t.Error("no far segment died")
			}
		}, false},
		{"moved, after its far copy was lost", func(h *Heap, s *Scope, ps []Ptr[point], i int) {
			s.Enter()
			defer s.Leave()
			if v := ps[i].Deref(s); v == nil || v.X != int64(i) {
				t.Errorf("got %v (%v)", v, s.Err())
			}
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			store := newFaultStore(tinySegment, 1<<10)
			h := openObjects(t, store, 16)
			ps := fillFar(t, h, 8000)
			h.cancel() // what the evacuator does is done here
			h.wg.Wait()
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
				store.lose(func(int) bool { return true })
			}
			if !h.farReady(farObjectSize(sizeOf[point]())) {
				t.Fatal("there is no far memory")
			}
			p := ps[i].word()
			w := loadWord(p).markedBy(1)
			storeWord(p, w)
			seg := h.logs.segmentOf(w.addr())
			seg.phase.Store(phaseMoving)
			taken := false
			failpoint.Set(func(name string) {
				if name == "far.evacuating" && !taken {
					taken = true
					test.take(h, s, ps, i)
				}
			})
			h.pass.ev.tight = true // nothing is kept
			h.empty(int(w.addr()-h.logs.base)/h.logs.segSize, &h.pass.ev, evict)
			failpoint.Set(nil)
			if err := h.logs.why(); err != nil {
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
	h.far.all(func(s *farSegment) {
		if s.dead() {
			h.drop(s)
			n++
		}
	})
	return n
}

// An object without data may be the last of its segment: then its address is that
// of the next one.
func TestObjectsOfNoSizeAreOfTheirSegment(t *testing.T) {
	h := openObjects(t, NewMemStore(tinySegment, 64), 16)
	c := got(NewClass[struct{}](h, ClassConfig{}))(t)
	var ps []Ptr[struct{}]
	for range 3 * h.logs.segSize / objectSize(0) {
		ps = append(ps, got(c.New(t.Context(), struct{}{}))(t))
	}
	for _, p := range ps {
		p.Free()
	}
	for i := range h.logs.segs {
		if live := h.logs.segs[i].live.Load(); live != 0 {
			t.Errorf("all is freed, and %d bytes are live in segment %d", live, i)
		}
	}
}
