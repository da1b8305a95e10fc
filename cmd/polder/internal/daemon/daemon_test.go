package daemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"polder/internal/config"
	"polder/internal/console"
	"polder/internal/listen"
	"polder/internal/operator"
	"polder/internal/testcert"
	"polder/memnode/component"
	"polder/pool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a daemon until the test ends, and returns what it said and what
// it wrote to its ready file.
func start(t *testing.T, run func(context.Context, *operator.Control) error) (said, ready string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	ctx, cancel := context.WithCancel(context.Background())
	var b strings.Builder // not written to once the daemon is ready
	c := &operator.Control{
		Admin:     "127.0.0.1:0",
		ReadyFile: fmt.Sprintf("/dev/fd/%d", w.Fd()),
		Out:       &b,
		Logger:    slog.New(slog.DiscardHandler),
	}
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, c)
		_ = w.Close() // ends the read below if the daemon did not come up
	}()
	ready, err = bufio.NewReader(r).ReadString('\n')
	if err != nil {
		cancel()
		t.Fatal(<-ended)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("it ended with %v", err)
		}
	})
	return b.String(), ready
}

func address(t *testing.T, ready, service string) string {
	t.Helper()
	_, rest, ok := strings.Cut(ready, `"`+service+`":"`)
	addr, _, ok2 := strings.Cut(rest, `"`)
	if !ok || !ok2 {
		t.Fatalf("the ready file has no %s: %s", service, ready)
	}
	return addr
}

func get(t *testing.T, url string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func setAndGet(t *testing.T, addr string) {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = c.Close() }()
	ctx := context.Background()
	if err := c.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if v, err := c.Get(ctx, "k").Result(); err != nil || v != "v" {
		t.Errorf("got %q, %v", v, err)
	}
	lines, err := c.Do(ctx, "POLDER", "STATS").Result()
	if err != nil || lines == nil {
		t.Errorf("POLDER STATS: %v, %v", lines, err)
	}
}

// TestUpRunsAndEnds starts everything in this process; goleak sees to it that
// nothing is left.
func TestUpRunsAndEnds(t *testing.T) {
	said, ready := start(t, func(ctx context.Context, c *operator.Control) error {
		cfg := UpConfig{ServeConfig: DefaultServe(), Node: NodeConfig{Lend: 64 << 20, Chunk: 1 << 20, Grace: time.Second}}
		cfg.Control, cfg.Listen, cfg.Local = c, "127.0.0.1:0", 8<<20
		return RunUp(ctx, cfg)
	})
	addr := address(t, ready, ServiceRedis)
	for _, want := range []string{"8MiB local, 64MiB far", addr, "redis-cli -p ", "get greeting", "/  (console; /metrics, /status"} {
		if !strings.Contains(said, want) {
			t.Errorf("it says nothing of %q:\n%s", want, said)
		}
	}
	setAndGet(t, addr)

	s, err := console.Query(t.Context(), nil, "", address(t, ready, ServiceAdmin), 0)
	if err != nil {
		t.Fatal(err)
	}
	if m := s.Metrics; s.Service != "up" || !m.Has("polder_node_memory_bytes") || !m.Has("polder_far_local_bytes") || m.Sum("polder_pool_node_up") != 1 || m.Sum("polder_resp_keys") != 1 {
		t.Errorf("got the status %+v", s)
	}
	metrics := get(t, "http://"+address(t, ready, ServiceAdmin)+"/metrics")
	for _, want := range []string{
		"polder_far_local_budget_bytes 8.388608e+06", `polder_far_sets_total{map="keys"} 1`,
		`polder_node_memory_bytes{use="free"}`, `polder_pool_node_up{node="this process"} 1`, "polder_resp_keys 1",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics have no %s", want)
		}
	}
	if health := get(t, "http://"+address(t, ready, ServiceAdmin)+"/healthz"); health != "ok\n" {
		t.Errorf("its health is %q", health)
	}
	var b strings.Builder
	if err := s.Print(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"polder up, process ", "of 64 MiB, in chunks of 1 MiB", "this process: up"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the status has no %q:\n%s", want, b.String())
		}
	}
}

