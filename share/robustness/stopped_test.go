package robustness

import (
	"errors"
	"fmt"
	"os"
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
