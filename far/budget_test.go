package far

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"polder/far/heap"
)

// Whatever a heap is doing, the lines of its account sum to its budget, and none of them is less
// than nothing. That each says what it should, the audit checks when the heap is closed.
func TestTheLinesOfTheBudgetSumToIt(t *testing.T) {
	t.Parallel()
	h, m := openEarly(t, heap.NewMemStore(64<<10, 4000), 500<<10)
	ctx := within(t, time.Minute)
	l, err := NewList[[40]byte](h, StructureConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	done := make(chan struct{})
	for g, m := range []*ByteMap{m, h.NewByteMap("cleared")} {
		wg.Go(func() {
			for i := range 6000 {
				if err := m.Set(ctx, fmt.Append(nil, "key", i), Entry{Value: []byte("value")}); err != nil {
					t.Error(err)
					return
				}
				if g == 1 && i%2000 == 1999 {
					m.Clear()
				}
			}
		})
	}
	wg.Go(func() {
		for range 3000 {
			if err := l.PushBack(ctx, [40]byte{}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	go func() {
		defer close(done)
		wg.Wait()
		growLeaves(t, h, m)
	}()
	seen := map[heap.Line]int64{}
	for looks, last := 0, false; !last; looks++ {
		select {
		case <-done:
			last = true
		default:
		}
		s := h.core.Stats()
		sum := int64(0)
		for u, n := range s.Lines {
			sum += n
			if n < 0 {
				t.Fatalf("look %d: %v has %d bytes", looks, heap.Line(u), n)
			}
			seen[heap.Line(u)] = max(seen[heap.Line(u)], n)
		}
		if sum != s.Budget || s.Budget != h.Local() {
			t.Fatalf("look %d: the lines sum to %d, want the budget of %d: %v", looks, sum, h.Local(), s.Lines)
		}
		if s.Resident > s.Budget {
			t.Fatalf("look %d: %d bytes of a budget of %d are resident", looks, s.Resident, s.Budget)
		}
	}
	for u := range heap.Lines {
		if seen[u] == 0 && u != heap.Checkpoint {
			t.Errorf("%v never had anything", u)
		}
	}
	if said := h.Explain(); !strings.Contains(said, "\nThe budget: logs ") {
		t.Errorf("the heap does not explain its budget:\n%s", said)
	}
}
