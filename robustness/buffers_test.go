package robustness

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"polder/internal/proctest"
)

// greed is how a client makes the server hold memory for it.
var greed = []struct {
	name string
	send func(i int) string
}{
	{"pipelines of large replies", func(int) string { return strings.Repeat("GET large\r\n", 30) }},
	{"arguments that do not end", func(int) string {
		return "*2\r\n$4\r\nECHO\r\n$4194304\r\n" + noise[:3*mib]
	}},
	{"transactions", func(i int) string {
		return "MULTI\r\n" + strings.Repeat("*2\r\n$4\r\nECHO\r\n$65536\r\n"+noise[i:i+65536]+"\r\n", 32)
	}},
	{"many arguments", func(int) string { return "*1000000\r\n$4\r\nMSET\r\n" + strings.Repeat("$1\r\nk\r\n", 150_000) }},
	{"commands of many arguments", func(int) string {
		return strings.Repeat("*300001\r\n$6\r\nEXISTS\r\n"+strings.Repeat("$1\r\nk\r\n", 300_000), 3)
	}},
}

// TestManyGreedyClientsStayWithinTheBudget: hundreds of clients ask for far more
// than fits into buffers, and read a little of it now and then. The server's
// memory stays within its budget and 64 MiB, and others are served.
func TestManyGreedyClientsStayWithinTheBudget(t *testing.T) {
	const (
		local   = 16 * mib
		beside  = 64 * mib
		clients = 200
		size    = 1 * mib
	)
	node := startNode(t, "256MiB")
	for _, g := range greed {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			server := startServer(t, node.Addr("verbs"), "16MiB")
			client := connect(t, server)
			ctx := context.Background()
			if err := client.Set(ctx, "large", value("large", 1, size), 0).Err(); err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{}, clients)
			for i := range clients {
				conn, err := net.Dial("tcp", server.Addr("redis"))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() })
				_ = conn.SetDeadline(time.Now().Add(hang))
				go func() {
					defer func() { done <- struct{}{} }()
					go func() { _, _ = io.WriteString(conn, g.send(i)) }() // fails once the server has had enough
					b := make([]byte, 4<<10)
					for {
						if _, err := conn.Read(b); err != nil {
							return
						}
						time.Sleep(200 * time.Millisecond)
					}
				}()
			}
			var most int64
			waiting := clients
			for end := time.Now().Add(7 * time.Second); waiting > 0 && time.Now().Before(end); {
				if got, err := client.Get(ctx, "large").Result(); err != nil || len(got) != size {
					t.Fatalf("another client got %d bytes, %v", len(got), err)
				}
				n, err := server.Resident()
				if err != nil {
					t.Fatal(err)
				}
				if most = max(most, n); n > local+beside {
					t.Fatalf("the server has %d MiB resident, more than its budget of %d and %d MiB", n/mib, local/mib, beside/mib)
				}
				for pause := time.After(20 * time.Millisecond); waiting > 0 && pause != nil; { // the processors are for the greedy
					select {
					case <-done:
						waiting--
					case <-pause:
						pause = nil
					}
				}
			}
			var s status
			proctest.Until(t, "clients are disconnected for what they hold", func() bool {
				s = statusOf(t, server)
				return s.Redis.EvictedClients+s.Redis.OutputDrops > 0
			})
			info, err := client.Info(ctx, "memory", "stats").Result()
			for _, want := range []string{"mem_clients_normal:", "maxmemory_clients:16777216", "evicted_clients:"} {
				if err != nil || !strings.Contains(info, want) {
					t.Errorf("INFO says nothing of %s: %v", want, err)
				}
			}
			t.Logf("at most %d MiB resident; %d clients evicted, %d disconnected for not reading", most/mib, s.Redis.EvictedClients, s.Redis.OutputDrops)
			proctest.Until(t, "what clients hold is within --client-memory", func() bool {
				s := statusOf(t, server).Redis
				return s.ClientMemory <= s.MaxClientMemory
			})
		})
	}
}
