package robustness

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"polder/share"
)

// startKeeper starts a keeper in a process of its own, and returns the pid of
// its daemon.
func startKeeper(t *testing.T, dir string) (k *actor, daemon int) {
	t.Helper()
	k = start(t, self(t, "keeper", dir, "", envPool+"=memfd:1MiB"))
	line, err := k.out.ReadString('\n')
	if err == nil {
		daemon, err = strconv.Atoi(strings.TrimSpace(line))
	}
	if err != nil {
		t.Fatalf("the keeper has started no daemon: %v", err)
	}
	t.Cleanup(func() { // a keeper that is killed leaves it behind
		if pidfd, err := unix.PidfdOpen(daemon, 0); err == nil {
			_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
			unix.Close(pidfd)
		}
	})
	return k, daemon
}

// TestANewKeeperTakesTheDeadOnesPlace kills a keeper. Its daemon says what that
// means and serves what it has, and hands everything to the next keeper.
func TestANewKeeperTakesTheDeadOnesPlace(t *testing.T) {
	dir := t.TempDir()
	first, daemon := startKeeper(t, dir)
	c := open(t, dir)
	put(t, c, "k", "value")
	v, err := c.Get(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	first.kill()
	until(t, "the daemon says that its keeper is dead", func() bool {
		told, err := os.ReadFile(filepath.Join(dir, toldName))
		return err == nil && strings.Contains(string(told), "nothing keeps the daemon's memory")
	})
	wantValue(t, c, "k", "value")
	put(t, c, "in a page that it has", "value")
	other := open(t, dir)
	if _, err := other.Alloc(t.Context()); err == nil || !strings.Contains(err.Error(), "with --keep, and the new keeper") {
		t.Errorf("a region without keeper: got %v, want that --keep is needed", err)
	}

	second, successor := startKeeper(t, dir)
	if successor == daemon {
		t.Fatalf("the new keeper's daemon has the pid %d of the old one", daemon)
	}
	for _, key := range []string{"k", "in a page that it has"} {
		wantValue(t, c, key, "value")
	}
	fresh := open(t, dir)
	wantValue(t, fresh, "in a page that it has", "value")
	put(t, other, "new", "value")
	if got := string(v.Bytes()); got != "value" {
		t.Errorf("a view of before: got %q, want value", got)
	}

	third := self(t, "keeper", dir, "", envPool+"=memfd:1MiB")
	third.Stderr = nil
	if err := third.Run(); err == nil {
		t.Error("a third keeper has taken the place of one that lives")
	}

	// The new keeper does what a keeper is for.
	if err := unix.Kill(successor, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wantValue(t, fresh, "new", "value")
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	for _, client := range []*share.Client{c, other, fresh} {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- second.cmd.Wait() }()
	if err := second.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		second.dead = true
		if err != nil {
			t.Errorf("the keeper ends badly: %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the keeper does not end")
	}
}
