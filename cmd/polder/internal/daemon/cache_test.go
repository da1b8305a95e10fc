package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/internal/console"
	"polder/internal/operator"
	"polder/soft/coordinator"
)

func startCache(t *testing.T, coordinator string) (said, ready string) {
	t.Helper()
	return start(t, func(ctx context.Context, c *operator.Control) error {
		cfg := DefaultCache()
		cfg.Control, cfg.Listen, cfg.Memcached, cfg.Coordinator = c, "127.0.0.1:0", "127.0.0.1:0", coordinator
		return RunCache(ctx, cfg)
	})
}

func TestACacheServesRedisAndMemcached(t *testing.T) {
	said, ready := startCache(t, "")
	for _, want := range []string{"a cache of 64MiB", address(t, ready, ServiceMemcached), "config get maxmemory"} {
		if !strings.Contains(said, want) {
			t.Errorf("it says nothing of %q:\n%s", want, said)
		}
	}
	setAndGet(t, address(t, ready, ServiceRedis))
	conn, err := net.Dial("tcp", address(t, ready, ServiceMemcached))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprint(conn, "get k\r\nset k 7 0 5\r\nhello\r\nget k\r\nmg k v f\r\n"); err != nil {
		t.Fatal(err)
	}
	want := "END\r\nSTORED\r\nVALUE k 7 5\r\nhello\r\nEND\r\nVA 5 f7\r\nhello\r\n"
	got := make([]byte, len(want))
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Errorf("memcached: got %q, %v, want %q", got, err, want)
	}

	s, err := console.Query(t.Context(), nil, "", address(t, ready, ServiceAdmin), 0)
	if err != nil {
		t.Fatal(err)
	}
	if s.Service != "serve" || s.Metrics.Sum("polder_soft_budget_bytes") != 64<<20 || s.Metrics.Sum("polder_resp_keys") != 1 || s.Metrics.Has("polder_far_local_bytes") {
		t.Errorf("got the status %+v", s)
	}
	var b strings.Builder
	if err := s.Print(&b); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "64 MiB, ") || !strings.Contains(b.String(), "hits") {
		t.Errorf("the status says nothing of the cache:\n%s", b.String())
	}
	metrics := get(t, "http://"+address(t, ready, ServiceAdmin)+"/metrics")
	for _, want := range []string{"polder_soft_budget_bytes 6.7108864e+07", "polder_resp_keys 1"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics have no %s", want)
		}
	}
	// It has no far memory, nobody who takes or rebuilds anything, no password and no
	// certificate: metrics of those would be 0 for ever.
	for _, not := range []string{
		"polder_resp_lost_replies_total", "polder_resp_timeout_replies_total", "polder_resp_fetches_total", "polder_resp_auth_failures_total", "polder_resp_idle_drops_total",
		"polder_soft_revoked_objects_total", "polder_soft_rebuilds_total", "polder_tls_certificate",
	} {
		if strings.Contains(metrics, not) {
			t.Errorf("the metrics have %s", not)
		}
	}
}

func TestACacheHasWhatTheCoordinatorGrants(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	c, err := coordinator.New(coordinator.Config{
		Socket: socket, Max: 128 << 20, Interval: 10 * time.Millisecond, Grace: time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	said, ready := startCache(t, socket)
	if !strings.Contains(said, "what the coordinator at "+socket+" grants") {
		t.Errorf("it says nothing of the coordinator:\n%s", said)
	}
	client := redis.NewClient(&redis.Options{Addr: address(t, ready, ServiceRedis)})
	defer func() { _ = client.Close() }()
	// Who uses what it has is given more.
	value := strings.Repeat("x", 64<<10)
	for i, deadline := 0, time.Now().Add(time.Minute); ; i++ {
		if err := client.Set(t.Context(), fmt.Sprint(i), value, 0).Err(); err != nil {
			t.Fatal(err)
		}
		m, err := client.ConfigGet(t.Context(), "maxmemory").Result()
		if err != nil {
			t.Fatal(err)
		}
		if m["maxmemory"] == "134217728" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %d MiB maxmemory is %s, want 134217728", i/16, m["maxmemory"])
		}
	}
	setAndGet(t, address(t, ready, ServiceRedis))
}
