package respbench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/load"
	"polder/measure/benchout"
	"polder/partition"
)

// clusterScale is how much RunCluster does.
type clusterScale struct {
	servers    []int
	partitions int
	keys       int
	duration   time.Duration // of a measurement of processor time
	local      int64         // of each server
}

var (
	clusterFull  = clusterScale{[]int{1, 2, 4}, 16, 100_000, 5 * time.Second, 64 << 20}
	clusterShort = clusterScale{[]int{1, 2, 4}, 8, 20_000, time.Second, 64 << 20}
)

const (
	clusterSize     = 64 // bytes of a value
	clusterClients  = 16 // for each server
	clusterPipeline = 16
)

// RunCluster measures servers that share the partitions of a durable heap: the processor time that a command takes at
// all servers together, with one server, two and four; how long clients wait for a reply while partitions move to a
// server that joins; and how long it takes until all partitions answer again after a server was killed.
func RunCluster(ctx context.Context, cfg Config) error {
	if cfg.Progress == nil {
		cfg.Progress = func(int, int, string) {}
	}
	if cfg.Short {
		return runCluster(ctx, cfg, clusterShort)
	}
	return runCluster(ctx, cfg, clusterFull)
}

func runCluster(ctx context.Context, cfg Config, scale clusterScale) (err error) {
	dir, err := os.MkdirTemp("", "polder-cluster-")
	if err != nil {
		return fmt.Errorf("cannot measure a cluster: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	w, err := startWorld(ctx, cfg.Polder, dir, 2<<30)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	redis.SetLogger(quiet{}) // servers are gone on purpose
	b := &bench{cfg: cfg, total: len(scale.servers) + 2}
	c := &shared{b: b, w: w, scale: scale}
	defer func() { err = errors.Join(err, c.close()) }()
	one := 0.0
	for _, n := range scale.servers {
		if err := c.grow(ctx, n); err != nil {
			return err
		}
		cost, err := c.cost(ctx)
		if err != nil {
			return err
		}
		row := benchout.Row{Bench: "cluster", Case: fmt.Sprintf("%d servers", n), Metric: "processor time of a command", Value: cost, Unit: "us"}
		if one == 0 {
			one = cost
			row.Case = "1 server"
		} else {
			row = row.Against("1 server", one, benchout.Lower)
		}
		if err := cfg.Printer.Print(row); err != nil {
			return err
		}
	}
	if err := c.moves(ctx); err != nil {
		return err
	}
	return c.kill(ctx)
}

// shared is a set of servers that share a heap.
type shared struct {
	b       *bench
	w       *world
	scale   clusterScale
	servers []*child.Process
}

func (c *shared) close() (err error) {
	for _, p := range c.servers {
		err = errors.Join(err, p.Stop())
	}
	return err
}

// client returns a cluster client, which asks the first server for the map of slots.
func (c *shared) client() *redis.ClusterClient {
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{c.servers[0].Addr("redis")}, ReadTimeout: startTimeout, WriteTimeout: startTimeout,
	})
}

// grow starts servers until n of them share the heap, and waits until each owns 1/n of the slots.
func (c *shared) grow(ctx context.Context, n int) error {
	for len(c.servers) < n {
		p, err := child.StartReady(ctx, c.w.server("shared", "127.0.0.1:0", c.scale.local, "--partitions", strconv.Itoa(c.scale.partitions)))
		if err != nil {
			return err
		}
		c.servers = append(c.servers, p)
	}
	ctx, cancel := context.WithTimeout(ctx, recoveryTimeout)
	defer cancel()
	return c.until(ctx, "each server has its share", seldom, func(owned map[string]int) bool {
		for _, p := range c.servers {
			if owned[p.Addr("redis")] != partition.Slots/n {
				return false
			}
		}
		return len(owned) == n
	})
}

// Intervals at which until asks whether all slots are served: often where the time until then is the result, and
// seldom where the result is how long clients wait meanwhile, because asking takes processor time from them.
const (
	often  = time.Millisecond
	seldom = 50 * time.Millisecond
)

// until asks at intervals of every, and returns when all slots are served and is returns true for the number of slots
// of each server, by address. what describes the condition in the error.
func (c *shared) until(ctx context.Context, what string, every time.Duration, is func(owned map[string]int) bool) error {
	for {
		owned, err := c.owned(ctx)
		if err == nil && is(owned) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: it is not so: %v, %w", what, owned, errors.Join(err, context.Cause(ctx)))
		case <-time.After(every):
		}
	}
}

