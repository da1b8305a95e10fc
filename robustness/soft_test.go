package robustness

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/proctest"
)

// startCoordinator runs a coordinator of soft memory that has 128 MiB to give.
func startCoordinator(t *testing.T, socket string, args ...string) *child.Process {
	t.Helper()
	return proctest.Run(t, "coordinator", append([]string{"--socket", socket, "--max", "128MiB", "--interval", "100ms"}, args...)...)
}

// startCache runs a cache for Redis's and memcached's clients.
func startCache(t *testing.T, socket string) *child.Process {
	t.Helper()
	return proctest.Start(t, "serve", "--tier", "soft", "--coordinator", socket, "--memcached", "127.0.0.1:0")
}

// granted is how much memory a cache says that it may use.
func granted(t *testing.T, c *redis.Client) int {
	t.Helper()
	m, err := c.ConfigGet(t.Context(), "maxmemory").Result()
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(m["maxmemory"])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// memcache is a client of memcached's text protocol.
type memcache struct {
	conn net.Conn
	r    *bufio.Reader
}

func connectMemcache(t *testing.T, server *child.Process) *memcache {
	t.Helper()
	conn, err := net.Dial("tcp", server.Addr("memcached"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &memcache{conn, bufio.NewReader(conn)}
}

// get returns the values of those of the keys that are there.
func (m *memcache) get(keys []string) (map[string]string, error) {
	if err := m.conn.SetDeadline(time.Now().Add(hang)); err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(m.conn, "get %s\r\n", strings.Join(keys, " ")); err != nil {
		return nil, err
	}
	found := map[string]string{}
	for {
		line, err := m.r.ReadString('\n')
		if err != nil || line == "END\r\n" {
			return found, err
		}
		var key string
		var flags, n int
		if _, err := fmt.Sscanf(line, "VALUE %s %d %d\r\n", &key, &flags, &n); err != nil {
			return nil, fmt.Errorf("got the line %q: %w", line, err)
		}
		b := make([]byte, n+len("\r\n"))
		if _, err := io.ReadFull(m.r, b); err != nil {
			return nil, err
		}
		found[key] = string(b[:n])
	}
}

func (m *memcache) set(key, value string) error {
	if err := m.conn.SetDeadline(time.Now().Add(hang)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(m.conn, "set %s 0 0 %d\r\n%s\r\n", key, len(value), value); err != nil {
		return err
	}
	if line, err := m.r.ReadString('\n'); err != nil || line != "STORED\r\n" {
		return fmt.Errorf("stored %s, got %q: %w", key, line, err)
	}
	return nil
}

// application asks a cache for values of 4 KiB under some of its keys, at random,
// and stores those that it misses, as what it has asked its database for. Half of
// the keys it keeps with Redis's protocol and half with memcached's.
type application struct {
	redis *redis.Client
	mc    *memcache
	keys  int
	r     *rand.Rand
}

func newApplication(t *testing.T, cache *child.Process, keys int) *application {
	t.Helper()
	return &application{connect(t, cache), connectMemcache(t, cache), keys, rand.New(rand.NewPCG(1, uint64(keys)))}
}

const itemSize = 4000

// ask asks for n values and returns how many were missing. A wrong one is an
// error.
func (a *application) ask(ctx context.Context, n int) (missed int, err error) {
	names := make([]string, n/2)
	draw := func() {
		for i := range names {
			names[i] = fmt.Sprint("key:", a.r.IntN(a.keys/2))
		}
	}
	draw()
	var missing []string
	if err := pipelined(ctx, a.redis, len(names), func(p redis.Pipeliner, i int) { p.Get(ctx, names[i]) },
		func(i int, cmd redis.Cmder) error {
			switch got, err := cmd.(*redis.StringCmd).Result(); {
			case errors.Is(err, redis.Nil):
				missing = append(missing, names[i])
			case err != nil || got != value(names[i], 1, itemSize):
				return fmt.Errorf("%s: got %d bytes, %v", names[i], len(got), err)
			}
			return nil
		}); err != nil {
		return 0, err
	}
	missed = len(missing)
	if err := pipelined(ctx, a.redis, len(missing), func(p redis.Pipeliner, i int) {
		p.Set(ctx, missing[i], value(missing[i], 1, itemSize), 0)
	}, func(int, redis.Cmder) error { return nil }); err != nil {
		return 0, err
	}
	draw()
	for at := 0; at < len(names); at += 64 {
		batch := names[at:min(at+64, len(names))]
		found, err := a.mc.get(batch)
		if err != nil {
			return 0, err
		}
		for _, name := range batch {
			switch got, ok := found[name]; {
			case !ok:
				missed++
				found[name] = value(name, 1, itemSize)
				if err := a.mc.set(name, found[name]); err != nil {
					return 0, err
				}
			case got != value(name, 1, itemSize):
				return 0, fmt.Errorf("%s: got %d bytes from memcached's side", name, len(got))
			}
		}
	}
	return missed, nil
}

// TestACoordinatorThatIsKilledCostsNobodyItsKeys kills the coordinator again and
// again. Each time one cache comes back before the other, which is stopped until
// the new coordinator knows the first one.
func TestACoordinatorThatIsKilledCostsNobodyItsKeys(t *testing.T) {
	t.Parallel()
	const keys = 12000 // about half of the memory each
	rounds := 2
	if os.Getenv("TEST_SOAK") != "" {
		rounds = 40
	}
	socket := filepath.Join(t.TempDir(), "s")
	coordinator := startCoordinator(t, socket, "--grace", "10ms")
	caches := []*child.Process{startCache(t, socket), startCache(t, socket)}
	var apps []*redis.Client
	name := func(i int) string { return fmt.Sprint("key:", i) }
	ctx := t.Context()
	// there counts the keys that a cache has.
	there := func(c *redis.Client) (n int) {
		t.Helper()
		if err := pipelined(ctx, c, keys, func(p redis.Pipeliner, i int) { p.Get(ctx, name(i)) },
			func(i int, cmd redis.Cmder) error {
				got, err := cmd.(*redis.StringCmd).Result()
				if err == nil && got == value(name(i), 1, itemSize) {
					n++
				} else if !errors.Is(err, redis.Nil) {
					return fmt.Errorf("%s: got %d bytes, %v", name(i), len(got), err)
				}
				return nil
			}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	clients := func() int {
		t.Helper()
		return int(proctest.State(t, coordinator).Metrics.Int("polder_coordinator_clients"))
	}
	for _, p := range caches {
		apps = append(apps, connect(t, p))
	}
	proctest.Until(t, "both caches have all of their keys", func() bool {
		for _, c := range apps {
			if err := pipelined(ctx, c, keys, func(p redis.Pipeliner, i int) { p.SetNX(ctx, name(i), value(name(i), 1, itemSize), 0) },
				func(int, redis.Cmder) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		return there(apps[0]) == keys && there(apps[1]) == keys
	})
	for round := range rounds {
		late := caches[round%2]
		if err := late.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		coordinator.Kill()
		coordinator = startCoordinator(t, socket, "--grace", "2s")
		began := time.Now()
		proctest.Until(t, "one cache has come back", func() bool { return clients() == 1 })
		// The other one comes when the first could have been given everything.
		proctest.Until(t, "some time has passed", func() bool { return time.Since(began) > 700*time.Millisecond })
		if err := late.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		proctest.Until(t, "the other one has come back, and memory has been divided", func() bool {
			for _, c := range apps {
				there(c)
			}
			return clients() == 2 && time.Since(began) > 3*time.Second
		})
		for i, c := range apps {
			if n := there(c); n < keys*99/100 {
				t.Fatalf("round %d: cache %d has %d of its %d keys, and %d MiB", round, i, n, keys, granted(t, c)/mib)
			}
		}
	}
}
