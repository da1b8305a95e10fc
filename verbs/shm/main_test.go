package shm

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/internal/child/childtest"
	"polder/verbs"
	"polder/verbs/inproc"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
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

// TestEveryDriverGivesTheSame plays random scripts over inproc, tcp and shm.
func TestEveryDriverGivesTheSame(t *testing.T) {
	drivers := []struct {
		name    string
		newPair func(t *testing.T) verbstest.Pair
	}{{"inproc", inprocPair}, {"tcp", tcpPair}, {"shm", newPair}}
	for seed := range uint64(8) {
		script := verbstest.Script{Seed: seed, Steps: 120}
		var want string
		for _, doorbells := range []bool{false, true} {
			script.Doorbells = doorbells
			for _, d := range drivers {
				t.Run(d.name, func(t *testing.T) {
					got := verbstest.Replay(t, d.newPair(t), script)
					if want == "" {
						want = got
					}
					wantTranscript(t, script, got, want)
				})
			}
		}
	}
}

// wantTranscript fails with the first step that differs.
func wantTranscript(t *testing.T, s verbstest.Script, got, want string) {
	t.Helper()
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range w {
		if i >= len(g) || g[i] != w[i] {
			t.Fatalf("%+v differs from inproc's:\n got %s\nwant %s", s, g[min(i, len(g)-1)], w[i])
		}
	}
}

func inprocPair(t *testing.T) verbstest.Pair {
	f := inproc.NewFabric()
	open := func() verbs.Device {
		d, err := f.NewDevice(softnic.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d
	}
	p := verbstest.Pair{Client: open(), Server: open()}
	var err error
	if p.Listener, err = f.Listen(p.Server, "server"); err != nil {
		t.Fatal(err)
	}
	p.Dial = func(ctx context.Context) (verbs.Conn, error) { return f.Dial(ctx, p.Client, "server") }
	return p
}

func tcpPair(t *testing.T) verbstest.Pair {
	open := func() verbs.Device {
		d, err := tcp.NewDevice(softnic.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d
	}
	p := verbstest.Pair{Client: open(), Server: open()}
	var err error
	if p.Listener, err = tcp.Listen(p.Server, "127.0.0.1:0", tcp.Config{}); err != nil {
		t.Fatal(err)
	}
	p.Dial = func(ctx context.Context) (verbs.Conn, error) {
		return tcp.Dial(ctx, p.Client, p.Listener.Addr(), tcp.Config{})
	}
	return p
}
