package shm

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/internal/child/childtest"
	"polder/verbs"
	"polder/verbs/softnic"
	"polder/verbs/verbstest"
)

func TestMain(m *testing.M) {
	childtest.Main(children)
	goleak.VerifyTestMain(m)
}

// patience turns a hang into a failure.
const patience = time.Minute

func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func newDevice(t testing.TB) verbs.Device {
	t.Helper()
	d, err := NewDevice(softnic.Config{})
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

func newListener(t testing.TB, dev verbs.Device, cfg Config) verbs.Listener {
	t.Helper()
	l, err := Listen(dev, filepath.Join(t.TempDir(), "sock"), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func newPair(t *testing.T) verbstest.Pair {
	p := verbstest.Pair{Client: newDevice(t), Server: newDevice(t)}
	p.Listener = newListener(t, p.Server, Config{})
	p.Dial = func(ctx context.Context) (verbs.Conn, error) {
		return Dial(ctx, p.Client, p.Listener.Addr(), Config{})
	}
	return p
}

func TestConformance(t *testing.T) { verbstest.Run(t, newPair) }
