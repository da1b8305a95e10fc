package robustness

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/proctest"
)

// copying are tools that save and load heaps, with one set of nodes and of witnesses.
type copying struct {
	t              *testing.T
	far, witnesses string
}

func (c copying) save(file string, more ...string) (out, errs string, code int) {
	c.t.Helper()
	return proctest.Output(c.t, nil, append([]string{"heap", "save", "orders", "--witness", c.witnesses, "-o", file}, more...)...)
}

func (c copying) load(file, name string) (out, errs string, code int) {
	c.t.Helper()
	return proctest.Output(c.t, nil, "heap", "load", file, "--heap", name, "--far", c.far, "--witness", c.witnesses)
}

func (c copying) mustSave(file string, more ...string) string {
	c.t.Helper()
	out, errs, code := c.save(file, more...)
	if code != 0 {
		c.t.Fatalf("save: %d, %s%s", code, out, errs)
	}
	return out
}

func (c copying) mustLoad(file, name string) {
	c.t.Helper()
	if out, errs, code := c.load(file, name); code != 0 || !strings.Contains(out, "heap "+name+" is there") {
		c.t.Fatalf("load: %d, %s%s", code, out, errs)
	}
}

// newCopying starts two nodes and three witnesses.
func newCopying(t *testing.T) (copying, []*child.Process) {
	t.Helper()
	nodes := []*child.Process{startNode(t, "256MiB"), startNode(t, "256MiB")}
	return copying{t, nodes[0].Addr("verbs") + "," + nodes[1].Addr("verbs"), startWitnesses(t)}, nodes
}

// serve serves a heap.
func (c copying) serve(name string, more ...string) (*child.Process, *redis.Client) {
	c.t.Helper()
	server := proctest.Start(c.t, "serve", append([]string{"--far", c.far, "--heap", name, "--witness", c.witnesses, "--local", "4MiB", "--op-timeout", "20s"}, more...)...)
	return server, connect(c.t, server)
}

// goods stores values of all kinds, with and without times to live, that nobody changes.
func goods(t *testing.T, c *redis.Client, n int) map[string]string {
	t.Helper()
	ctx := t.Context()
	_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range n {
			key := fmt.Sprint("goods:", i)
			switch i % 4 {
			case 0:
				p.Set(ctx, key, value(key, i, 3000), 0)
			case 1:
				p.Set(ctx, key, value(key, i, 500), time.Hour)
			case 2:
				p.Set(ctx, key, i, 0)
			default:
				for f := range i%20 + 1 {
					p.HSet(ctx, key, fmt.Sprint("field", f), value(key, f, 100))
				}
			}
		}
		for f := range 1500 {
			p.HSet(ctx, "goods:large", fmt.Sprint("field", f), value("large", f, 1000))
		}
		p.PExpireAt(ctx, "goods:large", time.UnixMilli(9_999_999_999_999))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return everything(t, c)
}

func onlyGoods(all map[string]string) map[string]string {
	all = maps.Clone(all)
	maps.DeleteFunc(all, func(k, _ string) bool { return !strings.HasPrefix(k, "goods:") })
	return all
}

// write changes much, in transactions of two keys, until it is ended.
func write(t *testing.T, c *redis.Client) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 1; ctx.Err() == nil; n++ {
			time.Sleep(pause)
			_, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.Set(ctx, "left", n, 0)
				p.Set(ctx, fmt.Sprint("other:", n%500), strings.Repeat("x", 2000+n%1000), 0)
				p.Set(ctx, "right", n, 0)
				return nil
			})
			if err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// TestAHeapIsSavedWhileItIsServed, and loaded beside itself: the copy is of one moment, has all that nobody has changed, and is served as any
