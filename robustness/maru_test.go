package robustness

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"polder/internal/child"
	"polder/internal/proctest"
	"polder/internal/testpython"
	"polder/share"
)

// maru is a daemon with a door for Maru's clients.
type maru struct {
	*child.Process
	dir  string
	args []string
}

func startMaru(t *testing.T, flags ...string) *maru {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "maru")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	m := &maru{dir: dir}
	m.args = append([]string{
		"--dir", dir + "/state", "--socket", dir + "/s", "--maru-dir", dir + "/regions", "--pool", "memfd:64MiB",
		"--maru", "ipc://" + dir + "/maru",
	}, flags...)
	m.run(t, "tcp://127.0.0.1:0", "127.0.0.1:0")
	return m
}

func (m *maru) run(t *testing.T, directory, resources string) {
	t.Helper()
	m.Process = proctest.Run(t, "share", append(slices.Clone(m.args), "--maru", directory, "--maru-resources", resources)...)
}

// url is where the clients reach it, over tcp or ipc.
func (m *maru) url(scheme string) string {
	for _, addr := range strings.Split(m.Addr("maru"), ",") {
		if strings.HasPrefix(addr, scheme) {
			return addr
		}
	}
	return ""
}

// again starts it again, where it was.
func (m *maru) again(t *testing.T) {
	t.Helper()
	m.run(t, m.url("tcp"), m.Addr("maru-resources"))
}

// info is what the daemon says of itself.
func (m *maru) info(t *testing.T) share.Info {
	t.Helper()
	metrics := proctest.State(t, m.Process).Metrics
	n := func(name string) int { return int(metrics.Int("polder_share_" + name)) }
	return share.Info{
		Keys: n("keys"), Regions: n("regions"), Deferred: n("regions_deferred"), MaruLate: uint64(n("maru_late_total")),
		Pools: []share.PoolInfo{{Size: metrics.Int("polder_share_pool_bytes"), Free: metrics.Int("polder_share_pool_free_bytes")}},
	}
}

// actor is a client of Maru's in a process of its own.
type actor struct {
	t    *testing.T
	up   bool // it has said that it is
	name string
	cmd  *exec.Cmd
	in   io.Writer
	out  *bufio.Reader
}

// interpreter is a Python that has what the client needs.
var interpreter = sync.OnceValues(func() (string, error) { return testpython.Find("zmq", "msgpack") })

func (m *maru) actor(t *testing.T, url, style string, timeout time.Duration, name string) *actor {
	t.Helper()
	python, err := interpreter()
	if err != nil {
		t.Fatal(err)
	}
	clients, err := filepath.Abs("../clients/python")
	if err != nil {
		t.Fatal(err)
	}
	a := &actor{t: t, name: name, cmd: exec.Command(python, "-B", "testdata/maru_actor.py", url, style, fmt.Sprint(timeout.Seconds()), name)}
	a.cmd.Env = append(os.Environ(), "PYTHONPATH="+clients)
	a.cmd.Stderr = os.Stderr
	in, err := a.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	a.in, a.out = in, bufio.NewReader(out)
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.kill)
	return a
}

// kill ends it as nothing else does.
func (a *actor) kill() {
	a.cmd.Process.Kill()
	a.cmd.Wait()
}

// ready waits until it is connected.
func (a *actor) ready() {
	a.t.Helper()
	if !a.up {
		a.up = true
		a.hear("ready")
	}
}

func (a *actor) hear(want string) {
	a.t.Helper()
	line, err := a.out.ReadString('\n')
	if got := strings.TrimSpace(line); err != nil || got != want {
		a.t.Fatalf("an actor says %q, %v, want %q", got, err, want)
	}
}

// does has it do something, and compares what that gives.
func (a *actor) does(expr, want string) {
	a.t.Helper()
	a.ready()
	fmt.Fprintln(a.in, expr)
	a.hear(want)
}