func TestNodeAndServeRunAndEnd(t *testing.T) {
	_, ready := start(t, func(ctx context.Context, c *operator.Control) error {
		return RunNode(ctx, NodeConfig{Control: c, Listen: []string{"127.0.0.1:0"}, Lend: 64 << 20, Chunk: 1 << 20, Grace: time.Second})
	})
	verbs := address(t, ready, ServiceVerbs)
	nodeAdmin := address(t, ready, ServiceAdmin)
	_, ready = start(t, func(ctx context.Context, c *operator.Control) error {
		cfg := DefaultServe()
		cfg.Control, cfg.Listen, cfg.Local, cfg.Far = c, "127.0.0.1:0", 8<<20, []string{verbs}
		return RunServe(ctx, cfg)
	})
	setAndGet(t, address(t, ready, ServiceRedis))
	s, err := console.Query(t.Context(), nil, "", nodeAdmin, 0)
	if err != nil || s.Service != "node" || s.Metrics.Sum("polder_node_clients") != 1 || s.Metrics.Has("polder_far_local_bytes") {
		t.Errorf("got the status %+v, %v", s, err)
	}
}

// TestADaemonThatCannotStartLeavesNothing: goleak looks, and the addresses
// can be used again.
func TestADaemonThatCannotStartLeavesNothing(t *testing.T) {
	c := &operator.Control{Admin: "127.0.0.1:0", Out: io.Discard, Logger: slog.New(slog.DiscardHandler)}
	node := NodeConfig{Control: c, Listen: []string{"127.0.0.1:0"}, Lend: 1 << 20, Chunk: 2 << 20, Grace: time.Second}
	if err := RunNode(context.Background(), node); !errors.As(err, new(*config.Error)) {
		t.Errorf("a chunk larger than what is lent: got %v", err)
	}
	node = NodeConfig{Control: c, Listen: []string{"127.0.0.1:0", "unix:" + filepath.Join(t.TempDir(), "node.sock")},
		Lend: 64 << 20, Chunk: 1 << 20, Grace: time.Second}
	for _, memory := range []int64{12 << 20, 63 << 20} { // each half needs 8 MiB, and leaves a chunk
		node.Components = component.Config{Memory: memory, ClientMemory: 8 << 20}
		var wrong *config.Error
		if err := RunNode(context.Background(), node); !errors.As(err, &wrong) || wrong.Source != "--component-memory" {
			t.Errorf("two kinds of address, and %d bytes for components: got %v", memory, err)
		}
	}
	for source, spoil := range map[string]func(*UpConfig){
		"--component-memory": func(u *UpConfig) { u.Node.Components.Memory = 16 << 20 },
		"--node-listen":      func(u *UpConfig) { u.NodeListen, u.Far = "unix:/nowhere", []string{"127.0.0.1:1"} },
		"--manager":          func(u *UpConfig) { u.NodeListen, u.Manager = "unix:/nowhere", "rpcmw" },
	} {
		up := UpConfig{ServeConfig: DefaultServe(), Node: NodeConfig{Lend: 64 << 20, Chunk: 1 << 20, Grace: time.Second}}
		up.Control = c
		spoil(&up)
		var wrong *config.Error
		if err := RunUp(context.Background(), up); !errors.As(err, &wrong) || wrong.Source != source {
			t.Errorf("got %v, want an error of %s", err, source)
		}
	}
	serve := DefaultServe()
	serve.Control, serve.Listen, serve.Far = c, "127.0.0.1:0", []string{"127.0.0.1:1"}
	serve.Device = "mlx5_0"
	if err := RunServe(context.Background(), serve); !errors.As(err, new(*config.Error)) {
		t.Errorf("an RDMA device without RDMA: got %v", err)
	}
	serve.Device, serve.FarWait = "", 0
	if err := RunServe(context.Background(), serve); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("a node that is not there: got %v", err)
	}
	serve.ReadyFile = "/nonexistent/ready"
	up := UpConfig{ServeConfig: serve, Node: NodeConfig{Control: c, Lend: 64 << 20, Chunk: 2 << 20, Grace: time.Second}}
	up.Far = nil
	if err := RunUp(context.Background(), up); err == nil || !strings.Contains(err.Error(), "ready file") {
		t.Errorf("a ready file that cannot be written: got %v", err)
	}
}

