package daemon

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"polder/internal/operator"
)

// TestChunksThatAreTooSmallAreRefused: what would have to be changed, and where.
func TestChunksThatAreTooSmallAreRefused(t *testing.T) {
	_, ready := start(t, func(ctx context.Context, c *operator.Control) error {
		return RunNode(ctx, NodeConfig{Control: c, Listen: []string{"127.0.0.1:0"}, Lend: 1 << 20, Chunk: 64 << 10, Grace: time.Second})
	})
	serve := DefaultServe()
	serve.Control = &operator.Control{Admin: "127.0.0.1:0", Out: io.Discard, Logger: slog.New(slog.DiscardHandler)}
	serve.Listen = "127.0.0.1:0"
	serve.Far = []string{address(t, ready, ServiceVerbs)}
	if err := RunServe(t.Context(), serve); err == nil || !strings.Contains(err.Error(), "--chunk") {
		t.Errorf("got %v, want an error that names --chunk", err)
	}
}
