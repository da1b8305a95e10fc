package daemon

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"polder/internal/operator"
)

// TestWhatDoesNotEndIsNamed, and does not hold up the end of the daemon. What ends after it has ended nothing else.
func TestWhatDoesNotEndIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess("serve", &operator.Control{})
		p.ends.within = 5 * time.Second
		hangs, calls := make(chan struct{}), 0
		p.onEnd("the last", func() error { calls++; return nil })
		p.onEnd("the heap", func() error { <-hangs; return nil })
		p.onEnd("the first", func() error { return errors.New("the first is wrong") })
		began := time.Now()
		var err error
		p.close(&err)
		if took := time.Since(began); took != p.ends.within+overtime {
			t.Errorf("it took %v, want %v", took, p.ends.within+overtime)
		}
		if err == nil || !strings.Contains(err.Error(), "the heap has not ended") || !strings.Contains(err.Error(), "the first is wrong") {
			t.Errorf("got %v, want that the heap has not ended, and what was wrong before", err)
		}
		close(hangs)
		synctest.Wait()
		if calls != 0 {
			t.Error("another part ended after the daemon had")
		}
	})
}

// TestPhasesShareTheTime: each gets what those before it have left, but for what the last ones need.
func TestPhasesShareTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &ending{within: 8 * time.Second}
		has := func(most time.Duration, others bool, want time.Duration) {
			t.Helper()
			began := time.Now()
			ctx, cancel := e.phase(most, others)
			defer cancel()
			<-ctx.Done()
			if took := time.Since(began); took != want {
				t.Errorf("a phase had %v, want %v", took, want)
			}
			if own := context.Cause(ctx) == context.DeadlineExceeded; !errors.Is(context.Cause(ctx), context.DeadlineExceeded) || own != (want == most) {
				t.Errorf("a phase of at most %v ended because of %v", most, context.Cause(ctx))
			}
		}
		has(9*time.Second, true, 9*time.Second) // it is no end yet
		e.begin()
		has(3*time.Second, true, 3*time.Second)
		e.begin() // which changes nothing
		has(time.Minute, true, 4*time.Second)
		has(time.Minute, true, 0)
		has(time.Minute, false, time.Second)
		var none *ending
		if left, begun := none.left(); left != 0 || begun {
			t.Errorf("what has no end has %v left", left)
		}
		for _, e := range []struct {
			of   *ending
			want time.Duration
		}{{none, time.Minute}, {e, time.Minute}, {&ending{within: 5 * time.Minute}, 5 * time.Minute}} {
			if got := e.of.longest(); got != e.want {
				t.Errorf("a phase may have %v, want %v", got, e.want)
			}
		}
	})
}
