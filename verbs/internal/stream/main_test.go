package stream

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/internal/brief"
	"polder/verbs"
	"polder/verbs/internal/endpoint"
	"polder/verbs/softnic"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience turns a hang into a failure.
const patience = time.Minute

func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

type Config = endpoint.Config

func newDevice(t testing.TB) *Device {
	t.Helper()
	d, err := NewDevice("test", softnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("cannot close the device: %v", err)
		}
	})
	return d
}

// newListener accepts over TCP.
func newListener(t testing.TB, d *Device, cfg Config) verbs.Listener {
	t.Helper()
	return serve(t, d, cfg, "tcp", "127.0.0.1:0")
}

// newUnixListener accepts at a Unix socket.
func newUnixListener(t testing.TB, d *Device, cfg Config) verbs.Listener {
	t.Helper()
	return serve(t, d, cfg, "unix", filepath.Join(t.TempDir(), "sock"))
}

func serve(t testing.TB, d *Device, cfg Config, network, addr string) verbs.Listener {
	t.Helper()
	cfg, err := cfg.Normalized()
	if err != nil {
		t.Fatal(err)
	}
	nl, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	l, err := endpoint.Serve(nl, "", cfg, &d.Ends, func(nc net.Conn, q *endpoint.Requests, admit endpoint.Admit) error {
		if u, ok := nc.(*net.UnixConn); ok {
			b, err := brief.New(u)
			if err != nil {
				return err
			}
			nc = b
		}
		c := &testConn{}
		return c.Establish(context.Background(), c, d, nc, cfg, q, admit)
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

type testConn struct{ Conn }

// dial connects d to l, over either.
func dial(t testing.TB, d *Device, l verbs.Listener) *testConn {
	t.Helper()
	cfg, err := Config{}.Normalized()
	if err != nil {
		t.Fatal(err)
	}
	nc, err := net.Dial(network(l), l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if u, ok := nc.(*net.UnixConn); ok {
		nc, err = NewFiles(u)
	} else {
		nc, err = brief.New(nc.(*net.TCPConn))
	}
	if err != nil {
		t.Fatal(err)
	}
	c := &testConn{}
	if err := c.Establish(patient(t), c, d, nc, cfg, nil, endpoint.Anybody); err != nil {
		nc.Close()
		t.Fatal(err)
	}
	return c
}

// network is what l listens on.
func network(l verbs.Listener) string {
	if filepath.IsAbs(l.Addr()) {
		return "unix"
	}
	return "tcp"
}
