//go:build guests

package vm

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"polder/robustness/rdma/plan"
)

// rig is what every guest of these tests is made of.
type rig struct {
	kernel          *Kernel
	init, misbehave string
}

func newRig(t *testing.T) rig {
	t.Helper()
	cache, err := CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	k, err := OpenKernel(t.Context(), filepath.Join(cache, "kernel"), "", GuestModules, func(s string) { t.Log(s) })
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	init, err := BuildInit(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	r := rig{k, init, filepath.Join(dir, "misbehave")}
	if err := Build(t.Context(), r.misbehave, "polder/robustness/rdma/vm/misbehave", []string{"CGO_ENABLED=0"}, "build"); err != nil {
		t.Fatal(err)
	}
	return r
}

// config is that of a guest which runs misbehave.
func (r rig) config(t *testing.T, how string) Config {
	c := Config{
		Name: "guest", Kernel: r.kernel, Init: r.init, MemoryMiB: 256,
		Files:   map[string]string{"/bin/misbehave": r.misbehave},
		Plan:    plan.Plan{Device: "rxe0"},
		Timeout: time.Minute,
		Console: func(line string) { t.Log(line) },
	}
	c.Plan.Steps = []plan.Step{{Name: how, Args: []string{"/bin/misbehave", how}, Tests: 1, Timeout: time.Minute}}
	return c
}

func run(t *testing.T, c Config) Result {
	t.Helper()
	g, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return g.Wait()
}

func TestAGuestPasses(t *testing.T) {
	t.Parallel()
	res := run(t, newRig(t).config(t, "well"))
	if res.Err != nil {
		t.Fatalf("a guest whose only step passes: got %v", res.Err)
	}
	if len(res.Steps) != 1 || res.Steps[0].Outcome != plan.Passed || res.Steps[0].Tests != 1 {
		t.Errorf("got steps %+v, want one that has passed with one test", res.Steps)
	}
}

func TestAGuestFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, test := range []struct {
		name  string
		short bool   // tested with -short too
		how   string // what its program does
		with  func(*Config)
		is    error  // what the error must be, or
		says  string // what it must say
	}{
		{name: "when a test fails", short: true, how: "fail", says: `step "fail" failed: exit status 1`},
		{name: "when no test runs", how: "pass-nothing", says: "0 tests have passed"},
		{name: "when the kernel panics", short: true, how: "panic", is: ErrPanicked},
		{name: "when it resets itself", how: "reboot", is: ErrPanicked},
		{name: "when a test hangs", short: true, how: "hang", says: `step "hang" hung: has not ended after 1s`,
			with: func(c *Config) { c.Plan.Steps[0].Timeout = time.Second }},
		{name: "when it cannot make its device", how: "well", says: "the guest reports a failure",
			with: func(c *Config) { c.Plan.Device = strings.Repeat("long", 40) }},
		{name: "when its init dies", how: "well", is: ErrPanicked,
			with: func(c *Config) { c.Init = c.Files["/bin/misbehave"] }},
		{name: "when QEMU cannot start it", short: true, how: "well", is: ErrQEMU,
			with: func(c *Config) { c.CPUs = -1 }},
	} {
		if testing.Short() && !test.short {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := r.config(t, test.how)
			if test.with != nil {
				test.with(&c)
			}
			res := run(t, c)
			switch {
			case res.Err == nil:
				t.Error("the guest passed")
			case test.is != nil && !errors.Is(res.Err, test.is):
				t.Errorf("got error %v, want %v", res.Err, test.is)
			case !strings.Contains(res.Err.Error(), test.says):
				t.Errorf("got error %v, want one that says %q", res.Err, test.says)
			}
		})
	}
}

func TestAHungGuestLeavesItsLastLines(t *testing.T) {
	t.Parallel()
	c := newRig(t).config(t, "deaf")
	c.Timeout = 5 * time.Second
	res := run(t, c)
	if !errors.Is(res.Err, ErrHung) {
		t.Errorf("got error %v, want %v", res.Err, ErrHung)
	}
	if !slices.ContainsFunc(res.Tail, func(l string) bool { return strings.Contains(l, "these are the last words") }) {
		t.Errorf("the last lines of a guest that hung are %q, want what its program said", res.Tail)
	}
}

func TestAGuestAsksForAnotherToBeKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	victim, err := Start(t.Context(), r.config(t, "hang"))
	if err != nil {
		t.Fatal(err)
	}
	c := r.config(t, "kill")
	var killer *Guest
	started := make(chan struct{})
	c.Event = func(e plan.Event) {
		if e.Kind == plan.Asked && slices.Equal(e.Request, []string{plan.KillPeer}) {
			victim.Kill()
			<-started
			killer.Kill()
		}
	}
	if killer, err = Start(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	close(started)
	for _, g := range []*Guest{victim, killer} {
		if res := g.Wait(); !errors.Is(res.Err, ErrKilled) {
			t.Errorf("a guest that was killed: got error %v, want %v", res.Err, ErrKilled)
		}
	}
}

func TestTwoGuestsOnAWire(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w, err := NewCable()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	server, client := r.config(t, "well"), r.config(t, "well")
	server.Name, server.Cable, server.MAC = "server", w.End(0), 1
	server.Plan.Address, server.Plan.Serve = "192.168.7.1/24", true
	client.Name, client.Cable, client.MAC = "client", w.End(1), 2
	client.Plan.Address, client.Plan.Release = "192.168.7.2/24", "192.168.7.1"
	client.Plan.Steps[0].Await = "192.168.7.1:7"
	a, err := Start(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Start(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range []*Guest{a, b} {
		if res := g.Wait(); res.Err != nil {
			t.Errorf("%s: %v", res.Name, res.Err)
		}
	}
	if carried, _ := w.Frames(); carried == 0 {
		t.Error("the wire has carried no frames")
	}
}