// other heap.
func TestAHeapIsSavedWhileItIsServed(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	tool, _ := newCopying(t)
	server, c := tool.serve("orders", "--durable") // the copies have it take checkpoints
	want := goods(t, c, 1500)
	end := write(t, c)
	dir := t.TempDir()
	var files []string
	for i := range 3 {
		files = append(files, filepath.Join(dir, fmt.Sprint("copy", i)))
		tool.mustSave(files[i])
	}
	// What is there is not replaced without being asked, nor is what is not complete left behind.
	if _, errs, code := tool.save(files[0]); code == 0 || !strings.Contains(errs, "is there already: --force") {
		t.Errorf("a copy over another: %d, %s", code, errs)
	}
	tool.mustSave(files[0], "--force")
	if left, _ := filepath.Glob(filepath.Join(dir, "*.part")); len(left) > 0 {
		t.Errorf("there are %v", left)
	}
	end()
	if n, err := c.Get(ctx, "left").Int(); err != nil || n < 100 {
		t.Fatalf("there were %d transactions meanwhile, %v", n, err)
	}
	if _, errs, code := tool.load(files[0], "orders"); code == 0 || !strings.Contains(errs, "there is a heap orders already") {
		t.Errorf("over a heap that is served: %d, %s", code, errs)
	}
	var last int
	for i, file := range files[1:] {
		name := fmt.Sprint("copy", i)
		tool.mustLoad(file, name)
		if _, errs, code := tool.load(file, name); code == 0 || !strings.Contains(errs, "there is a heap "+name+" already") {
			t.Errorf("over a heap that was loaded: %d, %s", code, errs)
		}
		_, c := tool.serve(name)
		all := everything(t, c)
		expectEverything(t, file, onlyGoods(all), onlyGoods(want))
		if all["left"] != all["right"] {
			t.Errorf("%s is of two moments: %s and %s", file, all["left"], all["right"])
		}
		n, err := c.Get(ctx, "left").Int()
		if err != nil || n < last {
			t.Errorf("%s has %d transactions, %v, and the one before had %d", file, n, err, last)
		}
		last = n
		if err := c.Set(ctx, "goods:new", "new", 0).Err(); err != nil {
			t.Error(err)
		}
	}
	expectEverything(t, "the heap that was saved", onlyGoods(everything(t, c)), onlyGoods(want))

	// Without its server: all that clients were answered is in the copy, also what only the log has.
	if err := c.Set(ctx, "goods:last", "answered", 0).Err(); err != nil {
		t.Fatal(err)
	}
	want = everything(t, c)
	if want["goods:last"] == "" {
		t.Fatal("it is not there")
	}
	server.Kill()
	<-server.Done()
	out, errs, code := proctest.Output(t, nil, "heap", "save", "orders", "--witness", tool.witnesses) // to standard output
	if code != 0 || !strings.Contains(errs, "saved heap orders") {
		t.Fatalf("without a server: %d, %s", code, errs)
	}
	file := filepath.Join(dir, "stdout")
	if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	tool.mustLoad(file, "last")
	_, c = tool.serve("last", "--durable")
	expectEverything(t, "what was saved without a server", everything(t, c), want)
	_, c = tool.serve("orders")
	expectEverything(t, "the heap itself afterwards", everything(t, c), want)
}

// TestACopyThatBreaksOffGoesOn: the disk is full, then the tool is killed, and at last the copy is complete. Until then nothing has its name.
func TestACopyThatBreaksOffGoesOn(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	tool, _ := newCopying(t)
	_, c := tool.serve("orders", "--checkpoint", "100ms")
	want := goods(t, c, 1500)
	fill(t, c, 5000, 4000)
	end := write(t, c)
	file := filepath.Join(t.TempDir(), "copy")
	size := func() int64 {
		if st, err := os.Stat(file + ".part"); err == nil {
			return st.Size()
		}
		return 0
	}
	// A file may have 3 MiB, which is as a disk that gets full.
	cmd := exec.CommandContext(ctx, "sh", "-c", "ulimit -f 6144; exec \"$@\"", "sh", proctest.Binary(), "heap", "save", "orders", "--witness", tool.witnesses, "-o", file)
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "the same command goes on with that") || !strings.Contains(string(out), "file too large") {
		t.Fatalf("with too little room: %v, %s", err, out)
	}
	if size() < 1<<20 {
		t.Fatalf("there are %d bytes of it", size())
	}
	if _, err := os.Stat(file); err == nil {
		t.Fatal("there is a file of its name")
	}
	if _, errs, code := tool.load(file+".part", "part"); code == 0 || !strings.Contains(errs, "it ends here, before it is complete") {
		t.Errorf("a part is loaded: %d, %s", code, errs)
	}
	cmd = exec.CommandContext(ctx, proctest.Binary(), "heap", "save", "orders", "--witness", tool.witnesses, "-o", file)
	was := size()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	proctest.Until(t, "more is written", func() bool { return size() > was+1<<20 || size() == 0 })
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if _, err := os.Stat(file); err == nil {
		t.Fatal("it was complete before it was killed")
	}
	out1 := tool.mustSave(file)
	if !strings.Contains(out1, "were there") {
		t.Errorf("it was begun anew: %s", out1)
	}
	end()
	tool.mustLoad(file, "copy")
	_, c = tool.serve("copy")
	all := everything(t, c)
	expectEverything(t, "the copy", onlyGoods(all), onlyGoods(want))
	if all["left"] != all["right"] {
		t.Errorf("it is of two moments: %s and %s", all["left"], all["right"])
	}
}

