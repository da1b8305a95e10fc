package robustness

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/proctest"
	"polder/internal/testpython"
)

// startShared starts nodes and witnesses, and returns the arguments of a server that shares a heap.
func startShared(t *testing.T) []string {
	t.Helper()
	var far []string
	for range 3 {
		far = append(far, startNode(t, "256MiB").Addr("verbs")) // a partition takes some MiB, full or empty
	}
	return named(strings.Join(far, ","), startWitnesses(t), "--durable", "--partitions", "6", "--local", "24MiB")
}

// clusterKeys is how many keys each client writes to: most of the partitions have some.
const clusterKeys = 24

// oftenEnough is how often go-redis is to ask who has which partition. By default it does so once a minute, or when it is told MOVED, and not
// when a server refuses connections, as one does that was killed.
const oftenEnough = time.Second

// crowd are clients of a heap that servers share. Each writes to keys of its own, values that say which key and the how manieth
// they are, and checks what it reads. A key at which an attempt failed has the old value or the new one from then on, perhaps late, and is
// not written to again.
type crowd struct {
	t       *testing.T
	end     chan struct{}
	wg      sync.WaitGroup
	members []*crowdMember
}

type crowdMember struct {
	name   string
	rounds atomic.Int64 // in which it has written to all its keys
	mu     sync.Mutex
	errs   []string // replies that were errors; guarded by mu
}

// failed takes note of an error.
func (m *crowdMember) failed(err string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.errs = append(m.errs, err)
}

// startCrowd starts a client each of go-redis and redis-py that know of clusters, and one that does not at the first server. Reload is
// how often go-redis asks who has which partition, 0 for its default.
func startCrowd(t *testing.T, first *child.Process, reload time.Duration) *crowd {
	t.Helper()
	c := &crowd{t: t, end: make(chan struct{})}
	addr := first.Addr("redis")
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, ClusterStateReloadInterval: reload, NewClient: func(o *redis.Options) *redis.Client {
		n := redis.NewClient(o)
		n.AddHook(attempts{})
		return n
	}})
	t.Cleanup(func() { _ = cluster.Close() })
	plain := connect(t, first)
	plain.AddHook(attempts{})
	c.start("go-redis-cluster", cluster)
	c.start("go-redis", plain)
	c.startPython("redis-py", addr)
	t.Cleanup(c.wg.Wait)
	t.Cleanup(c.stop)
	return c
}

// stop has the clients read all keys, and end.
func (c *crowd) stop() {
	select {
	case <-c.end:
	default:
		close(c.end)
	}
}

// attempts is a hook that notes in a command's context when an attempt failed, which the client may make up for by another one.
type attempts struct{}

type attemptFailed struct{}

func (attempts) DialHook(next redis.DialHook) redis.DialHook { return next }

func (attempts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (attempts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if f, ok := ctx.Value(attemptFailed{}).(*atomic.Bool); ok && err != nil && !errors.Is(err, redis.Nil) && refusal(err) != "MOVED" {
			f.Store(true)
		}
		return err
	}
}

// crowdKey is a key of a client's, with the number of the last value that was acknowledged, and of the last one that was tried.
type crowdKey struct {
	name      string
	low, high int
}

// wrong says what is wrong with what was read of the key; "" if nothing is.
func (k *crowdKey) wrong(got string, err error) string {
	n := -1
	if rest, ok := strings.CutPrefix(got, k.name+" "); ok && err == nil {
		n, _ = strconv.Atoi(rest)
	} else if errors.Is(err, redis.Nil) {
		n = 0
	}
	if n < k.low || n > k.high {
		return fmt.Sprintf("%s is %q, %v, want %d to %d", k.name, got, err, k.low, k.high)
	}
	return ""
}

