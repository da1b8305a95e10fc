// Package proctest lets tests run the real program in processes of its own.
//
// A test package calls [Main] from its TestMain: the binary is built once,
// without the race detector, as users build it, and removed at the end; unless
// TEST_BINARY is the path of one, where there is no Go to build it, or where
// "make test" has built it for all packages. The program refuses variables whose
// names begin with POLDER_ and which it does not know, so those of tests have none
// of these names. The functions that take a testing.TB fail the test when a daemon
// cannot be started, and stop it when the test ends.
package proctest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/internal/child"
	"polder/internal/console"
	"polder/internal/testaddr"
)

// binary is the path of the program, set by Main.
var binary string

// Main builds the program, runs the tests, and checks that they leave no
// goroutine behind. It does not return.
func Main(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "polder-test-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if binary = os.Getenv("TEST_BINARY"); binary == "" {
		binary = filepath.Join(dir, "polder")
		build := exec.Command("go", "build", "-ldflags=-s -w", "-o", binary, "polder/cmd/polder")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("cannot build polder: %w\n%s", err, out)
		}
	} else if _, err := os.Stat(binary); err != nil { // results of tests are cached for this binary only
		return 0, fmt.Errorf("cannot use TEST_BINARY: %w", err)
	}
	if code = m.Run(); code == 0 {
		err = goleak.Find()
	}
	return code, err
}

// Binary is the path of the program.
func Binary() string { return binary }

// startTimeout bounds the start of a daemon.
const startTimeout = time.Minute

// Start runs a daemon that has clients over TCP, as Run does. Unless args say
// where it listens it does so at a free port of testaddr.Host, so that another one
// can be started there when it has ended.
func Start(tb testing.TB, command string, args ...string) *child.Process {
	tb.Helper()
	if !slices.Contains(args, "--listen") {
		args = append([]string{"--listen", testaddr.Host() + ":0"}, args...)
	}
	return Run(tb, command, args...)
}

// Run runs a daemon and waits until it is ready. Its administrative address is at
// a free port of the loopback interface unless args say otherwise. When the test
// ends it is stopped, and the test fails if it ends badly, unless it was killed.
func Run(tb testing.TB, command string, args ...string) *child.Process {
	tb.Helper()
	return RunCommand(tb, child.Command{Path: binary, Args: append([]string{command, "--admin", "127.0.0.1:0"}, args...)})
}

// RunCommand is Run for a daemon with a command line that is the caller's.
func RunCommand(tb testing.TB, c child.Command) *child.Process {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	p, err := child.StartReady(ctx, c)
	if err != nil {
		tb.Fatal(err)
	}
	name := strings.Join(append([]string{c.Path}, c.Args...), " ")
	tb.Cleanup(func() {
		select {
		case <-p.Done():
			if p.ExitCode() > 0 {
				tb.Errorf("%s ended with code %d: %s", name, p.ExitCode(), p.Stderr())
			}
		default:
			if err := p.Stop(); err != nil {
				tb.Error(err)
			}
		}
		if tb.Failed() {
			tb.Logf("%s wrote: %s", name, p.Stderr())
		}
	})
	return p
}

// outputTimeout bounds what Output runs: far above every deadline of a command's.
const outputTimeout = 5 * time.Minute

// Output runs the program until it ends, and returns what it wrote and its
// exit code. It fails the test, with what the program's goroutines do, if that takes minutes.
func Output(tb testing.TB, env []string, args ...string) (stdout, stderr string, code int) {
	tb.Helper()
	var out, errs bytes.Buffer
	p, err := child.Start(child.Command{Path: binary, Args: args, Env: env, Stdout: &out, Stderr: &errs})
	if err != nil {
		tb.Fatal(err)
	}
	if err := p.EndWithin(outputTimeout); err != nil {
		tb.Fatalf("%v\n%s", err, errs.String())
	}
	return out.String(), errs.String(), p.ExitCode()
}

// State is what the daemon's administrative address says at /status.
func State(tb testing.TB, p *child.Process) *console.State {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := console.Query(ctx, nil, "", p.Addr("admin"), 0)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// Until asks again and again until done reports true. It fails the test when
// that takes longer than a minute: a bound for what should happen at all, not
// for how fast.
func Until(tb testing.TB, what string, done func() bool) {
	tb.Helper()
	UntilWithin(tb, time.Minute, what, done)
}

// UntilWithin is Until with another limit, for what waits until other processes have had time for something else.
func UntilWithin(tb testing.TB, within time.Duration, what string, done func() bool) {
	tb.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(within)
	defer limit.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-limit.C:
			tb.Fatalf("waited in vain until %s", what)
		}
	}
}
