package robustness

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"polder/internal/child"
	"polder/internal/proctest"
)

// TestASharedHeapIsNotMistaken for another one: wrong use is refused with what was expected.
func TestASharedHeapIsNotMistaken(t *testing.T) {
	t.Parallel()
	_, far := startNodes(t, 2)
	witnesses := startWitnesses(t)
	args := slices.Clip(named(far, witnesses, "--partitions", "2", "--local", "8MiB"))
	server := proctest.Start(t, "serve", args...)
	balanced(t, server)
	if err := proctest.Start(t, "serve", append(named(far, witnesses), "--heap", "whole")...).Stop(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{append(args, "--partitions", "1"), 1, "the map has 2 partitions, want 1: expected --partitions 2, which cannot be changed"},
		{append(args, "--partitions", "0"), 1, "heap orders: cannot own the heap: servers share its partitions"},
		{append(args, "--partitions", "0", "--standby"), 1, "heap orders: cannot own the heap: servers share its partitions"},
		{append(args, "--heap", "orders.1", "--partitions", "0"), 1, "has the heap open"},
		{append(args, "--heap", "whole"), 1, "heap whole: cannot join: it is no map of partitions: it begins with \"\\x03PolMan\\x00\", want \"{\\\"magic\\\"\": it was made without --partitions, and is opened without"},
		{append(args, "--disk", t.TempDir()), 2, `--partitions = "2": expected none with --disk`},
		{append(args, "--standby"), 2, `--standby = "true": expected none with --partitions`},
		{append(args, "--heap", ""), 2, `--partitions = "2": expected none without --heap and --witness`},
		{[]string{"--far", far, "--heap", "orders", "--partitions", "2"}, 2, `--partitions = "2": expected none without --heap and --witness`},
		{append(args, "--partitions", "3"), 2, `--partitions = "3": expected at most 2 with --local 8MiB`},
		{append(args, "--partitions", "1025"), 2, `--partitions = "1025": expected a whole number from 0 to 1024`},
		{append(args, "--heap", strings.Repeat("x", 59)), 2, "expected a name of up to 58 characters with --partitions"},
		{append(args, "--listen", "unix:"+t.TempDir()+"/s"), 2, "expected HOST:PORT with --partitions"},
	} {
		all := append([]string{"serve", "--listen", "127.0.0.1:0", "--admin", "off", "--log-level", "error"}, tt.args...)
		if out, errs, code := proctest.Output(t, nil, all...); code != tt.code || !strings.Contains(errs, tt.want) {
			t.Errorf("polder %s: got %d, %s%s, want %d and %q", strings.Join(all, " "), code, out, errs, tt.code, tt.want)
		}
	}
	if err := connect(t, server).Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Errorf("after all of that: %v", err)
	}

	// A heap that was there before is not taken for a partition, and keeps what it has.
	other := proctest.Start(t, "serve", append(named(far, witnesses), "--heap", "sales.1")...)
	if err := connect(t, other).Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := other.Stop(); err != nil {
		t.Fatal(err)
	}
	sales := append([]string{"serve", "--listen", "127.0.0.1:0", "--admin", "off", "--log-level", "error"}, append(args, "--heap", "sales")...)
	if out, errs, code := proctest.Output(t, nil, sales...); code != 1 || !strings.Contains(errs, "there is a heap sales.1, which would be taken for a partition of heap sales") {
		t.Errorf("a heap of partitions where one has the name of a partition: %d, %s%s", code, out, errs)
	}
	if got, err := connect(t, proctest.Start(t, "serve", append(named(far, witnesses), "--heap", "sales.1")...)).Get(t.Context(), "k").Result(); err != nil || got != "v" {
		t.Errorf("the heap has %q then, %v", got, err)
	}
}

