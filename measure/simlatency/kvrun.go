package simlatency

import (
	"context"
	"fmt"
	"time"

	"polder/measure/benchout"
	"polder/verbs"
	"polder/verbs/sim"
)

// A kvFigure is a simulated value and, unless high is 0, what was published: a value, or a
// range of values.
type kvFigure struct {
	name, metric, unit string
	simulated          float64
	low, high          float64
	// fitted says which constant was chosen so that this figure comes out, and
	// bound why the model is as far from the published value as it is.
	fitted, bound string
	// given says what the figure follows from without a simulation.
	given string
}

// figure is f as it is printed.
func (f *kvFigure) figure() benchout.Figure {
	source := predicted
	switch {
	case f.given != "":
		source = given
	case f.fitted != "":
		source = fitted
	}
	return benchout.Figure{Name: f.name, Metric: f.metric, Unit: f.unit, Simulated: f.simulated, Low: f.low, High: f.high,
		Source: string(source), From: f.fitted + f.given, Bound: f.bound}
}

const (
	chunk2K, chunk4K, chunk8K = 2 << 10, 4 << 10, 8 << 10

	fitClient = "kvClient"
	fitCore   = "sim.Costs.RPC"
	fitBlock  = "kvBlock"

	boundUnits = "the processing units of the node's NIC: two binds and some twenty requests for each chunk"
	boundAlloc = "the chains of one Alloc QP, which runs one at a time"
	boundGrain = "the node's core, which Premmap-RPC waits for only when it is busy: how many clients FineMem's authors have, and how many updates a chunk serves, their text does not say"
	boundPolls = "cores that poll and share nothing: the paper's pay for notifications by the NIC, how much it does not say"
)

// kvPlan says how much is simulated: how many operations each thread does on one compute node, and on six, and how
// long a thread rests between two.
type kvPlan struct {
	one, six int
	client   time.Duration
}

