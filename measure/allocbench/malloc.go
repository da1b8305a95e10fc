package allocbench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"polder/measure/benchout"
	"polder/memnode"
	"polder/memnode/twolayer"
	"polder/pool/finemem"
	"polder/pool/malloc"
)

// The benchmark "malloc": two programs run over a heap of package pool/malloc, which
// borrows pages when it needs them and gives them back, and over the same heap with
// coarse chunks, which the heap cuts into pages and keeps until it is closed. The programs
// write to what they allocate, and free while they run.
//
//   - larson: every worker holds a number of blocks, and replaces a random one by a block
//     of another size, over and over. From time to time workers exchange all their blocks,
//     so that a block may be freed by another worker than allocated it.
//   - xmalloc: half of the workers allocate blocks, the other half free them.

// A mallocSize says how much the programs do.
type mallocSize struct {
	rounds, workers, held, ops int // held: blocks that a worker holds; ops: of each worker in a round

	sweep []int // other values of held, for sweepHeld
}

// RunMalloc runs the benchmark "malloc".
func RunMalloc(ctx context.Context, o Options) error {
	size := mallocSize{rounds: 5, workers: 4, held: 1000, ops: 20_000, sweep: []int{125, 250, 500, 2000, 4000}}
	if o.Short {
		size.rounds, size.ops, size.sweep = 3, 4000, nil
	}
	if err := runMalloc(ctx, o, size); err != nil {
		return fmt.Errorf("cannot run the benchmark of malloc: %w", err)
	}
	return nil
}

// A mallocRun has the figures of one round of a program.
type mallocRun struct {
	rate        float64 // allocations in a second
	cpu         float64 // processor time of program, pool and node for an allocation, in microseconds
	peak        int64   // the most bytes that the heap had taken from the node
	utilisation float64 // mean of the bytes that live blocks need divided by the bytes taken, in percent
	requests    float64 // WRITEs, and requests to borrow and to give back, for each block
}

func runMalloc(ctx context.Context, o Options, size mallocSize) error {
	heaps := mallocHeaps
	programs := []struct {
		name string
		run  func(context.Context, *malloc.Heap, mallocSize, *mallocMeter) error
	}{{"larson", larson}, {"xmalloc", xmalloc}}
	for i, p := range programs {
		runs := make([][]mallocRun, len(heaps))
		for round := range size.rounds {
			for k, h := range heaps {
				if o.Progress != nil {
					o.Progress((i*size.rounds+round)*len(heaps)+k, len(programs)*size.rounds*len(heaps), p.name+" "+h.name)
				}
				r, err := mallocRound(ctx, h.cfg, size, p.run)
				if err != nil {
					return fmt.Errorf("%s %s: %w", p.name, h.name, err)
				}
				runs[k] = append(runs[k], r)
			}
		}
		median := func(k int, of func(*mallocRun) float64) float64 {
			var v []float64
			for j := range runs[k] {
				v = append(v, of(&runs[k][j]))
			}
			slices.Sort(v)
			return v[len(v)/2]
		}
		for k := 1; k < len(heaps); k++ {
			for _, m := range []struct {
				metric, unit string
				better       benchout.Better
				of           func(*mallocRun) float64
			}{
				{"alloc+free", "op/s", benchout.Higher, func(r *mallocRun) float64 { return r.rate }},
				{"peak memory", "MiB", benchout.Lower, func(r *mallocRun) float64 { return float64(r.peak) / (1 << 20) }},
				{"utilisation", "%", benchout.Higher, func(r *mallocRun) float64 { return r.utilisation }},
				{"requests", "/block", benchout.Lower, func(r *mallocRun) float64 { return r.requests }},
			} {
				row := benchout.Row{Bench: "malloc", Case: p.name, Metric: m.metric, Value: median(0, m.of), Unit: m.unit}
				if err := o.Out.Print(row.Against(heaps[k].name, median(k, m.of), m.better)); err != nil {
					return err
				}
			}
		}
		// The ratio is computed for each round and then the median is taken, because the load
		// of the machine changes from round to round. Published for FineMem-User: 2.5 to 4.1 %.
		// Processor time depends less on what else runs on the machine, and has no waiting in it.
		for _, m := range []struct {
			metric string
			of     func(ours, static *mallocRun) float64
		}{
			{"slowdown", func(ours, static *mallocRun) float64 { return 1 - ours.rate/static.rate }},
			{"more processor time", func(ours, static *mallocRun) float64 { return ours.cpu/static.cpu - 1 }},
		} {
			more := make([]float64, size.rounds)
			for j := range more {
				more[j] = 100 * m.of(&runs[0][j], &runs[2][j])
			}
			slices.Sort(more)
			if err := o.Out.Print(benchout.Row{Bench: "malloc", Case: p.name + ", against 2MiB", Metric: m.metric, Value: more[len(more)/2], Unit: "%"}); err != nil {
				return err
			}
		}
	}
	return sweepHeld(ctx, o, size)
}