// owned returns how many slots each server has, by address. It fails unless a GET in each partition is answered.
func (c *shared) owned(ctx context.Context) (map[string]int, error) {
	owners, err := c.owners(ctx)
	if err != nil {
		return nil, err
	}
	owned := map[string]int{}
	for p, owner := range owners {
		first, last := partition.Range(p, c.scale.partitions)
		owned[owner] += last - first + 1
	}
	// This client has not asked for the map of slots, so the server forwards for it.
	plain := redis.NewClient(&redis.Options{Addr: c.servers[0].Addr("redis"), MaxRetries: -1})
	defer plain.Close()
	for p := range c.scale.partitions {
		if err := plain.Get(ctx, c.keyIn(p)).Err(); err != nil && !errors.Is(err, redis.Nil) {
			return owned, err
		}
	}
	return owned, nil
}

// keyIn returns a key in partition p.
func (c *shared) keyIn(p int) string {
	for i := 0; ; i++ {
		key := "in " + strconv.Itoa(i)
		if partition.Of(partition.Slot([]byte(key)), c.scale.partitions) == p {
			return key
		}
	}
}

// processor returns the processor time in seconds that all servers together have taken so far.
func (c *shared) processor(ctx context.Context) (sum float64, err error) {
	for _, p := range c.servers {
		cl := redis.NewClient(&redis.Options{Addr: p.Addr("redis"), MaxRetries: -1})
		info, err := cl.Info(ctx, "cpu").Result()
		if err = errors.Join(err, cl.Close()); err != nil {
			return 0, err
		}
		for line := range strings.Lines(info) {
			if name, v, _ := strings.Cut(strings.TrimSpace(line), ":"); name == "used_cpu_sys" || name == "used_cpu_user" {
				f, err := strconv.ParseFloat(v, 64)
				if err != nil {
					return 0, err
				}
				sum += f
			}
		}
	}
	return sum, nil
}

// cost returns the processor time, in microseconds, that a command takes at all servers together. Half of the
// commands are SETs and half GETs; each pipeline goes to one partition. There are clusterClients clients for each
// server, so that with more servers each still has as many requests at a time.
func (c *shared) cost(ctx context.Context) (float64, error) {
	c.b.cfg.Progress(c.b.done, c.b.total, fmt.Sprintf("commands at %d servers", len(c.servers)))
	c.b.done++
	cl := c.client()
	defer cl.Close()
	round := func(n int) error {
		_, err := cl.Pipelined(ctx, func(p redis.Pipeliner) error {
			tag := "{" + c.keyIn(n%c.scale.partitions) + "}"
			for i := range clusterPipeline {
				key := uint32((n*clusterPipeline + i) * 7919 % c.scale.keys)
				if i%2 == 0 {
					p.Set(ctx, tag+string(load.Key(key)), load.Value(key, clusterSize), 0)
				} else {
					p.Get(ctx, tag+string(load.Key(key)))
				}
			}
			return nil
		})
		if errors.Is(err, redis.Nil) {
			err = nil
		}
		return err
	}
	run := func(until func() bool) (rounds int64, err error) {
		var wg sync.WaitGroup
		var n atomic.Int64
		errs := make([]error, clusterClients*len(c.servers))
		for i := range errs {
			wg.Go(func() {
				for errs[i] == nil && !until() {
					errs[i] = round(int(n.Add(1)))
				}
			})
		}
		wg.Wait()
		return n.Load(), errors.Join(errs...)
	}
	warm := time.Now().Add(c.scale.duration)
	if _, err := run(func() bool { return time.Now().After(warm) }); err != nil {
		return 0, err
	}
	before, err := c.processor(ctx)
	if err != nil {
		return 0, err
	}
	end := time.Now().Add(c.scale.duration)
	rounds, err := run(func() bool { return time.Now().After(end) })
	if err != nil {
		return 0, err
	}
	after, err := c.processor(ctx)
	return (after - before) * 1e6 / float64(rounds*clusterPipeline), err
}

// waits runs do while each partition has a client that writes to it again and again, 1 ms after the last reply. It
// returns the longest time that each client waited for a reply, by partition.
func (c *shared) waits(ctx context.Context, do func() error) ([]time.Duration, error) {
	cl := c.client()
	defer cl.Close()
	var wg sync.WaitGroup
	var ended atomic.Bool
	longest := make([]time.Duration, c.scale.partitions)
	errs := make([]error, c.scale.partitions)
	for p := range c.scale.partitions {
		key := c.keyIn(p)
		wg.Go(func() {
			for n := 0; !ended.Load() && errs[p] == nil; n++ {
				began := time.Now()
				for {
					err := cl.Set(ctx, key, n, 0).Err()
					if err == nil || ctx.Err() != nil {
						errs[p] = err
						break
					}
				}
				longest[p] = max(longest[p], time.Since(began))
				time.Sleep(time.Millisecond)
			}
		})
	}
	time.Sleep(100 * time.Millisecond) // until the clients have connections
	err := do()
	ended.Store(true)
	wg.Wait()
	return longest, errors.Join(err, errors.Join(errs...))
}