// simulateKV calls yield for every value of figures 6 and 7, and of FineMem's YCSB-A.
func simulateKV(ctx context.Context, costs sim.Costs, seed uint64, pl kvPlan, progress func(done, total int, what string), yield func(kvFigure) error) (err error) {
	managers := map[string]kvManager{"Static-MR": kvStatic, "RPC-MW": kvRPC(verbs.MWType2B, false), "RPC-MW, unlimited CPU": kvRPC(verbs.MWType2B, true),
		"OneSidedMW": kvOneSided(0), "OneSidedMW, one Alloc QP a node": kvOneSided(1),
		"Premmap-RPC": kvRPC(0, false), "FineMem": kvFineMem}
	done, seen := 0, make(map[string]kvOutcome)
	get := func(system string, l kvLoad) kvOutcome {
		name := fmt.Sprintf("%s, chunks of %d KiB, %d x %d threads, %.0f %% reads, a rest of %v", system, l.chunk>>10, l.nodes, l.threads, 100*l.reads, l.client)
		if o, ok := seen[name]; ok || err != nil {
			return o
		}
		if progress != nil {
			progress(done, kvExperiments, name)
		}
		done++
		o, e := measureKV(ctx, costs, seed, managers[system], l)
		if e != nil {
			err = fmt.Errorf("cannot simulate %s: %w", name, e)
		}
		seen[name] = o
		return o
	}
	put := func(f kvFigure) {
		if err == nil {
			err = yield(f)
		}
	}
	load := func(nodes, threads, rounds int, reads float64) func(chunk int) kvLoad {
		return func(chunk int) kvLoad {
			return kvLoad{nodes: nodes, threads: threads, chunk: chunk, reads: reads, rounds: rounds, client: pl.client}
		}
	}
	size := func(chunk int) string { return fmt.Sprintf(", %d KiB", chunk>>10) }
	share := func(a, b kvOutcome) float64 { return 100 * a.rate / b.rate }

	const fig6, fig7 = "1 x 24 threads: ", "6 x 48 threads: "
	l := load(1, 24, pl.one, 0)
	static := get("Static-MR", l(chunk8K))
	put(kvFigure{name: fig6 + "Static-MR", metric: "throughput", unit: "op/s", simulated: static.rate})
	put(kvFigure{name: fig6 + "Static-MR", metric: "p99", unit: "us", simulated: micro(static.p99)})
	most := 0.0
	for _, x := range []struct {
		chunk            int
		rpc, ours, freed float64 // published, in percent
	}{{chunk8K, 0, 0, 43}, {chunk4K, 0, 100 - 8.73, 65.6}, {chunk2K, 33.9, 100 - 18.4, 81.1}} {
		of := l(x.chunk)
		rpc := get("RPC-MW", of)
		of.deletes = true
		ours := get("OneSidedMW", of)
		most = max(most, ours.rate/rpc.rate)
		f := kvFigure{name: fig6 + "RPC-MW" + size(x.chunk), metric: "of Static-MR's throughput", unit: "%", simulated: share(rpc, static), low: x.rpc, high: x.rpc}
		if x.rpc > 0 {
			f.fitted = fitClient
		}
		put(f)
		put(kvFigure{name: f.name, metric: "p99", unit: "us", simulated: micro(rpc.p99)})
		put(kvFigure{name: f.name, metric: "node CPU", unit: "%", simulated: 100 * rpc.cpu})
		f = kvFigure{name: fig6 + "OneSidedMW" + size(x.chunk), metric: "of Static-MR's throughput", unit: "%", simulated: share(ours, static), low: x.ours, high: x.ours}
		put(f)
		put(kvFigure{name: f.name, metric: "p99 more than Static-MR's", unit: "us", simulated: micro(ours.p99 - static.p99), low: 10, high: 15})
		put(kvFigure{name: f.name, metric: "RPC-MW's p99", unit: "x", simulated: float64(rpc.p99) / float64(ours.p99), low: 2.17, high: 5.26, bound: boundPolls})
		put(kvFigure{name: f.name, metric: "node CPU", unit: "%", simulated: 100 * ours.cpu})
		put(kvFigure{name: f.name, metric: "chunks freed by deletions", unit: "%", simulated: 100 * ours.freed, low: x.freed, high: x.freed, fitted: fitBlock})
		put(kvFigure{name: f.name, metric: "deletions", unit: "op/s", simulated: ours.deletions})
	}
	put(kvFigure{name: fig6 + "OneSidedMW / RPC-MW, at most", metric: "throughput", unit: "x", simulated: most, low: 2.71, high: 2.71})
	one := get("OneSidedMW, one Alloc QP a node", l(chunk4K))
	put(kvFigure{name: fig6 + "OneSidedMW, 4 KiB, one Alloc QP", metric: "of Static-MR's throughput", unit: "%", simulated: share(one, static), bound: boundAlloc})
	l = load(1, 24, pl.one, 0.5)
	put(kvFigure{name: fig6 + "half of them reads: RPC-MW, 2 KiB", metric: "of Static-MR's throughput", unit: "%",
		simulated: share(get("RPC-MW", l(chunk2K)), get("Static-MR", l(chunk8K))), low: 53.7, high: 53.7})
	put(kvFigure{name: fig6 + "half of them reads: OneSidedMW, 2 KiB", metric: "of Static-MR's throughput", unit: "%",
		simulated: share(get("OneSidedMW", l(chunk2K)), get("Static-MR", l(chunk8K)))})

	l = load(6, 48, pl.six, 0)
	static = get("Static-MR", l(chunk8K))
	rpc, unlimited, ours := get("RPC-MW", l(chunk4K)), get("RPC-MW, unlimited CPU", l(chunk4K)), get("OneSidedMW", l(chunk4K))
	ours8 := get("OneSidedMW", l(chunk8K))
	one = get("OneSidedMW, one Alloc QP a node", l(chunk4K))
	for _, f := range []kvFigure{
		{name: "Static-MR", metric: "throughput", unit: "op/s", simulated: static.rate, bound: "the node's link"},
		{name: "OneSidedMW, 8 KiB", metric: "of Static-MR's throughput", unit: "%", simulated: share(ours8, static), low: 80.2, high: 80.2},
		{name: "OneSidedMW, 4 KiB", metric: "of Static-MR's throughput", unit: "%", simulated: share(ours, static), low: 63.8, high: 63.8, bound: boundUnits},
		{name: "OneSidedMW, 4 KiB", metric: "node CPU", unit: "%", simulated: 100 * ours.cpu},
		{name: "OneSidedMW, 4 KiB, one Alloc QP", metric: "of Static-MR's throughput", unit: "%", simulated: share(one, static), bound: boundAlloc},
		{name: "RPC-MW, 4 KiB", metric: "of Static-MR's throughput", unit: "%", simulated: share(rpc, static), low: 6, high: 6, fitted: fitCore},
		{name: "RPC-MW, 4 KiB", metric: "p99", unit: "us", simulated: micro(rpc.p99)},
		{name: "RPC-MW, 4 KiB", metric: "node CPU", unit: "%", simulated: 100 * rpc.cpu},
		{name: "OneSidedMW / RPC-MW, 4 KiB", metric: "throughput", unit: "x", simulated: ours.rate / rpc.rate, low: 10.6, high: 10.6, bound: boundUnits},
		{name: "OneSidedMW / RPC-MW, 4 KiB", metric: "p99", unit: "%", simulated: 100 * (float64(ours.p99)/float64(rpc.p99) - 1), low: -97.7, high: -97.7, bound: boundUnits},
		{name: "RPC-MW, unlimited CPU, 4 KiB", metric: "of OneSidedMW's throughput", unit: "%", simulated: share(unlimited, ours), low: 44.9, high: 44.9, bound: boundPolls},
		{name: "RPC-MW, unlimited CPU, 4 KiB", metric: "node CPU", unit: "%", simulated: 100 * unlimited.cpu},
	} {
		f.name = fig7 + f.name
		put(f)
	}

	// What a thread does between two operations was chosen, so it is swept.
	for _, rest := range kvRests {
		at := func(system string, chunk int) kvOutcome {
			return get(system, kvLoad{nodes: 1, threads: 24, chunk: chunk, rounds: max(1, pl.one/4), client: rest})
		}
		static := at("Static-MR", chunk8K)
		for _, x := range []struct {
			system    string
			chunk     int
			published float64
		}{{"RPC-MW", chunk2K, 33.9}, {"OneSidedMW", chunk4K, 100 - 8.73}, {"OneSidedMW", chunk2K, 100 - 18.4}} {
			put(kvFigure{name: fmt.Sprintf("%sa rest of %v: %s%s", fig6, rest, x.system, size(x.chunk)), metric: "of Static-MR's throughput", unit: "%",
				simulated: share(at(x.system, x.chunk), static), low: x.published, high: x.published})
		}
	}

	for _, nodes := range []int{1, 2} {
		for _, chunk := range []int{chunk4K, chunk8K} {
			of := load(nodes, 24, pl.one, 0.5)(chunk)
			of.updates = true
			rpc, ours := get("Premmap-RPC", of), get("FineMem", of)
			name := fmt.Sprintf("YCSB-A, %d x 24 threads: ", nodes)
			put(kvFigure{name: name + "FineMem" + size(chunk), metric: "throughput", unit: "op/s", simulated: ours.rate})
			put(kvFigure{name: name + "FineMem" + size(chunk), metric: "more than Premmap-RPC's", unit: "%", simulated: 100 * (ours.rate/rpc.rate - 1), low: 27, high: 110, bound: boundGrain})
			put(kvFigure{name: name + "Premmap-RPC" + size(chunk), metric: "node CPU", unit: "%", simulated: 100 * rpc.cpu})
		}
	}
	return err
}

