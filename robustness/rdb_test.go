package robustness

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/proctest"
)

// everything is all that a server has, key by key.
func everything(t *testing.T, c *redis.Client) map[string]string {
	t.Helper()
	ctx := t.Context()
	all := map[string]string{}
	keys, err := c.Keys(ctx, "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	ask := func(add func(p redis.Pipeliner, i int), note func(i int, cmd redis.Cmder)) {
		t.Helper()
		if err := pipelined(ctx, c, len(keys), add, func(i int, cmd redis.Cmder) error {
			if err := cmd.Err(); err != nil {
				return fmt.Errorf("key %.40q: %w", keys[i], err)
			}
			note(i, cmd)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	types := make([]string, len(keys))
	ask(func(p redis.Pipeliner, i int) { p.Type(ctx, keys[i]) }, func(i int, cmd redis.Cmder) { types[i] = cmd.(*redis.StatusCmd).Val() })
	ask(func(p redis.Pipeliner, i int) {
		if types[i] == "hash" {
			p.HGetAll(ctx, keys[i])
		} else {
			p.Get(ctx, keys[i])
		}
	}, func(i int, cmd redis.Cmder) {
		switch v := cmd.(type) {
		case *redis.MapStringStringCmd:
			all[keys[i]] = fmt.Sprint(v.Val()) // sorted
		case *redis.StringCmd:
			all[keys[i]] = v.Val()
		}
	})
	ask(func(p redis.Pipeliner, i int) { p.Do(ctx, "PEXPIRETIME", keys[i]) }, func(i int, cmd redis.Cmder) {
		all[keys[i]] = fmt.Sprintf("%q until %d", all[keys[i]], cmd.(*redis.Cmd).Val())
	})
	return all
}

func expectEverything(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	for k, v := range want {
		if got[k] != v {
			t.Fatalf("%s: key %.40q is %.80s, want %.80s", what, k, got[k], v)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s: %d keys, want %d", what, len(got), len(want))
	}
}

// startRedisWith starts a Redis with the file dump.rdb in dir, if there is one.
func startRedisWith(t *testing.T, dir string) *redis.Client {
	t.Helper()
	r, err := child.StartRedis(t.Context(), "--dir", dir, "--dbfilename", "dump.rdb", "--repl-diskless-sync-delay", "0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	c := redis.NewClient(&redis.Options{Addr: r.Addr})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// dumpFile has redis-cli take the file dump.rdb of a server.
func dumpFile(t *testing.T, c *redis.Client) (dir string) {
	t.Helper()
	dir = t.TempDir()
	host, port, _ := net.SplitHostPort(c.Options().Addr)
	if out, err := exec.CommandContext(t.Context(), "redis-cli", "-h", host, "-p", port, "--rdb", filepath.Join(dir, "dump.rdb")).CombinedOutput(); err != nil {
		t.Fatalf("redis-cli --rdb: %v\n%s", err, out)
	}
	return dir
}

// TestDataMoveFromRedisAndBack has all that a Redis has loaded into a Polder, with little local memory, and what that
// dumps into another Redis. All three have the same.
func TestDataMoveFromRedisAndBack(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	from := startRedisWith(t, t.TempDir())
	p := from.Pipeline()
	for i := range 1000 {
		key := fmt.Sprint("key:", i)
		switch i % 4 {
		case 0:
			_ = p.Set(ctx, key, i*i*i-1000, 0)
		case 1:
			_ = p.Set(ctx, key, value(key, i, 7*i%3000), time.Hour)
		default:
			for f := range i % 150 {
				_ = p.HSet(ctx, key, fmt.Sprint("field", f), value(key, f, f%100))
			}
		}
	}
	for f := range 1200 {
		_ = p.HSet(ctx, "large", fmt.Sprint("field", f), value("large", f, 1000))
	}
	_ = p.Set(ctx, "binary \x00\xff", "\x00\r\n\xff", 0)
	_ = p.PExpireAt(ctx, "large", time.UnixMilli(9_999_999_999_999))
	if _, err := p.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	want := everything(t, from)
	file := filepath.Join(dumpFile(t, from), "dump.rdb")

	server := proctest.Start(t, "up", "--local", "4MiB", "--lend", "64MiB")
	url := "redis://" + server.Addr("redis")
	for _, flags := range [][]string{nil, {"--replace"}} {
		stdout, stderr, code := proctest.Output(t, nil, append([]string{"rdb", "load", file, url}, flags...)...)
		if code != 0 || !strings.HasPrefix(stdout, "loaded 501 strings and ") {
			t.Fatalf("polder rdb load %q: exit code %d: %s%s", flags, code, stdout, stderr)
		}
		expectEverything(t, fmt.Sprintf("Polder, loaded %q", flags), everything(t, connect(t, server)), want)
	}
	to := startRedisWith(t, dumpFile(t, connect(t, server)))
	expectEverything(t, "Redis, from Polder", everything(t, to), want)
}

// TestNothingOfAWrongFileIsLoaded: what is wrong with a file or a server is said, and nothing has changed.
func TestNothingOfAWrongFileIsLoaded(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	from := startRedisWith(t, t.TempDir())
	from.Set(ctx, "key", "value", 0)
	dir := t.TempDir()
	file := func(name string, change func(b []byte) []byte) {
		b, err := os.ReadFile(filepath.Join(dumpFile(t, from), "dump.rdb"))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), change(b), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	same := func(b []byte) []byte { return b }
	file("short", func(b []byte) []byte { return b[:len(b)-20] })
	file("damaged", func(b []byte) []byte { return bytes.Replace(b, []byte("value"), []byte("velue"), 1) })
	file("newer", func(b []byte) []byte { return append([]byte("REDIS0099"), b[9:]...) })
	file("text", func([]byte) []byte { return []byte("set key value\n") })
	from.Set(ctx, "large", strings.Repeat("x", 4<<20), 0)
	file("large", same)
	from.Del(ctx, "large")
	from.RPush(ctx, "list", "a")
	from.SAdd(ctx, "set", "a")
	file("list", same)
	from.Del(ctx, "list", "set")
	if err := from.Do(ctx, "MOVE", "key", 3).Err(); err != nil {
		t.Fatal(err)
	}
	file("elsewhere", same)
	from.Set(ctx, "other", "value", 0)
	file("several", same)

	server := proctest.Start(t, "up", "--local", "4MiB", "--lend", "16MiB")
	c := connect(t, server)
	url := "redis://" + server.Addr("redis")
	for _, tt := range []struct{ args, want string }{
		{"none " + url, "no such file or directory"},
		{"short " + url, "the file ends too early; nothing was loaded"},
		{"damaged " + url, "the checksum is wrong: the file is damaged; nothing was loaded"},
		{"newer " + url, "the file is of a newer version: 99, and up to 12 are read"},
		{"text " + url, "this is no RDB file"},
		{"large " + url, "a string has 4194304 bytes, and at most 1048576 are read"},
		{"list " + url, `1 of type list, such as "list"; 1 of type set, such as "set"; --skip-unsupported leaves them out`},
		{"several " + url, "it has keys of the databases [0 3], and Polder has one: --db NUMBER loads one of them"},
		{"short redis://127.0.0.1:1", "connection refused"},
	} {
		args := strings.Fields(tt.args)
		args[0] = filepath.Join(dir, args[0])
		stdout, stderr, code := proctest.Output(t, nil, append([]string{"rdb", "load"}, args...)...)
		if code != 1 || stdout != "" || !strings.Contains(stderr, tt.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("polder rdb load %s: exit code %d: %s%swant one line with %q", tt.args, code, stdout, stderr, tt.want)
		}
		if n := c.DBSize(ctx).Val(); n != 0 {
			t.Fatalf("polder rdb load %s: there are %d keys now", tt.args, n)
		}
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"list", "--skip-unsupported"}, "loaded 1 strings and 0 hashes; not loaded: 2 keys that are neither strings nor hashes\n"},
		{[]string{"elsewhere"}, "the server has 1 keys: --replace loads it all the same"},
		{[]string{"elsewhere", "--replace"}, "loaded 1 strings and 0 hashes\n"},
		{[]string{"several", "--db", "3", "--replace"}, "loaded 1 strings and 0 hashes; not loaded: 1 keys that are of other databases\n"},
	} {
		stdout, stderr, _ := proctest.Output(t, nil, append([]string{"rdb", "load", filepath.Join(dir, tt.args[0]), url}, tt.args[1:]...)...)
		if !strings.Contains(stdout+stderr, tt.want) {
			t.Errorf("polder rdb load %q: got %s%s, want %q", tt.args, stdout, stderr, tt.want)
		}
	}
}
