package robustness

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"polder/internal/proctest"
	"polder/pool/finemem"
	"polder/share"
	"polder/soft"
)

// serviceManager starts a daemon as systemd does: with a socket for notifications
// and one that it listens at itself.
type serviceManager struct {
	t    *testing.T
	conn *net.UnixConn
	cmd  *exec.Cmd
	errs bytes.Buffer
}

// startService starts one that listens at the doors, with names or without.
func startService(t *testing.T, doors []net.Listener, names string, args ...string) *serviceManager {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	m := &serviceManager{t: t, conn: conn}
	m.cmd = exec.Command("/bin/sh", append([]string{"-c", `LISTEN_PID=$$ WATCHDOG_PID=$$ exec "$0" "$@"`, proctest.Binary()}, args...)...)
	m.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+path, fmt.Sprint("LISTEN_FDS=", len(doors)), "LISTEN_FDNAMES="+names, "WATCHDOG_USEC=200000")
	for _, door := range doors {
		f, err := door.(interface{ File() (*os.File, error) }).File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		m.cmd.ExtraFiles = append(m.cmd.ExtraFiles, f)
	}
	m.cmd.Stderr = &m.errs
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.cmd.Process.Kill()
		m.cmd.Wait()
		conn.Close()
	})
	return m
}

// until waits for a notification that says all of this, and none of others that
// were to come after it. A node hands its memory over before it is ready.
func (m *serviceManager) until(want string) {
	m.t.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		m.t.Fatal(err)
	}
	buf := make([]byte, 4096)
	for {
		n, err := m.conn.Read(buf)
		if err != nil {
			m.cmd.Process.Kill()
			m.cmd.Wait()
			m.t.Fatalf("waiting for %s: %v\n%s", want, err, m.errs.String())
		}
		if got := string(buf[:n]); strings.HasPrefix(got, want) {
			return
		} else if got != "WATCHDOG=1" && got != "X_POLDER_CHECK=1" && (want != "READY=1" || !strings.HasPrefix(got, "FDSTORE=1\n")) {
			m.t.Fatalf("the daemon says %q, want %s", got, want)
		}
	}
}

