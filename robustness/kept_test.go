package robustness

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/proctest"
)

// startKept starts a Redis on a disk, with the heap that is kept in dir.
func startKept(t *testing.T, dir string, args ...string) *child.Process {
	t.Helper()
	return proctest.Start(t, "up", append([]string{"--disk", dir, "--disk-size", "256MiB", "--heap", "orders", "--local", "8MiB",
		"--checkpoint", "100ms", "--op-timeout", "20s"}, args...)...)
}

// The transactions of TestAHeapOutlivesItsServer: number i sets one of these keys, and a field of a large
// hash, or deletes one; and the number of transactions.
const (
	keptKeys   = 2000
	keptFields = 3000
)

func keptTxn(ctx context.Context, p redis.Pipeliner, i int) {
	key := fmt.Sprint("key:", i%keptKeys)
	_ = p.Do(ctx, "MULTI")
	_ = p.Do(ctx, "SET", key, value(key, i, 100+i%2000))
	field := fmt.Sprint("field:", i*7%keptFields)
	if i%5 == 0 {
		_ = p.Do(ctx, "HDEL", "large", field)
	} else {
		_ = p.Do(ctx, "HSET", "large", field, value(field, i, 50))
	}
	_ = p.Do(ctx, "SET", "transactions", i)
	_ = p.Do(ctx, "EXEC")
}

// keptState is what n transactions lead to.
func keptState(n int) (keys, fields map[string]int) {
	keys, fields = map[string]int{}, map[string]int{}
	for i := 1; i <= n; i++ {
		keys[fmt.Sprint("key:", i%keptKeys)] = i
		if field := fmt.Sprint("field:", i*7%keptFields); i%5 == 0 {
			delete(fields, field)
		} else {
			fields[field] = i
		}
	}
	return keys, fields
}

