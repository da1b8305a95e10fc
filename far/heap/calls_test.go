package heap

import (
	"errors"
	"sync"
	"testing"
)

func TestCallsThatHaveBegunAreWaitedFor(t *testing.T) {
	const workers = 8
	for range 200 {
		h := new(Heap)
		h.calls.init()
		var wg sync.WaitGroup
		refused := make(chan int, workers)
		for range workers {
			wg.Go(func() {
				for n := 0; ; n++ {
					if err := h.Begin(); err != nil {
						if !errors.Is(err, ErrClosed) {
							t.Errorf("got %v, want %v", err, ErrClosed)
						}
						refused <- n
						return
					}
					select {
					case <-h.calls.idle:
						t.Error("no call is waited for while one is under way")
					default:
					}
					h.End()
				}
			})
		}
		h.calls.close()
		<-h.calls.idle
		wg.Wait()
		for range workers {
			<-refused
		}
		if err := h.Begin(); !errors.Is(err, ErrClosed) {
			t.Fatalf("afterwards: got %v, want %v", err, ErrClosed)
		}
	}
}

func TestClosingWaitsForTheLastCall(t *testing.T) {
	h := new(Heap)
	h.calls.init()
	for range 3 {
		if err := h.Begin(); err != nil {
			t.Fatal(err)
		}
	}
	h.calls.close()
	for left := 3; left > 0; left-- {
		select {
		case <-h.calls.idle:
			t.Fatalf("idle while %d calls are under way", left)
		default:
		}
		h.End()
	}
	<-h.calls.idle
}
