//go:build ibverbs

package windows

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/verbs"
)

// holderEnv makes this program a process that holds bound windows.
const holderEnv = "POLDER_TEST_HOLD_WINDOWS"

const bound = "windows are bound"

func TestMain(m *testing.M) {
	if os.Getenv(holderEnv) != "" {
		hold(holder{})
	}
	goleak.VerifyTestMain(m)
}

// holder lets a process that runs no test use what is made for tests.
type holder struct{ testing.TB }

func (holder) Helper()                  {}
func (holder) Cleanup(func())           {}
func (holder) Context() context.Context { return context.Background() }

func (holder) Fatal(args ...any) {
	fmt.Fprintln(os.Stderr, args...)
	os.Exit(1)
}

func (h holder) Fatalf(format string, args ...any) { h.Fatal(fmt.Sprintf(format, args...)) }

// hold binds windows to queue pairs and waits to be killed.
func hold(t testing.TB) {
	n := newNode(t)
	for range 4 {
		c := n.newClient()
		for range 4 {
			c.wantSecret("the borrower", n.lend(n.window(verbs.MWType2B), c))
		}
	}
	os.Stdout.WriteString(bound + "\n")
	for {
		_ = syscall.Pause()
	}
}

// A process that dies while windows are bound to its queue pairs leaves a
// kernel that must take all of it down.
func TestAProcessWithBoundWindowsCanBeKilled(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holderEnv+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); ; {
		if !lines.Scan() {
			_ = cmd.Process.Kill()
			t.Fatalf("the process ended before it had bound its windows: %v", cmd.Wait())
		}
		if lines.Text() == bound {
			break
		}
		t.Log(lines.Text())
	}
	began := time.Now()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan error, 1)
	go func() { gone <- cmd.Wait() }()
	select {
	case <-gone:
		t.Logf("a process with 16 windows bound to 4 queue pairs was gone %v after SIGKILL", time.Since(began).Round(time.Microsecond))
	case <-time.After(patience):
		t.Fatalf("the kernel has not taken the process down in %v", patience)
	}
}
