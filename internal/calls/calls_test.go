package calls

import (
	"sync"
	"testing"
)

func TestCallsThatHaveBegunAreWaitedFor(t *testing.T) {
	const workers = 8
	for range 200 {
		c := New()
		var wg sync.WaitGroup
		refused := make(chan int, workers)
		for range workers {
			wg.Go(func() {
				for n := 0; ; n++ {
					if !c.Begin() {
						refused <- n
						return
					}
					select {
					case <-c.idle:
						t.Error("no call is waited for while one is under way")
					default:
					}
					c.End()
				}
			})
		}
		c.Close()
		<-c.idle
		wg.Wait()
		for range workers {
			<-refused
		}
		if c.Begin() {
			t.Fatal("a call begins afterwards")
		}
	}
}

func TestClosingWaitsForTheLastCall(t *testing.T) {
	c := New()
	for range 3 {
		if !c.Begin() {
			t.Fatal("no call begins")
		}
	}
	c.Close()
	for left := 3; left > 0; left-- {
		select {
		case <-c.idle:
			t.Fatalf("idle while %d calls are under way", left)
		default:
		}
		c.End()
	}
	<-c.idle
}
