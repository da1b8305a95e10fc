package robustness

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"polder/internal/proctest"
)

// twoNodes are the arguments of a server of a heap whose manifest its two nodes keep.
func twoNodes(far, choice string) []string {
	return []string{"--far", far, "--heap", "orders", "--two-nodes", choice, "--local", "4MiB", "--checkpoint", "100ms", "--op-timeout", "20s", "--durable"}
}

// TestOfTwoNodesOneIsStopped: with --two-nodes stop the server goes on reading, and another one takes over when both nodes answer.
func TestOfTwoNodesOneIsStopped(t *testing.T) {
	t.Parallel() // it waits
	ctx := t.Context()
	nodes, far := startNodes(t, 2)
	if _, errs, code := proctest.Output(t, nil, "serve", "--listen", "127.0.0.1:0", "--admin", "off", "--far", far, "--heap", "orders"); code == 0 || !strings.Contains(errs, "--two-nodes") || !strings.Contains(errs, "stop") || !strings.Contains(errs, "go-on") {
		t.Fatalf("a heap at two nodes, and nothing is said of what becomes of it: %d, %s", code, errs)
	}
	first := proctest.Start(t, "serve", twoNodes(far, "stop")...)
	c := connect(t, first)
	if err := c.Set(ctx, "a", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	stopped := nodes[1]
	if err := stopped.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer stopped.Signal(syscall.SIGCONT)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); { // much longer than a lease
		if got, err := c.Get(ctx, "a").Result(); err != nil || got != "1" {
			t.Fatalf("with one node stopped it reads %q, %v", got, err)
		}
	}
	if out, errs, code := proctest.Output(t, nil, "heap", "info", "orders", "--far", far, "--two-nodes", "stop", "--within", "1s"); code == 0 || !strings.Contains(errs, stopped.Addr("verbs")) {
		t.Errorf("heap info without a node: %d, %s%s", code, out, errs)
	}
	first.Kill()
	<-first.Done()
	ready := startStandby(t, "serve", "127.0.0.1:0", twoNodes(far, "stop"))
	select {
	case <-ready:
		t.Fatal("another server has taken over with one of two nodes")
	case <-time.After(2 * time.Second):
	}
	if err := stopped.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	second := <-ready
	if second == nil {
		t.Fatal("nobody has taken over when both nodes answer")
	}
	if got, err := connect(t, second).Get(ctx, "a").Result(); err != nil || got != "1" {
		t.Errorf("after the takeover a is %q, %v", got, err)
	}
	if out, errs, code := proctest.Output(t, nil, "heap", "ls", "--far", far, "--two-nodes", "stop"); code != 0 || !strings.Contains(out, second.Addr("redis")) {
		t.Errorf("heap ls: %d, %s%s", code, out, errs)
	}
	if err := second.Stop(); err != nil {
		t.Error(err)
	}
}

// TestOfTwoNodesOneIsLost: with --two-nodes go-on the server goes on with the other. Nobody takes over from it until an operator has
// said that it is dead; when it has ended by itself that needs nobody's word.
func TestOfTwoNodesOneIsLost(t *testing.T) {
	t.Parallel() // it waits
	ctx := t.Context()
	nodes, far := startNodes(t, 2)
	first := proctest.Start(t, "serve", twoNodes(far, "go-on")...)
	c := connect(t, first)
	if err := c.Set(ctx, "a", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	nodes[1].Kill()
	<-nodes[1].Done()
	fill(t, c, 2000, 4000) // more than fits into what the manifest listed before
	if err := c.Set(ctx, "b", "2", 0).Err(); err != nil {
		t.Fatalf("with one of two nodes: %v", err)
	}
	first.Kill()
	<-first.Done()
	ready := startStandby(t, "serve", "127.0.0.1:0", twoNodes(far, "go-on"))
	tool := func(args ...string) (out, errs string, code int) {
		return proctest.Output(t, nil, append([]string{"heap", "open", "orders", "--far", far, "--two-nodes"}, args...)...)
	}
	if _, errs, code := tool("go-on"); code == 0 || !strings.Contains(errs, "--force") {
		t.Errorf("heap open without --force: %d, %s", code, errs)
	}
	select {
	case <-ready:
		t.Fatal("another server has taken over with one of two nodes, and nobody has said that it may")
	case <-time.After(2 * time.Second):
	}
	if out, errs, code := tool("go-on", "--force"); code != 0 || !strings.Contains(out, nodes[0].Addr("verbs")) {
		t.Fatalf("heap open --force: %d, %s%s", code, out, errs)
	}
	second := <-ready
	if second == nil {
		t.Fatal("nobody has taken over after the operator's word")
	}
	if err := second.Stop(); err != nil {
		t.Fatal(err)
	}
	third := proctest.Start(t, "serve", twoNodes(far, "go-on")...)
	c = connect(t, third)
	for key, want := range map[string]string{"a": "1", "b": "2"} {
		if got, err := c.Get(ctx, key).Result(); err != nil || got != want {
			t.Errorf("%s is %q, %v at last, want %s", key, got, err, want)
		}
	}
	// A node is there again, without what it had: it gets the manifest, and copies.
	proctest.Start(t, "node", "--lend", "64MiB", "--listen", nodes[1].Addr("verbs"))
	proctest.Until(t, "both nodes have the manifest", func() bool {
		_, _, code := proctest.Output(t, nil, "heap", "info", "orders", "--far", far, "--two-nodes", "go-on", "--within", "2s")
		return code == 0
	})
}
