package robustness

import (
	"encoding/json"
	"strings"
	"testing"

	"polder/internal/child"
	"polder/internal/proctest"
)

// heapTools run polder heap: heap returns what it says, and must fails the test if it fails.
func heapTools(t *testing.T, witnesses string) (heap func(tool string, args ...string) (out, errs string, code int), must func(tool string, args ...string) string) {
	heap = func(tool string, args ...string) (out, errs string, code int) {
		t.Helper()
		return proctest.Output(t, nil, append([]string{"heap", tool, "--witness", witnesses}, args...)...)
	}
	must = func(tool string, args ...string) string {
		t.Helper()
		out, errs, code := heap(tool, args...)
		if code != 0 {
			t.Fatalf("polder heap %s %s: %d, %s%s", tool, strings.Join(args, " "), code, out, errs)
		}
		return out
	}
	return heap, must
}

// TestAHeapInTheMemoryOfNodesIsRemoved when nobody has it open, or by force, and then its nodes have their memory back
// and its name is free. A node that cannot be reached meanwhile is told later.
func TestAHeapInTheMemoryOfNodesIsRemoved(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	witnesses := startWitnesses(t)
	nodes, far := startNodes(t, 3)
	heap, must := heapTools(t, witnesses)
	type row struct {
		Name  string
		Epoch uint64
		Owner string
		Nodes []string
	}
	list := func() (rows []row) {
		t.Helper()
		d := json.NewDecoder(strings.NewReader(must("ls", "--json")))
		for d.More() {
			var r row
			if err := d.Decode(&r); err != nil {
				t.Fatal(err)
			}
			rows = append(rows, r)
		}
		return rows
	}
	lent := func(node *child.Process) int64 {
		return proctest.State(t, node).Metrics.Int("polder_node_memory_bytes", "use=lent")
	}
	fill := func(server *child.Process) {
		t.Helper()
		c := connect(t, server)
		if n, err := c.DBSize(ctx).Result(); err != nil || n != 0 {
			t.Fatalf("a new heap has %d keys, %v", n, err)
		}
		fill(t, c, 2000, 4000)
		if err := c.Do(ctx, "SAVE").Err(); err != nil {
			t.Fatal(err)
		}
	}

	if rows := list(); len(rows) != 0 {
		t.Fatalf("there are heaps before there is one: %+v", rows)
	}
	server := proctest.Start(t, "serve", named(far, witnesses)...)
	fill(server)
	rows := list()
	if len(rows) != 1 || rows[0].Name != "orders" || rows[0].Epoch != 1 || rows[0].Owner != server.Addr("redis") || len(rows[0].Nodes) != 3 {
		t.Fatalf("it is listed as %+v", rows)
	}
	for _, tool := range []string{"rm", "check"} {
		if out, errs, code := heap(tool, "orders"); code == 0 || !strings.Contains(errs, server.Addr("redis")+" has the heap open") {
			t.Fatalf("%s of a heap that is open: %d, %s%s", tool, code, out, errs)
		}
	}
	server.Kill()
	<-server.Done()
	if out := must("check", "orders"); !strings.Contains(out, "2000 entries read, 0 lost or damaged") {
		t.Errorf("it was checked with %q", out)
	}
	info := must("info", "orders")
	for _, want := range []string{"closed", "checkpoint", nodes[0].Addr("verbs"), nodes[2].Addr("verbs")} {
		if !strings.Contains(info, want) {
			t.Errorf("what is said of it lacks %q:\n%s", want, info)
		}
	}
	for _, node := range nodes {
		if lent(node) == 0 {
			t.Fatal("a node has nothing before the heap is removed")
		}
	}
	must("rm", "orders")
	for i, node := range nodes {
		if n := lent(node); n != 0 {
			t.Errorf("node %d still lends %d bytes", i, n)
		}
	}
	if rows := list(); len(rows) != 0 {
		t.Errorf("a heap that was removed is listed: %+v", rows)
	}
	for _, tool := range []string{"rm", "info", "check"} {
		if out, errs, code := heap(tool, "orders"); code == 0 || !strings.Contains(errs, "there is no heap orders") {
			t.Errorf("%s of a heap that was removed: %d, %s%s", tool, code, out, errs)
		}
	}

	// The name is free. A node ends, and the heap is removed by force from a server that lives.
	server, err := child.StartReady(ctx, child.Command{Path: proctest.Binary(), Args: append([]string{"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, named(far, witnesses)...)})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Kill()
	fill(server)
	if rows := list(); rows[0].Epoch != 4 { // after serve, check and rm
		t.Errorf("the next heap of the name has epoch %d, want 4", rows[0].Epoch)
	}
	nodes[0].Kill()
	<-nodes[0].Done()
	must("rm", "--force", "orders")
	<-server.Done()
	if server.ExitCode() == 0 || !strings.Contains(server.Stderr(), "another process") {
		t.Errorf("the server whose heap was removed ended with code %d: %s", server.ExitCode(), server.Stderr())
	}
	for i, node := range nodes[1:] {
		if n := lent(node); n != 0 {
			t.Errorf("node %d still lends %d bytes", i+1, n)
		}
	}
	if rows := list(); len(rows) != 0 {
		t.Errorf("a heap that was removed by force is listed: %+v", rows)
	}
}

// TestANodeThatCannotBeReachedKeepsAHeapsManifest until it can, or is given up.
func TestANodeThatCannotBeReachedKeepsAHeapsManifest(t *testing.T) {
	t.Parallel()
	witnesses := startWitnesses(t)
	nodes, far := startNodes(t, 2)
	server := proctest.Start(t, "serve", named(far, witnesses)...)
	c := connect(t, server)
	fill(t, c, 2000, 4000)
	if err := c.Do(t.Context(), "SAVE").Err(); err != nil {
		t.Fatal(err)
	}
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	gone := nodes[1].Addr("verbs")
	nodes[1].Kill()
	<-nodes[1].Done()
	args := []string{"heap", "rm", "orders", "--witness", witnesses}
	out, errs, code := proctest.Output(t, nil, args...)
	if code == 0 || !strings.Contains(errs, gone+" has not given back") || !strings.Contains(errs, "1 of 2 nodes") {
		t.Fatalf("rm without a node: %d, %s%s", code, out, errs)
	}
	if n := proctest.State(t, nodes[0]).Metrics.Int("polder_node_memory_bytes", "use=lent"); n != 0 {
		t.Errorf("the node that was reached still lends %d bytes", n)
	}
	if out, _, _ := proctest.Output(t, nil, "heap", "info", "orders", "--witness", witnesses); !strings.Contains(out, "closed, and empty") || !strings.Contains(out, gone) || strings.Contains(out, nodes[0].Addr("verbs")) {
		t.Errorf("what is left of it: %s", out)
	}
	proctest.Start(t, "node", "--lend", "64MiB", "--listen", gone)
	if out, errs, code := proctest.Output(t, nil, args...); code != 0 {
		t.Fatalf("rm when the node is there again: %d, %s%s", code, out, errs)
	}
	if out, errs, code := proctest.Output(t, nil, "heap", "ls", "--witness", witnesses); code != 0 || strings.Contains(out, "orders") {
		t.Errorf("ls: %d, %s%s", code, out, errs)
	}
}
