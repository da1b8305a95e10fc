package robustness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"polder/internal/proctest"
)

// TestMoreKeysThanTheBudgetHasRoomForTheIndexOf: 16 bytes a key are more than the budget, and every key is answered
// right all the same, and every key that is not there; and the process keeps within its budget.
func TestMoreKeysThanTheBudgetHasRoomForTheIndexOf(t *testing.T) {
	t.Parallel()
	counts, local := []int{180_000}, 8*mib
	if os.Getenv("TEST_SOAK") != "" {
		counts, local = []int{1_000_000, 10_000_000}, 16*mib
	}
	for _, keys := range counts {
		t.Run(fmt.Sprint(keys, " keys"), func(t *testing.T) { manyKeys(t, keys, local) })
	}
}

func manyKeys(t *testing.T, keys, local int) {
	const size = 64
	ctx := t.Context()
	node := startNode(t, fmt.Sprint(64*mib+keys*(size+112)*2))
	server := startServer(t, node.Addr("verbs"), fmt.Sprint(local))
	c := connect(t, server)
	key := func(i int) string { return fmt.Sprint("key:", i) }
	version := make([]uint8, keys)
	set := func(n int, of func(i int) int) {
		err := pipelined(ctx, c, n, func(p redis.Pipeliner, i int) {
			k := of(i)
			version[k]++
			p.Set(ctx, key(k), value(key(k), int(version[k]), size), 0)
		}, func(i int, cmd redis.Cmder) error { return cmd.Err() })
		if err != nil {
			t.Fatal(err)
		}
	}
	set(keys, func(i int) int { return i })
	r := rand.New(rand.NewPCG(1, 2))
	set(keys/10, func(int) int { return r.IntN(keys) })
	wrong := 0
	err := pipelined(ctx, c, keys, func(p redis.Pipeliner, i int) { p.Get(ctx, key(i)) }, func(i int, cmd redis.Cmder) error {
		if got, err := cmd.(*redis.StringCmd).Result(); err != nil || got != value(key(i), int(version[i]), size) {
			if wrong++; wrong < 10 {
				t.Errorf("%s is %q, %v, want version %d", key(i), got, err, version[i])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = pipelined(ctx, c, keys/10, func(p redis.Pipeliner, i int) { p.Get(ctx, key(keys+i)) }, func(i int, cmd redis.Cmder) error {
		if err := cmd.Err(); err != redis.Nil {
			return fmt.Errorf("%s is not there, and GET says %v", key(keys+i), err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := c.DBSize(context.WithoutCancel(ctx)).Result(); err != nil || n != int64(keys) {
		t.Errorf("DBSIZE is %d, %v, want %d", n, err, keys)
	}
	if wrong > 0 {
		t.Errorf("%d of %d keys are answered wrong", wrong, keys)
	}
	resident, err := server.Resident()
	if err != nil {
		t.Fatal(err)
	}
	if m := proctest.State(t, server).Metrics; m.Int("polder_far_index_leaf_bytes") == 0 || m.Int("polder_far_index_leaf_reads_total") == 0 {
		t.Error("the index has not left local memory: the test has tested nothing")
	}
	if most := int64(local + 64*mib); resident > most {
		t.Errorf("%d bytes are resident, want at most %d", resident, most)
	}
	t.Logf("%d keys: %d MiB resident", keys, resident>>20)
}
