// Package childtest makes a test binary processes of their own, which a test can
// kill. Main has the binary do a child's job, and Start starts one.
package childtest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

const jobEnv = "POLDER_TEST_CHILD"

// Jobs are what children do, by name: each prints "ready" on a line when it is. A
// job is told an address.
type Jobs map[string]func(addr string) error

// Main does a child's job, and does not return, if this process is one. TestMain
// calls it first.
func Main(jobs Jobs) {
	job := os.Getenv(jobEnv)
	if job == "" {
		return
	}
	if err := jobs[job](os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, job, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Start starts a child, and waits until it is ready. kill is SIGKILL, which it
// gets at the end of the test, too.
func Start(t testing.TB, job, addr string) (kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0], addr)
	cmd.Env = append(os.Environ(), jobEnv+"="+job)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	killed := false
	kill = func() {
		if !killed {
			killed = true
			_ = cmd.Process.Kill() // it may have ended
			_ = cmd.Wait()
		}
	}
	t.Cleanup(kill)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the %s says %q, %v", job, line, err)
	}
	return kill
}
