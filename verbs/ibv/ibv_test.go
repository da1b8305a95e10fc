//go:build ibverbs

package ibv

import (
	"context"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/verbs"
	"polder/verbs/verbstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience turns a hang into a failure.
const patience = 60 * time.Second

func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// deviceName is the device that POLDER_RDMA_DEVICE names.
func deviceName(t testing.TB) string {
	t.Helper()
	name := os.Getenv("POLDER_RDMA_DEVICE")
	if name == "" {
		t.Fatal("POLDER_RDMA_DEVICE names no device: make test-rdma runs this in a virtual machine that has one")
	}
	return name
}

func newDevice(t testing.TB) verbs.Device {
	t.Helper()
	d, err := Open(deviceName(t))
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

func newPair(t *testing.T) verbstest.Pair {
	p := verbstest.Pair{Client: newDevice(t), Server: newDevice(t)}
	var err error
	if p.Listener, err = Listen(p.Server, "127.0.0.1:0", Config{}); err != nil {
		t.Fatal(err)
	}
	p.Dial = func(ctx context.Context) (verbs.Conn, error) {
		return Dial(ctx, p.Client, p.Listener.Addr(), Config{})
	}
	return p
}

func TestIBVConformance(t *testing.T) { verbstest.Run(t, newPair) }
