package robustness

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"polder/internal/proctest"
	"polder/internal/testaddr"
)

// TestTheServerOutlivesItsNode kills the node under load. Until another one
// is there, requests that need it fail with an error that says so, and local
// keys are served; afterwards the server goes on, and what was lost is
// reported as lost, and counted, and never wrong bytes.
func TestTheServerOutlivesItsNode(t *testing.T) {
	t.Parallel()
	const (
		keys = 4000 // 32 MiB, four times the budget
		size = 8 << 10
		hot  = 50
	)
	node := startNode(t, "256MiB", "--grace", "2s", "--listen", testaddr.Host()+":0")
	addr := node.Addr("verbs")
	server := startServer(t, addr, "8MiB", "--op-timeout", "3s")
	client := connect(t, server)
	ctx := context.Background()
	cold := func(i int) string { return fmt.Sprintf("cold:%d", i) }
	warm := func(i int) string { return fmt.Sprintf("hot:%d", i) }

	if err := pipelined(ctx, client, keys, func(p redis.Pipeliner, i int) { p.Set(ctx, cold(i), value(cold(i), 1, size), 0) },
		func(_ int, cmd redis.Cmder) error { return cmd.Err() }); err != nil {
		t.Fatal(err)
	}

	// The load: readers of everything, and one of a few keys that stay local.
	var served, refused, local, wrong atomic.Int64
	var firstWrong atomic.Pointer[string]
	stop := make(chan struct{})
	var wg sync.WaitGroup
	read := func(key string, n *atomic.Int64) error {
		got, err := client.Get(ctx, key).Result()
		switch {
		case err == nil && got == value(key, 1, size):
			n.Add(1)
		case refusal(err) == "LOST" || refusal(err) == "TRYAGAIN":
			refused.Add(1)
		case err == nil || errors.Is(err, redis.Nil) || refusal(err) != "":
			wrong.Add(1)
			what := fmt.Sprintf("%s: %d bytes, %v", key, len(got), err)
			firstWrong.CompareAndSwap(nil, &what)
		default:
			return fmt.Errorf("GET %s: %w", key, err) // the connection, or a hang
		}
		return nil
	}
	failed := make(chan error, 8)
	reader := func(name func(int) string, among, from int, n *atomic.Int64) {
		for i := from; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := read(name(i%among), n); err != nil {
				failed <- err
				return
			}
		}
	}
	for i := range hot {
		if err := client.Set(ctx, warm(i), value(warm(i), 1, size), 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for w := range 4 {
		wg.Go(func() { reader(cold, keys, w*keys/4, &served) })
	}
	wg.Go(func() { reader(warm, hot, 0, &local) })
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

	until("the load is under way", func() bool { return served.Load() > 200 && local.Load() > 200 })
	node.Kill()
	refused.Store(0)
	localBefore := local.Load()
	until("requests are refused and local keys served", func() bool { return refused.Load() > 50 && local.Load() > localBefore+200 })

	// Another node at the same address, which knows nothing.
	proctest.Start(t, "node", "--lend", "256MiB", "--client-budget", "0", "--listen", addr)
	fresh := func(i int) string { return fmt.Sprintf("fresh:%d", i) }
	stored := make([]bool, keys)
	until("the server stores more than its budget again", func() bool {
		all := true
		if err := pipelined(ctx, client, keys, func(p redis.Pipeliner, i int) { p.Set(ctx, fresh(i), value(fresh(i), 1, size), 0) },
			func(i int, cmd redis.Cmder) error {
				if stored[i] = cmd.Err() == nil; !stored[i] {
					all = false
					if r := refusal(cmd.Err()); r != "OOM" && r != "TRYAGAIN" {
						return cmd.Err()
					}
				}
				return nil
			}); err != nil {
			t.Fatal(err)
		}
		return all
	})
	close(stop)
	wg.Wait()
	if n := wrong.Load(); n > 0 {
		t.Errorf("%d replies were neither right nor an error about far memory, such as %s", n, *firstWrong.Load())
	}

	// What was stored since is there; of what was stored before, each key is
	// there or lost.
	if err := pipelined(ctx, client, keys, func(p redis.Pipeliner, i int) { p.Get(ctx, fresh(i)) },
		func(i int, cmd redis.Cmder) error {
			if got, err := cmd.(*redis.StringCmd).Result(); err != nil || got != value(fresh(i), 1, size) {
				return fmt.Errorf("%s: got %d bytes, %v", fresh(i), len(got), err)
			}
			return nil
		}); err != nil {
		t.Error(err)
	}
	lost := 0
	if err := pipelined(ctx, client, keys, func(p redis.Pipeliner, i int) { p.Get(ctx, cold(i)) },
		func(i int, cmd redis.Cmder) error {
			got, err := cmd.(*redis.StringCmd).Result()
			if refusal(err) == "LOST" {
				lost++
			} else if err != nil || got != value(cold(i), 1, size) {
				return fmt.Errorf("%s: got %d bytes, %v", cold(i), len(got), err)
			}
			return nil
		}); err != nil {
		t.Error(err)
	}
	if lost == 0 {
		t.Error("nothing is reported as lost, although the node held three quarters of the keys")
	}
	s := statusOf(t, server)
	if s.Heap.Lost < int64(lost) || s.Redis.Lost < int64(lost) || s.Heap.Corrupt != 0 {
		t.Errorf("the server counts %d lost entries, %d LOST replies and %d corrupt reads; want at least %d of the first two, and none",
			s.Heap.Lost, s.Redis.Lost, s.Heap.Corrupt, lost)
	}
	t.Logf("%d of %d keys were lost", lost, keys)

	// A lost key can be set and deleted.
	for i := range 20 {
		if err := client.Set(ctx, cold(i), "again", 0).Err(); err != nil {
			t.Errorf("setting %s again: %v", cold(i), err)
		}
		if n, err := client.Del(ctx, cold(i)).Result(); err != nil || n != 1 {
			t.Errorf("deleting %s: %d, %v", cold(i), n, err)
		}
	}
}

// TestTheNodeOutlivesItsClient kills a server: the node has its memory back
// when the grace period is over.
func TestTheNodeOutlivesItsClient(t *testing.T) {
	t.Parallel()
	node := startNode(t, "128MiB", "--grace", "500ms")
	server := startServer(t, node.Addr("verbs"), "8MiB")
	client := connect(t, server)
	ctx := context.Background()
	const keys, size = 4000, 8 << 10
	if err := pipelined(ctx, client, keys, func(p redis.Pipeliner, i int) {
		k := fmt.Sprint("key:", i)
		p.Set(ctx, k, value(k, 1, size), 0)
	}, func(_ int, cmd redis.Cmder) error { return cmd.Err() }); err != nil {
		t.Fatal(err)
	}
	before := statusOf(t, node).Node
	if before.Lent < 16 || before.Clients != 1 {
		t.Fatalf("the node has lent %d chunks to %d clients, want at least 16 to 1", before.Lent, before.Clients)
	}
	full, err := node.Resident()
	if err != nil {
		t.Fatal(err)
	}
	server.Kill()
	proctest.Until(t, "the node has all its chunks back", func() bool {
		s := statusOf(t, node).Node
		return s.Lent == 0 && s.Clients == 0 && s.Sessions == 0
	})
	proctest.Until(t, "the operating system has the memory back", func() bool {
		n, err := node.Resident()
		if err != nil {
			t.Fatal(err)
		}
		return n < full-16*mib
	})

	// And it lends to the next one.
	next := startServer(t, node.Addr("verbs"), "8MiB")
	if err := pipelined(ctx, connect(t, next), keys, func(p redis.Pipeliner, i int) {
		k := fmt.Sprint("key:", i)
		p.Set(ctx, k, value(k, 2, size), 0)
	}, func(_ int, cmd redis.Cmder) error { return cmd.Err() }); err != nil {
		t.Fatal(err)
	}
}

// TestTheServerEndsWithoutItsNode stops a server whose node is gone for good,
// or hangs: there is nobody to give memory back to, and it ends all the same.
func TestTheServerEndsWithoutItsNode(t *testing.T) {
	t.Parallel()
	for _, gone := range []struct {
		name string
		sig  syscall.Signal
	}{{"killed", syscall.SIGKILL}, {"hanging", syscall.SIGSTOP}} {
		t.Run(gone.name, func(t *testing.T) {
			node := startNode(t, "128MiB")
			t.Cleanup(node.Kill) // what hangs does not end of itself
			server := startServer(t, node.Addr("verbs"), "4MiB", "--op-timeout", "2s")
			client := connect(t, server)
			ctx := context.Background()
			var oldest []string
			if err := pipelined(ctx, client, 2000, func(p redis.Pipeliner, i int) {
				k := fmt.Sprint("key:", i)
				if i < 64 {
					oldest = append(oldest, k)
				}
				p.Set(ctx, k, value(k, 1, 8<<10), 0)
			}, func(_ int, cmd redis.Cmder) error { return cmd.Err() }); err != nil {
				t.Fatal(err)
			}
			if err := node.Signal(gone.sig); err != nil {
				t.Fatal(err)
			}
			if err := client.MGet(ctx, oldest...).Err(); refusal(err) != "TRYAGAIN" && refusal(err) != "LOST" {
				t.Errorf("a far key: got %v, want TRYAGAIN or LOST", err)
			}
			// Stop, which allows ten seconds, and its exit code.
			if err := server.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
}