func (c *crowd) start(name string, client redis.UniversalClient) {
	m := &crowdMember{name: name}
	c.members = append(c.members, m)
	c.wg.Go(func() {
		keys := make([]crowdKey, clusterKeys)
		for i := range keys {
			keys[i].name = fmt.Sprintf("%s:%d:0", name, i)
		}
		var left []crowdKey
		// get reports whether the key could be read.
		get := func(k crowdKey) bool {
			got, err := client.Get(context.Background(), k.name).Result()
			if err != nil && !errors.Is(err, redis.Nil) {
				m.failed(fmt.Sprintf("GET %s: %v", k.name, err))
				return false
			}
			if s := k.wrong(got, err); s != "" {
				c.t.Error(s)
			}
			return true
		}
		for {
			select {
			case <-c.end:
				for _, k := range append(left, keys...) {
					for began := time.Now(); !get(k); time.Sleep(20 * time.Millisecond) {
						if time.Since(began) > hang {
							c.t.Errorf("%s cannot be read", k.name)
							return
						}
					}
				}
				return
			default:
			}
			for i := range keys {
				k := &keys[i]
				k.high++
				var unsure atomic.Bool
				ctx := context.WithValue(context.Background(), attemptFailed{}, &unsure)
				if err := client.Set(ctx, k.name, fmt.Sprint(k.name, " ", k.high), 0).Err(); err != nil {
					m.failed(fmt.Sprintf("SET %s: %v", k.name, err))
				} else if !unsure.Load() {
					k.low = k.high
				}
				if k.low == k.high {
					get(*k)
					continue
				}
				left = append(left, *k)
				*k = crowdKey{name: fmt.Sprintf("%s:%d:%d", name, i, len(left))}
			}
			m.rounds.Add(1)
		}
	})
}

func (c *crowd) startPython(name, addr string) {
	python, err := testpython.Find("redis")
	if err != nil {
		c.t.Fatal(err)
	}
	m := &crowdMember{name: name}
	c.members = append(c.members, m)
	cmd := exec.Command(python, "testdata/cluster_client.py", name, strconv.Itoa(clusterKeys), addr)
	in, err := cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.wg.Go(func() { <-c.end; _ = in.Close() })
	c.wg.Go(func() {
		last := ""
		for lines := bufio.NewScanner(out); lines.Scan(); {
			switch last = lines.Text(); {
			case last == "round":
				m.rounds.Add(1)
			case strings.HasPrefix(last, "error "):
				m.failed(last)
			case last != "end":
				c.t.Errorf("%s: %s", name, last)
			}
		}
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil || last != "end" {
			c.t.Errorf("%s ended with %v, and said last %q: %s", name, err, last, errs.String())
		}
	})
}

// goesOn returns when every client has written to all its keys twice more, from the first to the last.
func (c *crowd) goesOn() {
	c.t.Helper()
	for _, m := range c.members {
		rounds := m.rounds.Load()
		proctest.Until(c.t, m.name+" goes on", func() bool { return m.rounds.Load() >= rounds+3 })
	}
}

// noErrors fails if any of the clients was told of an error since it was called last.
func (c *crowd) noErrors(when string) {
	c.t.Helper()
	for _, m := range c.members {
		m.mu.Lock()
		if len(m.errs) > 0 {
			c.t.Errorf("%s: %s got %d errors, the first of them %s", when, m.name, len(m.errs), m.errs[0])
		}
		m.errs = nil
		m.mu.Unlock()
	}
}

// finish has the clients read all keys that they ever had, and waits until they have.
func (c *crowd) finish() {
	c.stop()
	c.wg.Wait()
	for _, m := range c.members {
		c.t.Logf("%s: %d rounds, %d errors", m.name, m.rounds.Load(), len(m.errs))
	}
}

