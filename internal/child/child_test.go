package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func shell(t *testing.T, script string) *Process {
	t.Helper()
	p, err := Start(Command{Path: "/bin/sh", Args: []string{"-c", script}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// signalOnWrite sends at every write.
type signalOnWrite chan struct{}

func (s signalOnWrite) Write(p []byte) (int, error) {
	s <- struct{}{}
	return len(p), nil
}

func TestStopEndsAProgramAndSaysHowItEnded(t *testing.T) {
	up := make(signalOnWrite, 16)
	p, err := Start(Command{Path: "/bin/sh", Stderr: up,
		Args: []string{"-c", `trap 'echo bye >&2; exit 3' TERM; echo up >&2; while :; do sleep 0.01; done`}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	<-up
	err = p.Stop()
	if err == nil {
		t.Fatal("got no error for a program that ended with code 3")
	}
	if code := p.ExitCode(); code != 3 || !strings.Contains(p.Stderr(), "bye") {
		t.Errorf("got exit code %d and %q, want 3 and its farewell", code, p.Stderr())
	}
	if again := p.Stop(); again == nil || again.Error() != err.Error() {
		t.Errorf("stopping again: got %v, want %v", again, err)
	}
}

func TestStartReadyReturnsTheAddresses(t *testing.T) {
	// The shell's "$1" is the file, "$0" the flag.
	p, err := StartReady(context.Background(), Command{Path: "/bin/sh",
		Args: []string{"-c", `echo '{"redis":"127.0.0.1:1"}' >"$1"; exec sleep 1000`}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	if p.Addr("redis") != "127.0.0.1:1" || p.Addr("admin") != "" {
		t.Errorf("got %q and %q", p.Addr("redis"), p.Addr("admin"))
	}
	if n, err := p.Resident(); err != nil || n <= 0 {
		t.Errorf("Resident() = %d, %v", n, err)
	}
}

func TestStartReadyExplainsAFailure(t *testing.T) {
	_, err := StartReady(context.Background(), Command{Path: "/bin/sh", Args: []string{"-c", `echo no such luck >&2; exit 1`}})
	if err == nil || !strings.Contains(err.Error(), "no such luck") {
		t.Errorf("got %v, want what the program said", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err = StartReady(ctx, Command{Path: "/bin/sh", Args: []string{"-c", `exec sleep 1000`}})
	if err == nil || !strings.Contains(err.Error(), "not ready") {
		t.Errorf("got %v, want that it is not ready", err)
	}
}

func TestAProgramThatEndsTooEarlyHasAReasonAlsoIfItEndsCleanly(t *testing.T) {
	for script, want := range map[string]string{"exit 0": "exit code 0", "echo why >&2": "exit code 0: why", "exit 3": "exit status 3"} {
		if err := shell(t, script).Ended(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", script, err, want)
		}
	}
}

func TestChildrenDoNotInheritThisProcesssConfiguration(t *testing.T) {
	t.Setenv("POLDER_LOCAL", "1GiB")
	p := shell(t, `test -z "$POLDER_LOCAL"`)
	if err := p.Err(); err != nil {
		t.Error(err)
	}
}

func TestResidentOfThisProcess(t *testing.T) {
	n, err := Resident(os.Getpid())
	if err != nil || n < 1<<20 {
		t.Errorf("Resident() = %d, %v, want a few MiB", n, err)
	}
	if _, err := Resident(-1); err == nil {
		t.Error("got no error for a process that is not there")
	}
}

func TestKillIsSure(t *testing.T) {
	p := shell(t, `trap '' TERM INT; while :; do sleep 0.01; done`)
	if err := p.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	p.Kill()
	if p.ExitCode() != -1 {
		t.Errorf("got exit code %d, want that of a signal", p.ExitCode())
	}
}

func TestRedisAnswersAndLeavesNothing(t *testing.T) {
	r, err := StartRedis(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if pid, err := answers(context.Background(), r.Addr); err != nil || pid != r.PID() {
		t.Errorf("process %d answers, %v, want %d", pid, err, r.PID())
	}
	if other, err := startRedis(context.Background(), "redis-server", r.Addr, nil); err == nil {
		t.Error("a second Redis at the same port is taken for one that answers")
		_ = other.Close()
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(r.dir); !os.IsNotExist(err) {
		t.Errorf("its directory is still there: %v", err)
	}
}

func TestAProgramThatDoesNotEndIsAskedWhatItDoes(t *testing.T) {
	up := make(signalOnWrite, 16)
	p, err := Start(Command{Path: "/bin/sh", Stderr: up,
		Args: []string{"-c", `trap 'printf gorou%s tines >&2; exit 2' QUIT; echo up >&2; while :; do sleep 0.01; done`}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	<-up
	if err := p.EndWithin(time.Millisecond); err == nil || !strings.Contains(err.Error(), "goroutines") {
		t.Errorf("a program that does not end: got %v, want what it says that it does", err)
	}
	if err := shell(t, "exit 3").EndWithin(time.Minute); err != nil {
		t.Errorf("a program that ends: %v", err)
	}
}

func TestAProgramThatIsStoppedDoesNothingMore(t *testing.T) {
	p := shell(t, "while :; do :; done")
	for range 100 {
		if err := p.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID())); err != nil || !strings.Contains(string(stat), ") T ") {
			t.Fatalf("it is in the state %q, %v", stat, err)
		}
		if err := p.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	p.Kill()
	if err := p.Signal(syscall.SIGSTOP); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("a program that has ended: %v", err)
	}
}