// TestNothingOfAWrongCopyIsLoaded: what is wrong is said, and where; nothing is left of it, and the name is free.
func TestNothingOfAWrongCopyIsLoaded(t *testing.T) {
	t.Parallel()
	tool, nodes := newCopying(t)
	server, c := tool.serve("orders")
	goods(t, c, 300)
	fill(t, c, 2000, 4000)
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	tool.mustSave(good)
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	if out, errs, code := proctest.Output(t, nil, "heap", "rm", "orders", "--witness", tool.witnesses); code != 0 {
		t.Fatalf("rm: %d, %s%s", code, out, errs)
	}
	whole, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	expect := func(what string, b []byte, want string) {
		t.Helper()
		file := filepath.Join(dir, "bad")
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		out, errs, code := tool.load(file, "bad")
		if code == 0 || !strings.Contains(errs, want) {
			t.Errorf("%s: %d, %s%s; want %q", what, code, out, errs, want)
		}
	}
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	expect("a wrong bit", flipped, "CRC32C of its body is")
	expect("a wrong bit", flipped, ", at byte ")
	expect("a cut file", whole[:len(whole)-10], "it ends here, before it is complete; nothing was loaded")
	newer := bytes.Clone(whole)
	newer[0]++
	expect("a newer format", newer, "a newer polder has written it: it is of version 2")
	expect("an RDB file", []byte("REDIS0011"), "polder rdb load")
	expect("another file", []byte("set a b\r\nset c d\r\n"), "it is no snapshot of a heap")
	expect("an empty file", nil, "it ends here")

	// A node with other chunks, and one that is too small.
	other := proctest.Start(t, "node", "--lend", "64MiB", "--chunk", "2MiB")
	small := proctest.Start(t, "node", "--lend", "4MiB")
	for node, want := range map[*child.Process]string{other: "expected nodes that were started with --chunk", small: "far memory is full"} {
		out, errs, code := copying{t, node.Addr("verbs"), tool.witnesses}.load(good, "bad")
		if code == 0 || !strings.Contains(errs, want) {
			t.Errorf("to %s: %d, %s%s; want %q", node.Addr("verbs"), code, out, errs, want)
		}
	}
	for _, node := range append(nodes, other, small) {
		if n := proctest.State(t, node).Metrics.Int("polder_node_memory_bytes", "use=lent"); n != 0 {
			t.Errorf("a node lends %d bytes", n)
		}
	}
	if out, _, code := proctest.Output(t, nil, "heap", "ls", "--witness", tool.witnesses); code != 0 || strings.Contains(out, "bad") {
		t.Errorf("ls: %d, %s", code, out)
	}
	tool.mustLoad(good, "bad")
}

