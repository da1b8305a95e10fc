package bytemap

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"polder/far/store/storetest"
)

// endsSoon is a context that ends when it has been asked so many times whether it has.
type endsSoon struct {
	context.Context
	asked atomic.Int64
}

func (c *endsSoon) Err() error {
	if c.asked.Add(-1) >= 0 {
		return nil
	}
	return context.Canceled
}

// A call whose context ends just when it sets out to read leaves nothing behind for which others
// wait: whoever leads a flight makes it.
func TestACallThatEndsAsItSetsOutToReadKeepsNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, m := newTinyHeap(t, storetest.New(tinySegment, 1000), 0)
		fillTiny(t, m, 1000)
		for i, k := range farKeys(t, m, 1000)[:20] {
			ctx := &endsSoon{Context: context.Background()}
			ctx.asked.Store(int64(i % 10))
			err := m.Update(ctx, k, func(old Entry, _ bool) (Entry, Verdict, error) { return old, Put, nil })
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("Update of %q: %v", k, err)
			}
			soon, cancel := context.WithTimeout(context.Background(), time.Minute)
			if _, err := m.Get(soon, k, nil); err != nil {
				t.Errorf("Get of %q, when a call had ended that was asked %d times: %v", k, i%10, err)
			}
			cancel()
		}
	})
}

// Segments that a store does not take back at once are offered again.
func TestSegmentsAreGivenBackInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.New(tinySegment, 1000)
		h, m := newTinyHeap(t, store, 0)
		fillTiny(t, m, 1000)
		store.FailFree.Store(true)
		m.Clear()
		time.Sleep(time.Second)
		store.FailFree.Store(false)
		time.Sleep(time.Second)
		// The open segment and the spare one are all that is kept.
		if s := h.Stats(); store.Lent() > 3 || s.Unreturned != 0 {
			t.Errorf("%d segments are still lent, %d are given up, want at most 3, and none", store.Lent(), s.Unreturned)
		}
	})
}
