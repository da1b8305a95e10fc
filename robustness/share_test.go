package robustness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/proctest"
	"polder/share"
)

// attach opens a client with small regions, and closes it when the test ends.
func attach(t *testing.T, socket string) *share.Client {
	t.Helper()
	c, err := share.Open(t.Context(), share.Config{Socket: socket, PageSize: 4096, RegionSize: 16 << 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func put(t *testing.T, c *share.Client, key, value string) {
	t.Helper()
	p, err := c.Alloc(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(t.Context(), key, p, copy(p.Bytes(), value)); err != nil {
		t.Fatal(err)
	}
}

func TestSIGHUPFindsPoolsThatHaveAppeared(t *testing.T) {
	root := t.TempDir()
	socket := filepath.Join(root, "s")
	d := proctest.Start(t, "share", "--dir", filepath.Join(root, "state"), "--socket", socket, "--pool", "file:"+root+"/pmem*:1MiB")
	c := attach(t, socket)
	pools := func() []share.PoolInfo {
		t.Helper()
		info, err := c.Stats(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return info.Pools
	}
	if got := pools(); len(got) != 0 {
		t.Fatalf("got the pools %v, want none", got)
	}
	if _, err := c.Alloc(t.Context()); !errors.Is(err, share.ErrFull) {
		t.Fatalf("without a pool: got %v, want %v", err, share.ErrFull)
	}
	hup := func() {
		t.Helper()
		if err := d.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(root, "pmem0"), 0o700); err != nil {
		t.Fatal(err)
	}
	hup()
	proctest.Until(t, "the pool is found", func() bool { return len(pools()) == 1 })
	put(t, c, "k", "in the new pool")

	// What cannot be a pool is told, and harms nobody.
	if err := os.WriteFile(filepath.Join(root, "pmem1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	hup()
	proctest.Until(t, "the fault is logged", func() bool {
		return strings.Contains(d.Stderr(), "cannot rescan all pools") && strings.Contains(d.Stderr(), "pmem1")
	})
	v, err := c.Get(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if got := string(v.Bytes()); got != "in the new pool" {
		t.Errorf("got %q", got)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestStatusShowsTheDaemon(t *testing.T) {
	root := t.TempDir()
	socket := filepath.Join(root, "s")
	d := proctest.Start(t, "share", "--dir", filepath.Join(root, "state"), "--socket", socket, "--pool", "memfd:1MiB", "--admin", "127.0.0.1:0")
	put(t, attach(t, socket), "k", "value")
	out, err := exec.Command(proctest.Binary(), "status", "--admin", d.Addr("admin")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"polder share, process", "memfd: 1 MiB", "1 of 5 B", "1 put"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("status does not say %q:\n%s", want, out)
		}
	}
}

func TestAnAdministrativeAddressForOthersNeedsTLS(t *testing.T) {
	root := t.TempDir()
	out, err := exec.Command(proctest.Binary(), "share", "--dir", filepath.Join(root, "state"),
		"--socket", filepath.Join(root, "s"), "--pool", "memfd:1MiB", "--admin", "0.0.0.0:0").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--insecure") {
		t.Errorf("got %v\n%s", err, out)
	}
}

func TestTopEndsWellWithSIGINT(t *testing.T) {
	root := t.TempDir()
	socket := filepath.Join(root, "s")
	d := proctest.Start(t, "share", "--dir", filepath.Join(root, "state"), "--socket", socket, "--pool", "memfd:1MiB")
	cmd := exec.Command(proctest.Binary(), "top", "--admin", d.Addr("admin"), "--every", "100ms", "--count", "0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	cmd.Stderr = &text
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var first [7]byte
	if _, err := io.ReadFull(out, first[:]); err != nil || string(first[:]) != "SERVICE" {
		t.Errorf("top begins with %q, %v", first, err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || text.Len() > 0 {
		t.Errorf("top ends with %v and says %q", err, text.String())
	}
}

// manager is a service manager as far as its descriptor store goes: what
// sd_notify(3) says of FDSTORE, and sd_listen_fds(3) of how they come back.
type manager struct {
	t      *testing.T
	conn   *net.UnixConn
	socket string
	names  []string
	files  []*os.File
	ready  int
}

func newManager(t *testing.T) *manager {
	t.Helper()
	m := &manager{t: t, socket: filepath.Join(t.TempDir(), "notify")}
	var err error
	if m.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.socket, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.conn.Close()
		for _, f := range m.files {
			f.Close()
		}
	})
	return m
}

// start starts a daemon as a service manager does, and waits for READY=1.
func (m *manager) start(args ...string) *exec.Cmd {
	m.t.Helper()
	// LISTEN_PID is the daemon's own number, as systemd sets it.
	cmd := exec.Command("/bin/sh", append([]string{"-c", `LISTEN_PID=$$ exec "$0" "$@"`, proctest.Binary()}, args...)...)
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+m.socket)
	if len(m.files) > 0 {
		cmd.Env = append(cmd.Env, fmt.Sprintf("LISTEN_FDS=%d", len(m.files)), "LISTEN_FDNAMES="+strings.Join(m.names, ":"))
	}
	cmd.ExtraFiles = m.files
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	})
	before := m.ready
	m.until("READY=1", func() bool { return m.ready > before })
	return cmd
}

// until reads notifications until what has come.
func (m *manager) until(what string, done func() bool) {
	m.t.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		m.t.Fatal(err)
	}
	buf, oob := make([]byte, 4096), make([]byte, 128)
	for !done() {
		n, oobn, _, _, err := m.conn.ReadMsgUnix(buf, oob)
		if err != nil {
			m.t.Fatalf("waiting for %s: %v", what, err)
		}
		m.notified(string(buf[:n]), oob[:oobn])
	}
}

func (m *manager) notified(text string, oob []byte) {
	m.t.Helper()
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		fields[key] = value
	}
	switch {
	case fields["READY"] == "1":
		m.ready++
	case fields["FDSTORE"] == "1":
		// systemd drops descriptors that poll says have hung up, unless told.
		if fields["FDPOLL"] != "0" || fields["FDNAME"] == "" || strings.ContainsAny(fields["FDNAME"], ": \n") || len(fields["FDNAME"]) > 255 {
			m.t.Errorf("a descriptor is kept with %q", text)
		}
		msgs, err := unix.ParseSocketControlMessage(oob)
		if err != nil || len(msgs) != 1 {
			m.t.Fatalf("%d control messages come with %q, %v", len(msgs), text, err)
		}
		fds, err := unix.ParseUnixRights(&msgs[0])
		if err != nil || len(fds) != 1 {
			m.t.Fatalf("%d descriptors come with %q, %v", len(fds), text, err)
		}
		unix.CloseOnExec(fds[0])
		m.names = append(m.names, fields["FDNAME"])
		m.files = append(m.files, os.NewFile(uintptr(fds[0]), fields["FDNAME"]))
	case fields["FDSTOREREMOVE"] == "1":
		for i, name := range m.names {
			if name == fields["FDNAME"] {
				m.files[i].Close()
				m.names, m.files = append(m.names[:i], m.names[i+1:]...), append(m.files[:i], m.files[i+1:]...)
				return
			}
		}
		m.t.Errorf("%q is to be removed, which is not kept", fields["FDNAME"])
	case fields["STOPPING"] == "1":
	case fields["X_POLDER_CHECK"] == "1": // whether anybody is there; for keepers
	default:
		m.t.Errorf("the service manager is told %q", text)
	}
}

func TestAServiceManagerKeepsTheMemoryOverARestart(t *testing.T) {
	root := t.TempDir()
	socket := filepath.Join(root, "s")
	args := []string{"share", "--dir", filepath.Join(root, "state"), "--socket", socket, "--pool", "memfd:1MiB", "--log-level", "error"}
	m := newManager(t)
	d := m.start(args...)
	c := attach(t, socket)
	put(t, c, "k", "kept by the manager")
	m.until("the region's descriptor", func() bool { return len(m.files) == 1 })

	for range 3 {
		if err := d.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		d.Wait()
		d = m.start(args...)
		reader := attach(t, socket)
		v, err := reader.Get(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if got := string(v.Bytes()); got != "kept by the manager" {
			t.Fatalf("after a restart: got %q", got)
		}
		if err := errors.Join(v.Close(), reader.Close()); err != nil {
			t.Fatal(err)
		}
	}
	// The memory that nobody needs any more is not the manager's either.
	if err := c.Delete(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	m.until("the descriptor to be removed", func() bool { return len(m.files) == 0 })
	if err := d.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := d.Wait(); err != nil {
		t.Errorf("the daemon ends with %v", err)
	}
}