// TestAHeapOnADiskIsSaved while it is served, and when its server was killed, with what only its journal has; and loaded on a disk and at nodes,
// from either to the other.
func TestAHeapOnADiskIsSaved(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	tool, _ := newCopying(t)
	dir, copies := t.TempDir(), t.TempDir()
	heap := func(args ...string) (out, errs string, code int) {
		t.Helper()
		return proctest.Output(t, nil, append([]string{"heap"}, args...)...)
	}
	must := func(args ...string) {
		t.Helper()
		if out, errs, code := heap(args...); code != 0 {
			t.Fatalf("heap %v: %d, %s%s", args, code, out, errs)
		}
	}
	refused := func(want string, args ...string) {
		t.Helper()
		if out, errs, code := heap(args...); code == 0 || !strings.Contains(errs, want) {
			t.Errorf("heap %v: %d, %s%s\nwant an error that says %q", args, code, out, errs, want)
		}
	}
	server := startKept(t, dir, "--durable", "--checkpoint", "1h")
	c := connect(t, server)
	want := goods(t, c, 1000)
	served, killed := filepath.Join(copies, "served"), filepath.Join(copies, "killed")
	end := write(t, c)
	refused("expected the server that it is", "save", "orders", "--disk", dir, "-o", served)
	must("save", "orders", "--disk", dir, "--server", "redis://"+server.Addr("redis"), "-o", served)
	end()
	refused("the server has another heap", "save", "orders", "--disk", otherHeap(t), "--server", "redis://"+server.Addr("redis"), "-o", killed)
	if err := c.Set(ctx, "goods:last", "answered", 0).Err(); err != nil {
		t.Fatal(err)
	}
	all := everything(t, c)
	server.Kill()
	<-server.Done()
	must("save", "orders", "--disk", dir, "-o", killed)

	elsewhere := t.TempDir()
	up := func(name string) (*child.Process, *redis.Client) {
		t.Helper()
		p := proctest.Start(t, "up", "--disk", elsewhere, "--heap", name, "--local", "8MiB", "--op-timeout", "20s", "--durable")
		return p, connect(t, p)
	}
	must("load", served, "--heap", "served", "--disk", elsewhere)
	refused("there is a heap served already", "load", served, "--heap", "served", "--disk", elsewhere)
	must("load", killed, "--heap", "killed", "--disk", elsewhere)
	first, c := up("served")
	got := everything(t, c)
	expectEverything(t, "a heap that was saved while it was served", onlyGoods(got), want)
	if got["left"] != got["right"] {
		t.Errorf("it is of two moments: %s and %s", got["left"], got["right"])
	}
	second, c := up("killed")
	expectEverything(t, "a heap of which a part was in its journal", everything(t, c), all)
	if err := c.Set(ctx, "goods:new", "new", 0).Err(); err != nil { // the journal begins anew
		t.Fatal(err)
	}
	for _, p := range []*child.Process{first, second} {
		p.Kill()
		<-p.Done()
	}
	second, c = up("killed")
	all["goods:new"] = everything(t, c)["goods:new"]
	expectEverything(t, "the same after its server was killed", everything(t, c), all)
	if all["goods:new"] == "" {
		t.Error("what was answered after it was loaded is gone")
	}
	if err := second.Stop(); err != nil {
		t.Fatal(err)
	}

	// From the disk to nodes, and back.
	there, back := filepath.Join(copies, "there"), filepath.Join(copies, "back")
	must("save", "killed", "--disk", elsewhere, "-o", there)
	tool.mustLoad(there, "orders")
	tool.mustSave(back)
	must("load", back, "--heap", "back", "--disk", elsewhere)
	_, c = up("back")
	expectEverything(t, "a heap that was at nodes", everything(t, c), all)

	// What cannot be loaded leaves nothing.
	cmd := exec.CommandContext(ctx, "sh", "-c", "ulimit -f 1024; exec \"$@\"", "sh", proctest.Binary(), "heap", "load", back, "--heap", "full", "--disk", elsewhere)
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("loaded, with room for half a MiB: %s", out)
	}
	if _, err := os.Stat(filepath.Join(elsewhere, "full")); !os.IsNotExist(err) {
		t.Errorf("there is something of what had no room: %v", err)
	}
	b, err := os.ReadFile(back)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(back, b, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("nothing was loaded", "load", back, "--heap", "damaged", "--disk", elsewhere)
	if _, err := os.Stat(filepath.Join(elsewhere, "damaged")); !os.IsNotExist(err) {
		t.Errorf("there is something of what was not loaded: %v", err)
	}
}

// otherHeap is a directory with a heap that is called orders, too.
func otherHeap(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := startKept(t, dir).Stop(); err != nil {
		t.Fatal(err)
	}
	return dir
}
