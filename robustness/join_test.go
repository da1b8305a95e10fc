package robustness

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"polder/internal/child"
	"polder/internal/console"
	"polder/internal/directory"
	"polder/internal/etcd"
	"polder/internal/proctest"
	"polder/internal/testdns"
	"polder/internal/testetcd"

	"github.com/redis/go-redis/v9"
)

// A runningLoad is clients who write and read, and check what they read, while something happens to what they use.
type runningLoad struct {
	t       *testing.T
	server  *child.Process
	done    atomic.Int64
	slowest atomic.Int64
	failed  chan error
	end     func() // ends it; it ends with the test, too
}

func startLoad(t *testing.T, server *child.Process, workers, keys int) *runningLoad {
	l := &runningLoad{t: t, server: server, failed: make(chan error, workers)}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	l.end = sync.OnceFunc(func() { close(stop); wg.Wait() })
	t.Cleanup(l.end)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	for w := range workers {
		wg.Go(func() {
			if err := copiesLoad(ctx, connect(t, server), w, keys, stop, &l.done, &l.slowest); err != nil {
				l.failed <- err
			}
		})
	}
	return l
}

// until waits for a condition, while no client sees an error.
func (l *runningLoad) until(what string, cond func() bool) {
	l.t.Helper()
	proctest.Until(l.t, what, func() bool {
		select {
		case err := <-l.failed:
			l.t.Fatal(err)
		default:
		}
		return cond()
	})
}

// proceed waits until n more operations are done.
func (l *runningLoad) proceed(n int64) {
	l.t.Helper()
	from := l.done.Load()
	l.until("the load goes on", func() bool { return l.done.Load() >= from+n })
}

// lostNothing ends the load, which has seen no error.
func (l *runningLoad) lostNothing() {
	l.t.Helper()
	l.end()
	select {
	case err := <-l.failed:
		l.t.Fatal(err)
	default:
	}
	lost := proctest.State(l.t, l.server).Metrics.Int("polder_copies_lost_segments_total")
	if s := statusOf(l.t, l.server); s.Heap.Lost != 0 || s.Redis.Lost != 0 || lost != 0 {
		l.t.Errorf("%d segments, %d entries were lost", s.Heap.Lost, s.Redis.Lost)
	}
}

// A server borrows from the nodes that a name in the DNS has: one node after the other joins, gets a copy of
// everything, and the one before it is killed. Clients are told of no error, and nothing is lost. While the name
// server does not answer, the server goes on with the nodes that it knows.
func TestNodesJoinAsTheDirectoryNamesThem(t *testing.T) {
	t.Parallel()
	dns := testdns.New(t)
	start := func() *child.Process { return startNode(t, "256MiB", "--grace", "2s") }
	node := start()
	dns.Set(node.Addr("verbs"))
	server := startServer(t, "dns://"+dns.Addr+"/nodes.test", "4MiB", "--repair-after", "2s")
	metric := func(name string) int64 { return proctest.State(t, server).Metrics.Int("polder_copies_" + name) }
	load := startLoad(t, server, 2, 1500)
	load.until("much is far, in one copy", func() bool { return metric("segments") > 5 && metric("endangered_segments") > 5 })
	for range 2 {
		next := start()
		dns.Set(node.Addr("verbs"), next.Addr("verbs"))
		load.until("everything has two copies", func() bool { return metric("endangered_segments") == 0 })
		dns.Set(next.Addr("verbs"))
		node.Kill()
		load.proceed(200)
		node = next
	}
	dns.Mute(true)
	load.proceed(2000)
	load.lostNothing()
}

