package tcp

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"polder/internal/invariants"
	"polder/verbs"
	"polder/verbs/inproc"
	"polder/verbs/shm"
	"polder/verbs/softnic"
	"polder/verbs/verbstest"
)

// TestEveryDriverGivesTheSame plays random scripts over every driver, with
// small and large packets, with one doorbell per batch and one per request.
func TestEveryDriverGivesTheSame(t *testing.T) {
	c := testCerts()
	drivers := []struct {
		name    string
		newPair func(t *testing.T) verbstest.Pair
	}{
		{"inproc", inprocPair(softnic.Config{})},
		{"inproc with small packets", inprocPair(softnic.Config{MTU: 256, RunBudget: 5})},
		{"tcp", newPair(Config{}, Config{})},
		{"tcp with TLS", newPair(Config{TLS: c.server()}, Config{TLS: c.client()})},
		{"shm", shmPair},
	}
	seeds := uint64(8)
	if invariants.Enabled { // "make plain" has them all
		seeds = 2
	}
	for seed := range seeds {
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

func shmPair(t *testing.T) verbstest.Pair {
	open := func() verbs.Device {
		d, err := shm.NewDevice(softnic.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d
	}
	p := verbstest.Pair{Client: open(), Server: open()}
	var err error
	if p.Listener, err = shm.Listen(p.Server, filepath.Join(t.TempDir(), "sock"), shm.Config{}); err != nil {
		t.Fatal(err)
	}
	p.Dial = func(ctx context.Context) (verbs.Conn, error) {
		return shm.Dial(ctx, p.Client, p.Listener.Addr(), shm.Config{})
	}
	return p
}

func inprocPair(cfg softnic.Config) func(t *testing.T) verbstest.Pair {
	return func(t *testing.T) verbstest.Pair {
		f := inproc.NewFabric()
		open := func() verbs.Device {
			d, err := f.NewDevice(cfg)
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
}
