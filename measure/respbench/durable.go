package respbench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
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
	heaps    map[int][]int // by size of values: the numbers of keys with which a server is killed
}

var (
	durableFull  = durableScale{[]int{1, 16, 256}, 5, time.Second, 200 * time.Millisecond, 100_000, map[int][]int{64: {100_000, 1_000_000}, 4 << 10: {20_000, 200_000}}}
	durableShort = durableScale{[]int{1, 16, 256}, 3, 300 * time.Millisecond, 50 * time.Millisecond, 20_000, map[int][]int{64: {20_000}, 4 << 10: {4_000}}}
)

// durableSize is the size of values that are written.
const durableSize = 64

// RunDurable measures servers whose answers survive a crash. They keep their data in the memory of two nodes, there
// and on a disk as well, or on a disk alone; the disk is the one of dir. Their rivals are redis-server with its
// append-only file on that disk, and redis-server with replicas that must have each SET: one (WAIT 1), or two (WAIT 2),
// which like two nodes keep it when the server and one more are gone. RunDurable measures SETs, reads that do without
// a lease, the time from the start of a server that was killed to its first answer, and the time until another server
// has taken over from one that was killed.
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
	b.total = (8 + 2) * len(scale.clients) * scale.rounds
	for _, keys := range scale.heaps {
		b.total += 4 * len(keys)
	}
	if err := b.durable(ctx, dir, scale); err != nil {
		return err
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

// durable measures SETs at servers of ours and Redis's that promise durability, and GETs with and without a lease.
// All run at once and take turns, so that whatever else runs on the machine disturbs them alike.
func (b *bench) durable(ctx context.Context, dir string, scale durableScale) (err error) {
	start, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var stops []func() error
	defer func() {
		for _, stop := range slices.Backward(stops) {
			err = errors.Join(err, stop())
		}
	}()
	started := func(name, addr string, stop func() error) *server {
		stops = append(stops, stop)
		return &server{name: name, addr: addr}
	}
	var servers []*server
	for _, fsync := range []string{"always", "everysec"} {
		r, err := startAOF(start, filepath.Join(dir, fsync), fsync)
		if err != nil {
			return err
		}
		servers = append(servers, started("redis "+fsync, r.Addr, r.Close))
	}
	for replicas := 1; replicas <= 2; replicas++ {
		r, stop, err := startReplicated(start, replicas)
		if err != nil {
			return err
		}
		servers = append(servers, started(r.name, r.addr, stop))
	}
	world, err := startWorld(start, b.cfg.Polder, filepath.Join(dir, "witnesses"), 512<<20)
	if err != nil {
		return err
	}
	stops = append(stops, world.close)
	for _, c := range []struct {
		name string
		args []string
	}{{"in memory", nil}, {"with a disk beside", []string{"--disk", filepath.Join(dir, "beside")}}, {"fenced reads", []string{"--reads", "fenced"}}} {
		p, err := child.StartReady(start, world.server(fmt.Sprint("bench-", len(servers)), "127.0.0.1:0", 64<<20, c.args...))
		if err != nil {
			return err
		}
		servers = append(servers, started("durable "+c.name, p.Addr("redis"), p.Stop))
	}
	for _, c := range []struct{ name, durable string }{{"on a disk", "yes"}, {"every:1s on a disk", "every:1s"}} {
		p, err := startDurable(start, b.cfg.Polder, filepath.Join(dir, c.durable), c.durable, 64<<20)
		if err != nil {
			return err
		}
		servers = append(servers, started("durable "+c.name, p.Addr("redis"), p.Stop))
	}
	const always, everysec, wait, waitTwo, memory, beside, fenced, disk, every = 0, 1, 2, 3, 4, 5, 6, 7, 8 // in servers
	for _, i := range []int{memory, fenced} {
		if _, err := b.load(ctx, servers[i], load.Config{Pipeline: 16, Op: load.Set, ValueSize: durableSize, Sequence: load.Ascending(scale.keys), Count: scale.keys}); err != nil {
			return err
		}
	}
	sequence := load.Sequence(load.Uniform(scale.keys), sequenceLength/16, durableSize)
	for _, clients := range scale.clients {
		sets, gets := make([]figures, len(servers)), make([]figures, len(servers))
		for range scale.rounds {
			offset := rand.IntN(len(sequence))
			measure := func(i int, op load.Op, f *figures) error {
				s := *servers[i]
				s.conns = clients
				b.cfg.Progress(b.done, b.total, fmt.Sprintf("%s %v, %d clients", s.name, op, clients))
				b.done++
				return b.measure(ctx, &s, f, load.Config{
					Pipeline: 1, Op: op, ValueSize: durableSize, Sequence: sequence, Offset: offset, Duration: scale.duration, Warmup: scale.warmup,
				})
			}
			for _, i := range rand.Perm(len(servers)) {
				var err error
				switch i {
				case fenced:
				case wait:
					err = measure(i, load.SetWait, &sets[i])
				case waitTwo:
					err = measure(i, load.SetWaitTwo, &sets[i])
				default:
					err = measure(i, load.Set, &sets[i])
				}
				if err == nil && (i == memory || i == fenced) {
					err = measure(i, load.Get, &gets[i])
				}
				if err != nil {
					return err
				}
			}
		}
		name := func(i int, op load.Op) string {
			return fmt.Sprintf("%s %v %s %d clients", servers[i].name, op, sizeName(durableSize), clients)
		}
		if err := b.printAs("durable", "reads by lease", name(fenced, load.Get), gets[fenced], gets[memory]); err != nil {
			return err
		}
		for _, row := range []struct{ ours, theirs int }{{memory, wait}, {memory, waitTwo}, {memory, always}, {beside, always}, {disk, always}, {every, everysec}} {
			if err := b.printAs("durable", servers[row.theirs].name, name(row.ours, load.Set), sets[row.ours], sets[row.theirs]); err != nil {
				return err
			}
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

// recovery measures how long a server that was killed takes from its start to its first answer, with a local budget
// for a fifth of the data, and how long it takes until a standby has taken over. Beside them, it measures how long
// redis-server takes to its first answer with an append-only file, and with an RDB file.
func (b *bench) recovery(ctx context.Context, dir string, size, keys int) (err error) {
	defer func() {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, "kept")), os.RemoveAll(filepath.Join(dir, "redis")))
	}()
	name := fmt.Sprintf("%d x %s", keys, sizeName(size))
	b.cfg.Progress(b.done, b.total, "takeover with "+name)
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
	names := []string{"durable every:1s on a disk", "redis AOF", "redis RDB"}
	over, err := b.takeover(ctx, filepath.Join(dir, "kept"), keys, size, local)
	if err != nil {
		return err
	}
	b.done++
	before := []func(*redis.Client) error{
		func(*redis.Client) error { return nil },
		// While it syncs in the background, redis-server may not even have written what it has answered.
		// A SET under "always" writes and syncs all of that.
		func(c *redis.Client) error {
			return errors.Join(c.ConfigSet(ctx, "appendfsync", "always").Err(), c.Set(ctx, "last", "", 0).Err())
		},
		func(c *redis.Client) error { return c.Save(ctx).Err() },
	}
	for i, start := range []func(context.Context) (string, func() error, error){ours, aof, rdb} {
		b.cfg.Progress(b.done, b.total, names[i]+" killed with "+name)
		if took[i], err = b.killed(ctx, names[i], start, keys, size, before[i]); err != nil {
			return err
		}
		b.done++
	}
	for i, rival := range names[1:] {
		row := benchout.Row{Bench: "durable", Case: "killed with " + name, Metric: "first answer", Value: took[0], Unit: "ms"}
		if err := b.cfg.Printer.Print(row.Against(rival, took[1+i], benchout.Lower)); err != nil {
			return err
		}
		row.Case, row.Value = "taken over with "+name, over.first
		if err := b.cfg.Printer.Print(row.Against(rival, took[1+i], benchout.Lower)); err != nil {
			return err
		}
	}
	return b.cfg.Printer.Print(benchout.Row{Bench: "durable", Case: "taken over with " + name, Metric: "known to be dead", Value: over.known, Unit: "ms"})
}

func killer(p *child.Process) func() error {
	return func() error {
		p.Kill()
		<-p.Done()
		return nil
	}
}

// killed fills a server, calls before, kills the server, starts it again, and returns the milliseconds from that
// start to the first right answer.
func (b *bench) killed(ctx context.Context, name string, start func(context.Context) (string, func() error, error), keys, size int, before func(*redis.Client) error) (ms float64, err error) {
	limited, cancel := context.WithTimeout(ctx, recoveryTimeout)
	defer cancel()
	addr, kill, err := start(limited)
	if err != nil {
		return 0, err
	}
	_, err = b.load(ctx, &server{name: name, addr: addr}, load.Config{Pipeline: 16, Op: load.Set, ValueSize: size, Sequence: load.Ascending(keys), Count: keys})
	if err == nil {
		c := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: recoveryTimeout})
		err = errors.Join(before(c), c.Close())
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
		case err == nil:
			return 0, fmt.Errorf("%s at %s has another value of the last key, of %d: %d bytes, want %d", name, addr, keys, len(got), size)
		case errors.Is(err, redis.Nil):
			return 0, fmt.Errorf("%s at %s has lost the last key, of %d: %w", name, addr, keys, err)
		case limited.Err() != nil:
			return 0, err
		}
		time.Sleep(time.Millisecond)
	}
}

const recoveryTimeout = 2 * time.Minute
