package robustness

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"polder/internal/proctest"
)

// TestServersDieThatAllocateByThemselves kills servers whose memory is managed by
// FineMem, one after the other, while they fill the node, and another one beside
// them lives on. What the dead had comes back to the node, which each of them could
// have filled alone, and the living one reads what it wrote.
func TestServersDieThatAllocateByThemselves(t *testing.T) {
	t.Parallel()
	const (
		size   = 8 << 10
		mine   = 2000 // 16 MiB
		theirs = 3000 // 24 MiB
	)
	node := startNode(t, "64MiB", "--manager", "finemem", "--chunk", "256KiB", "--grace", "200ms")
	server := startServer(t, node.Addr("verbs"), "8MiB", "--manager", "finemem")
	client := connect(t, server)
	ctx := context.Background()
	key := func(i int) string { return fmt.Sprintf("key:%d", i) }
	fill := func(c *redis.Client, n int) {
		t.Helper()
		err := pipelined(ctx, c, n, func(p redis.Pipeliner, i int) { p.Set(ctx, key(i), value(key(i), 1, size), 0) },
			func(_ int, cmd redis.Cmder) error { return cmd.Err() })
		if err != nil {
			t.Fatal(err)
		}
	}
	fill(client, mine)
	for range 3 {
		victim := startServer(t, node.Addr("verbs"), "8MiB", "--manager", "finemem")
		fill(connect(t, victim), theirs)
		victim.Kill()
		proctest.Until(t, "the node has forgotten the dead server", func() bool {
			return statusOf(t, node).Node.Sessions == 1
		})
	}
	err := pipelined(ctx, client, mine, func(p redis.Pipeliner, i int) { p.Get(ctx, key(i)) },
		func(i int, cmd redis.Cmder) error {
			if got, err := cmd.(*redis.StringCmd).Result(); err != nil || got != value(key(i), 1, size) {
				return fmt.Errorf("%s: got %d bytes, %w", key(i), len(got), err)
			}
			return nil
		})
	if err != nil {
		t.Error(err)
	}
	server.Kill()
	proctest.Until(t, "all memory has come back", func() bool {
		s := statusOf(t, node).Node
		return s.Lent == 0 && s.Sessions == 0
	})
}
