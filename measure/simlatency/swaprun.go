package simlatency

import (
	"context"
	"fmt"
	"time"

	"polder/verbs/sim"
)

const (
	fitSwapRPC = "swapRPC"
	givenGiBs  = "a task's GiB of far pages begins in one registered GiB and ends in the next"

	boundStall = "what waits for a request: here the task that borrows, and those of its node that write pages out meanwhile; what else the kernel holds up, the paper's text does not say"
	boundLink  = "the node's link, which reads that tasks wait for share with all others whatever their queue pair: 48 tasks use nine tenths of it"
	boundShare = "how much of its time a task waits for first pages: without grouping 16 µs for each eight pages, with which it computes for 128"
	boundCores = "how many cores of a compute node write pages out, which the paper's text does not say: the rows of more than one are below"
)

// A swapPlan is how much is simulated.
type swapPlan struct {
	rounds   int             // segments of each task that count
	tasks    []int           // columns of figure 9, on six compute nodes
	computes []time.Duration // tried instead of swapCompute
	writers  []int           // cores that write out, tried instead of swapWriters
}

// longSwap is what RunSwap simulates. With the first three computes, tasks wait for the
// link.
var longSwap = swapPlan{rounds: 4, tasks: []int{1, 24, mostSwapTasks},
	computes: []time.Duration{4 * time.Microsecond, 8 * time.Microsecond, 12 * time.Microsecond,
		20 * time.Microsecond, 32 * time.Microsecond, 64 * time.Microsecond},
	writers: []int{2, 4, 8}}

const (
	mostSwapTasks = 48
	swapNodes     = 6
)

// What section 6.2 publishes for 48 tasks, in percent of Static-MR's time; and section
// 6.3, of what separation and grouping bring.
var (
	swapPublished = map[string]float64{swapRPC1Name: 17.3, swapRPC2Name: 29.2, swapOursName: 6.3}
	swapCPU       = map[string]float64{swapRPC1Name: 36, swapRPC2Name: 56}
)

// mib is how many segments of a MiB a task has in far memory: k-means with 2 GiB, half
// of them local.
const mib = 1024