func TestTheServiceManagerIsToldAndItsSocketIsServed(t *testing.T) {
	door, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer door.Close()
	m := startService(t, []net.Listener{door}, "listen", "up", "--lend", "64MiB", "--admin", "off", "--listen", "127.0.0.1:1")
	m.until("READY=1")
	m.until("WATCHDOG=1")
	nc, err := net.Dial("tcp", door.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(nc, "PING\r\n")
	if line, err := bufio.NewReader(nc).ReadString('\n'); line != "+PONG\r\n" {
		t.Errorf("at the manager's socket: %q, %v", line, err)
	}
	if err := m.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	m.until("RELOADING=1\nMONOTONIC_USEC=")
	m.until("READY=1")
	if err := m.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	m.until("STOPPING=1")
	if err := m.cmd.Wait(); err != nil {
		t.Errorf("the daemon ends with %v:\n%s", err, m.errs.String())
	}
}

// TestTheServiceManagersSocketIsUnderTheSameRule: others cannot reach it without
// proof of who they are.
func TestTheServiceManagersSocketIsUnderTheSameRule(t *testing.T) {
	door, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer door.Close()
	m := startService(t, []net.Listener{door}, "listen", "up", "--lend", "64MiB", "--admin", "off")
	if err := m.cmd.Wait(); err == nil || !strings.Contains(m.errs.String(), "it can be reached from other machines") {
		t.Errorf("a socket that everybody can reach: %v\n%s", err, m.errs.String())
	}
}

// TestEveryDaemonServesTheManagersSockets: those that are bound to its addresses, also
// when it was killed and is started again.
func TestEveryDaemonServesTheManagersSockets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tcp := func(t *testing.T) net.Listener { return doorAt(t, "tcp", "127.0.0.1:0") }
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte(strings.Repeat("5a", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		door func(*testing.T) net.Listener
		args func(addr string) []string
		use  func(t *testing.T, addr string) error
	}{
		{"node", tcp, func(addr string) []string {
			return []string{"node", "--lend", "64MiB", "--listen", addr}
		}, setAt},
		{"node at a Unix socket", func(t *testing.T) net.Listener { return doorAt(t, "unix", filepath.Join(dir, "node")) }, func(addr string) []string {
			return []string{"node", "--lend", "64MiB", "--listen", "unix:" + addr}
		}, func(t *testing.T, addr string) error { return setAt(t, "unix:"+addr) }},
		{"broker", func(t *testing.T) net.Listener { return doorAt(t, "unixpacket", filepath.Join(dir, "broker")) }, func(addr string) []string {
			node := proctest.Start(t, "node", "--lend", "64MiB", "--manager", finemem.Name, "--service-secret-file", secret)
			return []string{"broker", "--far", node.Addr("verbs"), "--service-secret-file", secret, "--listen", addr}
		}, func(t *testing.T, addr string) error { return setAt(t, "broker:"+addr) }},
		{"coordinator", func(t *testing.T) net.Listener { return doorAt(t, "unixpacket", filepath.Join(dir, "soft")) }, func(addr string) []string {
			return []string{"coordinator", "--socket", addr, "--max", "64MiB", "--grace", "1ms", "--interval", "20ms"}
		}, func(t *testing.T, addr string) error {
			h, err := soft.Open(soft.Config{Budget: soft.MinBudget, Coordinator: addr, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				return err
			}
			proctest.Until(t, "the coordinator grants memory", func() bool { return h.Budget() > soft.MinBudget })
			return h.Close()
		}},
		{"share", func(t *testing.T) net.Listener { return doorAt(t, "unixpacket", filepath.Join(dir, "share")) }, func(addr string) []string {
			return []string{"share", "--pool", "file:" + t.TempDir() + ":1MiB", "--dir", filepath.Join(dir, "state"), "--socket", addr}
		}, func(t *testing.T, addr string) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			c, err := share.Open(ctx, share.Config{Socket: addr})
			if err != nil {
				return err
			}
			return c.Close()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			door := tt.door(t)
			addr := door.Addr().String()
			args := append(tt.args(addr), "--admin", "off")
			for range 2 {
				m := startService(t, []net.Listener{door}, "polder.socket", args...)
				m.until("READY=1")
				if err := tt.use(t, addr); err != nil {
					t.Errorf("at the manager's socket: %v", err)
				}
				m.cmd.Process.Kill()
				m.cmd.Wait()
				if s := m.errs.String(); strings.Contains(s, "no flag names") {
					t.Errorf("the daemon does not know its socket:\n%s", s)
				}
			}
		})
	}
}

// doorAt is a socket of the service manager's.
func doorAt(t *testing.T, network, addr string) net.Listener {
	t.Helper()
	door, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { door.Close() })
	return door
}

// setAt stores a value in memory that is borrowed at an address.
func setAt(t *testing.T, far string) error {
	server := startServer(t, far, "8MiB", "--far-wait", "1m")
	return connect(t, server).Set(t.Context(), "k", "v", 0).Err()
}

// TestASocketThatNobodyNamesIsReported: clients would wait at it for ever.
func TestASocketThatNobodyNamesIsReported(t *testing.T) {
	door := doorAt(t, "tcp", "127.0.0.1:0")
	m := startService(t, []net.Listener{door}, "other", "coordinator", "--socket", filepath.Join(t.TempDir(), "s"), "--admin", "off")
	m.until("READY=1")
	m.cmd.Process.Signal(syscall.SIGTERM)
	m.cmd.Wait()
	if want := "address=" + door.Addr().String(); !strings.Contains(m.errs.String(), want) {
		t.Errorf("got %q, want a warning with %s", m.errs.String(), want)
	}
}