// TestMarusClientsAreKilledAtEveryStep has a client of each kind die at each moment
// of its life. What it has registered stays, and nothing else.
func TestMarusClientsAreKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	m := startMaru(t, "--grace", "100ms")
	keeper := m.actor(t, m.url("tcp"), "async", time.Minute, "keeper")
	keeper.does("h.store('pinned', b'value')", "True")
	steps := []struct {
		do   [][2]string
		keys int
	}{
		{nil, 0},
		{[][2]string{{"h._fill(b'half') and 1", "1"}}, 0},
		{[][2]string{{"h.store('NAME', b'value')", "True"}}, 1},
		{[][2]string{{"h.store('NAME', b'value')", "True"}, {"h.pin('NAME')", "True"}, {"h.pin('pinned')", "True"}}, 1},
		{[][2]string{{"h.store('NAME', b'value')", "True"}, {"bytes(h.retrieve('pinned'))", "b'value'"}, {"h.delete('NAME')", "True"}}, 0},
		{[][2]string{{"h.store('NAME', b'value')", "True"}, {"[h.rpc.call(3, {'instance_id': h.instance_id, 'region_id': r})['success'] for r in h.owned]", "[True]"}}, 1},
	}
	var actors []*actor
	var kept []string
	for i, step := range steps {
		for _, style := range []string{"async tcp", "sync ipc"} {
			kind, scheme, _ := strings.Cut(style, " ")
			name := fmt.Sprintf("%d-%s-%s", i, kind, scheme)
			actors = append(actors, m.actor(t, m.url(scheme), kind, time.Minute, name))
			if step.keys > 0 {
				kept = append(kept, name)
			}
		}
	}
	for i, a := range actors { // which have started side by side
		a.ready()
		for _, do := range steps[i/2].do {
			a.does(strings.ReplaceAll(do[0], "NAME", a.name), do[1])
		}
	}
	for _, a := range actors {
		a.kill()
	}
	proctest.Until(t, "all that the dead have held is given back, but for their keys", func() bool {
		info := m.info(t)
		return info.Regions == 1+len(kept) && info.Deferred == len(kept) && info.Keys == 1+len(kept)
	})
	keeper.does("h.delete('pinned')", "True")
	for _, key := range kept {
		keeper.does(fmt.Sprintf("bytes(h.retrieve(%q))", key), "b'value'")
		keeper.does(fmt.Sprintf("h.delete(%q)", key), "True")
	}
	keeper.does("h.close()", "None")
	keeper.kill()
	proctest.Until(t, "all memory is free", func() bool {
		p := m.info(t).Pools[0]
		return p.Free == p.Size && m.info(t).Regions == 0
	})
}

// TestARegistrationThatComesLateIsRefused has a client give up on a registration,
// and fill the page anew, while the daemon is stopped, and while it is away: what
// it has sent arrives when it is back, and must not be carried out.
func TestARegistrationThatComesLateIsRefused(t *testing.T) {
	t.Parallel()
	m := startMaru(t, "--maru-late", "400ms")
	for style, scheme := range map[string]string{"async": "tcp", "sync": "ipc"} {
		a := m.actor(t, m.url(scheme), style, time.Second, style)
		a.does("h.store('before', b'value')", "True")
		a.does("globals().update(page=h._fill(b'first'))", "None")
		if err := m.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		proctest.Until(t, "the daemon is stopped", func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.PID()))
			return err == nil && strings.HasPrefix(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " T")
		})
		a.does("h.register('late', page, 5)", "TimedOut")
		a.does("h.buffer(page, 5).__setitem__(slice(0, 5), b'other')", "None")
		if err := m.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		proctest.Until(t, "the daemon answers", func() bool {
			fmt.Fprintln(a.in, "h.healthcheck()")
			line, _ := a.out.ReadString('\n')
			return line == "True\n"
		})
		a.does("h.retrieve('late')", "None")
		a.does("h.delete('before')", "True")
		a.does("h.close()", "None")
		a.kill()
	}
	if n := m.info(t).MaruLate; n < 2 {
		t.Errorf("%d requests came too late, want 2", n)
	}

	a := m.actor(t, m.url("tcp"), "async", time.Second, "a")
	a.does("h.store('before', b'value')", "True")
	a.does("globals().update(page=h._fill(b'first'))", "None")
	m.Kill()
	a.does("h.register('late', page, 5)", "TimedOut")
	a.does("h.buffer(page, 5).__setitem__(slice(0, 5), b'other')", "None")
	m.again(t)
	proctest.Until(t, "the daemon answers", func() bool {
		fmt.Fprintln(a.in, "h.healthcheck()")
		line, _ := a.out.ReadString('\n')
		return line == "True\n"
	})
	a.does("h.retrieve('late')", "None")
	a.does("bytes(h.retrieve('before'))", "b'value'")
	if n := m.info(t).MaruLate; n != 1 {
		t.Errorf("%d requests came too late, want 1", n)
	}
}

