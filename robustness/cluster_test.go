package robustness

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/proctest"
	"polder/internal/testpython"
	"polder/partition"
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
// not written to again. All keys are read once more in the end.
type crowd struct {
	t       *testing.T
	end     chan struct{}
	wg      sync.WaitGroup
	members []*crowdMember
	// What was read that must not be: a value that was acknowledged and is not there in the end, one that nobody has written there, and one
	// that is older than what was acknowledged.
	lost, wrong, stale atomic.Int64
}

type crowdMember struct {
	name   string
	rounds atomic.Int64 // in which it has written to all its keys
	acked  atomic.Int64 // commands that succeeded
	mu     sync.Mutex
	errs   []string // replies that were errors; guarded by mu
	failed int      // how many there were in all; guarded by mu
}

// fail takes note of an error. The first ones are kept.
func (m *crowdMember) fail(err string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed++; len(m.errs) < 10 {
		m.errs = append(m.errs, err)
	}
}

// startCrowd starts a client each of go-redis and redis-py that know of clusters, and one that does not, which is at one of the servers. Reload is
// how often go-redis asks who has which partition, 0 for its default, and within for how long the client that knows of no cluster waits for a reply.
func startCrowd(t *testing.T, reload, within time.Duration, addrs ...string) *crowd {
	t.Helper()
	c := &crowd{t: t, end: make(chan struct{})}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ClusterStateReloadInterval: reload, NewClient: func(o *redis.Options) *redis.Client {
		n := redis.NewClient(o)
		n.AddHook(attempts{})
		return n
	}})
	t.Cleanup(func() { _ = cluster.Close() })
	plain := connectAny(t, within, 0, addrs...)
	plain.AddHook(attempts{})
	c.start("go-redis-cluster", cluster)
	c.start("go-redis", plain)
	c.startPython("redis-py", addrs...)
	t.Cleanup(c.wg.Wait)
	t.Cleanup(c.stop)
	return c
}

// connectAny returns a client like connect's that knows of no cluster, as it were behind a load balancer: each connection is to the next server
// that takes it, from number first on.
func connectAny(t *testing.T, within time.Duration, first int, addrs ...string) *redis.Client {
	t.Helper()
	var next atomic.Int64
	next.Store(int64(first))
	c := redis.NewClient(&redis.Options{MaxRetries: -1, PoolSize: 1, DialerRetries: 1, ReadTimeout: within, WriteTimeout: within, PoolTimeout: hang,
		Dialer: func(ctx context.Context, network, _ string) (nc net.Conn, err error) {
			for range addrs {
				to := addrs[int(next.Add(1)-1)%len(addrs)]
				if nc, err = new(net.Dialer).DialContext(ctx, network, to); err == nil {
					break
				}
			}
			return nc, err
		},
	})
	t.Cleanup(func() { _ = c.Close() })
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

// judge says what is wrong with what was read of the key, and in one word which kind of wrong that is; "" if nothing is.
func (k *crowdKey) judge(got string, err error, last bool) (kind, what string) {
	n := -1
	if rest, ok := strings.CutPrefix(got, k.name+" "); ok && err == nil {
		if n, err = strconv.Atoi(rest); err != nil {
			n = -1
		}
	} else if errors.Is(err, redis.Nil) {
		n = 0
	}
	switch {
	case n < 0 || n > k.high:
		kind = "wrong"
	case n < k.low && last:
		kind = "lost"
	case n < k.low:
		kind = "stale"
	default:
		return "", ""
	}
	return kind, fmt.Sprintf("%s is %q, %v, want %d to %d", k.name, got, err, k.low, k.high)
}

// count takes note of what a client has read that must not be.
func (c *crowd) count(kind, what string) {
	switch kind {
	case "lost":
		c.lost.Add(1)
	case "stale":
		c.stale.Add(1)
	default:
		c.wrong.Add(1)
	}
	c.t.Errorf("%s: %s", kind, what)
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
		get := func(k crowdKey, last bool) bool {
			got, err := client.Get(context.Background(), k.name).Result()
			if err != nil && !errors.Is(err, redis.Nil) {
				m.fail(fmt.Sprintf("GET %s: %v", k.name, err))
				return false
			}
			m.acked.Add(1)
			if kind, what := k.judge(got, err, last); kind != "" {
				c.count(kind, what)
			}
			return true
		}
		for {
			select {
			case <-c.end:
				for _, k := range append(left, keys...) {
					for began := time.Now(); !get(k, true); time.Sleep(20 * time.Millisecond) {
						if time.Since(began) > hang {
							c.count("lost", k.name+" cannot be read")
							return
						}
					}
				}
				return
			default:
			}
			for i := range keys {
				time.Sleep(pause)
				k := &keys[i]
				k.high++
				var unsure atomic.Bool
				ctx := context.WithValue(context.Background(), attemptFailed{}, &unsure)
				if err := client.Set(ctx, k.name, fmt.Sprint(k.name, " ", k.high), 0).Err(); err != nil {
					m.fail(fmt.Sprintf("SET %s: %v", k.name, err))
				} else if m.acked.Add(1); !unsure.Load() {
					k.low = k.high
				}
				if k.low == k.high {
					get(*k, false)
					continue
				}
				left = append(left, *k)
				*k = crowdKey{name: fmt.Sprintf("%s:%d:%d", name, i, len(left))}
			}
			m.rounds.Add(1)
		}
	})
}

