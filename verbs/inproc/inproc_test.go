package inproc

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"go.uber.org/goleak"

	"polder/verbs"
	"polder/verbs/softnic"
	"polder/verbs/verbstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newDevice opens a device that is closed when the test ends.
func newDevice(t testing.TB, f *Fabric, cfg softnic.Config) verbs.Device {
	t.Helper()
	d, err := f.NewDevice(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func newPair(cfg softnic.Config) func(t *testing.T) verbstest.Pair {
	return func(t *testing.T) verbstest.Pair {
		f := NewFabric()
		client, server := newDevice(t, f, cfg), newDevice(t, f, cfg)
		l, err := f.Listen(server, "server")
		if err != nil {
			t.Fatal(err)
		}
		return verbstest.Pair{
			Client: client, Server: server, Listener: l,
			Dial: func(ctx context.Context) (verbs.Conn, error) { return f.Dial(ctx, client, "server") },
		}
	}
}

func TestConformance(t *testing.T) {
	verbstest.Run(t, newPair(softnic.Config{}))
}

// TestConformanceSmall has the engines cut messages into many packets and stop
// after every few of them.
func TestConformanceSmall(t *testing.T) {
	verbstest.Run(t, newPair(softnic.Config{MTU: 256, RunBudget: 3}))
}

// TestOneScript: the same random script gives the same transcript with
// engines of all sizes.
func TestOneScript(t *testing.T) {
	for seed := range uint64(5) {
		s := verbstest.Script{Seed: seed, Steps: 300}
		var want string
		for i, cfg := range []softnic.Config{{}, {MTU: 64}, {RunBudget: 1}} {
			got := verbstest.Replay(t, newPair(cfg)(t), s)
			if i == 0 {
				want = got
			} else if got != want {
				t.Errorf("seed %d: engine %d gives another transcript", seed, i)
			}
		}
	}
}

func TestNames(t *testing.T) {
	f := NewFabric()
	a, b := newDevice(t, f, softnic.Config{Name: "a"}), newDevice(t, f, softnic.Config{Name: "b"})
	if _, err := f.Dial(t.Context(), a, "nobody"); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("dialling nobody: got %v, want ErrClosed", err)
	}
	l, err := f.Listen(b, "b")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Listen(a, "b"); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("a name twice: got %v, want ErrBusy", err)
	}
	stranger := newDevice(t, NewFabric(), softnic.Config{})
	if _, err := f.Dial(t.Context(), stranger, "b"); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a device of another fabric dials: got %v, want ErrInvalid", err)
	}
	if _, err := f.Listen(stranger, "c"); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a device of another fabric listens: got %v, want ErrInvalid", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Dial(ctx, a, "b"); !errors.Is(err, context.Canceled) {
		t.Errorf("dialling too late: got %v, want Canceled", err)
	}
	c, err := f.Dial(t.Context(), a, "b")
	if err != nil {
		t.Fatal(err)
	}
	if c.LocalAddr() != "a" || c.RemoteAddr() != "b" || l.Addr() != "b" {
		t.Errorf("got the addresses %q, %q and %q", c.LocalAddr(), c.RemoteAddr(), l.Addr())
	}
	b.Close()
	<-c.Done()
	if err := c.Err(); !errors.Is(err, errPeerClosed) {
		t.Errorf("the listening device closed: got %v, want %v", err, errPeerClosed)
	}
	if _, err := f.Dial(t.Context(), a, "b"); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("dialling a device that is closed: got %v, want ErrClosed", err)
	}
	if _, err := f.Listen(b, "b"); err != nil { // it is closed at once, with its device
		t.Error(err)
	}
	if _, err := f.Listen(a, "b"); err != nil {
		t.Errorf("the name is not free again: %v", err)
	}
}

// TestConnectGivesUp: a Connect that nobody answers ends with whatever ends
// first, and its request with it.
func TestConnectGivesUp(t *testing.T) {
	for name, end := range map[string]func(e *ends, l verbs.Listener, c verbs.Conn, cancel func()){
		"context":  func(_ *ends, _ verbs.Listener, _ verbs.Conn, cancel func()) { cancel() },
		"listener": func(_ *ends, l verbs.Listener, _ verbs.Conn, _ func()) { l.Close() },
		"conn":     func(_ *ends, _ verbs.Listener, c verbs.Conn, _ func()) { c.Close() },
		"client":   func(e *ends, _ verbs.Listener, _ verbs.Conn, _ func()) { e.client.Close() },
		"server":   func(e *ends, _ verbs.Listener, _ verbs.Conn, _ func()) { e.server.Close() },
	} {
		e := newEnds(t, 4096)
		l, err := e.fabric.Listen(e.server, "other")
		if err != nil {
			t.Fatal(err)
		}
		c, err := e.fabric.Dial(t.Context(), e.client, "other")
		if err != nil {
			t.Fatal(err)
		}
		pd, err := e.client.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		qp, err := pd.CreateQP(verbs.QPInit{SendCQ: e.cq, RecvCQ: e.cq, SendDepth: 1})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		accepted := make(chan verbs.ConnRequest, 1)
		go func() {
			r, err := l.Accept(t.Context())
			if err != nil {
				t.Error(err)
			}
			accepted <- r
			end(e, l, c, cancel)
		}()
		if _, err := c.Connect(ctx, qp, nil); err == nil {
			t.Errorf("%s: connected", name)
		}
		cancel()
		r := <-accepted
		if err := r.Accept(e.peer, nil); err == nil {
			t.Errorf("%s: accepted after the requester gave up", name)
		}
		// The accepting end cannot ask: the dialler does not listen.
		var reject *verbs.RejectError
		if _, err := r.Conn().Connect(t.Context(), qp, nil); !errors.As(err, &reject) {
			t.Errorf("%s: connecting backwards: got %v, want a RejectError", name, err)
		}
	}
}

// TestARequestThatIsOverIsNotAccepted has a requester give up before anybody
// accepts: the listener gets the next one's request.
func TestARequestThatIsOverIsNotAccepted(t *testing.T) {
	e := newEnds(t, 4096)
	l, err := e.fabric.Listen(e.server, "other")
	if err != nil {
		t.Fatal(err)
	}
	c, err := e.fabric.Dial(t.Context(), e.client, "other")
	if err != nil {
		t.Fatal(err)
	}
	pd, err := e.client.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	var ended []chan error
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i, name := range []string{"first", "second"} {
		qp, err := pd.CreateQP(verbs.QPInit{SendCQ: e.cq, RecvCQ: e.cq, SendDepth: 1})
		if err != nil {
			t.Fatal(err)
		}
		end := make(chan error, 1)
		go func() {
			_, err := c.Connect(ctx, qp, []byte(name))
			end <- err
		}()
		ended = append(ended, end)
		for len(l.(*listener).requests) <= i {
			runtime.Gosched()
		}
		if i == 0 {
			cancel()
			if err := <-end; !errors.Is(err, context.Canceled) {
				t.Fatalf("a Connect that was given up: got %v, want Canceled", err)
			}
			ctx = t.Context()
		}
	}
	r, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := string(r.Private()); got != "second" {
		t.Fatalf("accepted the %s request, want the second", got)
	}
	if err := r.Reject("no"); err != nil {
		t.Error(err)
	}
	if err := <-ended[1]; err == nil {
		t.Error("a request that was rejected has succeeded")
	}
}
