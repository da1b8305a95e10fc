package resp

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"polder/partition"
	"polder/resp/forward"
)

// subscriber subscribes to news, and to a pattern that matches it.
func subscriber(t *testing.T, addr string) *client {
	t.Helper()
	cl := dial(t, addr)
	cl.send(encode("SUBSCRIBE", "news") + encode("PSUBSCRIBE", "n*"))
	for range 2 {
		cl.recv()
	}
	return cl
}

// TestAMessageReachesSubscribersAtAllServers, in the order in which a client has published it, once by each subscription; the reply counts those at the
// server that was asked.
func TestAMessageReachesSubscribersAtAllServers(t *testing.T) {
	c := startCluster(t, 3, 3, roomy/8)
	m := *c.now.Load() // two servers have just been started again
	m.Servers = slices.Concat([]partition.Server{{ID: clusterID(-1), Addr: c.addrs[0]}}, m.Servers, []partition.Server{{ID: clusterID(8), Addr: c.addrs[2]}})
	c.now.Store(&m)
	const messages = 600
	var subs []*client
	for _, addr := range c.addrs {
		subs = append(subs, subscriber(t, addr))
	}
	for i, addr := range c.addrs[:2] {
		var b strings.Builder
		for n := range messages {
			if n%10 == 9 { // in a transaction as without
				b.WriteString(encode("MULTI") + encode("PUBLISH", "news", fmt.Sprint(i, " ", n)) + encode("EXEC"))
			} else {
				b.WriteString(encode("PUBLISH", "news", fmt.Sprint(i, " ", n)))
			}
		}
		cl := dial(t, addr)
		cl.send(b.String())
		for n := range messages {
			want := ":2"
			if n%10 == 9 {
				cl.recv()
				cl.recv()
				want = "[:2]"
			}
			if got := cl.recv().String(); got != want {
				t.Fatalf("message %d: %s, want %s", n, got, want)
			}
		}
	}
	for at, cl := range subs {
		next := map[string]int{}
		for range 2 * 2 * messages {
			m := cl.recv().elems
			var from, n int
			if _, err := fmt.Sscanf(m[len(m)-1].bulk, "%d %d", &from, &n); err != nil {
				t.Fatalf("server %d: %v", at, m)
			}
			of := fmt.Sprint(m[0].bulk, from)
			if n != next[of] {
				t.Fatalf("server %d: %s %d of server %d, want %d", at, m[0].bulk, n, from, next[of])
			}
			next[of]++
		}
	}
	for i, srv := range c.servers {
		if n := srv.Stats().Untold; n > 0 {
			t.Errorf("server %d has not told %d messages", i, n)
		}
	}
}

// TestAServerThatIsNotToldHoldsNobodyUp: who publishes does not wait for one that does not answer, what is kept for it is bounded, and others are told.
func TestAServerThatIsNotToldHoldsNobodyUp(t *testing.T) {
	var away atomic.Value
	c := startClusterOver(t, 3, 3, roomy/8, Config{}, forward.Config{Dial: func(ctx context.Context, addr string) (net.Conn, error) {
		if addr == away.Load() {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}})
	away.Store(c.addrs[2])
	sub, cl := subscriber(t, c.addrs[1]), dial(t, c.addrs[0])
	began := time.Now()
	message := strings.Repeat("m", 100_000)
	for n := range 12 << 20 / len(message) {
		if got := cl.do("PUBLISH", "news", message).String(); got != ":0" {
			t.Fatalf("message %d: %s", n, got)
		}
		for range 2 {
			if m := sub.recv().elems; m[len(m)-1].bulk != message {
				t.Fatalf("message %d: %.50q", n, m[len(m)-1].bulk)
			}
		}
	}
	if took := time.Since(began); took > testTimeout/2 {
		t.Errorf("publishing has taken %v", took)
	}
	if n := c.servers[0].Stats().Untold; n == 0 {
		t.Error("of what it was not told nothing is counted")
	}
}
