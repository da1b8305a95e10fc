package robustness

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"polder/internal/proctest"
)

// terminal is a pseudo-terminal: what a program writes to it, and who types.
type terminal struct {
	master *os.File
	mu     sync.Mutex
	said   strings.Builder // guarded by mu
	done   chan struct{}
}

// openTerminal has cmd run in a terminal of so many columns and lines.
func openTerminal(t *testing.T, cmd *exec.Cmd, columns, lines uint16) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: lines, Col: columns})
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = slave.Close()
	term := &terminal{master: master, done: make(chan struct{})}
	go func() {
		defer close(term.done)
		var b [4096]byte
		for {
			n, err := master.Read(b[:])
			term.mu.Lock()
			term.said.Write(b[:n])
			term.mu.Unlock()
			if err != nil {
				return // EIO: the program has ended
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-term.done
		_ = master.Close()
	})
	return term
}

// take is what was written since the last time.
func (term *terminal) take() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	s := term.said.String()
	term.said.Reset()
	return s
}

func (term *terminal) has(part string) func() bool {
	return func() bool {
		term.mu.Lock()
		defer term.mu.Unlock()
		return strings.Contains(term.said.String(), part)
	}
}

// TestTopInATerminal: it shows the daemons, opens one, explains its keys, says that
// a daemon is silent, and leaves the terminal as it was; and has no colours where
// none are wanted.
func TestTopInATerminal(t *testing.T) {
	node := proctest.Start(t, "node", "--lend", "64MiB")
	server := proctest.Start(t, "serve", "--far", node.Addr("verbs"), "--local", "8MiB")
	cmd := exec.Command(proctest.Binary(), "top", "--admin", server.Addr("admin")+","+node.Addr("admin"), "--every", "200ms")
	cmd.Env = append(os.Environ(), "TERM=xterm-256color", "NO_COLOR=1")
	term := openTerminal(t, cmd, 80, 24)
	typed := func(keys string) {
		t.Helper()
		if _, err := io.WriteString(term.master, keys); err != nil {
			t.Fatal(err)
		}
	}
	proctest.Until(t, "top shows the node", term.has(node.Addr("admin")))
	proctest.Until(t, "top shows the server", term.has(server.Addr("admin")))
	all := term.take()
	typed("?")
	proctest.Until(t, "the keys are explained", term.has("sort by the next column"))
	typed("?\r")
	// Which one is first, by its memory, changes while they start.
	first, second := term.has("process "+fmt.Sprint(node.PID())), term.has("process "+fmt.Sprint(server.PID()))
	proctest.Until(t, "a daemon is open", func() bool { return first() || second() })
	typed("\x1b")
	all += term.take()
	server.Kill()
	proctest.Until(t, "the dead server is silent", term.has("silent"))
	typed("q")
	err := cmd.Wait()
	<-term.done
	all += term.take()
	if err != nil {
		t.Errorf("top ended with %v", err)
	}
	if !strings.Contains(all, "\x1b[?1049h") || !strings.Contains(all, "\x1b[?1049l") {
		t.Error("top does not leave the terminal's other screen")
	}
	for _, color := range []string{"\x1b[31", "\x1b[32", "\x1b[33", "\x1b[1;31"} {
		if strings.Contains(all, color) {
			t.Errorf("with NO_COLOR, top writes %q", color)
		}
	}
}
