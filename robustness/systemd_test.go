package robustness

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"polder/internal/proctest"
)

// serviceManager starts a daemon as systemd does: with a socket for notifications
// and one that it listens at itself.
type serviceManager struct {
	t    *testing.T
	conn *net.UnixConn
	cmd  *exec.Cmd
	errs bytes.Buffer
}

func startService(t *testing.T, door net.Listener, args ...string) *serviceManager {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := door.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m := &serviceManager{t: t, conn: conn}
	m.cmd = exec.Command("/bin/sh", append([]string{"-c", `LISTEN_PID=$$ WATCHDOG_PID=$$ exec "$0" "$@"`, proctest.Binary()}, args...)...)
	m.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+path, "LISTEN_FDS=1", "LISTEN_FDNAMES=listen", "WATCHDOG_USEC=200000")
	m.cmd.ExtraFiles = []*os.File{f}
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
// were to come after it.
func (m *serviceManager) until(want string) {
	m.t.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		m.t.Fatal(err)
	}
	buf := make([]byte, 4096)
	for {
		n, err := m.conn.Read(buf)
		if err != nil {
			m.t.Fatalf("waiting for %s: %v", want, err)
		}
		if got := string(buf[:n]); strings.HasPrefix(got, want) {
			return
		} else if got != "WATCHDOG=1" {
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
	m := startService(t, door, "up", "--lend", "64MiB", "--admin", "off", "--listen", "127.0.0.1:1")
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
	m := startService(t, door, "up", "--lend", "64MiB", "--admin", "off")
	if err := m.cmd.Wait(); err == nil || !strings.Contains(m.errs.String(), "it can be reached from other machines") {
		t.Errorf("a socket that everybody can reach: %v\n%s", err, m.errs.String())
	}
}
