package simfinemem

import (
	"context"
	"fmt"
	"io"
	"time"

	"polder/measure/benchout"
)

// Options are what Run is told.
type Options struct {
	Out   io.Writer
	JSON  bool   // one object a line instead of a table
	Seed  uint64 // of the threads' pauses and of what they free
	Short bool   // fewer rounds, numbers of threads and sizes
	// Progress, if set, is told how far it is.
	Progress func(done, total int, what string)
}

// A plan says which experiments are run.
type plan struct {
	threads []int // numbers of threads that allocate 4 KiB
	classes []int // sizes of blocks that sweep threads allocate
	sweep   int
	rounds  int
}

// sweepThreads is how many threads allocate other sizes than 4 KiB: one on every
// compute node.
const sweepThreads = computeNodes

var (
	longPlan  = plan{threads: []int{1, 2, 4, 8, 16, 32, 64, 128}, classes: []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, sweep: sweepThreads, rounds: 100}
	shortPlan = plan{threads: []int{1, 16, 128}, classes: []int{0, 4, 5, 9}, sweep: sweepThreads, rounds: 50}
)

// figure is a simulated value and, if there is one, what was published.
type figure struct {
	name, metric, unit   string
	simulated, published float64
}

// source says whether a figure is fitted or predicted. No figure is given: none is a constant of the model.
func (f *figure) source() string {
	if f.metric == "mean" && f.published == publishedScan.mean {
		return "fitted" // by scanPiece
	}
	return "predicted"
}

// Run runs the simulation and prints it.
func Run(ctx context.Context, o Options) error {
	pl := longPlan
	if o.Short {
		pl = shortPlan
	}
	return o.run(ctx, pl)
}

func (o Options) run(ctx context.Context, pl plan) error {
	s := benchout.Simulation{Bench: "sim finemem", Heading: heading, Notes: notes}
	return s.Print(o.Out, o.JSON, func(yield func(benchout.Figure) error) error {
		return o.simulate(ctx, pl, func(f figure) error {
			return yield(benchout.Figure{Name: f.name, Metric: f.metric, Unit: f.unit, Simulated: f.simulated, Low: f.published, High: f.published, Source: f.source()})
		})
	})
}

// simulate calls yield for every value.
func (o Options) simulate(ctx context.Context, pl plan, yield func(figure) error) error {
	done, total := 0, (len(pl.threads)+len(pl.classes))*len(systems)
	measure := func(m system, l load, name string) (outcome, error) {
		if o.Progress != nil {
			o.Progress(done, total, name)
		}
		done++
		r, err := run(ctx, Testbed(), o.Seed, m, l)
		if err != nil {
			return r, fmt.Errorf("cannot simulate %s: %w", name, err)
		}
		return r, nil
	}
	most := make(map[string]outcome)
	for _, threads := range pl.threads {
		for _, m := range systems {
			name := fmt.Sprintf("4 KiB, %s: %s", count(threads), m.name)
			r, err := measure(m, load{threads: threads, rounds: pl.rounds}, name)
			if err != nil {
				return err
			}
			var pub published
			if threads == mostThreads {
				most[m.name], pub = r, m.published
			}
			for _, f := range []figure{
				{name, "mean", "us", micro(r.mean), pub.mean},
				{name, "p99", "us", micro(r.p99), pub.p99},
				{name, "retries", "", r.retries, pub.retries},
				{name, "rate", "op/s", r.rate, 0},
			} {
				if f.metric == "retries" && !m.oneSided {
					continue
				}
				if err := yield(f); err != nil {
					return err
				}
			}
		}
	}
	if err := ratios(most, yield); err != nil {
		return err
	}
	if _, all := most[paperName]; all {
		if err := o.sweep(ctx, pl.rounds, yield); err != nil {
			return err
		}
	}
	for _, class := range pl.classes {
		for _, m := range systems {
			name := fmt.Sprintf("blocks of %s, %s: %s", size(class), count(pl.sweep), m.name)
			r, err := measure(m, load{threads: pl.sweep, class: class, rounds: pl.rounds}, name)
			if err != nil {
				return err
			}
			for _, f := range []figure{
				{name, "mean", "us", micro(r.mean), 0},
				{name, "p99", "us", micro(r.p99), 0},
			} {
				if err := yield(f); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// sweep varies what was assumed of the memory node.
func (o Options) sweep(ctx context.Context, rounds int, yield func(figure) error) error {
	for i, s := range sweeps {
		costs := Testbed()
		s.set(&costs)
		if o.Progress != nil {
			o.Progress(i, len(sweeps), s.name)
		}
		r, err := run(ctx, costs, o.Seed, systems[0], load{threads: mostThreads, rounds: rounds})
		if err != nil {
			return fmt.Errorf("cannot simulate %s: %w", s.name, err)
		}
		name := fmt.Sprintf("4 KiB, %s: %s, %s", count(mostThreads), paperName, s.name)
		for _, f := range []figure{
			{name, "mean", "us", micro(r.mean), publishedFineMem.mean},
			{name, "p99", "us", micro(r.p99), publishedFineMem.p99},
		} {
			if err := yield(f); err != nil {
				return err
			}
		}
	}
	return nil
}

func micro(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func count(threads int) string {
	if threads == 1 {
		return "1 thread"
	}
	return fmt.Sprintf("%d threads", threads)
}

func size(class int) string {
	if kib := 4 << class; kib < 1024 {
		return fmt.Sprintf("%d KiB", kib)
	}
	return fmt.Sprintf("%d MiB", 4<<class/1024)
}

const heading = "FineMem in virtual time: 16 compute nodes"

const notes = `
FineMem is package pool/finemem with the paper's search order, over the worker of
memory nodes, package memnode/rebind, with its constants. "spread" is ours: every user
begins somewhere else, keeps to the span where it last found something, and prefers an
empty span to one that another user has touched. "lanes" is ours, too: the allocation
service has a queue pair for each thread and works on all requests at a time.
The published 43.2 µs are eight requests of 5.4 µs, one after the other: the paper's
service takes one at a time, and its node gives 2.96 million chunks a second new keys.
Ours gives one million, and that is what 128 threads wait for: of each chunk's 0.96 µs,
0.65 are the node's core (0.4 to zero it and 0.25 for two binds), and 0.3 the NIC's, for
two binds of 1.21 µs on eight queue pairs. The rows after the ratios vary what was
assumed of them, and none comes down to the published value.
No parameter is fitted to a latency of FineMem's, and one to the array scan's mean, whose
published tail is longer than the model's; they are in costs.go, and in
verbs/sim/costs.go.`
