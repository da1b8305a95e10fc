package flight

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestWhoeverAsksMeanwhileGetsTheSameAnswer of one call, and who asks afterwards another one.
func TestWhoeverAsksMeanwhileGetsTheSameAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[string, int]
		calls := 0
		release := make(chan struct{})
		ask := func(ctx context.Context) (int, error) {
			return g.Do(ctx, "a", func(context.Context, *Call[int]) (int, error) {
				calls++
				n := calls
				<-release
				return n, nil
			})
		}
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if n, err := ask(t.Context()); n != 1 || err != nil {
					t.Errorf("got %d, %v, want the answer of the first call", n, err)
				}
			})
		}
		synctest.Wait()
		close(release)
		wg.Wait()
		if n, err := ask(t.Context()); n != 2 || err != nil {
			t.Errorf("afterwards: got %d, %v, want a second call", n, err)
		}
		g.Close()
	})
}

// TestWhoWaitsForACallThatWasGivenUpIsTold, and the next who asks may make it.
func TestWhoWaitsForACallThatWasGivenUpIsTold(t *testing.T) {
	var g Group[int, string]
	keys := []int{1, 2, 3}
	mine, others := g.Claim(t.Context(), keys)
	if again, joined := g.Claim(t.Context(), keys[:1]); again[0] != nil || joined[0] != mine[0] || others[0] != nil {
		t.Fatal("a key is claimed twice")
	}
	g.End(2, mine[1], func() (string, error) { return "two", nil })
	g.GiveUp(keys, mine)
	if v, err := g.Wait(t.Context(), 2, mine[1]); v != "two" || err != nil {
		t.Errorf("key 2: got %q, %v", v, err)
	}
	for _, i := range []int{0, 2} {
		if _, err := g.Wait(t.Context(), keys[i], mine[i]); !errors.Is(err, errGivenUp) {
			t.Errorf("key %d: got %v, want %v", keys[i], err, errGivenUp)
		}
	}
	if mine, _ := g.Claim(t.Context(), keys); mine[0] == nil || mine[2] == nil {
		t.Error("what was given up cannot be claimed")
	} else {
		g.GiveUp(keys, mine)
	}
}

// TestCloseCancelsWhatWasInvalidated, which nobody finds by its key any more.
func TestCloseCancelsWhatWasInvalidated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[int, int]
		for i, invalidate := range []func(){func() { g.Invalidate(0) }, g.InvalidateAll, func() {}} {
			g.Refresh(t.Context(), i, func(ctx context.Context, _ *Call[int]) (int, error) {
				<-ctx.Done()
				return 0, ctx.Err()
			})
			synctest.Wait()
			invalidate()
		}
		g.Close() // or it would wait for ever
		if len(g.all) > 0 {
			t.Errorf("%d calls have not ended", len(g.all))
		}
	})
}
