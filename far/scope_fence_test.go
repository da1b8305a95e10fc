package far

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"polder/far/heap"
)

// A goroutine enters a scope and looks at a word while the evacuator marks the
// word and looks for scopes: either it sees the mark, or its scope is seen. The
// first is a plain store and a load where the evacuator fences for both.
func TestAScopeThatIsBeingEnteredIsSeen(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("one processor")
	}
	h := openObjects(t, heap.NewMemStore(tinySegment, 16), 16)
	s := h.NewScope()
	defer s.Close()
	await := func(v *atomic.Int64, least int64) {
		for spin := 1; v.Load() < least; spin++ {
			if spin%1000 == 0 {
				runtime.Gosched()
			}
		}
	}
	var mark, begun, looked, decided atomic.Int64 // rounds
	const rounds = 200_000
	var last atomic.Int64
	last.Store(rounds)
	var wg sync.WaitGroup
	wg.Go(func() {
		for r := int64(1); r <= last.Load(); r++ {
			await(&begun, r)
			s.Enter()
			if mark.Load() == r {
				looked.Store(2*r + 1)
			} else {
				looked.Store(2 * r)
			}
			await(&decided, r)
			s.Leave()
		}
	})
	missed, end := 0, time.Now().Add(2*time.Second) // on a machine that is busy with other things
	for r := int64(1); r <= last.Load(); r++ {
		if time.Now().After(end) {
			last.Store(r)
		}
		begun.Store(r)
		for range r % 128 { // the other takes a while to see that
			looked.Load()
		}
		mark.Store(r)
		epoch := h.core.Scopes.Begin()
		unseen := h.core.Scopes.Passed(epoch)
		await(&looked, 2*r)
		if unseen && looked.Load() == 2*r {
			missed++
		}
		decided.Store(r)
	}
	wg.Wait()
	if missed > 0 {
		t.Errorf("in %d of %d rounds a scope was not seen that did not see the mark", missed, last.Load())
	}
}
