package respbench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/load"
	"polder/measure/benchout"
)

// startOrigin runs a cache in soft memory in front of a Redis.
func startOrigin(ctx context.Context, polder, name, redis string, budget int64) (*server, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	p, err := child.StartReady(ctx, child.Command{Path: polder, Args: []string{
		"serve", "--tier", "soft", "--coordinator", "off", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-level", "warn",
		"--budget", fmt.Sprint(budget), "--origin", "redis://" + redis,
	}})
	if err != nil {
		return nil, err
	}
	return &server{name: name, addr: p.Addr("redis"), admin: p.Addr("admin"), close: p.Stop, reads: originReads}, nil
}

// originSize is the size of the values in the Redis that is cached.
const originSize = 1 << 10

// away is the round-trip time of the relay: about that to a Redis in the same building over a busy network.
const away = time.Millisecond

// fewConns is how many connections the relay carries without becoming the bottleneck.
const fewConns = 4

// origin measures a cache in front of a Redis beside that Redis alone, on this host and at a distance.
func (b *bench) origin(ctx context.Context) (err error) {
	keys := min(int(b.scale.data)/2/(load.KeySize+originSize), b.scale.most)
	redis, err := startRedis(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, redis.close()) }()
	if err := b.fill(ctx, redis, keys, originSize); err != nil {
		return err
	}
	if err := b.originAt(ctx, "origin", redis, keys, true); err != nil {
		return err
	}
	d, err := newDistance(redis.addr, away/2)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	return b.originAt(ctx, fmt.Sprintf("origin %v away,", away), &server{name: rival, addr: d.addr(), conns: fewConns}, keys, false)
}

// originAt measures a cache, which has room for half of the data, in front of a Redis, and if stale is set, also for
// how long it returns old values.
func (b *bench) originAt(ctx context.Context, name string, redis *server, keys int, stale bool) (err error) {
	cache, err := startOrigin(ctx, b.cfg.Polder, name, redis.addr, max(int64(keys)*(load.KeySize+originSize+entryOverhead)/2, 16<<20))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cache.close()) }()
	cache.conns = redis.conns
	zipf := load.Sequence(load.Scattered(keys), sequenceLength/4, originSize)
	if _, err := b.load(ctx, cache, load.Config{Pipeline: 16, Op: load.Get, ValueSize: originSize, Sequence: zipf, Duration: b.scale.settle}); err != nil {
		return err
	}
	if err := b.phase(ctx, []*server{redis, cache}, zipf, originSize); err != nil || !stale {
		return err
	}
	return b.staleness(ctx, redis, cache)
}

// staleness measures how long after the reply to a write at the Redis itself a reader of
// the cache still gets the old value.
func (b *bench) staleness(ctx context.Context, origin, cache *server) (err error) {
	const writes = 200
	direct, through := redis.NewClient(&redis.Options{Addr: origin.addr}), redis.NewClient(&redis.Options{Addr: cache.addr})
	defer func() { err = errors.Join(err, direct.Close(), through.Close()) }()
	var us []float64
	for i := range writes {
		if err := through.Get(ctx, "stale").Err(); err != nil && !errors.Is(err, redis.Nil) {
			return fmt.Errorf("cannot read through the cache: %w", err)
		}
		if err := direct.Set(ctx, "stale", i, 0).Err(); err != nil {
			return fmt.Errorf("cannot write at the origin: %w", err)
		}
		written := time.Now()
		var old float64 // when the last GET that returned the old value was sent, in µs after the write
		for {
			asked := time.Since(written)
			n, err := through.Get(ctx, "stale").Int()
			if err == nil && n == i {
				break
			}
			if err != nil && !errors.Is(err, redis.Nil) {
				return fmt.Errorf("cannot read through the cache, %v after a write: %w", asked, err)
			}
			if asked > startTimeout {
				return fmt.Errorf("%v after a write the cache still has an old value (%d, want %d)", asked, n, i)
			}
			old = float64(asked.Nanoseconds()) / 1000
		}
		us = append(us, old)
	}
	slices.Sort(us)
	for _, q := range []struct {
		metric string
		at     int
	}{{"stale p50", writes / 2}, {"stale max", writes - 1}} {
		if err := b.cfg.Printer.Print(benchout.Row{Bench: "resp", Case: "origin written elsewhere", Metric: q.metric, Value: us[q.at], Unit: "us"}); err != nil {
			return err
		}
	}
	return nil
}
