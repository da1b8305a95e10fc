package daemon

import (
	"context"
	"testing"
	"time"

	"polder/internal/operator"
)

// TestAServerUsesSmallChunks: several of a node's chunks make one of the heap's
// segments.
func TestAServerUsesSmallChunks(t *testing.T) {
	_, ready := start(t, func(ctx context.Context, c *operator.Control) error {
		return RunNode(ctx, NodeConfig{Control: c, Listen: []string{"127.0.0.1:0"}, Lend: 64 << 20, Chunk: 64 << 10, Grace: time.Second})
	})
	verbs := address(t, ready, ServiceVerbs)
	_, ready = start(t, func(ctx context.Context, c *operator.Control) error {
		cfg := DefaultServe()
		cfg.Control, cfg.Listen, cfg.Local, cfg.Far = c, "127.0.0.1:0", 8<<20, []string{verbs}
		return RunServe(ctx, cfg)
	})
	setAndGet(t, address(t, ready, ServiceRedis))
}
