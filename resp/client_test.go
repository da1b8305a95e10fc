package resp

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestIdleTimeIsWhatHasPassed: to the nanosecond, so that a timeout of half a
// second is none of zero, and as a difference from the session's beginning, in
// which the host's calendar clock has no part.
func TestIdleTimeIsWhatHasPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clientInfo{since: time.Now()}
		time.Sleep(1700 * time.Millisecond)
		if got := c.idle(time.Now()); got != 1700*time.Millisecond {
			t.Errorf("a client that has sent nothing yet is idle for %v, want 1.7s", got)
		}
		c.heard(time.Now())
		before := time.Now().Add(-time.Second) // a loop's round that began earlier
		time.Sleep(300 * time.Millisecond)
		if got := c.idle(time.Now()); got != 300*time.Millisecond {
			t.Errorf("it is idle for %v, want 300ms", got)
		}
		if got := c.idle(before); got != 0 {
			t.Errorf("seen from before, it is idle for %v, want 0", got)
		}
	})
}
