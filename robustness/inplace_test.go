package robustness

import (
	"context"
	"errors"
	"fmt"
	"regexp"
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
)

// startNodesInPlace is startNodes with nodes whose memory is read in place.
func startNodesInPlace(t *testing.T, n int) (nodes []*child.Process, addrs string) {
	t.Helper()
	var all []string
	for range n {
		node := startNode(t, "64MiB", "--in-place")
		nodes, all = append(nodes, node), append(all, node.Addr("verbs"))
	}
	return nodes, strings.Join(all, ",")
}

var readsOfNode = regexp.MustCompile(`(?m)^polder_pool_reads(_in_place|)_total\{node="([^"]*)"\} (\S+)$`)

// readsAt is how many READs a server has done at the node at addr, of all that it has if addr is empty, and how many of them in place.
func readsAt(t *testing.T, server *child.Process, addr string) (all, inPlace int) {
	t.Helper()
	_, text := page("http://" + server.Addr("admin") + "/metrics")
	for _, m := range readsOfNode.FindAllStringSubmatch(text, -1) {
		n, err := strconv.ParseFloat(m[3], 64)
		switch {
		case err != nil:
			t.Fatal(err)
		case addr != "" && m[2] != addr:
		case m[1] == "":
			all += int(n)
		default:
			inPlace += int(n)
		}
	}
	return all, inPlace
}

// described is a value of 4 KiB that says whose it is, and who has written it.
func described(key int, who string) string {
	return strings.Repeat(fmt.Sprintf("%s of %d.", who, key), 4096/10)[:4096]
}

// setAll has a server write so many values that describe themselves.
func setAll(t *testing.T, c *redis.Client, keys int, who string) {
	t.Helper()
	if err := pipelined(t.Context(), c, keys,
		func(p redis.Pipeliner, i int) { p.Set(t.Context(), fmt.Sprint("key ", i), described(i, who), 0) },
		func(_ int, cmd redis.Cmder) error { return cmd.Err() }); err != nil {
		t.Fatal(err)
	}
}

// getAll reads them.
func getAll(ctx context.Context, c *redis.Client, keys int, who string) error {
	return pipelined(ctx, c, keys,
		func(p redis.Pipeliner, i int) { p.Get(ctx, fmt.Sprint("key ", i)) },
		func(i int, cmd redis.Cmder) error {
			if got, err := cmd.(*redis.StringCmd).Result(); err != nil || got != described(i, who) {
				return fmt.Errorf("key %d is %.20q, %w, want that of %s", i, got, err, who)
			}
			return nil
		})
}

// TestAServerReadsInPlaceUntilItIsSuperseded: a durable server of a heap in the memory of nodes on its machine reads in place what
// is far. It is stopped, another one takes over, writes everything anew, and the first goes on: it answers nothing of what it
// has mapped, old or new.
func TestAServerReadsInPlaceUntilItIsSuperseded(t *testing.T) {
	t.Parallel()      // it waits for leases to end
	const keys = 4000 // 16 MiB, of which 4 are local
	ctx := t.Context()
	witnesses := startWitnesses(t)
	_, far := startNodesInPlace(t, 3)
	first := startDoomed(t, named(far, witnesses, "--durable")...)
	c := connect(t, first)
	setAll(t, c, keys, "first")
	all, before := readsAt(t, first, "")
	if err := getAll(ctx, c, keys, "first"); err != nil {
		t.Fatal(err)
	}
	now, inPlace := readsAt(t, first, "")
	// A READ brings several values that lie side by side.
	if over := now - all - (inPlace - before); inPlace-before < keys/40 || over > keys/100 {
		t.Errorf("%d values were read, with %d READs in place and %d over TCP: want most of them in place", keys, inPlace-before, over)
	}

	ready := startStandby(t, "serve", "127.0.0.1:0", named(far, witnesses, "--durable"))
	conn := c.Conn() // it is open when the server is stopped
	defer conn.Close()
	if err := conn.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	second := replaced(t, first, ready)
	c2 := connect(t, second)
	if err := getAll(ctx, c2, keys, "first"); err != nil {
		t.Fatal(err)
	}
	if _, inPlace := readsAt(t, second, ""); inPlace == 0 {
		t.Error("the server that has taken over reads nothing in place")
	}
	setAll(t, c2, keys, "other")

	// The first one finds requests when it goes on.
	stale := make(chan error, 1)
	go func() {
		p := conn.Pipeline()
		for i := range keys {
			p.Get(ctx, fmt.Sprint("key ", i))
		}
		cmds, _ := p.Exec(ctx)
		for i, cmd := range cmds {
			if got, err := cmd.(*redis.StringCmd).Result(); err == nil {
				stale <- fmt.Errorf("it answered that key %d is %.20q", i, got)
				return
			}
		}
		stale <- nil
	}()
	time.Sleep(50 * time.Millisecond) // they are in the socket, or come a little later
	if err := first.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := <-stale; err != nil {
		t.Errorf("a server that was superseded: %v", err)
	}
	select {
	case <-first.Done():
	case <-time.After(hang):
		t.Error("a server that was superseded goes on")
	}
	if err := getAll(ctx, c2, keys, "other"); err != nil {
		t.Error(err)
	}
}

// TestANodeIsKilledWhileItIsReadInPlace: whoever reads finds its memory where it was, or the other copy; nobody faults, and nobody
// is answered anything wrong.
func TestANodeIsKilledWhileItIsReadInPlace(t *testing.T) {
	t.Parallel()
	const keys = 4000
	nodes, far := startNodesInPlace(t, 3)
	server := startServer(t, far, "4MiB", "--copies", "2")
	c := connect(t, server)
	setAll(t, c, keys, "first")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var rounds atomic.Int64
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := getAll(ctx, c, keys, "first"); err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
					cancel()
					return
				}
				rounds.Add(1)
			}
		})
	}
	after := func(n int64) {
		t.Helper()
		until := rounds.Load() + n
		proctest.Until(t, "all was read", func() bool { return rounds.Load() >= until || ctx.Err() != nil })
	}
	after(3)
	for _, n := range nodes {
		if _, inPlace := readsAt(t, server, n.Addr("verbs")); inPlace == 0 {
			t.Errorf("nothing was read in place at %s", n.Addr("verbs"))
		}
	}
	nodes[0].Kill()
	<-nodes[0].Done()
	after(6)
	gone, _ := readsAt(t, server, nodes[0].Addr("verbs"))
	after(3)
	if now, _ := readsAt(t, server, nodes[0].Addr("verbs")); now != gone {
		t.Errorf("%d READs at a node that was killed", now-gone)
	}
	cancel()
	wg.Wait()
	select {
	case <-server.Done():
		t.Fatalf("the server has ended: %s", server.Stderr())
	default:
	}
}
