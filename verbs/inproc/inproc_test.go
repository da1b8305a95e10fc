package inproc

import (
	"context"
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
	verbstest.Run(t, newPair(softnic.Config{MTU: 64, RunBudget: 3}))
}
