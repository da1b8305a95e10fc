package simcluster

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"polder/measure/benchout"
)

// Options are what Run is told.
type Options struct {
	Out   io.Writer
	JSON  bool // one object a line instead of a table
	Seed  uint64
	Short bool // one play of a mix, not five
	// Progress, if set, is told how far it is.
	Progress func(done, total int, what string)

	grain int // MiB that are borrowed at a time in the play with the allocator; 0 is the usual
}

// plays is how often each mix is played, with other random numbers.
const plays = 5

// What the paper measured with the whole system, and not with its simulator.
const (
	staticFar = 41.39 // percent of the far memory in use
	sharedFar = 74.06
	gain      = 17.71 // percent more jobs in a time
)

// variant is a way to play the mixes.
type variant struct {
	name   string
	how    Sharing
	shrink Shrinking
	byKind bool
	grain  int     // MiB
	pool   float64 // as a multiple of the far memory that the file gives
}

// Names of rows.
const (
	plain     = "Fastswap / FineMem"
	allocated = "a play with pool/finemem, 16 MiB at a time"
)

// variants are compared with Static sharing, where each server has a partition.
var variants = []variant{
	{name: plain, how: Shared, grain: 2, pool: 1},
	{name: "the same, waiting jobs kind by kind", how: Shared, byKind: true, grain: 2, pool: 1},
	{name: "the same, jobs shrink where it costs least", how: Shared, shrink: LeastLoss, grain: 2, pool: 1},
	{name: "the same, borrowed by the GiB", how: Shared, grain: 1024, pool: 1},
	{name: "Fastswap / a pool and idle memory", how: Idle, grain: 2, pool: 1},
	{name: "Fastswap / half the pool", how: Shared, grain: 2, pool: 0.5},
	{name: "Fastswap / half the pool and idle memory", how: Idle, grain: 2, pool: 0.5},
	{name: "Fastswap / a fifth of the pool", how: Shared, grain: 2, pool: 0.2},
	{name: "Fastswap / a fifth of the pool and idle memory", how: Idle, grain: 2, pool: 0.2},
	{name: "Fastswap / idle memory alone", how: Idle, grain: 2},
	{name: "Fastswap / no far memory", how: None, grain: 2},
}

// play plays a mix once.
func (v *variant) play(spec *Spec, mix []int, seed uint64, l lender) (outcome, error) {
	c := &cluster{spec: spec, how: v.how, shrink: v.shrink, byKind: v.byKind, grain: v.grain, lender: l,
		pool: int(v.pool * float64(spec.Cluster.Far)), rng: rand.New(rand.NewPCG(seed, 7))}
	return c.run(arrivals(spec, mix, seed))
}

// A figure is a simulated value and, unless it is 0, the published one.
type figure struct {
	name, metric, unit   string
	simulated, published float64
}

// Run simulates the cluster of a file and prints it.
func Run(ctx context.Context, spec *Spec, o Options) error {
	n := plays
	if o.Short {
		n = 1
	}
	c := &spec.Cluster
	s := benchout.Simulation{Bench: "sim swap", Notes: notes, Heading: fmt.Sprintf("FineMem's cluster: %d servers with %d GiB, %d GiB of far memory, %d jobs, %d mixes",
		c.Servers, c.Memory>>10, c.Far>>10, c.Jobs, len(spec.Runs))}
	return s.Print(o.Out, o.JSON, func(print func(benchout.Figure) error) error {
		yield := func(f figure) error {
			return print(benchout.Figure{Name: f.name, Metric: f.metric, Unit: f.unit, Simulated: f.simulated, Low: f.published, High: f.published, Source: "predicted"})
		}
		if err := simulate(ctx, spec, o.Seed, n, o.Progress, yield); err != nil {
			return err
		}
		if o.Progress != nil {
			o.Progress(len(variants), len(variants)+1, allocated)
		}
		return simulateBorrowing(ctx, spec, o.Seed, cmp.Or(o.grain, grain), yield)
	})
}

