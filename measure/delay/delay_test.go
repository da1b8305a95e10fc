package delay

import (
	"sync"
	"testing"
	"time"
)

// TestManySleepAtATime: three hundred sleeps of ten milliseconds, beside each other, take far
// less than one after the other, and none is too short.
func TestManySleepAtATime(t *testing.T) {
	const n, d = 300, 10 * time.Millisecond
	var wg sync.WaitGroup
	begun := time.Now()
	for range n {
		wg.Go(func() {
			begun := time.Now()
			if err := Sleep(d); err != nil {
				t.Error(err)
			}
			if took := time.Since(begun); took < d {
				t.Errorf("a sleep of %v took %v", d, took)
			}
		})
	}
	wg.Wait()
	if took := time.Since(begun); took > n*d/2 {
		t.Errorf("%d sleeps of %v at a time took %v", n, d, took)
	}
	if err := Sleep(-1); err != nil {
		t.Error(err)
	}
}

func BenchmarkSleep(b *testing.B) {
	for b.Loop() {
		if err := Sleep(100 * time.Microsecond); err != nil {
			b.Fatal(err)
		}
	}
}