// moves measures how long clients wait while a server joins: those of partitions that move, beside the others.
func (c *shared) moves(ctx context.Context) error {
	c.b.cfg.Progress(c.b.done, c.b.total, "a server joins")
	c.b.done++
	moved := map[int]bool{}
	longest, err := c.waits(ctx, func() error {
		before, err := c.owners(ctx)
		if err != nil {
			return err
		}
		p, err := child.StartReady(ctx, c.w.server("shared", "127.0.0.1:0", c.scale.local, "--partitions", strconv.Itoa(c.scale.partitions)))
		if err != nil {
			return err
		}
		c.servers = append(c.servers, p)
		ctx, cancel := context.WithTimeout(ctx, recoveryTimeout)
		defer cancel()
		err = c.until(ctx, "a server that joins has its share", seldom, func(owned map[string]int) bool {
			return owned[p.Addr("redis")] >= partition.Slots/c.scale.partitions*(c.scale.partitions/len(c.servers))
		})
		if err != nil {
			return err
		}
		after, err := c.owners(ctx)
		for i := range after {
			moved[i] = after[i] != before[i]
		}
		return err
	})
	if err != nil {
		return err
	}
	var of, rest []float64
	for p, d := range longest {
		if ms := float64(d.Microseconds()) / 1000; moved[p] {
			of = append(of, ms)
		} else {
			rest = append(rest, ms)
		}
	}
	row := benchout.Row{Bench: "cluster", Case: fmt.Sprintf("a server joins %d", len(c.servers)-1), Metric: "longest reply, a partition that moves", Value: median(of), Unit: "ms"}
	return c.b.cfg.Printer.Print(row.Against("partitions that stay", median(rest), benchout.Lower))
}

// owners returns the address of the server that has each partition, as the first server knows it.
func (c *shared) owners(ctx context.Context) ([]string, error) {
	first := redis.NewClient(&redis.Options{Addr: c.servers[0].Addr("redis"), MaxRetries: -1})
	defer first.Close()
	shards, err := first.ClusterShards(ctx).Result()
	owners := make([]string, c.scale.partitions)
	for _, s := range shards {
		for _, r := range s.Slots {
			for p := partition.Of(int(r.Start), c.scale.partitions); p <= partition.Of(int(r.End), c.scale.partitions); p++ {
				owners[p] = net.JoinHostPort(s.Nodes[0].IP, strconv.FormatInt(s.Nodes[0].Port, 10))
			}
		}
	}
	return owners, err
}

// kill kills the last server. It measures how long it takes until the first server's map no longer names the dead
// server, and how long from then until all partitions answer.
func (c *shared) kill(ctx context.Context) error {
	c.b.cfg.Progress(c.b.done, c.b.total, "a server is killed")
	c.b.done++
	last := c.servers[len(c.servers)-1]
	began := time.Now()
	if err := killer(last)(); err != nil {
		return err
	}
	c.servers = c.servers[:len(c.servers)-1]
	within, cancel := context.WithTimeout(ctx, recoveryTimeout)
	defer cancel()
	for {
		owners, err := c.owners(within)
		if err == nil && !slices.Contains(owners, last.Addr("redis")) {
			break
		}
		if within.Err() != nil {
			return fmt.Errorf("a server that was killed is not missed: %w", errors.Join(err, context.Cause(within)))
		}
		time.Sleep(time.Millisecond)
	}
	known := time.Since(began)
	if err := c.until(within, "the others answer for all", often, func(map[string]int) bool { return true }); err != nil {
		return err
	}
	all := time.Since(began)
	row := benchout.Row{Bench: "cluster", Case: "a server is killed", Metric: "known to be dead", Value: float64(known.Milliseconds()), Unit: "ms"}
	if err := c.b.cfg.Printer.Print(row); err != nil {
		return err
	}
	row.Metric, row.Value = "from then to all partitions' answers", float64((all-known).Microseconds())/1000
	return c.b.cfg.Printer.Print(row)
}

// quiet logs nothing.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
