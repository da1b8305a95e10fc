package respbench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/far"
	"polder/internal/child"
	"polder/internal/load"
	"polder/measure/benchout"
)

// durableScale is how much RunDurable does.
type durableScale struct {
	clients  []int
	rounds   int
	duration time.Duration // of a measurement
	warmup   time.Duration
	keys     int           // that are written
	heaps    map[int][]int // keys that are there when a server is killed, by size of their values
}

var (
	durableFull  = durableScale{[]int{1, 16, 256}, 5, time.Second, 200 * time.Millisecond, 100_000, map[int][]int{64: {100_000, 1_000_000}, 4 << 10: {20_000, 200_000}}}
	durableShort = durableScale{[]int{1, 16, 256}, 3, 300 * time.Millisecond, 50 * time.Millisecond, 20_000, map[int][]int{64: {20_000}, 4 << 10: {4_000}}}
)

// durableSize is the size of values that are written.
const durableSize = 64

// RunDurable measures servers whose answers survive a crash, on the disk that dir is on, beside redis-server with its
// append-only file there: SETs, and the time from start to the first answer after they were killed.
func RunDurable(ctx context.Context, cfg Config, dir string) error {
	if cfg.Progress == nil {
		cfg.Progress = func(int, int, string) {}
	}
	if cfg.Short {
		return runDurable(ctx, cfg, dir, durableShort)
	}
	return runDurable(ctx, cfg, dir, durableFull)
}

func runDurable(ctx context.Context, cfg Config, dir string, scale durableScale) (err error) {
	if dir, err = os.MkdirTemp(dir, "polder-durable-"); err != nil {
		return fmt.Errorf("cannot measure what is durable: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &bench{cfg: cfg}
	b.total = 2*2*len(scale.clients)*scale.rounds + len(scale.heaps)*3
	for _, c := range []struct{ ours, theirs string }{{"yes", "always"}, {"every:1s", "everysec"}} {
		if err := b.durable(ctx, dir, c.ours, c.theirs, scale); err != nil {
			return err
		}
	}
	for _, size := range []int{64, 4 << 10} {
		for _, keys := range scale.heaps[size] {
			if err := b.recovery(ctx, dir, size, keys); err != nil {
				return err
			}
		}
	}
	return nil
}

// startDurable runs a server with a heap that is kept in dir.
func startDurable(ctx context.Context, polder, dir, durable string, local int64) (*child.Process, error) {
	return child.StartReady(ctx, child.Command{Path: polder, Args: []string{
		"up", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-level", "warn",
		"--disk", dir, "--heap", "bench", "--durable=" + durable, "--local", fmt.Sprint(local),
	}})
}

// durable measures SETs with one promise of ours and one of Redis's.
func (b *bench) durable(ctx context.Context, dir, ours, theirs string, scale durableScale) (err error) {
	start, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	p, err := startDurable(start, b.cfg.Polder, filepath.Join(dir, "set"), ours, 64<<20)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Stop(), os.RemoveAll(filepath.Join(dir, "set"))) }()
	r, err := startAOF(start, dir, theirs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	sequence := load.Sequence(load.Uniform(scale.keys), sequenceLength/16, durableSize)
	for _, clients := range scale.clients {
		servers := []*server{{name: "redis " + theirs, addr: r.Addr, conns: clients}, {name: "durable " + ours, addr: p.Addr("redis"), conns: clients}}
		var got [2]figures
		for range scale.rounds {
			offset := rand.IntN(len(sequence))
			for _, i := range rand.Perm(len(servers)) {
				b.cfg.Progress(b.done, b.total, fmt.Sprintf("%s, %d clients", servers[i].name, clients))
				if err := b.measure(ctx, servers[i], &got[i], load.Config{
					Pipeline: 1, Op: load.Set, ValueSize: durableSize, Sequence: sequence, Offset: offset, Duration: scale.duration, Warmup: scale.warmup,
				}); err != nil {
					return err
				}
				b.done++
			}
		}
		if err := b.printAs("durable", "redis "+theirs, fmt.Sprintf("%s SET %s %d clients", servers[1].name, sizeName(durableSize), clients), got[1], got[0]); err != nil {
			return err
		}
	}
	return nil
}

// startAOF runs a redis-server with an append-only file in dir.
func startAOF(ctx context.Context, dir, fsync string, more ...string) (*child.Redis, error) {
	dir = filepath.Join(dir, "redis")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return child.StartRedis(ctx, append([]string{"--dir", dir, "--appendonly", "yes", "--appendfsync", fsync}, more...)...)
}

// recovery measures how long after the start of a server that was killed it gives its first answer, with a fifth of the data
// in local memory; and how long redis-server takes to read its append-only file, and a file of its own format.
func (b *bench) recovery(ctx context.Context, dir string, size, keys int) (err error) {
	defer func() {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, "kept")), os.RemoveAll(filepath.Join(dir, "redis")))
	}()
	name := fmt.Sprintf("%d x %s", keys, sizeName(size))
	b.cfg.Progress(b.done, b.total, "recovery of "+name)
	local := max(int64(keys)*int64(load.KeySize+size+entryOverhead)/farPart, far.MinLocal)
	ours := func(ctx context.Context) (string, func() error, error) {
		p, err := startDurable(ctx, b.cfg.Polder, filepath.Join(dir, "kept"), "every:1s", local)
		if err != nil {
			return "", nil, err
		}
		return p.Addr("redis"), killer(p), nil
	}
	aof := func(ctx context.Context) (string, func() error, error) {
		r, err := startAOF(ctx, dir, "everysec")
		if err != nil {
			return "", nil, err
		}
		return r.Addr, killer(r.Process), nil
	}
	rdb := func(ctx context.Context) (string, func() error, error) {
		r, err := startAOF(ctx, dir, "everysec", "--appendonly", "no")
		if err != nil {
			return "", nil, err
		}
		return r.Addr, killer(r.Process), nil
	}
	var took [3]float64
	for i, start := range []func(context.Context) (string, func() error, error){ours, aof, rdb} {
		if took[i], err = b.killed(ctx, start, keys, size, i == 2); err != nil {
			return err
		}
		b.done++
	}
	for i, rival := range []string{"redis AOF", "redis RDB"} {
		row := benchout.Row{Bench: "durable", Case: "killed with " + name, Metric: "first answer", Value: took[0], Unit: "ms"}
		if err := b.cfg.Printer.Print(row.Against(rival, took[1+i], benchout.Lower)); err != nil {
			return err
		}
	}
	return nil
}