// balanced waits until each of the servers has about the same number of partitions.
func balanced(t *testing.T, servers ...*child.Process) {
	t.Helper()
	c := connect(t, servers[0])
	proctest.Until(t, fmt.Sprintf("%d servers share the partitions", len(servers)), func() bool {
		shards, err := c.ClusterShards(t.Context()).Result()
		if err != nil || len(shards) != len(servers) {
			return false
		}
		for _, s := range shards {
			slots := 0
			for _, r := range s.Slots {
				slots += int(r.End - r.Start + 1)
			}
			if most := 16384/len(servers) + 16384/6 + 2; slots == 0 || slots > most { // because of load, one of the six more than its share
				return false
			}
		}
		return true
	})
}

// TestServersJoinAndLeaveASharedHeap while clients use it, which notice nothing.
func TestServersJoinAndLeaveASharedHeap(t *testing.T) {
	t.Parallel()
	args := startShared(t)
	first := proctest.Start(t, "serve", args...)
	balanced(t, first)
	load := startCrowd(t, first, 0)
	load.goesOn()
	second := proctest.Start(t, "serve", args...)
	load.goesOn()
	third := proctest.Start(t, "serve", args...)
	balanced(t, first, second, third)
	load.goesOn()
	load.noErrors("while servers joined")
	if err := second.Stop(); err != nil {
		t.Fatal(err)
	}
	balanced(t, first, third)
	load.goesOn()
	load.noErrors("while a server left")
	load.finish()
	load.noErrors("at the end")
}

// TestTheOthersTakeOverFromAKilledServerOfASharedHeap: nothing is lost.
func TestTheOthersTakeOverFromAKilledServerOfASharedHeap(t *testing.T) {
	t.Parallel()
	args := startShared(t)
	first, second, third := proctest.Start(t, "serve", args...), proctest.Start(t, "serve", args...), proctest.Start(t, "serve", args...)
	balanced(t, first, second, third)
	load := startCrowd(t, first, oftenEnough)
	load.goesOn()
	load.noErrors("before a server was killed")
	second.Kill()
	<-second.Done()
	balanced(t, first, third)
	load.goesOn()
	load.finish()
}

// TestAServerOfASharedHeapThatWasStoppedAnswersNothingOld: the others take over from it, and when it goes on it is a server again.
func TestAServerOfASharedHeapThatWasStoppedAnswersNothingOld(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	args := startShared(t)
	first, second, third := proctest.Start(t, "serve", args...), proctest.Start(t, "serve", args...), proctest.Start(t, "serve", args...)
	balanced(t, first, second, third)
	load := startCrowd(t, first, oftenEnough)
	load.goesOn()

	key := func(i int) string { return fmt.Sprint("who:", i) }
	c := connect(t, first)
	var conns []*redis.Conn
	for i := range clusterKeys {
		if err := c.Set(ctx, key(i), "before", 0).Err(); err != nil {
			t.Fatal(err)
		}
		at := connect(t, second)
		conn := at.Conn() // it is open when the server is stopped
		defer conn.Close()
		if who, err := conn.Get(ctx, key(i)).Result(); err != nil || who != "before" {
			t.Fatalf("%s is %q, %v", key(i), who, err)
		}
		conns = append(conns, conn)
	}
	load.noErrors("before a server was stopped")
	if err := second.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = second.Signal(syscall.SIGCONT) })
	balanced(t, first, third)
	load.goesOn()
	for i := range conns {
		proctest.Until(t, "the others serve "+key(i), func() bool { return c.Set(ctx, key(i), "after", 0).Err() == nil })
	}
	// It finds requests when it goes on.
	var asked sync.WaitGroup
	for i, conn := range conns {
		asked.Go(func() {
			if who, err := conn.Get(ctx, key(i)).Result(); err == nil && who != "after" {
				t.Errorf("a server that was stopped says that %s is %q", key(i), who)
			}
		})
	}
	if err := second.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	asked.Wait()
	balanced(t, first, second, third)
	load.goesOn()
	load.finish()
	for i := range conns {
		if who, err := c.Get(ctx, key(i)).Result(); err != nil || who != "after" {
			t.Errorf("in the end %s is %q, %v", key(i), who, err)
		}
	}
}
