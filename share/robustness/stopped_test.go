package robustness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"polder/share"
)

// stop stops a process, and returns when it is.
func stop(t *testing.T, p *os.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until(t, "the process is stopped", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid))
		return err == nil && strings.Contains(string(stat), ") T ")
	})
}

// TestADaemonThatIsStoppedCostsPatienceAndNoMore: a process that is stopped
// still has connections queued for it and takes messages, and answers none.
func TestADaemonThatIsStoppedCostsPatienceAndNoMore(t *testing.T) {
	dir := t.TempDir()
	d := start(t, self(t, "daemon", dir, "", envPool+"=memfd:1MiB"))
	open(t, dir) // it answers
	cfg := config(dir)
	cfg.Patience = 200 * time.Millisecond
	c, err := share.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	put(t, c, "k", "value")
	wantValue(t, c, "k", "value")
	leaving, err := share.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	page, err := c.Alloc(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stop(t, d.cmd.Process)
	for what, try := range map[string]func() error{
		"Open":   func() error { _, err := share.Open(t.Context(), cfg); return err },
		"Exists": func() error { _, err := c.Exists(t.Context(), "k"); return err },
		"Put":    func() error { _, err := c.Put(t.Context(), "new", page, 1); return err },
	} {
		done := make(chan error, 1)
		go func() { done <- try() }()
		select {
		case err := <-done:
			if !errors.Is(err, share.ErrUnavailable) {
				t.Errorf("%s: got %v, want %v", what, err, share.ErrUnavailable)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s with a patience of %v hangs", what, cfg.Patience)
		}
	}
	closed := make(chan error, 1)
	go func() { closed <- leaving.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Errorf("Close: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Close hangs")
	}
	if err := d.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	until(t, "the daemon that goes on is found", func() bool {
		found, err := c.Exists(t.Context(), "k")
		return err == nil && found
	})
	wantValue(t, c, "k", "value")
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	until(t, "the client that left while the daemon was stopped is gone", func() bool { return stats(t, open(t, dir)).Regions == 1 })
}

// clientOf returns the client of that process, as the daemon describes it.
func clientOf(t *testing.T, c *share.Client, pid int) (found share.SessionInfo) {
	t.Helper()
	for s, err := range c.Sessions(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if s.PID == pid {
			found = s
		}
	}
	return found
}

// churn fills the pool with keys and deletes them, and again. With a client that
// holds up everything, the pool is full after one round.
func churn(t *testing.T, c *share.Client) {
	t.Helper()
	for round := range 20 {
		var keys []string
		for i := range 8 {
			key := fmt.Sprintf("%d/%d", round, i)
			until(t, "there is room for "+key, func() bool {
				p, err := c.Alloc(t.Context())
				if errors.Is(err, share.ErrFull) {
					return false
				}
				if err != nil {
					t.Fatal(err)
				}
				for i := range p.Bytes() {
					p.Bytes()[i] = 0xff
				}
				if _, err := c.Put(t.Context(), key, p, smallPage); err != nil {
					t.Fatal(err)
				}
				return true
			})
			keys = append(keys, key)
		}
		if _, err := c.DeleteAll(t.Context(), keys); err != nil {
			t.Fatal(err)
		}
	}
}

// tell has a viewer look at its views.
func (a *actor) tell(t *testing.T, what string) {
	t.Helper()
	if _, err := fmt.Fprintln(a.in, what); err != nil {
		t.Fatal(err)
	}
	if !a.ready() {
		t.Fatal("the viewer has seen other bytes than its keys'")
	}
}

// stoppedViewer puts the keys a, b and left, has a process pin a and b and open views
// of them, and stops it.
func stoppedViewer(t *testing.T, dir string) (*share.Client, *actor) {
	t.Helper()
	c := open(t, dir)
	for _, key := range []string{"a", "b", "left"} {
		put(t, c, key, "value of "+key)
	}
	viewer := start(t, self(t, "viewer", dir, "a b"))
	if !viewer.ready() {
		t.Fatal("the viewer has failed")
	}
	stop(t, viewer.cmd.Process)
	return c, viewer
}

// TestAClientThatStaysStoppedIsNamedAndFenced has a client stopped when the
// daemon is restarted. The daemon waits for it, says so, and goes on without it
// after a time; and when the client goes on, its views are right.
func TestAClientThatStaysStoppedIsNamedAndFenced(t *testing.T) {
	dir, kill := keep(t, "memfd:512KiB", "", envSettle+"=2s")
	c, viewer := stoppedViewer(t, dir)
	pid := viewer.cmd.Process.Pid
	kill()
	until(t, "the stopped client is awaited", func() bool { return clientOf(t, c, pid).State == "awaited" })
	until(t, "the stopped client is fenced", func() bool { return clientOf(t, c, pid).PID == 0 })
	if info := stats(t, c); info.Settling != 0 || info.Fenced != 1 {
		t.Errorf("after the time for settling: %d clients are awaited and %d fenced, want 0 and 1", info.Settling, info.Fenced)
	}
	told, err := os.ReadFile(filepath.Join(dir, toldName))
	if err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"waiting for a client of before the restart", "a client is fenced"} {
		if n := strings.Count(string(told), what); n != 1 || !strings.Contains(string(told), fmt.Sprint("pid=", pid)) {
			t.Errorf("%q is told %d times, want once, with the pid %d:\n%s", what, n, pid, told)
		}
	}
	for _, key := range []string{"a", "b"} { // its pins are gone
		if err := c.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	churn(t, c)
	kill() // who was fenced is not known to the third daemon, and may look all the same
	churn(t, c)
	if err := viewer.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	viewer.tell(t, "served")
	churn(t, c)
	viewer.tell(t, "look")
	wantValue(t, c, "left", "value of left")
	viewer.kill()
	if err := c.Delete(t.Context(), "left"); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	untilEmpty(t, open(t, dir))
}

// TestKickEndsAClientAndNotItsViews kicks a client that is stopped.
func TestKickEndsAClientAndNotItsViews(t *testing.T) {
	dir, _ := keep(t, "memfd:512KiB", "")
	c, viewer := stoppedViewer(t, dir)
	pid := viewer.cmd.Process.Pid
	if err := c.Delete(t.Context(), "a"); !errors.Is(err, share.ErrPinned) {
		t.Fatalf("a key that a stopped client has pinned: got %v, want %v", err, share.ErrPinned)
	}
	if err := c.Kick(t.Context(), clientOf(t, c, pid).ID); err != nil {
		t.Fatal(err)
	}
	if err := c.Kick(t.Context(), 12345); !errors.Is(err, share.ErrNotFound) {
		t.Errorf("kick of nobody: got %v, want %v", err, share.ErrNotFound)
	}
	for _, key := range []string{"a", "b"} {
		if err := c.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	churn(t, c)
	if err := viewer.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	viewer.tell(t, "served")
	churn(t, c)
	viewer.tell(t, "look")
	viewer.kill()
	until(t, "the daemon knows that it is dead", func() bool { return stats(t, c).Fenced == 0 })
	for r, err := range c.Regions(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Retired {
			t.Errorf("region %d is retired although nobody may look at it any more", r.ID)
		}
	}
	churn(t, c)
	wantValue(t, c, "left", "value of left")
}
