package robustness

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
)

// TestASharedHeapIsSavedWhileServersComeAndGo, and loaded as another one: the copy has all that nobody changed meanwhile, though partitions moved to a
// server that joined, and then one was killed.
func TestASharedHeapIsSavedWhileServersComeAndGo(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	tool, _ := newCopying(t)
	heap, must := heapTools(t, tool.witnesses)
	start := func(name string) (*child.Process, *redis.Client) {
		t.Helper()
		return tool.serve(name, "--partitions", "4", "--local", "16MiB", "--durable")
	}
	first, c := start("orders")
	balanced(t, first)
	const keys = 4000
	key := func(i int) string { return fmt.Sprint("goods:", i) }
	if _, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range keys {
			p.Set(ctx, key(i), value(key(i), i, 2000), time.Duration(i%2)*time.Hour)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	expectGoods := func(what string, c *redis.Client) {
		t.Helper()
		if err := pipelined(ctx, c, keys, func(p redis.Pipeliner, i int) { p.Get(ctx, key(i)) }, func(i int, cmd redis.Cmder) error {
			if got, err := cmd.(*redis.StringCmd).Result(); err != nil || got != value(key(i), i, 2000) {
				return fmt.Errorf("%s: %s is %.20q, %w", what, key(i), got, err)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := pipelined(ctx, c, keys, func(p redis.Pipeliner, i int) { p.TTL(ctx, key(i)) }, func(i int, cmd redis.Cmder) error {
			if ttl, err := cmd.(*redis.DurationCmd).Result(); err != nil || (ttl > 0) != (i%2 == 1) {
				return fmt.Errorf("%s: the time to live of %s is %v, %w", what, key(i), ttl, err)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	quit := make(chan struct{})
	var at atomic.Pointer[redis.Client]
	at.Store(c)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-quit:
				return
			case <-time.After(pause): // it fails while its server does not live
				_ = at.Load().Set(ctx, fmt.Sprint("other:", i%500), strings.Repeat("x", 2000+i%1000), 0).Err()
			}
		}
	})
	stop := sync.OnceFunc(func() { close(quit); wg.Wait() })
	defer stop()

	dir := t.TempDir()
	copies := []string{filepath.Join(dir, "one"), filepath.Join(dir, "two")}
	second, other := start("orders")
	tool.mustSave(copies[0]) // while half of the partitions move
	balanced(t, first, second)
	at.Store(other)
	first.Kill()
	tool.mustSave(copies[1]) // while the other server takes over
	stop()
	if left, _ := filepath.Glob(filepath.Join(dir, "*.part")); len(left) > 0 {
		t.Errorf("there are %v", left)
	}
	if out, errs, code := heap("save", "orders"); code != 2 || !strings.Contains(errs, "heap orders has partitions; expected the directory") {
		t.Errorf("without --output: %d, %s%s", code, out, errs)
	}
	if _, errs, code := tool.save(copies[0]); code == 0 || !strings.Contains(errs, "is there already: --force") {
		t.Errorf("a copy over another: %d, %s", code, errs)
	}
	if _, errs, code := tool.save(dir, "--force"); code == 0 || !strings.Contains(errs, "--force does not replace what is no copy") {
		t.Errorf("a copy over a directory of other things: %d, %s", code, errs)
	}
	tool.mustSave(copies[0], "--force")

	// One partition of those that a server has, and what has broken off.
	one := filepath.Join(dir, "partition")
	must("save", "orders.2", "-o", one)
	if err := os.Rename(copies[0], copies[0]+".part"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(copies[0]+".part", "2-of-4")); err != nil {
		t.Fatal(err)
	}
	if out := tool.mustSave(copies[0]); !strings.Contains(out, "were there") {
		t.Errorf("of a copy that had broken off it is said: %s", out)
	}

	// What is not a whole copy is not loaded, and takes no name.
	for _, c := range []struct {
		what, want string
		spoil      func(dir string) error
	}{
		{"a partition is missing", "partition 1-of-4 is missing", func(dir string) error { return os.Remove(filepath.Join(dir, "1-of-4")) }},
		{"another file", "is not like the rest", func(dir string) error { return os.WriteFile(filepath.Join(dir, "1-of-5"), nil, 0o600) }},
		{"one is cut", "nothing was loaded", func(dir string) error { return os.Truncate(filepath.Join(dir, "3-of-4"), 5000) }},
		{"nothing", "nothing is in it", func(dir string) error { return os.RemoveAll(dir + "/../spoilt/") }},
	} {
		spoilt := filepath.Join(dir, "spoilt")
		if err := os.CopyFS(spoilt, os.DirFS(copies[1])); err != nil {
			t.Fatal(err)
		}
		if err := c.spoil(spoilt); err != nil {
			t.Fatal(err)
		}
		_ = os.Mkdir(spoilt, 0o700)
		if _, errs, code := tool.load(spoilt, "copy"); code == 0 || !strings.Contains(errs, c.want) {
			t.Errorf("%s: %d, %s, want %q", c.what, code, errs, c.want)
		}
		if err := os.RemoveAll(spoilt); err != nil {
			t.Fatal(err)
		}
	}
	if _, errs, code := tool.load(copies[1], "orders"); code == 0 || !strings.Contains(errs, "there is a heap orders already") {
		t.Errorf("over a heap that is served: %d, %s", code, errs)
	}
	if err := second.Stop(); err != nil { // it has what the nodes have to lend
		t.Fatal(err)
	}
	must("rm", "orders")
	for i, from := range copies {
		name := fmt.Sprint("copy", i)
		tool.mustLoad(from, name)
		if out := must("ls"); !strings.Contains(out, "4 partitions, closed") {
			t.Errorf("it is listed as\n%s", out)
		}
		server, c := start(name)
		balanced(t, server)
		expectGoods(from, c)
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
		must("rm", name)
	}
	if out := must("ls"); strings.Contains(out, "copy") {
		t.Errorf("there is left\n%s", out)
	}
	tool.mustLoad(one, "goods.2") // one partition as a heap
	if _, errs, code := tool.load(copies[0], "goods"); code == 0 || !strings.Contains(errs, "there is a heap goods.2, which would be taken for a partition of heap goods") {
		t.Errorf("where a heap has the name of a partition: %d, %s", code, errs)
	}
	if out := must("ls"); !strings.Contains(out, "goods.2") {
		t.Errorf("a heap that was there before has gone:\n%s", out)
	}
}
