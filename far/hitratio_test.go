//go:build !race

// One goroutine counts hits, in millions of accesses.

package far

import (
	"container/list"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"polder/far/heap"
	"polder/far/object"
)

// lru is an ideal LRU of so many entries, without overhead.
type lru struct {
	order *list.List
	at    map[int]*list.Element
	max   int
}

func (l *lru) touch(k int) (hit bool) {
	if e, ok := l.at[k]; ok {
		l.order.MoveToFront(e)
		return true
	}
	l.at[k] = l.order.PushFront(k)
	if len(l.at) > l.max {
		e := l.order.Back()
		delete(l.at, e.Value.(int))
		l.order.Remove(e)
	}
	return false
}

// hitRatios plays reads, and one write in writes, of values of size bytes, of
// which 20 per cent are local, and returns the hit ratio of the heap and that
// of an ideal LRU whose entries, headers and all, take the bytes of the whole
// budget but for the index.
func hitRatios(tb testing.TB, local int64, size, writes int, s float64) (got, ideal float64) {
	h, m := newTestHeap(tb, heap.NewMemStore(1<<20, 4000), Config{Local: local})
	ctx := context.Background()
	n := int(5 * local / int64(size))
	for i := range n {
		if err := m.Set(ctx, key(i), Entry{Value: value(uint64(i), size)}); err != nil {
			tb.Fatal(err)
		}
	}
	z := newZipf(rand.New(rand.NewPCG(1, 2)), s, n)
	best := lru{order: list.New(), at: map[int]*list.Element{}}
	best.max = int((local - h.Stats().Index) / int64(object.Size(4+len(key(0))+size)))
	reads, hits := 0, 0
	buf := make([]byte, 0, size)
	var before Stats
	rounds := 6 * n
	for i := range rounds {
		k := z.next()
		if i == rounds/2 {
			before, reads, hits = h.Stats(), 0, 0
		}
		if best.touch(k) {
			hits++
		}
		reads++
		if writes > 0 && i%writes == 0 {
			if err := m.Set(ctx, key(k), Entry{Value: value(uint64(i), size)}); err != nil {
				tb.Fatal(err)
			}
			continue
		}
		if _, err := m.Get(ctx, key(k), buf); err != nil {
			tb.Fatal(err)
		}
	}
	after := h.Stats()
	misses := after.Maps[0].Misses - before.Maps[0].Misses
	return 1 - float64(misses)/float64(reads), float64(hits) / float64(reads)
}

// BenchmarkHitRatio reports how near the evacuator comes to an ideal LRU.
func BenchmarkHitRatio(b *testing.B) {
	for _, c := range []struct {
		local        int64
		size, writes int
	}{{4 << 20, 1000, 0}, {32 << 20, 1000, 0}, {32 << 20, 1000, 4}, {32 << 20, 100, 0}} {
		b.Run(fmt.Sprintf("local=%dMiB/size=%d/writes=%d", c.local>>20, c.size, c.writes), func(b *testing.B) {
			for b.Loop() {
				got, ideal := hitRatios(b, c.local, c.size, c.writes, 0.99)
				b.ReportMetric(100*got, "%hits")
				b.ReportMetric(100*ideal, "%hits-LRU")
			}
		})
	}
}

// It is not parallel to others: an evacuator that waits for a processor makes room by what it finds first.
func TestHitRatioIsNearThatOfLRU(t *testing.T) {
	got, ideal := hitRatios(t, heap.MinLocal, 1000, 0, 0.99)
	t.Logf("%.1f%% hits, ideal LRU %.1f%%", 100*got, 100*ideal)
	// At the smallest budget a third of it is buffers and segments in the
	// making, which the ideal does not have.
	if got < ideal-0.08 {
		t.Errorf("got %.1f%% hits, ideal LRU has %.1f%%", 100*got, 100*ideal)
	}
}
