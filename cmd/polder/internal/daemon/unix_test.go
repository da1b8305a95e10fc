package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"polder/internal/config"
	"polder/memnode"
)

func TestNodeAndServeMeetAtASocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "node.sock")
	_, ready := start(t, func(ctx context.Context, c Common) error {
		return RunNode(ctx, NodeConfig{Common: c, Listen: "unix:" + path, Lend: 64 << 20, Chunk: 1 << 20, Grace: time.Second})
	})
	if got := address(t, ready, ServiceVerbs); got != "unix:"+path {
		t.Fatalf("it listens at %s", got)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("the socket: %v, %v, want only its owner to be let in", st.Mode(), err)
	}
	_, serveReady := start(t, func(ctx context.Context, c Common) error {
		cfg := DefaultServe()
		cfg.Common, cfg.Listen, cfg.Local, cfg.Far = c, "127.0.0.1:0", 8<<20, []string{"unix:" + path}
		return RunServe(ctx, cfg)
	})
	setAndGet(t, address(t, serveReady, ServiceRedis))
	s, err := Query(context.Background(), nil, address(t, ready, ServiceAdmin))
	if err != nil || s.Node == nil || s.Node.Clients != 1 {
		t.Errorf("got the status %+v, %v", s, err)
	}
}

func TestNodesAtSocketsAndOthersAreNotMixed(t *testing.T) {
	cfg := DefaultServe()
	cfg.Common = Common{Out: io.Discard, Logger: slog.New(slog.DiscardHandler)}
	cfg.Listen, cfg.Local, cfg.Far = "127.0.0.1:0", 8<<20, []string{"127.0.0.1:1", "unix:/nonexistent"}
	if err := RunServe(context.Background(), cfg); !errors.As(err, new(*config.Error)) {
		t.Errorf("got %v", err)
	}
	cfg.Far = cfg.Far[1:]
	if err := RunServe(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), "is polder node running there?") {
		t.Errorf("a socket that is not there: got %v", err)
	}
}

func TestANodeAtASocketLendsInPlace(t *testing.T) {
	for addr, want := range map[string]string{"127.0.0.1:7070": "", "unix:/run/polder/node.sock": memnode.MemFD} {
		if got := (&NodeConfig{Listen: addr}).memnode().Manager; got != want {
			t.Errorf("at %s it manages memory by %q, want %q", addr, got, want)
		}
	}
}

// TestUpDoesWithoutASocket: where none can be made, the node is called.
func TestUpDoesWithoutASocket(t *testing.T) {
	t.Setenv("TMPDIR", "/nonexistent")
	up := func(manager string) func(context.Context, Common) error {
		return func(ctx context.Context, c Common) error {
			cfg := UpConfig{ServeConfig: DefaultServe(), Node: NodeConfig{Lend: 64 << 20, Chunk: 1 << 20, Grace: time.Second}}
			cfg.Common, cfg.Listen, cfg.Local, cfg.Manager = c, "127.0.0.1:0", 8<<20, manager
			return RunUp(ctx, cfg)
		}
	}
	for _, manager := range []string{"", memnode.RPCMW} {
		_, ready := start(t, up(manager))
		setAndGet(t, address(t, ready, ServiceRedis))
	}
}
