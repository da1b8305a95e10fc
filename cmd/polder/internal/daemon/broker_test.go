package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"polder/internal/config"
	"polder/internal/console"
	"polder/internal/operator"
	"polder/pool/finemem"
)

// secretFile writes a secret with the given permissions.
func secretFile(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestServeBorrowsThroughABroker(t *testing.T) {
	secret := secretFile(t, strings.Repeat("5a", 32)+"\n", 0o600)
	_, ready := start(t, func(ctx context.Context, c *operator.Control) error {
		return RunNode(ctx, NodeConfig{Control: c, Listen: []string{"127.0.0.1:0"}, Lend: 64 << 20, Chunk: 256 << 10,
			Grace: time.Second, Manager: finemem.Name, SecretFile: secret})
	})
	node, nodeAdmin := address(t, ready, ServiceVerbs), address(t, ready, ServiceAdmin)
	socket := filepath.Join(t.TempDir(), "made", "broker.sock")
	_, ready = start(t, func(ctx context.Context, c *operator.Control) error {
		return RunBroker(ctx, BrokerConfig{Control: c, Listen: socket, Far: []string{node}, SecretFile: secret})
	})
	broker := address(t, ready, ServiceBroker)
	if broker != "broker:"+socket {
		t.Fatalf("it listens at %s", broker)
	}
	metrics := get(t, "http://"+address(t, ready, ServiceAdmin)+"/metrics")
	if !strings.Contains(metrics, "polder_broker_node_up{node=\""+node+"\"} 1") {
		t.Errorf("the metrics do not say that the node is up: %s", metrics)
	}
	_, serveReady := start(t, func(ctx context.Context, c *operator.Control) error {
		cfg := DefaultServe()
		cfg.Control, cfg.Listen, cfg.Local, cfg.Far = c, "127.0.0.1:0", 8<<20, []string{broker}
		return RunServe(ctx, cfg)
	})
	setAndGet(t, address(t, serveReady, ServiceRedis))
	s, err := console.Query(t.Context(), nil, "", address(t, ready, ServiceAdmin), 0)
	if err != nil || s.Metrics.Sum("polder_broker_applications") != 1 || s.Metrics.Sum("polder_broker_node_up") != 1 {
		t.Errorf("got the status %+v, %v", s, err)
	}
	var b strings.Builder
	if err := s.Print(&b); err != nil || !strings.Contains(b.String(), "1 applications of 1 users") {
		t.Errorf("it prints %q, %v", b.String(), err)
	}
	if s, err = console.Query(t.Context(), nil, "", nodeAdmin, 0); err != nil || s.Metrics.Sum("polder_node_clients") != 2 {
		t.Errorf("the node's status is %+v, %v", s, err)
	}
	// Without the secret, nobody allocates.
	cfg := DefaultServe()
	cfg.Control = &operator.Control{Out: io.Discard, Logger: slog.New(slog.DiscardHandler)}
	cfg.Listen, cfg.Local, cfg.Far, cfg.Manager = "127.0.0.1:0", 8<<20, []string{node}, finemem.Name
	if err := RunServe(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), "services that know the secret") {
		t.Errorf("a server that knows no secret: got %v", err)
	}
}

func TestWrongSecretFilesAreRefused(t *testing.T) {
	good := strings.Repeat("0f", 32)
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"mode 0600":              secretFile(t, good, 0o640),
		"64 hexadecimal digits":  secretFile(t, good+"0f", 0o600),
		"hexadecimal digits":     secretFile(t, strings.Repeat("xy", 32), 0o600),
		"not zeros":              secretFile(t, strings.Repeat("00", 32), 0o600),
		"cannot open":            filepath.Join(t.TempDir(), "none"),
		"expected a secret":      secretFile(t, "", 0o600),
		"expected a file of mod": t.TempDir(),
		"it has prw":             pipe,
	} {
		if _, err := readSecret(path); err == nil || !strings.Contains(err.Error(), name) || !errors.As(err, new(*config.Error)) {
			t.Errorf("got %v, want an error that says %q", err, name)
		}
	}
	if got, err := readSecret(secretFile(t, good+"\n", 0o400)); err != nil || got[0] != 0x0f {
		t.Errorf("got %x, %v", got, err)
	}
}

func TestWrongBrokerConfigurationsAreRefused(t *testing.T) {
	c := &operator.Control{Out: io.Discard, Logger: slog.New(slog.DiscardHandler)}
	for want, cfg := range map[string]BrokerConfig{
		"--far":                 {Listen: "/run/x"},
		"absolute path":         {Listen: "x", Far: []string{"127.0.0.1:1"}},
		"do not lend by":        {Listen: "/run/x", Far: []string{"unix:/y"}},
		"--service-secret-file": {Listen: "/run/x", Far: []string{"127.0.0.1:1"}, SecretFile: "/nonexistent"},
	} {
		cfg.Control = c
		if err := RunBroker(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), want) || !errors.As(err, new(*config.Error)) {
			t.Errorf("got %v, want an error that says %q", err, want)
		}
	}
	node := NodeConfig{Control: c, Listen: []string{"127.0.0.1:0"}, Lend: 1 << 20, Chunk: 4096, SecretFile: "/nonexistent"}
	if err := RunNode(context.Background(), node); !errors.As(err, new(*config.Error)) {
		t.Errorf("a secret without finemem: got %v", err)
	}
	serve := DefaultServe()
	serve.Control, serve.Listen = c, "127.0.0.1:0"
	for want, far := range map[string][]string{
		"a broker alone":                  {"broker:/a", "127.0.0.1:1"},
		"is polder broker running there?": {"broker:/nonexistent"},
	} {
		serve.Far = far
		if err := RunServe(context.Background(), serve); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error that says %q", err, want)
		}
	}
}