func (c *crowd) startPython(name string, addrs ...string) {
	python, err := testpython.Find("redis")
	if err != nil {
		c.t.Fatal(err)
	}
	m := &crowdMember{name: name}
	c.members = append(c.members, m)
	cmd := exec.Command(python, append([]string{"testdata/cluster_client.py", name, strconv.Itoa(clusterKeys)}, addrs...)...)
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
			last = lines.Text()
			switch kind, what, _ := strings.Cut(last, " "); kind {
			case "round":
				m.rounds.Add(1)
				n, _ := strconv.ParseInt(what, 10, 64)
				m.acked.Add(n)
			case "error":
				m.fail(what)
			case "end":
			default:
				c.count(kind, name+": "+what)
			}
		}
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil || last != "end" {
			c.t.Errorf("%s ended with %v, and said last %q: %s", name, err, last, errs.String())
		}
	})
}

// goesOn returns when every client has written to all its keys twice more, from the first to the last.
func (c *crowd) goesOn() { c.t.Helper(); c.writes(2) }

// writes is goesOn for n times.
func (c *crowd) writes(n int64) {
	c.t.Helper()
	for _, m := range c.members {
		rounds := m.rounds.Load()
		proctest.Until(c.t, m.name+" goes on", func() bool { return m.rounds.Load() > rounds+n })
	}
}

// some returns when the clients have got n more commands done, whoever of them.
func (c *crowd) some(n int64) {
	c.t.Helper()
	acked := func() (sum int64) {
		for _, m := range c.members {
			sum += m.acked.Load()
		}
		return sum
	}
	had := acked()
	proctest.Until(c.t, "some commands are done", func() bool { return acked() >= had+n })
}

// noErrors fails if any of the clients was told of an error since it was called last.
func (c *crowd) noErrors(when string) {
	c.t.Helper()
	for _, m := range c.members {
		m.mu.Lock()
		if len(m.errs) > 0 {
			c.t.Errorf("%s: %s got %d errors, the first of them %s", when, m.name, m.failed, m.errs[0])
		}
		m.errs, m.failed = nil, 0
		m.mu.Unlock()
	}
}

// finish has the clients read all keys that they ever had, and waits until they have.
func (c *crowd) finish() {
	c.stop()
	c.wg.Wait()
	for _, m := range c.members {
		c.t.Logf("%s: %d rounds, %d commands acknowledged, %d errors", m.name, m.rounds.Load(), m.acked.Load(), m.failed)
	}
	c.t.Logf("lost %d, wrong %d, stale %d", c.lost.Load(), c.wrong.Load(), c.stale.Load())
}

