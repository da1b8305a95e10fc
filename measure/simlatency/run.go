package simlatency

import (
	"context"
	"fmt"
	"io"
	"time"

	"polder/measure/benchout"
	"polder/verbs/sim"
)

// Options are what Run is told.
type Options struct {
	Out   io.Writer
	JSON  bool   // one object a line instead of a table
	Seed  uint64 // of the threads' pauses
	Short bool   // fewer rounds
	// Progress, if set, is told how far RunKV is.
	Progress func(done, total int, what string)
}

// Rounds of each thread that are measured.
const (
	longRounds  = 2000
	shortRounds = 500
)

// figure is a simulated value and, if there is one, what was published.
type figure struct {
	name, metric, unit   string
	simulated, published float64
	calibrated           bool
}

// deviation is how far the simulated value is from the published one, in
// percent.
func (f *figure) deviation() float64 { return 100 * (f.simulated/f.published - 1) }

// Run simulates the figure and prints it.
func Run(ctx context.Context, o Options) error {
	rounds := longRounds
	if o.Short {
		rounds = shortRounds
	}
	return o.run(ctx, rounds)
}

func (o Options) run(ctx context.Context, rounds int) error {
	var p printer = &table{w: o.Out}
	if o.JSON {
		p = &rows{out: benchout.New(o.Out, true)}
	}
	if err := p.begin(); err != nil {
		return fmt.Errorf("cannot print the simulation: %w", err)
	}
	err := simulate(ctx, sim.Testbed(), o.Seed, rounds, func(f figure) error {
		if err := p.print(&f); err != nil {
			return fmt.Errorf("cannot print the simulation: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := p.end(); err != nil {
		return fmt.Errorf("cannot print the simulation: %w", err)
	}
	return nil
}

// simulate calls yield for every value.
func simulate(ctx context.Context, costs sim.Costs, seed uint64, rounds int, yield func(figure) error) error {
	measured := make(map[string]latencies)
	for col, threads := range threadCounts {
		for _, v := range variants {
			l, err := measure(ctx, costs, seed, v.build, threads, rounds)
			if err != nil {
				return fmt.Errorf("cannot simulate %s with %d threads: %w", v.name, threads, err)
			}
			name := fmt.Sprintf("%s, %s", v.name, count(threads))
			measured[name] = l
			for _, f := range []figure{
				{name: name, metric: "access", unit: "us", simulated: micro(l.access), published: v.access[col]},
				{name: name, metric: "allocate", unit: "us", simulated: micro(l.allocate), published: v.allocate[col],
					calibrated: v.name == calibrated && threads == 1},
			} {
				if f.simulated == 0 {
					continue // there is nothing to allocate
				}
				if err := yield(f); err != nil {
					return err
				}
			}
		}
	}

	alone := measured["Static-MR, 1 thread"].access
	beside, err := measure(ctx, costs, seed, besides(offloads), 1, rounds)
	if err != nil {
		return fmt.Errorf("cannot simulate an access beside %d offloads: %w", offloads, err)
	}
	with, without := measured["OneSidedMW(+Sep), 24 threads"].access, measured["OneSidedMW, 24 threads"].access
	odrp, one := measured["ODRP, 24 threads"].access, measured["Static-MR, 24 threads"].access
	for _, f := range []figure{
		{name: "ODRP / Static-MR, 24 threads", metric: "access", unit: "x",
			simulated: float64(odrp) / float64(one), published: odrpAccess / staticAccess},
		{name: fmt.Sprintf("%d QPs with offloaded logic", offloads), metric: "access", unit: "%",
			simulated: 100 * (float64(beside.access)/float64(alone) - 1), published: 100 * offloadCost},
		{name: "separation, 24 threads", metric: "access", unit: "%",
			simulated: 100 * (float64(with)/float64(without) - 1), published: -100 * sepGain},
	} {
		if err := yield(f); err != nil {
			return err
		}
	}
	return nil
}

// measure runs one experiment in a world of its own.
func measure(ctx context.Context, costs sim.Costs, seed uint64, m manager, threads, rounds int) (l latencies, err error) {
	defer caught(&err)
	r := newRig(ctx, costs, seed)
	defer r.close()
	return r.run(m(r, threads, rounds), rounds), nil
}

func micro(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func count(threads int) string {
	if threads == 1 {
		return "1 thread"
	}
	return fmt.Sprintf("%d threads", threads)
}

type printer interface {
	begin() error
	print(*figure) error
	end() error
}

// rows prints figures for programs.
type rows struct{ out benchout.Printer }

func (*rows) begin() error { return nil }
func (*rows) end() error   { return nil }

func (r *rows) print(f *figure) error {
	row := benchout.Row{Bench: "sim latency", Case: f.name, Metric: f.metric, Value: f.simulated, Unit: f.unit}
	if f.published == 0 {
		return r.out.Print(row)
	}
	row.Rival, row.RivalValue = "published", f.published
	if f.calibrated {
		row.Rival = "published (calibrated)"
	}
	if err := r.out.Print(row); err != nil {
		return err
	}
	return r.out.Print(benchout.Row{Bench: row.Bench, Case: f.name, Metric: f.metric + " deviation",
		Value: f.deviation(), Unit: "%"})
}

// table prints figures for people.
type table struct{ w io.Writer }

func (t *table) begin() error {
	_, err := fmt.Fprintf(t.w, "OneSidedMW (figure 10) in virtual time\n%-44s %-9s %10s %10s %10s\n",
		"", "", "published", "simulated", "deviation")
	return err
}

func (t *table) print(f *figure) error {
	published, rest := "-", ""
	if f.published != 0 {
		published = fmt.Sprintf("%.1f %s", f.published, unit(f))
		rest = fmt.Sprintf("%+.1f %%", f.deviation())
	}
	if f.calibrated {
		rest += "  calibrated"
	}
	_, err := fmt.Fprintf(t.w, "%-44s %-9s %10s %10s %10s\n", f.name, f.metric, published,
		fmt.Sprintf("%.1f %s", f.simulated, unit(f)), rest)
	return err
}

func unit(f *figure) string {
	if f.unit == "us" {
		return "µs"
	}
	return f.unit
}

func (t *table) end() error {
	_, err := fmt.Fprintln(t.w, notes)
	return err
}

// notes are what a reader of the table must know.
const notes = `
One parameter is fitted, the cost of a bind, to one value: OneSidedMW's
allocation with 1 thread. Everything else is a prediction; parameters and their
sources are in verbs/sim/costs.go. Published values for 24 threads other than
11.9, 22.5 and 170 µs follow from the ratios in the paper's text; where the text
gives none there is a dash.`