// TestTheDaemonIsKilledUnderMarusClients, who go on when it is back.
func TestTheDaemonIsKilledUnderMarusClients(t *testing.T) {
	t.Parallel()
	m := startMaru(t, "--maru-late", "300ms")
	var actors []*actor
	for _, style := range []string{"async tcp", "sync tcp", "async ipc", "sync ipc"} {
		kind, scheme, _ := strings.Cut(style, " ")
		a := m.actor(t, m.url(scheme), kind, 10*time.Second, strings.ReplaceAll(style, " ", "-"))
		a.does(fmt.Sprintf("h.store(%q, b%q)", style, "value of "+style), "True")
		actors = append(actors, a)
	}
	m.Kill()
	m.again(t)
	for i, a := range actors {
		proctest.Until(t, "a client stores again", func() bool {
			fmt.Fprintf(a.in, "h.store('again %d', b'value')\n", i)
			line, _ := a.out.ReadString('\n')
			return line == "True\n"
		})
		for _, style := range []string{"async tcp", "sync tcp", "async ipc", "sync ipc"} {
			a.does(fmt.Sprintf("bytes(h.retrieve(%q))", style), fmt.Sprintf("b'value of %s'", style))
		}
	}
	if n := m.info(t).Deferred; n != 0 {
		t.Errorf("%d clients were taken for dead", n)
	}
}

// TestOneDaemonLeavesAnothersMemoryAlone: two containers may have nothing but /dev/shm in common, and so state directories of the
// same name that are not the same. Which regions are whose, only their daemons know.
func TestOneDaemonLeavesAnothersMemoryAlone(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/dev/shm", "maru")
	if err != nil {
		t.Fatal(err)
	}
	state := dir + "/state"
	regions := fmt.Sprintf("/dev/shm/polder-share-%.16s", fmt.Sprintf("%x", sha256.Sum256([]byte(state))))
	t.Cleanup(func() {
		os.RemoveAll(dir)
		os.RemoveAll(regions)
	})
	m := &maru{dir: dir, args: []string{"--dir", state, "--socket", dir + "/s", "--pool", "memfd:64MiB"}}
	m.run(t, "tcp://127.0.0.1:0", "127.0.0.1:0")
	m.actor(t, m.url("tcp"), "sync", time.Minute, "writer").does("h.store('k', b'value')", "True")
	if err := os.Rename(state, dir+"/elsewhere"); err != nil {
		t.Fatal(err)
	}
	args := []string{"share", "--dir", state, "--socket", dir + "/other", "--pool", "memfd:1MiB"}
	other := proctest.Run(t, args[0], args[1:]...) // it has no clients of Maru's
	if err := other.Stop(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, proctest.Binary(), append(args, "--maru", "tcp://127.0.0.1:0", "--maru-resources", "127.0.0.1:0")...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another daemon has its memory in "+regions) {
		t.Errorf("a daemon with the regions of another one: got %v\n%s", err, out)
	}
	m.actor(t, m.url("tcp"), "sync", time.Minute, "reader").does("bytes(h.retrieve('k'))", "b'value'")
}
