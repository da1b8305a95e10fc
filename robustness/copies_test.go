package robustness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/proctest"
	"polder/internal/testaddr"
)

// A cable is how a server reaches a node. It can be cut: nothing goes through it then, and nobody is told.
type cable struct {
	l    net.Listener
	to   string
	cut  atomic.Bool
	mu   sync.Mutex
	open map[net.Conn]bool // guarded by mu
	wg   sync.WaitGroup
}

func newCable(t *testing.T, to string) *cable {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &cable{l: l, to: to, open: make(map[net.Conn]bool)}
	w.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.wg.Go(func() { w.carry(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		w.mu.Lock()
		for c := range w.open {
			c.Close()
		}
		w.open = nil
		w.mu.Unlock()
		w.wg.Wait()
	})
	return w
}

func (w *cable) carry(a net.Conn) {
	defer a.Close()
	b, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	defer b.Close()
	w.mu.Lock()
	if w.open == nil {
		w.mu.Unlock()
		return
	}
	w.open[a], w.open[b] = true, true
	w.mu.Unlock()
	var both sync.WaitGroup
	copyOver := func(to, from net.Conn) {
		defer to.Close()
		defer from.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := from.Read(buf)
			for w.cut.Load() {
				time.Sleep(time.Millisecond)
			}
			if _, e := to.Write(buf[:n]); e != nil || err != nil {
				return
			}
		}
	}
	both.Go(func() { copyOver(a, b) })
	both.Go(func() { copyOver(b, a) })
	both.Wait()
	w.mu.Lock()
	delete(w.open, a)
	delete(w.open, b)
	w.mu.Unlock()
}

// TestNothingIsLostWithANode: five nodes, of which one after the other is killed, stopped, or cut off, while clients read and
// write, each up to 1,000 times a second, a third of it writes. No acknowledged write is lost, no byte is wrong, and no client is told of an error.
func TestNothingIsLostWithANode(t *testing.T) {
	t.Parallel()
	const (
		nodes   = 5
		workers = 4
		keys    = 1500 // of each worker, of up to 4 KiB
	)
	rounds := 20
	if os.Getenv("TEST_SOAK") != "" {
		rounds = 1000
	}
	addrs, procs := make([]string, nodes), make([]*child.Process, nodes)
	cables := make([]*cable, nodes)
	var far []string
	for i := range nodes {
		addrs[i] = testaddr.Host() + ":0"
		procs[i] = startNode(t, "256MiB", "--grace", "2s", "--listen", addrs[i])
		addrs[i] = procs[i].Addr("verbs")
		cables[i] = newCable(t, addrs[i])
		far = append(far, cables[i].l.Addr().String())
	}
	server := startServer(t, strings.Join(far, ","), "4MiB", "--repair-after", "2s", "--op-timeout", "2s")
	ctx := t.Context()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var done, slowest atomic.Int64
	failed := make(chan error, workers)
	end := sync.OnceFunc(func() { close(stop); wg.Wait() })
	defer end()
	for w := range workers {
		wg.Go(func() {
			if err := copiesLoad(ctx, connect(t, server), w, keys, stop, &done, &slowest); err != nil {
				failed <- err
			}
		})
	}
	until := func(what string, cond func() bool) {
		t.Helper()
		proctest.Until(t, what, func() bool {
			select {
			case err := <-failed:
				t.Fatal(err)
			default:
			}
			return cond()
		})
	}
	proceed := func(n int64) {
		t.Helper()
		from := done.Load()
		until("the load goes on", func() bool { return done.Load() >= from+n })
	}
	metric := func(name string) int64 { return proctest.State(t, server).Metrics.Int("polder_copies_" + name) }
	until("much is far", func() bool { return metric("segments") > 8 })
	r := rand.New(rand.NewPCG(1, 2))
	killed := 0
	for round := range rounds {
		i := r.IntN(nodes)
		switch r.IntN(3) {
		case 0:
			procs[i].Kill()
			proceed(200)
			procs[i] = startNode(t, "256MiB", "--grace", "2s", "--listen", addrs[i])
			killed++
		case 1:
			if err := procs[i].Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			proceed(200)
			if err := procs[i].Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		case 2:
			cables[i].cut.Store(true)
			proceed(200)
			cables[i].cut.Store(false)
		}
		until(fmt.Sprintf("round %d: everything has its copies again", round), func() bool {
			return metric("endangered_segments") == 0
		})
	}
	end()
	select {
	case err := <-failed:
		t.Fatal(err)
	default:
	}
	s := statusOf(t, server)
	if killed == 0 || metric("repaired_total") == 0 || s.Heap.Lost != 0 || s.Redis.Lost != 0 || metric("lost_segments_total") != 0 {
		t.Errorf("%d nodes were killed, %d copies made; %d segments, %d entries were lost", killed, metric("repaired_total"), metric("lost_segments_total"), s.Heap.Lost)
	}
	t.Logf("%d operations; the slowest took %v", done.Load(), time.Duration(slowest.Load()))
}

// pause is how long a client thinks between two commands: long enough for several to leave the processors to what happens to servers and nodes, short
// enough that whatever happens comes in the middle of some.
const pause = time.Millisecond

// copiesLoad writes keys that nobody else writes, then reads and writes them at random, until stop is closed.
func copiesLoad(ctx context.Context, c *redis.Client, worker, keys int, stop <-chan struct{}, done, slowest *atomic.Int64) error {
	r := rand.New(rand.NewPCG(uint64(worker), 3))
	versions := make([]int, keys)
	key := func(i int) string { return fmt.Sprintf("key:%d:%d", worker, i) }
	size := func(i int) int { return 100 + i*7%4000 }
	check := func(i int, get *redis.StringCmd) error {
		got, err := get.Result()
		if err != nil || got != value(key(i), versions[i], size(i)) {
			return fmt.Errorf("GET %s: %d bytes %.20q, %v; want version %d", key(i), len(got), got, err, versions[i])
		}
		return nil
	}
	for n := 0; ; n++ {
		select {
		case <-stop:
			return pipelined(ctx, c, min(n, keys), func(p redis.Pipeliner, i int) { p.Get(ctx, key(i)) },
				func(i int, cmd redis.Cmder) error { return check(i, cmd.(*redis.StringCmd)) })
		default:
		}
		began := time.Now()
		i := n
		if n >= keys {
			time.Sleep(pause)
			began, i = time.Now(), r.IntN(keys)
		}
		if n < keys || r.IntN(3) == 0 {
			versions[i]++
			if err := c.Set(ctx, key(i), value(key(i), versions[i], size(i)), 0).Err(); err != nil {
				return fmt.Errorf("SET %s: %w", key(i), err)
			}
		} else if err := check(i, c.Get(ctx, key(i))); err != nil {
			return err
		}
		done.Add(1)
		for took := int64(time.Since(began)); ; {
			was := slowest.Load()
			if took <= was || slowest.CompareAndSwap(was, took) {
				break
			}
		}
	}
}