// kvExperiments is how many experiments simulateKV runs.
const kvExperiments = 25 + 4*4

// kvRests are tried instead of kvClient.
var kvRests = [...]time.Duration{0, 8 * time.Microsecond, 17 * time.Microsecond, 34 * time.Microsecond}

// RunKV simulates figures 6 and 7, and FineMem's YCSB-A, and prints them.
func RunKV(ctx context.Context, o Options) error {
	pl := kvPlan{one: 500, six: 100, client: kvClient}
	if o.Short {
		pl.one, pl.six = 100, 30
	}
	return o.runKV(ctx, pl)
}

func (o Options) runKV(ctx context.Context, pl kvPlan) error {
	return o.print("sim kv", kvHeading, kvNotes, func(yield func(kvFigure) error) error {
		return simulateKV(ctx, sim.Testbed(), o.Seed, pl, o.Progress, yield)
	})
}

// print prints the figures that simulate yields.
func (o Options) print(bench, heading, notes string, simulate func(yield func(kvFigure) error) error) error {
	return benchout.Simulation{Bench: bench, Heading: heading, Notes: notes}.Print(o.Out, o.JSON, func(yield func(benchout.Figure) error) error {
		return simulate(func(f kvFigure) error { return yield(f.figure()) })
	})
}

const kvHeading = "OneSidedMW (figures 6 and 7) and FineMem (YCSB-A) in virtual time: a key-value store, values of 1 KiB"

const kvNotes = `
Package race runs over one registered region, and threads cut blocks of 1 KiB from
chunks of their own, which the chains of memnode/chain or the node's core lend. Not
given by the papers and fitted to one figure each: what a thread does between two
operations (18.5 µs, and what other times would give), what the core does for a request,
and that a block with its key is 1 KiB. Everything else is predicted.`
