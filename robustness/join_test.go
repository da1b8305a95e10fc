package robustness

import (
	"sync"
	"sync/atomic"
	"testing"

	"polder/internal/child"
	"polder/internal/proctest"
	"polder/internal/testdns"
)

// A server borrows from the nodes that a name in the DNS has: one node after the other joins, gets a copy of
// everything, and the one before it is killed. Clients are told of no error, and nothing is lost. While the name
// server does not answer, the server goes on with the nodes that it knows.
func TestNodesJoinAsTheDirectoryNamesThem(t *testing.T) {
	const workers, keys = 2, 1500
	dns := testdns.New(t)
	start := func() *child.Process { return startNode(t, "256MiB", "--grace", "2s") }
	node := start()
	dns.Set(node.Addr("verbs"))
	server := startServer(t, "dns://"+dns.Addr+"/nodes.test", "4MiB", "--repair-after", "2s")
	metric := func(name string) int64 { return proctest.State(t, server).Metrics.Int("polder_copies_" + name) }
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var done, slowest atomic.Int64
	failed := make(chan error, workers)
	end := sync.OnceFunc(func() { close(stop); wg.Wait() })
	defer end()
	for w := range workers {
		wg.Go(func() {
			if err := copiesLoad(t.Context(), connect(t, server), w, keys, stop, &done, &slowest); err != nil {
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
	until("much is far, in one copy", func() bool { return metric("segments") > 8 && metric("endangered_segments") > 8 })
	for range 2 {
		next := start()
		dns.Set(node.Addr("verbs"), next.Addr("verbs"))
		until("everything has two copies", func() bool { return metric("endangered_segments") == 0 })
		dns.Set(next.Addr("verbs"))
		node.Kill()
		proceed(200)
		node = next
	}
	dns.Mute(true)
	proceed(2000)
	end()
	select {
	case err := <-failed:
		t.Fatal(err)
	default:
	}
	if s := statusOf(t, server); s.Heap.Lost != 0 || s.Redis.Lost != 0 || metric("lost_segments_total") != 0 {
		t.Errorf("%d segments, %d entries were lost", s.Heap.Lost, s.Redis.Lost)
	}
}