func TestTheHintIsACommandThatWorks(t *testing.T) {
	a := testcert.NewAuthority(t, "clients")
	var files listen.Files
	files.Cert, files.Key = a.Issue(t, "server")
	files.CA[listen.Client] = a.File
	certs, err := listen.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		addr     string
		security listen.Security
		want     string
	}{
		{"127.0.0.1:6379", listen.Security{}, "redis-cli"},
		{"127.0.0.1:7000", listen.Security{}, "redis-cli -p 7000"},
		{"[::]:6379", listen.Security{}, "redis-cli"},
		{"192.0.2.1:6379", listen.Security{}, "redis-cli -h 192.0.2.1"},
		{"127.0.0.1:6379", listen.Security{Certificates: certs}, "redis-cli --tls --cert CERT --key KEY --cacert AUTHORITY"},
	} {
		p := newProcess("up", &operator.Control{Security: tt.security})
		if got := p.redisCLI(tt.addr); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.addr, got, tt.want)
		}
	}
}

// TestEveryManager: a heap works over every way of managing memory.
func TestEveryManager(t *testing.T) {
	for _, name := range pool.Managers() {
		t.Run(name, func(t *testing.T) {
			_, ready := start(t, func(ctx context.Context, c *operator.Control) error {
				return RunNode(ctx, NodeConfig{Control: c, Listen: []string{"127.0.0.1:0"}, Lend: 64 << 20, Chunk: 1 << 20, Grace: time.Second, Manager: name})
			})
			verbs := address(t, ready, ServiceVerbs)
			_, ready = start(t, func(ctx context.Context, c *operator.Control) error {
				cfg := DefaultServe()
				cfg.Control, cfg.Listen, cfg.Local, cfg.Far, cfg.Manager = c, "127.0.0.1:0", 8<<20, []string{verbs}, name
				return RunServe(ctx, cfg)
			})
			setAndGet(t, address(t, ready, ServiceRedis))
			_, ready = start(t, func(ctx context.Context, c *operator.Control) error {
				cfg := UpConfig{ServeConfig: DefaultServe(), Node: NodeConfig{Lend: 64 << 20, Chunk: 1 << 20, Grace: time.Second}}
				cfg.Control, cfg.Listen, cfg.Local, cfg.Manager = c, "127.0.0.1:0", 8<<20, name
				return RunUp(ctx, cfg)
			})
			setAndGet(t, address(t, ready, ServiceRedis))
		})
	}
}

// TestWhereOthersReachAServer: at the address that it listens at, or if that is every one at one from which it reaches others.
func TestWhereOthersReachAServer(t *testing.T) {
	for _, c := range []struct {
		lis   string
		peers []string
		want  string
	}{
		{"127.0.0.1:6379", []string{"127.0.0.2:7060"}, "127.0.0.1:6379"},
		{"[::1]:6379", nil, "[::1]:6379"},
		{"host:6379", nil, "host:6379"},
		{"unix:/run/s", []string{"127.0.0.1:7060"}, "unix:/run/s"},
		{"0.0.0.0:6379", []string{"unix:/run/w", "127.0.0.1:7060"}, "127.0.0.1:6379"},
		{"[::]:6379", []string{"127.0.0.1:7060"}, "127.0.0.1:6379"},
		{"0.0.0.0:6379", []string{"unix:/run/w"}, "0.0.0.0:6379"},
	} {
		if got := reachedAt(c.lis, c.peers); got != c.want {
			t.Errorf("who listens at %s and reaches %q is reached at %s, want %s", c.lis, c.peers, got, c.want)
		}
	}
}