// simulateSwap calls yield for every value of figures 8 and 9.
func simulateSwap(ctx context.Context, costs sim.Costs, seed uint64, pl swapPlan, progress func(done, total int, what string), yield func(kvFigure) error) (err error) {
	done, experiments := 0, len(pl.tasks)*len(swapManagers)+len(pl.computes)*4+len(pl.writers)*2
	get := func(name string, tasks int, compute time.Duration, writers int) (o swapOutcome) {
		if err != nil {
			return o
		}
		for _, m := range swapManagers {
			if m.name != name {
				continue
			}
			if progress != nil {
				progress(done, experiments, fmt.Sprintf("%s, %d tasks, %v a page", name, tasks, compute))
			}
			done++
			l := swapLoad{nodes: swapNodes, tasks: tasks, writers: writers, segment: swapSegment, rounds: pl.rounds, compute: compute}
			var e error
			if o, e = measureSwap(ctx, costs, seed, m, l); e != nil {
				err = fmt.Errorf("cannot simulate %s with %d tasks: %w", name, tasks, e)
			}
		}
		return o
	}
	put := func(f kvFigure) {
		if err == nil {
			err = yield(f)
		}
	}
	more := func(a, b time.Duration) float64 { return 100 * (float64(a)/float64(b) - 1) }

	for _, tasks := range pl.tasks {
		seen := make(map[string]swapOutcome)
		static := get(swapStaticName, tasks, swapCompute, swapWriters)
		title := fmt.Sprintf("%d tasks: ", tasks)
		if tasks == 1 {
			title = "1 task: "
		}
		put(kvFigure{name: title + swapStaticName, metric: "a page", unit: "us", simulated: micro(static.page)})
		for _, m := range swapManagers[1:] {
			o := get(m.name, tasks, swapCompute, swapWriters)
			seen[m.name] = o
			published, cpu := 0.0, 0.0
			if tasks == mostSwapTasks {
				published, cpu = swapPublished[m.name], swapCPU[m.name]
			}
			put(kvFigure{name: title + m.name, metric: "more time than Static-MR", unit: "%", simulated: more(o.page, static.page), low: published, high: published, bound: boundStall})
			put(kvFigure{name: title + m.name, metric: "a swap-in that is waited for", unit: "us", simulated: micro(o.wait)})
			if o.cpu > 0 {
				f := kvFigure{name: title + m.name, metric: "node CPU", unit: "%", simulated: 100 * o.cpu, low: cpu, high: cpu}
				if m.name == swapRPC2Name && cpu > 0 {
					f.fitted = fitSwapRPC
				}
				put(f)
			}
		}
		ours, separate, none := seen[swapOursName], seen[swapNoSepName], seen[swapNoneName]
		if tasks != mostSwapTasks {
			put(kvFigure{name: title + "grouping", metric: "a swap-in that is waited for", unit: "%", simulated: more(separate.wait, none.wait)})
			continue
		}
		put(kvFigure{name: title + "grouping", metric: "a swap-in that is waited for", unit: "%", simulated: more(separate.wait, none.wait), low: -24.3, high: -24.3, bound: boundCores})
		put(kvFigure{name: title + "grouping", metric: "less time", unit: "%", simulated: -more(separate.page, none.page), low: 6.9, high: 6.9, bound: boundShare})
		put(kvFigure{name: title + "separation", metric: "less time", unit: "%", simulated: -more(ours.page, separate.page), low: 7.6, high: 7.6, bound: boundLink})
		used := 100 * mib / (mib + ours.lent)
		const whole = 100.0 / 2
		put(kvFigure{name: title + swapOursName, metric: "memory used of that borrowed", unit: "%", simulated: used, low: 90, high: 100})
		put(kvFigure{name: title + swapStaticName, metric: "memory used of that borrowed", unit: "%", simulated: whole, low: 34, high: 56, given: givenGiBs})
		put(kvFigure{name: title + swapOursName, metric: "Static-MR's use of memory", unit: "x", simulated: used / whole, low: 1.54, high: 2.38, given: givenGiBs})
	}

	for _, writers := range pl.writers {
		separate, none := get(swapNoSepName, mostSwapTasks, swapCompute, writers), get(swapNoneName, mostSwapTasks, swapCompute, writers)
		put(kvFigure{name: fmt.Sprintf("%d tasks, %d cores write out: grouping", mostSwapTasks, writers), metric: "a swap-in that is waited for", unit: "%",
			simulated: more(separate.wait, none.wait), low: -24.3, high: -24.3, bound: boundCores})
	}

	// Figure 8's programs swap less or more than k-means. Published is the worst of them.
	for _, compute := range pl.computes {
		static := get(swapStaticName, mostSwapTasks, compute, swapWriters)
		for _, x := range []struct {
			name  string
			worst float64
		}{{swapRPC1Name, 12.2}, {swapRPC2Name, 23.6}, {swapOursName, 6.3}} {
			o := get(x.name, mostSwapTasks, compute, swapWriters)
			put(kvFigure{name: fmt.Sprintf("%d tasks, %v a page: %s", mostSwapTasks, compute, x.name), metric: "more time than Static-MR", unit: "%",
				simulated: more(o.page, static.page), low: 0, high: x.worst})
		}
	}
	return err
}

// RunSwap simulates figures 8 and 9, and prints them.
func RunSwap(ctx context.Context, o Options) error {
	pl := longSwap
	if o.Short {
		pl.rounds = 1
	}
	return o.print("sim swap", swapHeading, swapNotes, func(yield func(kvFigure) error) error {
		return simulateSwap(ctx, sim.Testbed(), o.Seed, pl, o.Progress, yield)
	})
}

const swapHeading = "OneSidedMW (figures 8 and 9) in virtual time: tasks on six compute nodes that swap, a MiB borrowed at a time"

const swapNotes = `
A fault reads a page and, without waiting, the seven behind it; as many pages are written
out meanwhile. Chains are those of memnode/chain, with three windows for a segment, or two
without grouping. Of the paper's figures one is fitted, what the node's core takes for a
request (27 µs); two are assumed and varied: what a task does with a page (16 µs), which
stands for figure 8's programs, and that one core of a compute node writes pages out. ODRP and registration on demand are left out.`
