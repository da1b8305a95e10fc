//go:build !race

// One goroutine fills and empties heaps of many sizes, segment by segment.

package far

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"polder/far/heap"
	"polder/far/store/storetest"
)

// fullHeap makes a heap whose store and local memory are full of values of so
// many bytes, of which it returns the number. Each operation of the store takes so long.
func fullHeap(t *testing.T, segments, size int, delay time.Duration) (*Heap, *ByteMap, int) {
	t.Helper()
	st := storetest.New(testSegment, segments)
	st.Delay.Store(int64(delay))
	h, m := newTestHeap(t, st, Config{})
	for n := 0; ; n++ {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		err := m.Set(ctx, key(n), Entry{Value: value(uint64(n), size)})
		cancel()
		if errors.Is(err, heap.ErrFull) {
			return h, m, n
		}
		if err != nil {
			t.Fatalf("Set(%d) of a heap that is not full: %v", n, err)
		}
	}
}

// In a full heap what is replaced by something that is no larger finds room,
// wherever it is, and however often.
func TestWhatDoesNotGrowFindsRoomInAFullHeap(t *testing.T) {
	for _, c := range []struct {
		segments, size, each int
		delay                time.Duration // with it there are more buffers, which take local memory
	}{{16, 3000, 1, 0}, {16, 3000, 1, 2 * time.Millisecond}, {64, 3000, 8, 0}, {24, 300, 1, 0}, {40, 14000, 1, 0}} {
		t.Run(fmt.Sprintf("%d segments, %d bytes, %d at a time, %v", c.segments, c.size, c.each, c.delay), func(t *testing.T) {
			t.Parallel()
			h, m, n := fullHeap(t, c.segments, c.size, c.delay)
			r := rand.New(rand.NewPCG(1, 2))
			size := make([]int, n)
			for i := range size {
				size[i] = c.size
			}
			txn := h.NewTxn()
			for range 2 {
				order := r.Perm(n)
				for at := 0; at+c.each <= n; at += c.each {
					for _, i := range order[at : at+c.each] {
						less := value(uint64(i), size[i]-20)
						ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
						var err error
						if c.each == 1 {
							err = m.Set(ctx, key(i), Entry{Value: less})
						} else {
							err = txn.Set(ctx, m, key(i), Entry{Value: less})
						}
						cancel()
						if err != nil {
							t.Fatalf("the entry of key %d (%d of %d) takes 20 bytes less: %v", i, at, n, err)
						}
						size[i] -= 20
					}
					txn.Commit()
				}
			}
			for i := range n {
				mustGet(t, m, key(i), value(uint64(i), size[i]))
			}
			// What that takes is not for what grows.
			for range 2 {
				ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
				for i := 0; ; i++ {
					if err := m.Set(ctx, []byte(fmt.Sprint("new", i)), Entry{Value: value(1, c.size)}); errors.Is(err, heap.ErrFull) {
						break
					} else if err != nil {
						t.Fatal(err)
					}
				}
				cancel()
				for _, i := range r.Perm(n)[:n/4] {
					size[i] -= 20
					mustSet(t, m, key(i), value(uint64(i), size[i]))
				}
			}
		})
	}
}

// A transaction that replaces more than what is kept for it in a full heap is told so: the evacuator
// does not move entries from one segment to another for as long as somebody waits.
func TestATransactionIsToldThatTheHeapIsFull(t *testing.T) {
	for _, size := range []int{3000, 14000} {
		t.Run(fmt.Sprint(size, " bytes"), func(t *testing.T) {
			t.Parallel()
			h, m, n := fullHeap(t, 20, size, 0)
			txn := h.NewTxn()
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			for i := range n {
				if err := txn.Set(ctx, m, key(i), Entry{Value: value(uint64(i), size-20)}); err != nil {
					if !errors.Is(err, heap.ErrFull) {
						t.Errorf("change %d: got %v, want ErrFull", i, err)
					}
					break
				}
			}
			txn.Rollback()
			for i := range n {
				mustGet(t, m, key(i), value(uint64(i), size))
			}
		})
	}
}
