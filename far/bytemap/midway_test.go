package bytemap

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"polder/far/heap"
)

// TestASegmentIsCleanedFurtherThoughWhatItIsCleanedIntoWasClosed, as a checkpoint does that writes back what is local: what lives in the other
// part goes into another segment, nothing is lost, and the store can be cleaned as before.
func TestASegmentIsCleanedFurtherThoughWhatItIsCleanedIntoWasClosed(t *testing.T) {
	t.Parallel()
	lay, calls, half, closed := tiny, 0, atomic.Bool{}, 0
	lay.Logs = 400 << 10
	lay.notNow = func() bool { // it is the evacuator that calls it
		calls++
		half.Store(calls%2 == 0)
		return calls%2 == 0
	}
	h, err := newHeap(heap.NewMemStore(64<<10, 40), testConfig{Local: lay.Local()}, lay)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}()
	m := h.NewByteMap("test")
	ctx := within(t, time.Minute)
	r := rand.New(rand.NewPCG(1, 2))
	want := map[string][]byte{}
	for i := range 20000 {
		k, v := fmt.Sprint("key", r.IntN(6000)), bytes.Repeat(fmt.Append(nil, i%10), 200)
		if err := m.Set(ctx, []byte(k), Entry{Value: v}); err != nil {
			t.Fatalf("after %d SETs, and %d times that an open segment was closed: %v", i, closed, err)
		}
		want[k] = v
		if i%100 == 0 && half.Load() {
			closed++
			if err := h.core.WriteBack(ctx, false); err != nil && !errors.Is(err, heap.ErrStoreFull) {
				t.Fatal(err)
			}
		}
	}
	for k, v := range want {
		mustGet(t, m, []byte(k), v)
	}
	if closed == 0 {
		t.Error("no segment was closed while another was cleaned half")
	}
}