// sweepHeld prints how the heaps' peaks of memory compare when larson's workers hold more blocks
// or fewer: how many they hold is our choice, and the ratio depends on it.
func sweepHeld(ctx context.Context, o Options, size mallocSize) error {
	for i, held := range size.sweep {
		size.held = held
		var peaks [len(mallocHeaps)]float64
		for k, h := range mallocHeaps {
			name := fmt.Sprintf("larson, %d blocks of each worker", held)
			if o.Progress != nil {
				o.Progress(i*len(mallocHeaps)+k, len(size.sweep)*len(mallocHeaps), name)
			}
			r, err := mallocRound(ctx, h.cfg, size, larson)
			if err != nil {
				return fmt.Errorf("%s %s: %w", name, h.name, err)
			}
			if peaks[k] = float64(r.peak) / (1 << 20); k == 0 {
				continue
			}
			row := benchout.Row{Bench: "malloc", Case: name, Metric: "peak memory", Value: peaks[0], Unit: "MiB"}
			if err := o.Out.Print(row.Against(h.name, peaks[k], benchout.Lower)); err != nil {
				return err
			}
		}
	}
	return nil
}

// mallocHeaps are the heaps over which the programs run, ours first.
var mallocHeaps = [...]struct {
	name string
	cfg  malloc.Config
}{{"", malloc.Config{}}, {"static 128KiB", malloc.Config{Static: 128 << 10}}, {"static 2MiB", malloc.Config{Static: 2 << 20}}}

// mallocRound runs a program once, over a node of its own. The node's chunks have the size
// that the heap takes at a time: 4 KiB, or that of the coarse chunks.
func mallocRound(ctx context.Context, cfg malloc.Config, size mallocSize, run func(context.Context, *malloc.Heap, mallocSize, *mallocMeter) error) (r mallocRun, err error) {
	f, err := fabrics()
	if err != nil {
		return r, err
	}
	node := memnode.Config{Lend: 64 << 20, ChunkSize: twolayer.DefaultUnit}
	if cfg.Static > 0 {
		node.ChunkSize = int(cfg.Static)
	}
	rig, err := f[0].start(ctx, finemem.Manager{}, node, 1)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, rig.close()) }()
	h, err := malloc.New(rig.pools[0], cfg)
	if err != nil {
		return r, err
	}
	meter := &mallocMeter{heap: h}
	worked, err := processorTime()
	if err != nil {
		return r, err
	}
	begun := time.Now()
	if err := run(ctx, h, size, meter); err != nil {
		return r, err
	}
	r.rate = float64(meter.ops.Load()) / time.Since(begun).Seconds()
	until, err := processorTime()
	if err != nil {
		return r, err
	}
	r.cpu = float64(until-worked) / float64(time.Microsecond) / float64(meter.ops.Load())
	r.requests = float64(int64(rig.pools[0].Stats().Nodes[0].Writes)+h.Stats().Requests) / float64(meter.ops.Load())
	r.peak, r.utilisation = meter.peak, 100*meter.sum/float64(meter.samples)
	return r, h.Close(ctx)
}

