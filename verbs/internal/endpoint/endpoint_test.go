package endpoint

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"polder/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// asked is a request whose connection has ended, or not.
type asked struct {
	verbs.ConnRequest
	void     bool
	rejected string
}

func (a *asked) Void() bool { return a.void }

func (a *asked) Reject(reason string) error {
	a.rejected = reason
	return nil
}

func TestARequestWhoseConnectionHasEndedIsNotAccepted(t *testing.T) {
	q := NewRequests(2)
	ended, waiting := &asked{void: true}, &asked{}
	for _, r := range []*asked{ended, waiting} {
		if err := q.Offer(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Offer(&asked{}); !errors.Is(err, errBacklog) {
		t.Errorf("a third request of a queue for two: got %v, want %v", err, errBacklog)
	}
	if got, err := q.Accept(t.Context()); err != nil || got != verbs.ConnRequest(waiting) {
		t.Errorf("Accept: got %v, %v, want the one that still waits", got, err)
	}
}

// TestAHandshakeThatIsGivenUpIsNone, also if it would have succeeded: the connection may have its deadline already.
func TestAHandshakeThatIsGivenUpIsNone(t *testing.T) {
	late := errors.New("late")
	for end, want := range map[error]string{nil: "handshake given up: context canceled", late: "handshake given up: context canceled (late)"} {
		ctx, cancel := context.WithCancel(t.Context())
		nc, other := net.Pipe()
		err := Shake(ctx, nc, func() error {
			cancel()
			return end
		})
		if !errors.Is(err, context.Canceled) || err.Error() != want {
			t.Errorf("hello returned %v: got %v, want %q", end, err, want)
		}
		_, _ = nc.Close(), other.Close()
	}
}

func TestRequestsThatWaitAreRejectedAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewRequests(2)
		accepted := make(chan error)
		go func() {
			_, err := q.Accept(t.Context())
			accepted <- err
		}()
		synctest.Wait()
		if !q.Close() || q.Close() {
			t.Error("Close: the first call is the first one, and no other")
		}
		if err := <-accepted; !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("Accept of a queue that is closed: got %v, want %v", err, verbs.ErrClosed)
		}
		if err := q.Offer(&asked{}); !errors.Is(err, errEnded) {
			t.Errorf("Offer to a queue that is closed: got %v, want %v", err, errEnded)
		}
	})
	q, r := NewRequests(1), &asked{}
	if err := q.Offer(r); err != nil {
		t.Fatal(err)
	}
	q.Close()
	if r.rejected != errEnded.Error() {
		t.Errorf("what waited was rejected for %q, want %q", r.rejected, errEnded)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := NewRequests(1).Accept(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Accept within a context that has ended: got %v", err)
	}
}

// end is a connection, or a listener, of a device.
type end struct{ closed chan struct{} }

func (e *end) Close() error {
	close(e.closed)
	return nil
}

// A device that is closed closes what it has, but for what has ended before, waits for the
// goroutines of all, and takes nothing more.
func TestADeviceEndsWithWhatItHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ends Ends
		gone, there := &end{make(chan struct{})}, &end{make(chan struct{})}
		remove, err := ends.Add(gone)
		if err != nil {
			t.Fatal(err)
		}
		remove()
		if remove, err = ends.Add(there); err != nil {
			t.Fatal(err)
		}
		over := make(chan struct{})
		go func() {
			ends.Close()
			close(over)
		}()
		synctest.Wait()
		select {
		case <-there.closed:
		default:
			t.Error("what is there is not closed")
		}
		select {
		case <-gone.closed:
			t.Error("what has ended is closed")
		case <-over:
			t.Error("Close has not waited for the goroutines of what is there")
		default:
		}
		if _, err := ends.Add(&end{}); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("Add to a device that is closed: got %v, want %v", err, verbs.ErrClosed)
		}
		remove()
		<-over
	})
}