// simulate calls yield for every value.
func simulate(ctx context.Context, spec *Spec, seed uint64, plays int, progress func(done, total int, what string), yield func(figure) error) error {
	fixed := make(map[variant][]outcome) // Fastswap's, for each way to read the policy
	for i, v := range variants {
		if progress != nil {
			progress(i, len(variants)+1, v.name)
		}
		rival := variant{how: Static, shrink: v.shrink, byKind: v.byKind, grain: 1}
		if fixed[rival] == nil {
			var err error
			if fixed[rival], err = rival.playAll(ctx, spec, seed, plays); err != nil {
				return err
			}
		}
		all, err := v.playAll(ctx, spec, seed, plays)
		if err != nil {
			return err
		}
		var ratios, static, shared, published []float64
		for i, o := range all {
			ratios = append(ratios, fixed[rival][i].makespan/o.makespan)
			static, shared = append(static, fixed[rival][i].far), append(shared, o.far)
		}
		if v.name == plain {
			for _, m := range spec.Runs {
				published = append(published, m.Ratio)
			}
		}
		figures := []figure{{v.name, "mean", "x", mean(ratios), mean(published)}}
		if v.name == plain {
			for _, q := range []struct {
				name string
				at   float64
			}{{"least", 0}, {"lower quartile", 0.25}, {"median", 0.5}, {"upper quartile", 0.75}, {"most", 1}} {
				figures = append(figures, figure{v.name, q.name, "x", quantile(ratios, q.at), quantile(published, q.at)})
			}
			figures = append(figures, figure{"far memory in use, Fastswap", "mean", "%", 100 * mean(static), staticFar},
				figure{"far memory in use, FineMem", "mean", "%", 100 * mean(shared), sharedFar},
				figure{"jobs in a time, FineMem", "more than Fastswap's", "%", 100 * (mean(ratios) - 1), gain})
		}
		for _, f := range figures {
			if err := yield(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// simulateBorrowing calls yield for the results of a play with the allocator.
func simulateBorrowing(ctx context.Context, spec *Spec, seed uint64, grain int, yield func(figure) error) error {
	r, err := borrowing(ctx, spec, seed, grain)
	if err != nil {
		return err
	}
	for _, f := range []figure{
		{allocated, "makespan, times that of accounts", "x", r.makespan / r.accounts, 0},
		{allocated, "chunks lent", "", float64(r.lent), 0},
		{allocated, "for a chunk", "us", float64(r.took.Nanoseconds()) / 1e3 / float64(max(1, r.lent+r.back)), 0},
	} {
		if err := yield(f); err != nil {
			return err
		}
	}
	return nil
}

// playAll plays each mix several times.
func (v *variant) playAll(ctx context.Context, spec *Spec, seed uint64, plays int) ([]outcome, error) {
	var all []outcome
	for _, m := range spec.Runs {
		for play := range uint64(plays) {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			o, err := v.play(spec, m.Percent, seed<<32+m.Seed+play<<20, nil)
			if err != nil {
				return nil, fmt.Errorf("cannot play the mix %v: %w", m.Percent, err)
			}
			all = append(all, o)
		}
	}
	return all, nil
}

// borrowed is the result of a play with the allocator.
type borrowed struct {
	makespan, accounts float64 // of the play, and of the same play with accounts alone
	lent, back         int     // chunks
	took               time.Duration
}

// borrowing plays the first mix with every chunk, of grain MiB, borrowed from the allocator.
func borrowing(ctx context.Context, spec *Spec, seed uint64, grain int) (b borrowed, err error) {
	v, m := variant{how: Shared, grain: grain, pool: 1}, spec.Runs[0]
	p, err := newPool(ctx, spec.Cluster.Servers, spec.Cluster.Far, grain)
	if err != nil {
		return b, fmt.Errorf("cannot make the allocator's pool: %w", err)
	}
	defer p.close()
	o, err := v.play(spec, m.Percent, seed<<32+m.Seed, p)
	if err != nil {
		return b, fmt.Errorf("cannot play the mix %v with the allocator: %w", m.Percent, err)
	}
	accounts, err := v.play(spec, m.Percent, seed<<32+m.Seed, nil)
	return borrowed{o.makespan, accounts.makespan, p.lent, p.back, p.took}, err
}

func mean(all []float64) float64 {
	sum := 0.0
	for _, v := range all {
		sum += v
	}
	return sum / max(1, float64(len(all)))
}

// quantile returns the value below which a share of all lies.
func quantile(all []float64, at float64) float64 {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[int(at*float64(len(sorted)-1)+0.5)]
}

const notes = `
Above 1: jobs are through sooner than with a partition for each server. All constants are
given by the file, and none is fitted. "Kind by kind" and "where it costs least" are the
other readings of the policy. The published runs are the file's, and the shares of far
memory and the jobs in a time are the paper's, measured on its testbed with another mix.
Idle memory is what servers have free and lend each other besides the pool.`
