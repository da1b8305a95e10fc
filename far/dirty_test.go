package far

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"polder/far/heap"
	"polder/far/objects"
	"polder/internal/failpoint"
)

// A write between any two steps of the evacuator is not lost, whether the object
// had an equal far copy or not: the evacuator neither drops what has been written
// to nor writes what is being written.
func TestWritesBetweenTheStepsOfAPass(t *testing.T) {
	var hook atomic.Pointer[func(string)]
	failpoint.Set(func(name string) {
		if f := hook.Load(); f != nil {
			(*f)(name)
		}
	})
	t.Cleanup(func() { failpoint.Set(nil) }) // when the heap has been closed
	lay := tiny
	lay.Logs, lay.Open = 16*int64(lay.SegSize), 1 // one log, so that it is soon full
	local := lay.Local()
	h, err := newHeap(heap.NewMemStore(tinySegment, 1<<10), Config{Local: local, MaxLocal: local}, lay)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx := context.Background()
	c, err := NewClass[point](h, ClassConfig{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.New(ctx, point{})
	if err != nil {
		t.Fatal(err)
	}
	// press fills local memory until done, and lets the evacuator look again at
	// what it has kept.
	press := func(done func() bool) {
		for !done() {
			ol := h.core.Logs.Hot(heap.Scoped)
			ol.Mu.Lock()
			h.core.Logs.Seal(ol)
			ol.Mu.Unlock()
			f, err := New(ctx, h, [496]byte{})
			if err != nil {
				t.Fatal(err)
			}
			defer f.Free()
		}
	}
	s := h.NewScope()
	defer s.Close()
	written := int64(0)
	for _, clean := range []bool{true, false} {
		for _, moment := range []string{"far.marking", "far.waiting", "far.settling", "far.moving", "far.settled"} {
			if clean && moment == "far.settled" {
				continue // it is not written
			}
			t.Run(fmt.Sprintf("clean %v, %s", clean, moment), func(t *testing.T) {
				press(func() bool { return !p.IsLocal() })
				s.Enter()
				if v := p.Deref(s); v == nil || v.X != written {
					t.Fatalf("got %v, %v, want X %d", v, s.Err(), written)
				}
				if !clean {
					p.DerefMut(s)
				}
				p.DerefStream(s) // so that the next pass that comes by takes it
				s.Leave()
				written++
				var done atomic.Bool
				write := func(name string) {
					w := objects.Load(p.word())
					if name != moment || done.Load() || !w.Local() || h.core.Logs.SegmentOf(w.Addr()).Phase.Load() == heap.PhaseNone {
						return
					}
					h.core.EnterAtOnce(s)
					defer s.Leave()
					v := p.DerefMut(s)
					if v == nil {
						t.Errorf("DerefMut: %v", s.Err())
					} else {
						v.X = written
					}
					p.DerefStream(s)
					done.Store(true)
				}
				hook.Store(&write)
				press(done.Load)
				hook.Store(nil)
				press(func() bool { return !p.IsLocal() })
				if v, err := p.Load(ctx); err != nil || v.X != written {
					t.Errorf("got %v, %v, want X %d", v, err, written)
				}
			})
		}
	}
}