func killer(p *child.Process) func() error {
	return func() error {
		p.Kill()
		<-p.Done()
		return nil
	}
}

// killed fills a server, kills it, and measures in milliseconds how long it takes from its start to the right answer.
func (b *bench) killed(ctx context.Context, start func(context.Context) (string, func() error, error), keys, size int, save bool) (ms float64, err error) {
	limited, cancel := context.WithTimeout(ctx, recoveryTimeout)
	defer cancel()
	addr, kill, err := start(limited)
	if err != nil {
		return 0, err
	}
	_, err = b.load(ctx, &server{name: addr, addr: addr}, load.Config{Pipeline: 16, Op: load.Set, ValueSize: size, Sequence: load.Ascending(keys), Count: keys})
	if err == nil && save {
		c := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: recoveryTimeout})
		err = errors.Join(c.Save(limited).Err(), c.Close())
	}
	if err = errors.Join(err, kill()); err != nil {
		return 0, err
	}
	began := time.Now()
	if addr, kill, err = start(limited); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, kill()) }()
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	defer c.Close()
	key := uint32(keys - 1)
	for {
		got, err := c.Get(limited, string(load.Key(key))).Bytes()
		switch {
		case err == nil && string(got) == string(load.Value(key, size)):
			return float64(time.Since(began).Microseconds()) / 1000, nil
		case err == nil, errors.Is(err, redis.Nil):
			return 0, fmt.Errorf("%s has lost the last key, of %d", addr, keys)
		case limited.Err() != nil:
			return 0, err
		}
		time.Sleep(time.Millisecond)
	}
}

const recoveryTimeout = 2 * time.Minute
