package robustness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// TestResidentMemoryStaysWithinTheBudget fills a server with eight times its
// local budget, then reads, overwrites and deletes at random, and looks at the
// process's resident memory all along.
func TestResidentMemoryStaysWithinTheBudget(t *testing.T) {
	t.Parallel()
	const (
		local   = 16 * mib
		beside  = 64 * mib
		total   = 8 * local
		workers = 8
		batch   = 500
	)
	rounds := 8
	if os.Getenv("TEST_SOAK") != "" {
		rounds = 250
	}
	node := startNode(t, "512MiB")
	server := startServer(t, node.Addr("verbs"), "16MiB")
	client := connect(t, server)
	ctx := context.Background()

	var most int64
	look := func() {
		t.Helper()
		n, err := server.Resident()
		if err != nil {
			t.Fatal(err)
		}
		if most = max(most, n); n > local+beside {
			t.Fatalf("the server has %d KiB resident, more than its budget of %d and %d KiB", n>>10, local>>10, beside>>10)
		}
	}

	// Every worker has keys of its own and knows what each of them holds.
	type held struct{ version, size int }
	sizes := func(r *rand.Rand) int {
		if r.IntN(50) == 0 {
			return r.IntN(1 * mib)
		}
		return r.IntN(8 << 10)
	}
	parallel := func(do func(w int, r *rand.Rand) error, round int) {
		t.Helper()
		var wg sync.WaitGroup
		errs := make([]error, workers)
		for w := range workers {
			wg.Go(func() { errs[w] = do(w, rand.New(rand.NewPCG(uint64(w), uint64(round)))) })
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	keys := make([][]held, workers)
	name := func(w, i int) string { return fmt.Sprintf("worker:%d:%d", w, i) }

	for stored := 0; stored < total; {
		step := make([]int, workers)
		parallel(func(w int, r *rand.Rand) error {
			from := len(keys[w])
			for range batch {
				h := held{version: 1, size: sizes(r)}
				keys[w] = append(keys[w], h)
				step[w] += h.size
			}
			return pipelined(ctx, client, batch, func(p redis.Pipeliner, i int) {
				k := name(w, from+i)
				p.Set(ctx, k, value(k, 1, keys[w][from+i].size), 0)
			}, func(_ int, cmd redis.Cmder) error { return cmd.Err() })
		}, stored)
		for _, n := range step {
			stored += n
		}
		look()
	}

	for round := range rounds {
		parallel(func(w int, r *rand.Rand) error {
			// A key appears once in a batch, so the order does not matter.
			pick := r.Perm(len(keys[w]))[:batch]
			want := make([]string, batch)
			return pipelined(ctx, client, batch, func(p redis.Pipeliner, i int) {
				k := name(w, pick[i])
				h := &keys[w][pick[i]]
				switch n := r.IntN(10); {
				case n < 6 || h.version == 0 && n == 9:
					if h.version > 0 {
						want[i] = value(k, h.version, h.size)
					}
					p.Get(ctx, k)
				case n < 9:
					*h = held{version: round + 2, size: sizes(r)}
					p.Set(ctx, k, value(k, h.version, h.size), 0)
				default:
					h.version = 0
					p.Del(ctx, k)
				}
			}, func(i int, cmd redis.Cmder) error {
				get, ok := cmd.(*redis.StringCmd)
				if !ok {
					return cmd.Err()
				}
				got, err := get.Result()
				gone := keys[w][pick[i]].version == 0
				if err != nil && !(gone && errors.Is(err, redis.Nil)) {
					return err
				}
				if got != want[i] {
					return fmt.Errorf("%s: got %d bytes that are not the %d stored", name(w, pick[i]), len(got), len(want[i]))
				}
				return nil
			})
		}, round)
		look()
	}

	// All of it is still there.
	parallel(func(w int, _ *rand.Rand) error {
		return pipelined(ctx, client, len(keys[w]), func(p redis.Pipeliner, i int) { p.Get(ctx, name(w, i)) },
			func(i int, cmd redis.Cmder) error {
				got, err := cmd.(*redis.StringCmd).Result()
				h := keys[w][i]
				if h.version == 0 {
					if !errors.Is(err, redis.Nil) {
						return fmt.Errorf("%s was deleted: got %d bytes, %v", name(w, i), len(got), err)
					}
					return nil
				}
				if err != nil || got != value(name(w, i), h.version, h.size) {
					return fmt.Errorf("%s: got %d bytes that are not the %d stored: %w", name(w, i), len(got), h.size, err)
				}
				return nil
			})
	}, 0)
	look()
	t.Logf("at most %d KiB resident with a budget of %d KiB", most>>10, local>>10)
}