// A heap that is kept outlives its server: after a SIGTERM it is as it was, and after a SIGKILL, at any moment, as it
// was between two transactions, never in part.
func TestAHeapOutlivesItsServer(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dir := t.TempDir()
	rounds := 5
	if os.Getenv("TEST_SOAK") != "" {
		rounds = 200
	}
	n, certain := 0, 0
	for round := range rounds {
		server := startKept(t, dir)
		c := connect(t, server)
		got, err := c.Get(ctx, "transactions").Int()
		if err != nil && err != redis.Nil {
			t.Fatal(err)
		}
		if got < certain || got > n {
			t.Fatalf("round %d: there are %d transactions, want %d to %d", round, got, certain, n)
		}
		keys, fields := keptState(got)
		checkKept(t, c, keys, fields, 0)
		n = got
		certain = n
		for range 12 {
			p := c.Pipeline()
			for range 100 {
				n++
				keptTxn(ctx, p, n)
			}
			cmds, err := p.Exec(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, cmd := range cmds {
				if err := cmd.Err(); err != nil {
					t.Fatal(cmd, err)
				}
			}
		}
		if round%2 == 0 {
			server.Kill()
			<-server.Done()
		} else {
			if err := server.Stop(); err != nil {
				t.Fatal(err)
			}
			certain = n
		}
	}
}

func checkKept(t *testing.T, c *redis.Client, keys, fields map[string]int, others int) {
	t.Helper()
	ctx := t.Context()
	list := make([]string, 0, len(keys))
	for k := range keys {
		list = append(list, k)
	}
	err := pipelined(ctx, c, len(list), func(p redis.Pipeliner, i int) { p.Get(ctx, list[i]) }, func(i int, cmd redis.Cmder) error {
		want := value(list[i], keys[list[i]], 100+keys[list[i]]%2000)
		if got, err := cmd.(*redis.StringCmd).Result(); err != nil || got != want {
			return fmt.Errorf("%s is %.20q, %v, want %.20q", list[i], got, err, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	all, err := c.HGetAll(ctx, "large").Result()
	if err != nil || len(all) != len(fields) {
		t.Fatalf("the hash has %d fields, %v, want %d", len(all), err, len(fields))
	}
	for f, i := range fields {
		if i%50 == 1 { // found by its hash
			if got, err := c.HGet(ctx, "large", f).Result(); err != nil || got != all[f] {
				t.Fatalf("field %s is %q, %v, want %q", f, got, err, all[f])
			}
		}
		if all[f] != value(f, i, 50) {
			t.Fatalf("field %s is %q, want version %d", f, all[f], i)
		}
	}
	size := len(keys) + others
	if len(fields) > 0 {
		size += 2
	}
	if n, err := c.DBSize(ctx).Result(); err != nil || n != int64(size) {
		t.Errorf("DBSIZE is %d, %v, want %d", n, err, size)
	}
}

// TestClientsThatWriteFasterThanTheDisk are slowed down: nobody is refused, although the journal may be only so long.
func TestClientsThatWriteFasterThanTheDisk(t *testing.T) {
	const clients, keys, size = 4, 2000, 4000
	server := startKept(t, t.TempDir(), "--durable=every:1s", "--local", "64MiB", "--disk-size", "1GiB")
	var wg sync.WaitGroup
	for k := range clients {
		c := connect(t, server)
		key := func(i int) string { return fmt.Sprintf("%d:%d", k, i%keys) }
		wg.Go(func() {
			const n = 15 * keys
			err := pipelined(t.Context(), c, n, func(p redis.Pipeliner, i int) {
				_ = p.Set(t.Context(), key(i), value(key(i), i/keys, size), 0)
			}, func(i int, cmd redis.Cmder) error { return cmd.Err() })
			if err != nil {
				t.Errorf("client %d: %v", k, err)
				return
			}
			for i := range keys {
				if got := c.Get(t.Context(), key(i)).Val(); got != value(key(i), n/keys-1, size) {
					t.Errorf("%s: got %.40q, of %d bytes", key(i), got, len(got))
				}
			}
		})
	}
	wg.Wait()
}

// A server with --durable is killed again and again while clients write. What they were answered is there afterwards, and
// what they were not is there as a whole or not at all.
func TestADurableServerLosesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rounds := 20
	if os.Getenv("TEST_SOAK") != "" {
		rounds = 1000
	}
	losesNothing(t, rounds, func(round int) *child.Process {
		return startKept(t, dir, []string{"--durable", "--durable=every:20ms"}[round%2])
	})
}

// losesNothing kills the server of each round, which start starts, while clients write.
func losesNothing(t *testing.T, rounds int, start func(round int) *child.Process) {
	t.Helper()
	ctx := t.Context()
	const writers = 4
	var sent, answered [writers]int
	n, certain := 0, 0
	for round := range rounds {
		server := start(round)
		c := connect(t, server)
		got, err := c.Get(ctx, "transactions").Int()
		if err != nil && err != redis.Nil {
			t.Fatal(err)
		}
		if got < certain || got > n {
			t.Fatalf("round %d: there are %d transactions, want %d to %d", round, got, certain, n)
		}
		n = got
		others := 0
		for w := range writers {
			got, err := c.Get(ctx, fmt.Sprint("writer:", w)).Int()
			if err == nil {
				others++
			} else if err != redis.Nil {
				t.Fatal(err)
			}
			if got < answered[w] || got > sent[w] {
				t.Fatalf("round %d: writer %d is at %d, want %d to %d", round, w, got, answered[w], sent[w])
			}
			sent[w] = got
		}
		keys, fields := keptState(got)
		checkKept(t, c, keys, fields, others)

		enough := make(chan struct{})
		var all sync.WaitGroup
		for w := range writers {
			all.Go(func() {
				c := connect(t, server)
				for c.Set(ctx, fmt.Sprint("writer:", w), sent[w]+1, 0).Err() == nil {
					sent[w]++
					answered[w] = sent[w]
				}
				sent[w]++ // perhaps
			})
		}
		all.Go(func() {
			for i := 0; ; i++ {
				if i == 3+round%7 {
					close(enough)
				}
				p := c.Pipeline()
				for range 1 + i*7%30 {
					n++
					keptTxn(ctx, p, n)
				}
				if _, err := p.Exec(ctx); err != nil {
					if i < 3+round%7 {
						t.Error("before the server was killed:", err)
					}
					return
				}
				certain = n
			}
		})
		<-enough
		server.Kill()
		<-server.Done()
		all.Wait()
		if t.Failed() {
			return
		}
	}
}

// What is wrong with a disk is said at the start, and nothing is overwritten.
func TestADiskThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	server := startKept(t, dir)
	if err := connect(t, server).Set(t.Context(), "a", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	refused := func(why string, args ...string) {
		t.Helper()
		_, stderr, code := proctest.Output(t, nil, append([]string{"up", "--disk", dir, "--local", "8MiB", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, args...)...)
		if code == 0 || !strings.Contains(stderr, why) {
			t.Errorf("%v: exit code %d, %q; want an error that says %q", args, code, stderr, why)
		}
	}
	refused("another process has it open", "--heap", "orders")
	refused("expected none with --far", "--far", "127.0.0.1:1")
	refused("expected up to 64 letters", "--heap", "../orders")
	refused("expected none without --heap", "--durable")
	refused("expected yes, no, or every:DURATION", "--heap", "orders", "--durable=perhaps")
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	root := dir + "/orders/root"
	good, err := os.ReadFile(root)
	if err != nil {
		t.Fatal(err)
	}
	bad := append([]byte(nil), good...)
	bad[len(bad)/2] ^= 1
	if err := os.WriteFile(root, bad, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("checksum is wrong", "--heap", "orders")
	if stdout, stderr, code := proctest.Output(t, nil, "heap", "info", "orders", "--disk", dir); code != 1 || !strings.Contains(stderr, "checksum is wrong") {
		t.Errorf("heap info of a heap with a damaged root: exit code %d, %s%s", code, stdout, stderr)
	}
	if err := os.WriteFile(root, good, 0o600); err != nil {
		t.Fatal(err)
	}
	server = startKept(t, dir)
	if got, err := connect(t, server).Get(t.Context(), "a").Result(); err != nil || got != strconv.Itoa(1) {
		t.Errorf("after all that a is %q, %v", got, err)
	}
}

// polder heap lists, checks and removes heaps, and leaves those alone that a server has.
func TestHeapsAreListedCheckedAndRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	heap := func(want int, args ...string) string {
		t.Helper()
		stdout, stderr, code := proctest.Output(t, nil, append(append([]string{"heap"}, args...), "--disk", dir)...)
		if code != want {
			t.Fatalf("polder heap %v: exit code %d, want %d: %s%s", args, code, want, stdout, stderr)
		}
		return stdout + stderr
	}
	says := func(got string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("got %q, want something with %q", got, w)
			}
		}
	}
	if err := os.WriteFile(dir+"/notes", nil, 0o600); err != nil { // what is no heap is nobody's business
		t.Fatal(err)
	}
	server := startKept(t, dir, "--durable")
	c := connect(t, server)
	for i := range 3000 {
		if err := c.Set(t.Context(), fmt.Sprint("key:", i), value("key", i, 3000), 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	ls := heap(0, "ls")
	says(ls, "orders", "in use")
	if strings.Contains(ls, "notes") {
		t.Errorf("a file that is no heap is listed: %s", ls)
	}
	for _, name := range []string{"notes", "nothing", strings.Repeat("long", 100)} {
		for _, tool := range []string{"info", "check", "rm"} {
			says(heap(1, tool, name), "there is no heap that is kept")
		}
	}
	says(heap(0, "info", "orders"), "opened", "1 times", "journal")
	says(heap(1, "check", "orders"), "another process has it open")
	says(heap(1, "rm", "orders"), "another process has it open")
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	says(heap(0, "ls", "--json"), `"name":"orders"`, `"in_use":false`)
	says(heap(0, "check", "orders", "--local", "8MiB"), "keys: 3000 entries read, 0 lost or damaged")
	server = startKept(t, dir)
	if got := connect(t, server).DBSize(t.Context()).Val(); got != 3000 {
		t.Errorf("after a check there are %d keys, want 3000", got)
	}
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}

	data, err := os.OpenFile(dir+"/orders/data", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer data.Close()
	b, err := io.ReadAll(data)
	if err != nil {
		t.Fatal(err)
	}
	copies := 0
	for at, want := 0, []byte(value("key", 1000, 3000)); ; copies++ {
		i := bytes.Index(b[at:], want)
		if i < 0 {
			break
		}
		at += i + 100
		if _, err := data.WriteAt([]byte("!"), int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	if copies == 0 {
		t.Fatal("a value is not on the disk as it was given")
	}
	says(heap(1, "check", "orders", "--local", "8MiB"), "corrupt bytes", "1 lost or damaged")
	says(heap(1, "check", "nothing"), "there is no heap")
	says(heap(2, "rm", "../orders"), "no name of a heap")
	heap(0, "rm", "orders")
	if _, err := os.Stat(dir + "/orders"); !os.IsNotExist(err) {
		t.Errorf("the directory of a heap that was removed: %v", err)
	}
}
