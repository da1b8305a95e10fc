// Package allocbench measures how long it takes to borrow a chunk of remote
// memory and to give it back, with every way of managing memory, and how much
// time of the memory node's control goroutine that takes.
//
// Node and clients are in one process, each with a device of its own, and share
// the machine's processors. So the figures compare the ways with each other; they
// do not show what a node with processors of its own could do. Rounds of all
// contestants alternate, and the median round counts.
//
// [Replay] instead replays what real allocators have asked their operating system
// for: blocks of many sizes, with which a manager whose chunks have one size
// wastes memory or time. See [Trace] for the format.
package allocbench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"polder/measure/benchout"
	"polder/memnode"
	"polder/pool"
	"polder/pool/baseline"
	"polder/pool/memfd"
	"polder/verbs"
	"polder/verbs/shm"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// Options say how to run.
type Options struct {
	// Short ends within 45 s, at some cost in steadiness.
	Short bool
	// Out receives the figures.
	Out benchout.Printer
	// Progress, if set, is told how far the benchmark is.
	Progress func(done, total int, what string)
}

// rival is the manager with which the others are compared.
const rival = memnode.RPCMW

const (
	chunkSize = 4096
	chunks    = 4096
)

var clientCounts = []int{1, 8, 64}

// fabric is how devices of a driver reach each other.
type fabric struct {
	name      string
	managers  []pool.Manager // the rival first
	newDevice func(softnic.Config) (verbs.Device, error)
	listen    func(dev verbs.Device, dir string) (verbs.Listener, error)
	dial      func(ctx context.Context, dev verbs.Device, addr string) (verbs.Conn, error)
}

func fabrics() ([]fabric, error) {
	all := slices.Clone(baseline.Managers)
	for _, name := range pool.Managers() {
		m, err := pool.ManagerNamed(name)
		if err != nil {
			return nil, err
		}
		if name == rival {
			all = slices.Insert(all, 0, m)
		} else {
			all = append(all, m)
		}
	}
	return []fabric{{
		name: "tcp", managers: all, newDevice: tcp.NewDevice,
		listen: func(dev verbs.Device, _ string) (verbs.Listener, error) {
			return tcp.Listen(dev, "127.0.0.1:0", tcp.Config{})
		},
		dial: func(ctx context.Context, dev verbs.Device, addr string) (verbs.Conn, error) {
			return tcp.Dial(ctx, dev, addr, tcp.Config{})
		},
	}, {
		name: "shm", managers: append(slices.Clone(all), memfd.Manager{}), newDevice: shm.NewDevice,
		listen: func(dev verbs.Device, dir string) (verbs.Listener, error) {
			return shm.Listen(dev, filepath.Join(dir, "node"), shm.Config{})
		},
		dial: func(ctx context.Context, dev verbs.Device, addr string) (verbs.Conn, error) {
			return shm.Dial(ctx, dev, addr, shm.Config{})
		},
	}}, nil
}

// names returns the managers' names.
func (f *fabric) names() (names []string) {
	for _, m := range f.managers {
		names = append(names, m.Name())
	}
	return names
}

// Run runs the benchmark "alloc".
func Run(ctx context.Context, o Options) error {
	rounds, span := 5, 400*time.Millisecond
	if o.Short {
		rounds, span = 3, 60*time.Millisecond
	}
	if err := run(ctx, o, rounds, span, clientCounts); err != nil {
		return fmt.Errorf("cannot run the allocation benchmark: %w", err)
	}
	return nil
}

func run(ctx context.Context, o Options, rounds int, span time.Duration, counts []int) error {
	fabrics, err := fabrics()
	if err != nil {
		return err
	}
	total, done := 0, 0
	for _, f := range fabrics {
		total += len(counts) * rounds * len(f.managers)
	}
	for _, f := range fabrics {
		for _, clients := range counts {
			results := make([][]result, len(f.managers))
			for range rounds {
				for i, m := range f.managers {
					if o.Progress != nil {
						o.Progress(done, total, fmt.Sprintf("%s %s, %d clients", f.name, m.Name(), clients))
					}
					r, err := f.round(ctx, m, clients, span)
					if err != nil {
						return fmt.Errorf("%s, %s, %d clients: %w", f.name, m.Name(), clients, err)
					}
					results[i] = append(results[i], r)
					done++
				}
			}
			if err := report(o.Out, f, clients, results); err != nil {
				return err
			}
		}
	}
	return nil
}

