package futex_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"polder/internal/futex"
)

func TestWhoWaitsIsWoken(t *testing.T) {
	var w atomic.Uint32
	done := make(chan struct{})
	go func() {
		defer close(done)
		futex.Wait(&w, 0, time.Hour) // w stays 0: only Wake ends this
	}()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		futex.Wake(&w) // again, as it may not have slept yet
		select {
		case <-done:
			return
		default:
			runtime.Gosched()
		}
	}
	t.Error("nobody was woken within a minute")
}

func TestNobodyWaitsForAnotherValue(t *testing.T) {
	var w atomic.Uint32
	futex.Wait(&w, 1, time.Hour)
}

func TestWaitingEndsWithItsTime(t *testing.T) {
	var w atomic.Uint32
	futex.Wait(&w, 0, time.Millisecond)
}
