package robustness

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/proctest"
)

// TestMemoryGoesToThePartitionThatUsesIt, of those that a server has, and to another one when that is used.
func TestMemoryGoesToThePartitionThatUsesIt(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	node := startNode(t, "512MiB")
	args := named(node.Addr("verbs"), startWitnesses(t), "--partitions", "6", "--local", "48MiB")
	servers := []*child.Process{proctest.Start(t, "serve", args...), proctest.Start(t, "serve", args...)}
	balanced(t, servers...)
	c := connect(t, servers[0]) // which forwards what the other one has
	// budget is that of a partition, and what it would be if its server divided its own by their number.
	budget := func(partition string) (has, equal int64) {
		for _, s := range servers {
			m := proctest.State(t, s).Metrics
			if all := m.Values("polder_far_local_budget_bytes", "partition"); len(all) > 1 {
				if has := m.Int("polder_far_local_budget_bytes", "partition="+partition); has > 0 {
					return has, 48 << 20 / int64(len(all))
				}
			}
		}
		return 0, 0
	}
	const keys = 30_000
	r := rand.New(rand.NewPCG(1, 2))
	for _, tag := range []string{"a", "b"} {
		key := func(i int) string { return fmt.Sprintf("{%s}%d", tag, i) }
		slot, err := c.ClusterKeySlot(ctx, key(0)).Result()
		if err != nil {
			t.Fatal(err)
		}
		partition := fmt.Sprint(slot * 6 / 16384)
		if err := pipelined(ctx, c, keys, func(p redis.Pipeliner, i int) { p.Set(ctx, key(i), value(key(i), 1, 1000), 0) },
			func(_ int, cmd redis.Cmder) error { return cmd.Err() }); err != nil {
			t.Fatal(err)
		}
		end := time.Now().Add(3 * hang) // budgets stay as they are while others leave hardly a processor to who is to shrink
		for has, equal := budget(partition); equal == 0 || has < equal*4/3; has, equal = budget(partition) {
			if time.Now().After(end) {
				t.Fatalf("partition %s, which alone is used, has %d bytes of local memory, want far more than its share of %d", partition, has, equal)
			}
			if err := pipelined(ctx, c, 2000, func(p redis.Pipeliner, i int) { p.Get(ctx, key(r.IntN(keys))) }, func(_ int, cmd redis.Cmder) error { return cmd.Err() }); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, s := range servers {
		if n := proctest.State(t, s).Metrics.Int("polder_far_local_budget_bytes"); n > 48<<20 {
			t.Errorf("the partitions of a server have %d bytes in all, more than its budget", n)
		}
	}
}
