package futex_test

import (
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
		for w.Load() == 0 {
			futex.Wait(&w, 0, time.Hour)
		}
	}()
	w.Store(1)
	for {
		futex.Wake(&w) // again, as it may not have slept yet
		select {
		case <-done:
			return
		default:
		}
	}
}

func TestNobodyWaitsForAnotherValue(t *testing.T) {
	var w atomic.Uint32
	futex.Wait(&w, 1, time.Hour)
}

func TestWaitingEndsWithItsTime(t *testing.T) {
	var w atomic.Uint32
	futex.Wait(&w, 0, time.Millisecond)
}