// A result has the figures of one round.
type result struct {
	alloc, free [2]float64 // p50 and p99 in microseconds
	rate        float64    // pairs of an allocation and a free in a second
	busy        float64    // microseconds of the control goroutine's for each pair
}

// round starts a node and clients, and lets them allocate and free for span.
func (f *fabric) round(ctx context.Context, m pool.Manager, clients int, span time.Duration) (r result, err error) {
	rig, err := f.start(ctx, m, memnode.Config{Lend: chunks * chunkSize, ChunkSize: chunkSize}, clients)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, rig.close()) }()
	return measure(ctx, rig.node, rig.pools, span)
}

func measure(ctx context.Context, node *memnode.Node, pools []*pool.Pool, span time.Duration) (r result, err error) {
	var mu sync.Mutex
	var allocs, frees []time.Duration
	var failed error
	var wg sync.WaitGroup
	before := node.Stats().Busy
	start := time.Now()
	for _, p := range pools {
		wg.Go(func() {
			a, f, err := work(ctx, p, start.Add(span))
			mu.Lock()
			defer mu.Unlock()
			allocs, frees = append(allocs, a...), append(frees, f...)
			failed = errors.Join(failed, err)
		})
	}
	wg.Wait()
	took := time.Since(start)
	busy := node.Stats().Busy - before
	if failed != nil {
		return r, failed
	}
	r.alloc, r.free = percentiles(allocs), percentiles(frees)
	r.rate = float64(len(frees)) / took.Seconds()
	r.busy = float64(busy) / 1e3 / float64(len(frees))
	return r, nil
}

// work allocates and frees until the time until, at least once.
func work(ctx context.Context, p *pool.Pool, until time.Time) (allocs, frees []time.Duration, err error) {
	for t := time.Now(); ; {
		c, err := p.Alloc(ctx, int64(p.ChunkSize()))
		if err != nil {
			return nil, nil, err
		}
		a := time.Now()
		if err := c.Free(ctx); err != nil {
			return nil, nil, err
		}
		f := time.Now()
		allocs, frees = append(allocs, a.Sub(t)), append(frees, f.Sub(a))
		if t = f; f.After(until) {
			return allocs, frees, nil
		}
	}
}

// percentiles returns the p50 and p99 in microseconds.
func percentiles(v []time.Duration) [2]float64 {
	slices.Sort(v)
	at := func(part int) float64 { return float64(v[len(v)*part/100]) / 1e3 }
	return [2]float64{at(50), at(99)}
}

// report prints the medians of the rounds.
func report(out benchout.Printer, f fabric, clients int, results [][]result) error {
	metrics := []struct {
		name, unit string
		better     benchout.Better
		value      func(*result) float64
	}{
		{"alloc p50", "us", benchout.Lower, func(r *result) float64 { return r.alloc[0] }},
		{"alloc p99", "us", benchout.Lower, func(r *result) float64 { return r.alloc[1] }},
		{"free p50", "us", benchout.Lower, func(r *result) float64 { return r.free[0] }},
		{"free p99", "us", benchout.Lower, func(r *result) float64 { return r.free[1] }},
		{"alloc+free", "op/s", benchout.Higher, func(r *result) float64 { return r.rate }},
		{"control path", "us/op", benchout.Lower, func(r *result) float64 { return r.busy }},
	}
	for i, m := range f.managers {
		for _, metric := range metrics {
			of := func(i int) float64 {
				var v []float64
				for k := range results[i] {
					v = append(v, metric.value(&results[i][k]))
				}
				slices.Sort(v)
				return v[len(v)/2]
			}
			row := benchout.Row{Bench: "alloc", Case: fmt.Sprintf("%s %s x%d", f.name, m.Name(), clients),
				Metric: metric.name, Value: of(i), Unit: metric.unit}
			if i > 0 && row.Value > 0 {
				row = row.Against(rival, of(0), metric.better)
			}
			if err := out.Print(row); err != nil {
				return err
			}
		}
	}
	return nil
}