// The same with nodes that announce themselves in etcd, which is stopped for a while, then killed and started: the server
// and the nodes go on, and the nodes are announced again.
func TestNodesAreFoundInEtcd(t *testing.T) {
	t.Parallel() // it waits for leases to end
	m := testetcd.New(t, 1)[0]
	client, err := etcd.New(etcd.Config{Endpoints: []string{m.Addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	named := func() (addrs []string) {
		nodes, wrong, err := directory.New(client, "c").Nodes(t.Context())
		if err != nil || len(wrong) > 0 {
			return []string{"error"}
		}
		for _, n := range nodes {
			addrs = append(addrs, n.Address)
		}
		return addrs
	}
	start := func(cluster string, args ...string) *child.Process {
		return startNode(t, "256MiB", append([]string{"--grace", "2s", "--directory", "etcd://" + m.Addr + "/" + cluster}, args...)...)
	}
	announced := func(node *child.Process) func() bool {
		return func() bool { return proctest.State(t, node).Metrics.Int("polder_node_announced") == 1 }
	}
	stranger := start("c2")
	proctest.Until(t, "a node of another cluster is announced", announced(stranger))
	first := start("c")
	load := startLoad(t, startServer(t, "etcd://"+m.Addr+"/c", "4MiB", "--repair-after", "2s"), 2, 1500)
	metric := func(name string) int64 { return proctest.State(t, load.server).Metrics.Int("polder_" + name) }
	load.until("much is far, in one copy", func() bool { return metric("copies_segments") > 5 && metric("copies_endangered_segments") > 5 })
	second := start("c", "--drain", "1m")
	load.until("everything has two copies", func() bool { return metric("copies_endangered_segments") == 0 })
	first.Kill()
	load.proceed(200)
	load.until("the lease of the one that was killed ends", func() bool { return slices.Equal(named(), []string{second.Addr("verbs")}) })
	load.until("the server knows that", func() bool { return metric("directory_nodes") == 1 })
	third := start("c")
	load.until("everything has two copies", func() bool { return metric("copies_endangered_segments") == 0 })

	m.Pause()
	load.until("the server and a node notice that etcd is away", func() bool { return metric("directory_answers") == 0 && !announced(second)() })
	load.proceed(500)
	m.Kill()
	m.Start()
	load.until("the nodes are announced again", func() bool {
		return announced(second)() && announced(third)() && metric("directory_answers") == 1 && metric("directory_nodes") == 2
	})
	if n := strings.Count(load.server.Stderr(), "the nodes are not all as the directory has them"); n < 1 || n > 6 {
		t.Errorf("the server said %d times that etcd does not answer: %s", n, load.server.Stderr())
	}

	// One that is drained is withdrawn first.
	fourth := start("c")
	load.until("it has joined", func() bool { return metric("directory_nodes") == 3 })
	if err := second.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	load.until("it has ended", func() bool {
		select {
		case <-second.Done():
			return true
		default:
			return false
		}
	})
	if now := named(); len(now) != 2 || slices.Contains(now, second.Addr("verbs")) || !slices.Contains(now, fourth.Addr("verbs")) {
		t.Errorf("%q are named, of which one has ended", now)
	}
	load.lostNothing()
	if borrowed := proctest.State(t, stranger).Metrics.Int("polder_node_sessions"); borrowed != 0 {
		t.Errorf("%d clients have found the node of another cluster", borrowed)
	}
}

// TestANodeOfAnotherClusterIsNotUsed, though it listens where one was that is gone: nothing is lent or lost, and both are told.
func TestANodeOfAnotherClusterIsNotUsed(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	first, second := startNode(t, "64MiB", "--cluster", "blue"), startNode(t, "64MiB", "--cluster", "blue")
	addrs := first.Addr("verbs") + "," + second.Addr("verbs")
	server := startServer(t, addrs, "4MiB", "--cluster", "blue")
	c := connect(t, server)
	const keys = 2000
	key := func(i int) string { return "key:" + strconv.Itoa(i) }
	if err := pipelined(ctx, c, keys, func(p redis.Pipeliner, i int) { p.Set(ctx, key(i), value(key(i), 1, 8000), 0) },
		func(_ int, cmd redis.Cmder) error { return cmd.Err() }); err != nil {
		t.Fatal(err)
	}
	// On a busy machine a node may have counted as silent, so that there was one copy for a while.
	proctest.Until(t, "nothing is endangered", func() bool { return proctest.State(t, server).Metrics.Int("polder_copies_endangered_segments") == 0 })
	at := second.Addr("verbs")
	second.Kill()
	foreign := startNode(t, "64MiB", "--cluster", "green", "--listen", at)
	proctest.Until(t, "the server says why it does not use the node", func() bool {
		return slices.ContainsFunc(proctest.State(t, server).Events, func(e console.Event) bool {
			return strings.Contains(e.More, "this node is of cluster green, and the client of another one")
		})
	})
	if err := pipelined(ctx, c, keys, func(p redis.Pipeliner, i int) { p.Get(ctx, key(i)) }, func(i int, cmd redis.Cmder) error {
		if got, err := cmd.(*redis.StringCmd).Result(); err != nil || got != value(key(i), 1, 8000) {
			return fmt.Errorf("%s is %.20q, %w", key(i), got, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if n := proctest.State(t, foreign).Metrics.Int("polder_node_sessions"); n != 0 {
		t.Errorf("the node of another cluster has %d clients", n)
	}
	for _, args := range [][]string{{"--cluster", "blue"}, nil} {
		all := append([]string{"serve", "--listen", "127.0.0.1:0", "--admin", "off", "--far", at}, args...)
		if out, errs, code := proctest.Output(t, nil, all...); code != 1 || !strings.Contains(errs, "this node is of cluster green, and the client of") {
			t.Errorf("polder %s: got %d, %s%s", strings.Join(all, " "), code, out, errs)
		}
	}
}
