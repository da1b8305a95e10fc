package finemem_test

import (
	"errors"
	"testing"

	"polder/internal/arena"
	"polder/memnode/twolayer"
	"polder/pool/finemem"
	"polder/pool/manager"
)

// half is the class of half a span: two of them make it full.
const half = twolayer.SpanClass - 1

var errCrash = errors.New("crash")

// hooks is a Step that a test changes while the allocator is at rest, or from
// within.
type hooks struct{ f func(step string) error }

func (h *hooks) step(s string) error {
	if h.f == nil {
		return nil
	}
	return h.f(s)
}

// at runs f once, before a step has come for the nth time.
func (h *hooks) at(step string, nth int, f func() error) {
	h.f = func(s string) error {
		if s != step {
			return nil
		}
		if nth--; nth > 0 {
			return nil
		}
		h.f = nil
		return f()
	}
}

// mustAlloc and mustFree fail the test.
func (r *rig) mustAlloc(a *finemem.Allocator, k int) finemem.Block {
	r.t.Helper()
	b, err := a.Alloc(r.t.Context(), k)
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

func (r *rig) mustFree(a *finemem.Allocator, b finemem.Block) {
	r.t.Helper()
	if err := a.Free(r.t.Context(), b); err != nil {
		r.t.Fatal(err)
	}
}

// check takes the census, which finds spans that are lost.
func (r *rig) check() {
	r.t.Helper()
	if _, err := r.table.Count(); err != nil {
		r.t.Error(err)
	}
}

// fullHint makes span 0 open and without allocations although its section says
// that it is full: who should have said otherwise has crashed.
func fullHint(t *testing.T) *rig {
	r := newRig(t, 2<<20, twolayer.DefaultUnit)
	var crash hooks
	a, b := r.allocator(1, finemem.Paper, crash.step), r.allocator(2, finemem.Paper, nil)
	mine := r.mustAlloc(b, half)
	his := r.mustAlloc(a, half) // and says that the span is full
	if mine.First/twolayer.SpanChunks != 0 || his.First/twolayer.SpanChunks != 0 {
		t.Fatalf("chunks %d and %d, want both of span 0", mine.First, his.First)
	}
	crash.at(finemem.StepHint, 1, func() error { return errCrash })
	if err := a.Free(t.Context(), his); !errors.Is(err, errCrash) {
		t.Fatalf("Free = %v, want a crash", err)
	}
	r.table.Owned(1, func(x twolayer.Extent) { r.table.Release(1, x, func(string) {}) })
	r.mustFree(b, mine) // whose header's state has not been full as far as b knows
	if got, v := r.table.Section(0).State(0), r.table.Span(0); got != twolayer.Full || !v.Open() || v.Free() != twolayer.AllFree {
		t.Fatalf("the section says %d of span 0, whose header is %#x; want %d, and open without allocations", got, v, twolayer.Full)
	}
	r.sync(t.Context())
	return r
}

// The node closes a span of which the section says that it is full, and somebody
// changes the section meanwhile.
func TestNodeClosesASpanThatCountsAsFull(t *testing.T) {
	r := fullHint(t)
	c := r.allocator(3, finemem.Paper, nil)
	tried := 0
	r.table.CloseSpan(0, func(step string) {
		if step == "rebind.close-section" {
			tried++
			r.mustAlloc(c, 0) // opens another span
		}
	})
	r.check()
	if tried == 0 {
		t.Error("nothing was closed")
	}
}

// The same with a client that closes it, and may crash then.
func TestClientClosesASpanThatCountsAsFull(t *testing.T) {
	for _, test := range []struct {
		name  string
		crash bool
	}{{"crash", true}, {"beside another", false}} {
		t.Run(test.name, func(t *testing.T) {
			r := fullHint(t)
			c := r.allocator(3, finemem.Paper, nil)
			var h hooks
			d := r.allocator(4, finemem.Paper, h.step)
			tried := 0
			h.at(finemem.StepCloseSection, 1, func() error {
				tried++
				if test.crash {
					return errCrash
				}
				r.mustAlloc(c, 0)
				return nil
			})
			_, err := d.Alloc(t.Context(), twolayer.SectionClass)
			if want := map[bool]error{true: errCrash, false: manager.ErrNoMemory}[test.crash]; !errors.Is(err, want) {
				t.Errorf("Alloc = %v, want %v", err, want)
			}
			r.check()
			if tried == 0 {
				t.Error("nothing was closed")
			}
		})
	}
}

// A client that frees finds the span full again, and is slow to say so; when it
// does, the span has become free and the node is closing it. What the others do is
// played by hand: the one that fills the span takes its section's header for what
// it was when the span was full before, and says nothing.
func TestSlowHintOfFull(t *testing.T) {
	r := newRig(t, 2<<20, twolayer.DefaultUnit)
	var slow hooks
	m, n := r.allocator(1, finemem.Paper, slow.step), r.allocator(2, finemem.Paper, nil)
	his, mine := r.mustAlloc(n, half), r.mustAlloc(m, half) // m has said that the span is full
	word := func(at uint64) interface {
		Load() uint64
		Store(uint64)
	} {
		return arena.Word64(r.mr.Bytes()[at:][:8])
	}
	header := word(r.table.SpanAt(0))
	span := func(change func(twolayer.Span) twolayer.Span) {
		t.Helper()
		if _, err := r.table.Count(); err != nil { // flushes
			t.Fatal(err)
		}
		header.Store(uint64(change(twolayer.Span(header.Load()))))
	}
	resume, closing, closed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	again := false
	slow.f = func(step string) error {
		switch {
		case step == finemem.StepReadHeaders && r.table.Section(0).State(0) == twolayer.InUse && r.table.Span(0).Free() != 0 && !again:
			// It has said that there is memory, and is about to look again.
			again = true
			r.sync(t.Context())
			span(func(s twolayer.Span) twolayer.Span { return s.Allocated(int(mine.First), half, 2, 0) })
		case step == finemem.StepHint && again:
			t.Error("who has nothing of the span says that it is full")
			for _, b := range []finemem.Block{mine, his} {
				span(func(s twolayer.Span) twolayer.Span { return s.Freed(int(b.First), half, 2, 0) })
			}
			go func() {
				defer close(closed)
				r.table.CloseSpan(0, func(step string) {
					if step == "rebind.close-section" {
						close(closing)
						<-resume
					}
				})
			}()
			<-closing
		}
		return nil
	}
	r.mustFree(m, mine)
	if !again {
		t.Error("the span was not full again")
	}
	select {
	case <-closing:
		close(resume)
		<-closed
	default:
	}
	r.check()
}
