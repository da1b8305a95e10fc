package allocbench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"polder/measure/benchout"
	"polder/memnode"
	"polder/memnode/twolayer"
	"polder/pool/finemem"
)

// A recovery says how much the benchmark "finemem" does.
type recovery struct {
	entries int           // allocations of the client that dies
	others  int           // clients that allocate and free meanwhile
	alone   time.Duration // how long the others do so before the client dies
}

// publishedRecovery is about how many entries of its log FineMem recovers in a second.
const publishedRecovery = 1e6

// RunFineMem runs the benchmark "finemem": how much memory FineMem's metadata take,
// and, over tcp, how fast a node recovers what a client has allocated that dies.
func RunFineMem(ctx context.Context, o Options) error {
	if err := runFineMem(ctx, o, recovery{entries: 100_000, others: 8, alone: time.Second}); err != nil {
		return fmt.Errorf("cannot run the benchmark of FineMem: %w", err)
	}
	return nil
}

func runFineMem(ctx context.Context, o Options, r recovery) error {
	if err := reportMetadata(o.Out); err != nil {
		return err
	}
	return r.run(ctx, o)
}

// publishedMetadata is the most that FineMem's metadata take, in percent.
const publishedMetadata = 0.4

// reportMetadata prints how much memory the metadata of a GiB take, for several least
// sizes of an allocation.
func reportMetadata(out benchout.Printer) error {
	for _, least := range []uint64{4 << 10, 64 << 10, 2 << 20} {
		l, err := twolayer.NewLayout(1<<30, least)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("metadata, %d KiB and larger", least>>10)
		if err := out.Print(benchout.Row{Bench: "finemem", Case: name, Metric: "size", Value: float64(l.Bytes()), Unit: "B/GiB"}); err != nil {
			return err
		}
		row := benchout.Row{Bench: "finemem", Case: name, Metric: "share", Value: 100 * float64(l.Bytes()) / (1 << 30), Unit: "%"}
		if err := out.Print(row.Against("published", publishedMetadata, benchout.Lower)); err != nil {
			return err
		}
	}
	return nil
}

func (r recovery) run(ctx context.Context, o Options) (err error) {
	f, err := fabrics()
	if err != nil {
		return err
	}
	tcp := &f[0]
	const spare = 1024 // chunks for each of the other clients
	rig, services, err := tcp.startServices(ctx, memnode.Config{
		Lend: int64(r.entries+(r.others+1)*spare) * twolayer.DefaultUnit, Grace: time.Millisecond,
	}, r.others)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rig.close()) }()
	progress := func(done int, what string) {
		if o.Progress != nil {
			o.Progress(done, 3, what)
		}
	}
	progress(0, "allocating")
	victim, err := tcp.dialService(ctx, rig.addr)
	if err != nil {
		return err
	}
	err = victim.Do(ctx, func(a *finemem.Allocator) error {
		for range r.entries {
			if _, err := a.Alloc(ctx, 0); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return errors.Join(err, victim.close())
	}

	progress(1, "the others alone")
	crowd := newCrowd(ctx, services)
	timer := time.NewTimer(r.alone)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-crowd.done: // all have failed
	}
	crowd.wait(0)
	before := rig.node.Stats()
	crowd.turn()
	progress(2, "recovery")
	start := time.Now()
	if err := victim.dev.Close(); err != nil { // the client dies without a word
		return errors.Join(err, crowd.stop())
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var reclaimed time.Duration
	for reclaimed == 0 {
		select {
		case <-tick.C:
			if rig.node.Stats().Reclaimed-before.Reclaimed >= int64(r.entries) {
				reclaimed = time.Since(start)
			}
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), crowd.stop())
		}
	}
	victim.Close()
	crowd.wait(1)
	if err := errors.Join(crowd.stop(), context.Cause(ctx)); err != nil {
		return err
	}
	return r.report(o.Out, crowd, reclaimed)
}

func (r recovery) report(out benchout.Printer, c *crowd, took time.Duration) error {
	name := fmt.Sprintf("recovery of %d entries beside %d clients", r.entries, r.others)
	rows := []benchout.Row{
		{Bench: "finemem", Case: name, Metric: "time", Value: float64(took) / 1e6, Unit: "ms"},
		benchout.Row{Bench: "finemem", Case: name, Metric: "rate", Value: float64(r.entries) / took.Seconds(), Unit: "/s"}.
			Against("published", publishedRecovery, benchout.Higher),
	}
	alone, during := percentiles(c.latencies[0]), percentiles(c.latencies[1])
	for i, metric := range []string{"their p50", "their p99"} {
		rows = append(rows, benchout.Row{Bench: "finemem", Case: name, Metric: metric, Value: during[i], Unit: "us"}.
			Against("without", alone[i], benchout.Lower))
	}
	for _, row := range rows {
		if err := out.Print(row); err != nil {
			return err
		}
	}
	return nil
}

// crowd is a set of clients that allocate and free one chunk each over and over, in two phases.
type crowd struct {
	cancel context.CancelFunc
	done   chan struct{}    // closed when all clients have ended
	first  [2]chan struct{} // by phase: closed when the first latency of the phase has been measured
	errs   []error

	mu        sync.Mutex // guards the fields below
	phase     int
	latencies [2][]time.Duration // of allocations, by the phase in which they began
}

func newCrowd(ctx context.Context, services []*service) *crowd {
	c := &crowd{done: make(chan struct{}), errs: make([]error, len(services))}
	for i := range c.first {
		c.first[i] = make(chan struct{})
	}
	ctx, c.cancel = context.WithCancel(ctx)
	var wg sync.WaitGroup
	for i, s := range services {
		wg.Go(func() { c.errs[i] = c.work(ctx, s) })
	}
	go func() {
		wg.Wait()
		close(c.done)
	}()
	return c
}

// turn begins the second phase.
func (c *crowd) turn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.phase = 1
}

// wait waits for the first allocation of a phase, or until all clients have ended.
func (c *crowd) wait(phase int) {
	select {
	case <-c.first[phase]:
	case <-c.done:
	}
}

// stop ends the clients and returns their errors.
func (c *crowd) stop() error {
	c.cancel()
	<-c.done
	return errors.Join(c.errs...)
}

// work is one client: it allocates and frees until ctx ends.
func (c *crowd) work(ctx context.Context, s *service) error {
	for ctx.Err() == nil {
		c.mu.Lock()
		phase := c.phase
		c.mu.Unlock()
		start := time.Now()
		err := s.Do(ctx, func(a *finemem.Allocator) error {
			b, err := a.Alloc(ctx, 0)
			if err != nil {
				return err
			}
			took := time.Since(start)
			c.mu.Lock()
			if len(c.latencies[phase]) == 0 {
				close(c.first[phase])
			}
			c.latencies[phase] = append(c.latencies[phase], took)
			c.mu.Unlock()
			return a.Free(ctx, b)
		})
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}
