package robustness

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/load"
	"polder/internal/proctest"
)

// adviseMargin is how far the hit ratio that "polder advise" predicts may be from that
// which polder serve then has: what docs/how-to/size.md promises.
const adviseMargin = 0.06

// TestAdvicePredictsTheHitRatio: a Redis server has a Zipfian load, polder advise
// looks at it, and polder serve gets the same keys and the same load. It hits as often
// as was predicted.
func TestAdvicePredictsTheHitRatio(t *testing.T) {
	t.Parallel()
	const keys, size = 20_000, 1000
	r, err := child.StartRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	from := redis.NewClient(&redis.Options{Addr: r.Addr})
	t.Cleanup(func() { _ = from.Close() })
	fill(t, from, keys, size)

	// A steady load: 8,000 uses a second of 20,000 keys show ages of seconds.
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- steadily(ctx, from, keys, 80, 10*time.Millisecond) }()
	select {
	case <-time.After(8 * time.Second): // the history that is looked at
	case err := <-ended:
		t.Fatalf("the load ended: %v", err)
	}
	stdout, stderr, code := proctest.Output(t, nil, "advise", "redis://"+r.Addr, "-json", "--watch", "2s")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if code != 0 || stderr != "" {
		t.Fatalf("polder advise: exit code %d: %s", code, stderr)
	}
	var advice struct {
		Keys      int64
		LendBytes int64 `json:"lend_bytes"`
		Curve     []struct {
			Local    int64   `json:"local_bytes"`
			HitRatio float64 `json:"hit_ratio"`
		}
	}
	if err := json.Unmarshal([]byte(stdout), &advice); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	if advice.Keys != keys {
		t.Errorf("it says that there are %d keys, want %d", advice.Keys, keys)
	}

	for _, local := range []int64{8 << 20, 11 << 20} {
		predicted := math.NaN()
		for _, c := range advice.Curve {
			if c.Local == local {
				predicted = c.HitRatio
			}
		}
		node := startNode(t, strconv.FormatInt(max(advice.LendBytes, 64<<20)>>20, 10)+"MiB")
		server := startServer(t, node.Addr("verbs"), strconv.FormatInt(local>>20, 10)+"MiB")
		to := connect(t, server)
		fill(t, to, keys, size)
		replay(t, to, keys, 3*keys, 3)
		before := proctest.State(t, server).Metrics.Sum("polder_far_misses_total")
		replay(t, to, keys, 3*keys, 4)
		misses := proctest.State(t, server).Metrics.Sum("polder_far_misses_total") - before
		got := 1 - misses/(3*keys)
		t.Logf("--local %d MiB: predicted %.3f, got %.3f", local>>20, predicted, got)
		if !(math.Abs(got-predicted) <= adviseMargin) {
			t.Errorf("with --local %d MiB: %.3f of the reads were local, want %.3f ± %.2f, as predicted", local>>20, got, predicted, adviseMargin)
		}
	}
}

func fill(t *testing.T, c *redis.Client, keys, size int) {
	t.Helper()
	err := pipelined(t.Context(), c, keys, func(p redis.Pipeliner, i int) {
		p.Set(t.Context(), string(load.Key(uint32(i))), value(strconv.Itoa(i), 0, size), 0)
	}, func(_ int, cmd redis.Cmder) error { return cmd.Err() })
	if err != nil {
		t.Fatal(err)
	}
}

// steadily reads n keys in each interval until ctx is done.
func steadily(ctx context.Context, c *redis.Client, keys, n int, interval time.Duration) error {
	z, r := load.Scattered(keys), rand.New(rand.NewPCG(1, 2))
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		p := c.Pipeline()
		for range n {
			p.Get(ctx, string(load.Key(uint32(z.Next(r)))))
		}
		if _, err := p.Exec(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// replay reads n keys as steadily does, as fast as it can.
func replay(t *testing.T, c *redis.Client, keys, n int, seed uint64) {
	t.Helper()
	z, r := load.Scattered(keys), rand.New(rand.NewPCG(seed, seed))
	err := pipelined(t.Context(), c, n, func(p redis.Pipeliner, _ int) {
		p.Get(t.Context(), string(load.Key(uint32(z.Next(r)))))
	}, func(_ int, cmd redis.Cmder) error { return cmd.Err() })
	if err != nil {
		t.Fatal(err)
	}
}

// TestAdviceExplainsWhatItCannotSay: a password in the URL, one that is missing, a
// server that does not know ages, one without keys, and none.
func TestAdviceExplainsWhatItCannotSay(t *testing.T) {
	t.Parallel()
	r, err := child.StartRedis(t.Context(), "--maxmemory-policy", "allkeys-lfu", "--maxmemory", "100mb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	open := redis.NewClient(&redis.Options{Addr: r.Addr})
	if err := errors.Join(open.ConfigSet(t.Context(), "requirepass", "sesame").Err(), open.Close()); err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(&redis.Options{Addr: r.Addr, Password: "sesame"})
	t.Cleanup(func() { _ = c.Close() })
	ask := func(env []string, url, want string, wantCode int) {
		t.Helper()
		stdout, stderr, code := proctest.Output(t, env, "advise", url, "--watch", "1s")
		if code != wantCode || stdout != "" || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("polder advise %s: got exit code %d and %q, want %d and one line with %q", url, code, stdout+stderr, wantCode, want)
		}
	}
	password := []string{"REDISCLI_AUTH=sesame"}
	ask(nil, "redis://:sesame@"+r.Addr, "REDISCLI_AUTH", 2)
	ask(nil, "http://"+r.Addr, "expected redis://HOST:PORT", 2)
	ask(nil, "redis://"+r.Addr, "REDISCLI_AUTH", 1)
	ask(nil, "redis://127.0.0.1:1", "connection refused", 1)
	ask(password, "redis://"+r.Addr, "cannot say anything of 0 keys", 1)
	fill(t, c, 1000, 10)
	ask(password, "redis://"+r.Addr, "no key was used", 1)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- steadily(ctx, c, 1000, 1, 10*time.Millisecond) }()
	ask(password, "redis://"+r.Addr, "-lfu", 1)
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