// processorTime returns the processor time that this process has taken so far.
func processorTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("cannot read this process's processor time: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// A mallocMeter samples a heap's statistics while a program uses the heap.
type mallocMeter struct {
	heap *malloc.Heap
	ops  atomic.Int64

	mu      sync.Mutex
	peak    int64
	sum     float64
	samples int
}

// did counts an operation, and samples the heap at every 64th.
func (m *mallocMeter) did() {
	if m.ops.Add(1)%64 != 0 {
		return
	}
	s := m.heap.Stats()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.peak = max(m.peak, s.Taken)
	m.sum += float64(s.Live) / float64(max(s.Taken, 1))
	m.samples++
}

// fill allocates a block and writes to all of it.
func (m *mallocMeter) fill(ctx context.Context, size int, data []byte) (malloc.Block, error) {
	b, err := m.heap.Alloc(ctx, size)
	if err != nil {
		return b, err
	}
	_, err = b.Chunk.WriteContext(ctx, data[:size], b.Off)
	m.did()
	return b, err
}

// inParallel runs f for all workers at the same time, and waits for them.
func inParallel(workers int, f func(id int) error) error {
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for id := range workers {
		wg.Go(func() { errs[id] = f(id) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// largest is the largest block of the programs, in bytes; most are much smaller.
const largest = 4096

// blockSize returns a random size for a block: 8 to 1023 bytes, as in larson, and now and
// then up to 4 KiB.
func blockSize(r *rand.Rand) int {
	if r.IntN(16) == 0 {
		return 1024 + r.IntN(largest-1024)
	}
	return 8 + r.IntN(1016)
}

func larson(ctx context.Context, h *malloc.Heap, size mallocSize, m *mallocMeter) error {
	const exchanges = 4
	held := make([][]malloc.Block, size.workers)
	for turn := range exchanges {
		err := inParallel(size.workers, func(id int) error {
			r, data := rand.New(rand.NewPCG(uint64(id), uint64(turn))), make([]byte, largest)
			mine := held[(id+turn)%size.workers] // another worker's blocks of the turn before
			for range size.ops / exchanges {
				b, err := m.fill(ctx, blockSize(r), data)
				if err != nil {
					return err
				}
				if len(mine) < size.held {
					mine = append(mine, b)
					continue
				}
				i := r.IntN(len(mine))
				if err := h.Free(ctx, mine[i]); err != nil {
					return err
				}
				mine[i] = b
			}
			held[(id+turn)%size.workers] = mine
			return nil
		})
		if err != nil {
			return err
		}
	}
	return inParallel(size.workers, func(id int) error {
		for _, b := range held[id] {
			if err := h.Free(ctx, b); err != nil {
				return err
			}
		}
		return nil
	})
}

func xmalloc(ctx context.Context, h *malloc.Heap, size mallocSize, m *mallocMeter) error {
	pairs := max(1, size.workers/2)
	pipes := make([]chan []malloc.Block, pairs)
	for i := range pipes {
		pipes[i] = make(chan []malloc.Block, 4)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return inParallel(2*pairs, func(id int) (err error) {
		defer func() {
			if err != nil {
				cancel() // else the other half would wait for ever
			}
		}()
		pipe := pipes[id/2]
		if id%2 == 1 {
			for batch := range pipe {
				for _, b := range batch {
					err = errors.Join(err, h.Free(ctx, b))
				}
			}
			return err
		}
		defer close(pipe)
		r, data := rand.New(rand.NewPCG(uint64(id), 1)), make([]byte, largest)
		for left := 2 * size.ops; left > 0; {
			batch := make([]malloc.Block, 0, min(left, size.held/4))
			for len(batch) < cap(batch) {
				b, err := m.fill(ctx, blockSize(r), data)
				if err != nil {
					return err
				}
				batch = append(batch, b)
			}
			left -= len(batch)
			select {
			case pipe <- batch:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
}
