package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"polder/internal/console"
	"polder/internal/operator"
	"polder/memnode"
)

func TestNodeAndServeMeetAtASocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "node.sock")
	_, ready := start(t, func(ctx context.Context, c *operator.Control) error {
		return RunNode(ctx, NodeConfig{Control: c, Listen: []string{"unix:" + path}, Lend: 64 << 20, Chunk: 1 << 20, Grace: time.Second})
	})
	if got := address(t, ready, ServiceVerbs); got != "unix:"+path {
		t.Fatalf("it listens at %s", got)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("the socket: %v, %v, want only its owner to be let in", st.Mode(), err)
	}
	_, serveReady := start(t, func(ctx context.Context, c *operator.Control) error {
		cfg := DefaultServe()
		cfg.Control, cfg.Listen, cfg.Local, cfg.Far = c, "127.0.0.1:0", 8<<20, []string{"unix:" + path}
		return RunServe(ctx, cfg)
	})
	setAndGet(t, address(t, serveReady, ServiceRedis))
	s, err := console.Query(t.Context(), nil, "", address(t, ready, ServiceAdmin), 0)
	if err != nil || s.Metrics.Sum("polder_node_clients") != 1 {
		t.Errorf("got the status %+v, %v", s, err)
	}
}

func TestASocketWithoutANodeIsSaid(t *testing.T) {
	cfg := DefaultServe()
	cfg.Control = &operator.Control{Out: io.Discard, Logger: slog.New(slog.DiscardHandler)}
	cfg.Listen, cfg.Local, cfg.Far = "127.0.0.1:0", 8<<20, []string{"unix:/nonexistent"}
	cfg.FarWait = 0
	if err := RunServe(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), "is polder node running there?") {
		t.Errorf("got %v", err)
	}
}

// TestANodeInTwoPlaces: clients on this machine come to a socket and map what they
// borrow, those elsewhere come by TCP, and neither has the other's memory.
func TestANodeInTwoPlaces(t *testing.T) {
	path := "unix:" + filepath.Join(t.TempDir(), "node.sock")
	_, ready := start(t, func(ctx context.Context, c *operator.Control) error {
		return RunNode(ctx, NodeConfig{Control: c, Listen: []string{"127.0.0.1:0", path}, Lend: 128 << 20, Chunk: 1 << 20,
			Grace: time.Second, Manager: memnode.OneSided})
	})
	if got := address(t, ready, ServiceSocket); got != path {
		t.Fatalf("its socket is %s, want %s", got, path)
	}
	for i, far := range []string{address(t, ready, ServiceVerbs), path} {
		_, serveReady := start(t, func(ctx context.Context, c *operator.Control) error {
			cfg := DefaultServe()
			cfg.Control, cfg.Listen, cfg.Local, cfg.Far = c, "127.0.0.1:0", 8<<20, []string{far}
			if i == 0 {
				cfg.Manager = memnode.OneSided
			}
			return RunServe(ctx, cfg)
		})
		setAndGet(t, address(t, serveReady, ServiceRedis))
		s, err := console.Query(t.Context(), nil, "", address(t, ready, ServiceAdmin), 0)
		if err != nil || s.Metrics.Sum("polder_node_clients") != float64(i+1) || len(s.Clients) != i+1 || s.Metrics.Sum("polder_node_memory_bytes") != 128<<20 {
			t.Errorf("with a client at %s: got the status %+v, %v", far, s, err)
		}
		if m := get(t, "http://"+address(t, ready, ServiceAdmin)+"/metrics"); !strings.Contains(m, fmt.Sprintf("polder_node_clients %d\n", i+1)) {
			t.Errorf("the metrics do not show %d clients", i+1)
		}
	}
}

// TestServeWaitsForItsNode: services may be started in any order.
func TestServeWaitsForItsNode(t *testing.T) {
	path := "unix:" + filepath.Join(t.TempDir(), "node.sock")
	retried := make(chan struct{}, 1)
	said := slog.New(slog.NewTextHandler(writerFunc(func(b []byte) (int, error) {
		if strings.Contains(string(b), "no node answers yet") {
			select {
			case retried <- struct{}{}:
			default:
			}
		}
		return len(b), nil
	}), nil))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		// Only once serve has found nobody is there somebody to be found.
		select {
		case <-retried:
		case <-ctx.Done():
		}
		ended <- RunNode(ctx, NodeConfig{Control: &operator.Control{Out: io.Discard, Logger: slog.New(slog.DiscardHandler)},
			Listen: []string{path}, Lend: 64 << 20, Chunk: 1 << 20, Grace: time.Second})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the node ended with %v", err)
		}
	})
	_, ready := start(t, func(ctx context.Context, c *operator.Control) error {
		cfg := DefaultServe()
		cfg.Control, cfg.Listen, cfg.Local, cfg.Far = c, "127.0.0.1:0", 8<<20, []string{path}
		cfg.Logger = said
		return RunServe(ctx, cfg)
	})
	setAndGet(t, address(t, ready, ServiceRedis))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestUpDoesWithoutASocket: where none can be made, the node is called.
func TestUpDoesWithoutASocket(t *testing.T) {
	t.Setenv("TMPDIR", "/nonexistent")
	up := func(manager string) func(context.Context, *operator.Control) error {
		return func(ctx context.Context, c *operator.Control) error {
			cfg := UpConfig{ServeConfig: DefaultServe(), Node: NodeConfig{Lend: 64 << 20, Chunk: 1 << 20, Grace: time.Second}}
			cfg.Control, cfg.Listen, cfg.Local, cfg.Manager = c, "127.0.0.1:0", 8<<20, manager
			return RunUp(ctx, cfg)
		}
	}
	for _, manager := range []string{"", memnode.RPCMW} {
		_, ready := start(t, up(manager))
		setAndGet(t, address(t, ready, ServiceRedis))
	}
}
