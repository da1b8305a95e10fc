package simfaults

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"polder/measure/benchout"
)

// Options are what Run is told.
type Options struct {
	Out  io.Writer
	JSON bool // one object a line instead of a table
	// Seed is the seed of the first cluster; each further cluster has the next one.
	Seed uint64
	// Hours is how many hours of virtual time are simulated in all clusters together. At least one cluster is.
	Hours float64
	// Trace writes the events of the first cluster to Out.
	Trace bool
	// Progress, if set, is told how far it is.
	Progress func(done, total int, what string)
}

// trouble is how long a cluster has faults.
const trouble = 2 * time.Minute

// oneRun is how much virtual time a run takes in which all goes well.
const oneRun = 10*time.Second + trouble + recovery + drained

// Run simulates clusters, several at a time, until o.Hours have passed in all of them together. If something has gone
// wrong, it returns an error that says with which seeds.
func Run(ctx context.Context, o Options) error {
	n := max(1, int(o.Hours*float64(time.Hour)/float64(oneRun)))
	results := make(chan Result)
	seeds := make(chan uint64)
	var wg sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for seed := range seeds {
				var trace func(string)
				if o.Trace && seed == o.Seed {
					trace = func(line string) { fmt.Fprintln(o.Out, line) }
				}
				results <- simulate(seed, trouble, "", trace)
			}
		})
	}
	go func() { // ends when all results have been received
		defer close(results)
		defer wg.Wait()
		defer close(seeds)
		for i := range n {
			select {
			case seeds <- o.Seed + uint64(i):
			case <-ctx.Done():
				return
			}
		}
	}()
	before := spent()
	var sum Result
	runs := 0
	var wrong []Result
	for r := range results {
		runs++
		sum.Time += r.Time
		sum.Steps += r.Steps
		sum.Sets += r.Sets
		sum.Gets += r.Gets
		sum.Unanswered += r.Unanswered
		sum.Takeovers += r.Takeovers
		sum.Faults += r.Faults
		sum.Checkpoints += r.Checkpoints
		sum.Corrupt += r.Corrupt
		if len(r.Wrong) > 0 {
			wrong = append(wrong, r)
		}
		if o.Progress != nil {
			o.Progress(runs, n, fmt.Sprintf("seed %d", r.Seed))
		}
	}
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("cannot simulate clusters: %w", err)
	}
	cpu := spent() - before
	p := benchout.New(o.Out, o.JSON)
	name := fmt.Sprintf("seeds %d to %d", o.Seed, o.Seed+uint64(n)-1)
	for _, row := range []struct {
		metric string
		value  float64
		unit   string
	}{
		{"simulated", sum.Time.Hours(), "h"},
		{"events", float64(sum.Steps), ""},
		{"faults", float64(sum.Faults), ""},
		{"takeovers", float64(sum.Takeovers), ""},
		{"checkpoints", float64(sum.Checkpoints), ""},
		{"SETs acknowledged", float64(sum.Sets), ""},
		{"GETs answered", float64(sum.Gets), ""},
		{"requests not answered", float64(sum.Unanswered), ""},
		{"damaged copies read", float64(sum.Corrupt), ""},
		{"simulated time per CPU time", sum.Time.Seconds() / max(cpu.Seconds(), 1e-3), "x"},
		{"runs in which something was wrong", float64(len(wrong)), ""},
	} {
		if err := p.Print(benchout.Row{Bench: "cluster", Case: name, Metric: row.metric, Value: row.value, Unit: row.unit}); err != nil {
			return err
		}
	}
	if len(wrong) > 0 {
		slices.SortFunc(wrong, func(a, b Result) int { return cmp.Compare(a.Seed, b.Seed) })
		var all strings.Builder
		for _, r := range wrong[:min(len(wrong), 10)] {
			fmt.Fprintf(&all, "\n%s", &r)
		}
		return fmt.Errorf("%d of %d clusters have gone wrong; see the first with polder sim cluster --seed %d --hours 0 --trace%s", len(wrong), n, wrong[0].Seed, all.String())
	}
	return nil
}

// spent is how much CPU time this process has used.
func spent() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		panic("BUG: no getrusage: " + err.Error())
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
