package soft

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestAQueueGivesWholeValuesOrNone has segments taken away while values are copied out of
// them.
func TestAQueueGivesWholeValuesOrNone(t *testing.T) {
	const segments, size, enough, few = 8, maxInline - 64, 200, 10
	h := openShared(t, segments)
	q, err := NewQueue[[]byte](h, 4, nil)
	if err != nil {
		t.Fatal(err)
	}
	var over atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		r := rand.New(rand.NewPCG(1, 2))
		for !over.Load() {
			if seg := r.Uint32N(segments); h.ctl.Revoke(seg) {
				_ = h.discard(seg)
				h.ctl.Grant(seg)
			}
		}
	})
	whole := 0
	for i, end := 0, time.Now().Add(20*time.Second); (i < enough || whole < few) && time.Now().Before(end); i++ {
		value := bytes.Repeat([]byte{byte(1 + i%250)}, size)
		if _, _, err := q.Push(value); err != nil {
			continue // there is no memory just now
		}
		got, ok, err := q.Pop(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			continue
		}
		if whole++; !bytes.Equal(got, value) {
			t.Errorf("value %d has %d bytes, of which %d are its own", i, len(got), bytes.Count(got, value[:1]))
			break
		}
	}
	over.Store(true)
	wg.Wait()
	if whole == 0 {
		t.Error("no value came through: the test has tested nothing")
	}
	t.Logf("%d whole values, %d lost", whole, q.lost.Load())
}
