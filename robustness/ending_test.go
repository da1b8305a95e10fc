package robustness

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"polder/internal/child"
	"polder/internal/proctest"
)

// TestAServerEndsInTime though a node and most of the witnesses are stopped, without which there is no last checkpoint and nobody can be told that the
// heap is free. It says what was not finished.
func TestAServerEndsInTime(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var witnesses []*child.Process
	var addrs []string
	for range 3 {
		w := proctest.Start(t, "witness", "--dir", t.TempDir())
		witnesses, addrs = append(witnesses, w), append(addrs, w.Addr("witness"))
	}
	if out, errs, code := proctest.Output(t, nil, append([]string{"witness", "set"}, addrs...)...); code != 0 {
		t.Fatalf("polder witness set: %d, %s%s", code, out, errs)
	}
	nodes, far := startNodes(t, 2)
	server, err := child.StartReady(ctx, child.Command{Path: proctest.Binary(), Args: append([]string{"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"},
		named(far, strings.Join(addrs, ","), "--end-within", "3s")...)})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Kill()
	c := connect(t, server)
	if err := c.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*child.Process{witnesses[0], witnesses[1], nodes[0]} {
		if err := p.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		defer p.Signal(syscall.SIGCONT)
	}
	if err := c.Set(ctx, "k", "w", 0).Err(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := server.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-server.Done():
	case <-time.After(hang):
		t.Fatalf("the server has not ended %v after it was told to", hang)
	}
	if took := time.Since(began); took > 10*time.Second { // a busy machine has more than twice the time
		t.Errorf("the server took %v to end, want 3s and a moment", took)
	}
	for _, say := range []string{"cannot write a checkpoint", "--end-within", "cannot give the heap up"} {
		if !strings.Contains(server.Stderr(), say) {
			t.Errorf("it does not say %q: %s", say, server.Stderr())
		}
	}
	if server.ExitCode() == 0 {
		t.Error("it ended well, and has lost what came after the last checkpoint")
	}
}