// askCluster sends one command to a server, and returns the reply.
func askCluster[T any](t *testing.T, server *child.Process, ask func(ctx context.Context, c *redis.Client) (T, error)) (T, error) {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: server.Addr("redis"), MaxRetries: -1, ReadTimeout: hang})
	defer c.Close()
	return ask(t.Context(), c)
}

// shardsOf says how many slots each server has, by its ID, as a server sees it.
func shardsOf(t *testing.T, server *child.Process) map[string]int {
	t.Helper()
	shards, err := askCluster(t, server, func(ctx context.Context, c *redis.Client) ([]redis.ClusterShard, error) {
		return c.ClusterShards(ctx).Result()
	})
	if err != nil {
		return nil
	}
	slots := map[string]int{}
	for _, s := range shards {
		for _, r := range s.Slots {
			slots[s.Nodes[0].ID] += int(r.End - r.Start + 1)
		}
	}
	return slots
}

// clusterIDs are the IDs of servers in the map.
func clusterIDs(t *testing.T, servers ...*child.Process) (ids []string) {
	t.Helper()
	for _, s := range servers {
		id, err := askCluster(t, s, func(ctx context.Context, c *redis.Client) (string, error) { return c.Do(ctx, "CLUSTER", "MYID").Text() })
		if err != nil {
			t.Fatalf("CLUSTER MYID: %v", err)
		}
		ids = append(ids, id)
	}
	return ids
}

// balanced waits until each of the servers has about the same number of partitions, and nobody else has any.
func balanced(t *testing.T, servers ...*child.Process) {
	t.Helper()
	ids := clusterIDs(t, servers...)
	proctest.Until(t, fmt.Sprintf("%d servers share the partitions", len(servers)), func() bool {
		slots, all := shardsOf(t, servers[0]), 0
		for _, id := range ids {
			if most := partition.Slots/len(servers) + partition.Slots/6 + 2; slots[id] == 0 || slots[id] > most { // because of load, more than its share
				return false
			}
			all += slots[id]
		}
		return all == partition.Slots
	})
}

// TestServersJoinAndLeaveASharedHeap while clients use it, which notice nothing.
func TestServersJoinAndLeaveASharedHeap(t *testing.T) {
	t.Parallel()
	args := startShared(t)
	first := proctest.Start(t, "serve", args...)
	balanced(t, first)
	load := startCrowd(t, 0, hang, first.Addr("redis"))
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

// TestAServerIsNotReadyBeforeItHasItsShare: one that was killed and is started again says so, and why, until it serves its part of the partitions.
func TestAServerIsNotReadyBeforeItHasItsShare(t *testing.T) {
	t.Parallel()
	args := startShared(t)
	first := proctest.Start(t, "serve", args...)
	again := append([]string{"--listen", keptAddr()}, args...)
	second := proctest.Run(t, "serve", again...)
	balanced(t, first, second)
	if err := connect(t, first).Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	old := clusterIDs(t, second)[0]
	second.Kill()
	second = proctest.Run(t, "serve", again...)
	id, reasons := clusterIDs(t, second)[0], 0
	proctest.Until(t, "the server is ready", func() bool {
		code, text := page("http://" + second.Addr("admin") + "/healthz")
		if code == http.StatusOK {
			return true
		}
		if code != http.StatusServiceUnavailable || !strings.Contains(text, "orders") {
			t.Errorf("/healthz of a server that has just been started: got %d %s, want 503 and a reason that names the heap", code, text)
		}
		reasons++
		return false
	})
	slots := shardsOf(t, second)
	if least := partition.Slots / 2; slots[id] < least-2 || slots[old] != 0 {
		t.Errorf("when it says that it is ready, a server has %d slots, and the one before has %d; want about %d and 0", slots[id], slots[old], least)
	}
	if reasons == 0 {
		t.Error("it was ready at once, though what the one before had is free only when the others miss it")
	}
	if got, err := connect(t, second).Get(t.Context(), "k").Result(); err != nil || got != "v" {
		t.Errorf("the server that is ready has %q, %v", got, err)
	}
}