// TestASharedHeapIsListedAndRemoved when no server has it, or by force, and then its name is free for any use.
func TestASharedHeapIsListedAndRemoved(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	witnesses := startWitnesses(t)
	nodes, far := startNodes(t, 2)
	heap, must := heapTools(t, witnesses)
	free := func(when string) {
		t.Helper()
		for i, node := range nodes {
			if n := proctest.State(t, node).Metrics.Int("polder_node_memory_bytes", "use=lent"); n != 0 {
				t.Errorf("%s: node %d still lends %d bytes", when, i, n)
			}
		}
		if out := must("ls", "--json"); out != "" {
			t.Errorf("%s: it is listed: %s", when, out)
		}
		for _, tool := range []string{"rm", "info", "check"} {
			if out, errs, code := heap(tool, "orders"); code != 1 || !strings.Contains(errs, "there is no heap orders") {
				t.Errorf("%s: heap %s: %d, %s%s", when, tool, code, out, errs)
			}
		}
	}
	start := func() *child.Process {
		t.Helper()
		p, err := child.StartReady(ctx, child.Command{Path: proctest.Binary(), Args: append([]string{"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"},
			named(far, witnesses, "--partitions", "2", "--local", "8MiB")...)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		return p
	}
	use := func(p *child.Process) {
		t.Helper()
		c := connect(t, p)
		for i := range 20 {
			key := fmt.Sprint("k", i)
			if n, err := c.Exists(ctx, key).Result(); err != nil || n != 0 {
				t.Fatalf("a new heap has %s: %d, %v", key, n, err)
			}
			if err := c.Set(ctx, key, "v", 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}

	first, second := start(), start()
	balanced(t, first, second)
	use(first)
	var row struct {
		Name       string
		Partitions int
		Servers    []string
		Nodes      []string
	}
	if out := must("ls", "--json"); json.Unmarshal([]byte(out), &row) != nil || row.Name != "orders" || row.Partitions != 2 || len(row.Servers) != 2 || len(row.Nodes) != 2 {
		t.Errorf("it is listed as %s", out)
	}
	for _, out := range []string{must("ls"), must("info", "orders")} {
		if !strings.Contains(out, "2 partitions, ") || !strings.Contains(out, first.Addr("redis")) || !strings.Contains(out, second.Addr("redis")) {
			t.Errorf("it is said of it:\n%s", out)
		}
	}
	if out := must("info", "orders"); !strings.Contains(out, first.Addr("redis")+", 1 of 2 partitions") {
		t.Errorf("it is said of it:\n%s", out)
	}
	if out, errs, code := heap("check", "orders"); code != 1 || !strings.Contains(errs, "servers share its partitions, each of which is a heap of its own") {
		t.Errorf("heap check: %d, %s%s", code, out, errs)
	}
	if out, errs, code := heap("rm", "orders"); code != 1 || !strings.Contains(errs, "heap orders: servers share its partitions: ") || !strings.Contains(errs, first.Addr("redis")) {
		t.Errorf("heap rm while servers have it: %d, %s%s", code, out, errs)
	}

	// One server dies, the other ends.
	first.Kill()
	<-first.Done()
	balanced(t, second)
	if err := second.Stop(); err != nil {
		t.Fatal(err)
	}
	if out := must("ls"); !strings.Contains(out, "2 partitions, closed") {
		t.Errorf("when nobody has it, it is listed as\n%s", out)
	}
	must("rm", "orders")
	free("when servers had left")

	// All die.
	first = start()
	use(first)
	first.Kill()
	<-first.Done()
	must("rm", "orders")
	free("when servers were killed")

	// One lives.
	first = start()
	use(first)
	must("rm", "--force", "orders")
	select {
	case <-first.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("a server whose heap was removed still runs")
	}
	if first.ExitCode() != 1 || !strings.Contains(first.Stderr(), "heap orders: the heap was removed") {
		t.Errorf("the server whose heap was removed ended with code %d: %s", first.ExitCode(), first.Stderr())
	}
	free("by force")

	// The name may be that of a heap that one server has, and then again of one that servers share.
	whole := proctest.Start(t, "serve", named(far, witnesses)...)
	use(whole)
	if err := whole.Stop(); err != nil {
		t.Fatal(err)
	}
	must("rm", "orders")
	first = start()
	use(first)
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
}
