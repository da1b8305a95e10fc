package limit

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var errParent = errors.New("the parent has ended")

// TestWhoWaitsIsTimed from then on, and is told why the time is over.
func TestWhoWaitsIsTimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Within(t.Context(), time.Second)
		defer c.End()
		time.Sleep(time.Minute)
		if err := c.Err(); err != nil {
			t.Errorf("%v before anybody waited", err)
		}
		begin := time.Now()
		<-c.Done()
		if took := time.Since(begin); took != time.Second {
			t.Errorf("it ended after %v, want 1s", took)
		}
		if err, cause := c.Err(), context.Cause(c); err != context.DeadlineExceeded || cause != err {
			t.Errorf("got %v because of %v, want %v", err, cause, context.DeadlineExceeded)
		}
	})
}

// TestItEndsWithItsParent, whether somebody waits or not.
func TestItEndsWithItsParent(t *testing.T) {
	for _, waits := range []bool{false, true} {
		parent, end := context.WithCancelCause(context.WithValue(t.Context(), t, 7))
		c := Within(parent, time.Hour)
		if waits {
			if _, ok := c.Deadline(); !ok {
				t.Error("it has no deadline")
			}
		}
		if got := c.Value(t); got != 7 {
			t.Errorf("its value is %v, want its parent's", got)
		}
		end(errParent)
		if err, cause := c.Err(), context.Cause(c); err != context.Canceled || cause != errParent {
			t.Errorf("got %v because of %v, want %v because of %v", err, cause, context.Canceled, errParent)
		}
		<-c.Done()
		c.End()
	}
}

// TestAfterEndNobodyWaits, nor those who wait already, and those who ask it in turn.
func TestAfterEndNobodyWaits(t *testing.T) {
	for _, waits := range []bool{false, true} {
		c := Within(t.Context(), time.Hour)
		var child context.Context
		var waiting sync.WaitGroup
		if waits {
			var end context.CancelFunc
			child, end = context.WithCancel(c)
			defer end()
			for range 4 {
				waiting.Go(func() { <-c.Done() })
			}
		}
		c.End()
		c.End()
		waiting.Wait()
		<-c.Done()
		if waits {
			<-child.Done()
		}
		if err := c.Err(); err != context.Canceled {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
	}
}

// TestManyBeginToWaitAtOnce for the same thing.
func TestManyBeginToWaitAtOnce(t *testing.T) {
	for range 100 {
		c := Within(t.Context(), time.Hour)
		var begun, all sync.WaitGroup
		var done [4]<-chan struct{}
		begun.Add(1)
		for i := range done {
			all.Go(func() {
				begun.Wait()
				done[i] = c.Done()
			})
		}
		begun.Done()
		all.Wait()
		c.End()
		for _, d := range done {
			<-d
		}
	}
}
