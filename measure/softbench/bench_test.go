package softbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"polder/measure/benchout"
)

// TestMain lets the test program be its own worker, and the benchmark itself.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "pressure" {
		if err := RunPressure(context.Background(), Options{Printer: benchout.New(os.Stdout, true), Short: true}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 2 && os.Args[1] == "worker" {
		if err := Worker(context.Background(), os.Stdout, os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestTheBestFixedPartitionIsOne(t *testing.T) {
	sum := 0.0
	for name, share := range wallShares() {
		if share <= 0 {
			t.Errorf("%s has the share %v", name, share)
		}
		sum += share
	}
	if sum < 0.999 || sum > 1.001 {
		t.Errorf("the shares sum to %v", sum)
	}
}

func TestAWorkerThatEndsTooEarlyIsExplainedAlsoIfItEndsCleanly(t *testing.T) {
	o := Options{Polder: "/bin/true"}
	w, err := o.start("fill")
	if err != nil {
		t.Fatal(err)
	}
	defer w.stop()
	if _, err := w.expect("ready"); err == nil || !strings.HasSuffix(err.Error(), "exit code 0") {
		t.Errorf("got %v, want how it has ended", err)
	}
}

// TestPressureFailsWhereNoLimitCanBeSet: nobody may make a control group.
func TestPressureFailsWhereNoLimitCanBeSet(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "pressure") // whoever may read the directory that it is in
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "no control group with a memory limit can be made here") {
		t.Errorf("got %v and the output %q, want it to fail and say why", err, out)
	}
}
