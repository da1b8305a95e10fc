package softbench

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"polder/internal/bench/plot"
	"polder/internal/bench/softbench/vhost"
	"polder/internal/benchout"
	"polder/soft/coordinator"
	"polder/soft/policy"
)

// RunCoordinate divides too little memory among table 1's four applications,
// in virtual time under every policy, and in wall clock with real processes
// under some.
//
// Published: 48.7 % of ideal for a static partition, 56.0 % for Cliffhanger,
// 75.0 % for Midas, with 30 % of the memory, equilibrium after 20 minutes.
func RunCoordinate(ctx context.Context, o Options) error {
	if err := virtual(ctx, o); err != nil {
		return err
	}
	return wallClock(ctx, o)
}

// contender is a policy and how it is to be read.
type contender struct {
	name      string
	make      func() policy.Policy
	hopeful   bool
	published float64 // per cent of ideal, 0 if there is none
}

// thirds is the static partition: a quarter for each application, and
// SocialNet's in three for its services.
var thirds = map[uint64]float64{1: 0.25, 2: 0.25, 3: 0.25, 4: 0.25 / 3, 5: 0.25 / 3, 6: 0.25 / 3}

var contenders = []contender{
	{"static", func() policy.Policy { return &policy.Static{Shares: thirds} }, false, 48.7},
	{"even, by service", func() policy.Policy { return policy.Even{} }, false, 0},
	{"cliffhanger", func() policy.Policy { return &policy.Cliffhanger{} }, false, 56.0},
	{"hill climbing", func() policy.Policy { return &policy.HillClimbing{} }, false, 75.0},
	{"curves", func() policy.Policy { return &policy.Curves{Objective: policy.Saved, NoHull: true} }, false, 0},
	{"curves, hull", func() policy.Policy { return &policy.Curves{Objective: policy.Saved} }, false, 0},
	{"curves, hull, hopeful", func() policy.Policy { return &policy.Curves{Objective: policy.Saved} }, true, 0},
	{"curves, hull, throughput", func() policy.Policy { return &policy.Curves{Objective: policy.Throughput} }, false, 0},
	{"curves, all of it", func() policy.Policy { return &policy.Curves{Objective: policy.Throughput} }, true, 75.0},
}

func virtual(ctx context.Context, o Options) error {
	length := 30 * time.Minute
	if o.Short {
		length /= 2
	}
	h, err := vhost.New(ctx)
	if err != nil {
		return err
	}
	total := len(contenders) + 1
	o.progress(0, total, "the best fixed partition")
	best, err := h.Run(ctx, &policy.Static{Shares: shares(vhost.BestShares)}, length)
	if err != nil {
		return err
	}
	print := func(r benchout.Row) error { return o.Printer.Print(r) }
	ideal := float64(h.IdealMemory())
	if err := errors.Join(
		print(benchout.Row{Bench: "soft coordinate", Case: "virtual, over-provisioned ideal", Metric: "memory", Value: ideal / mib, Unit: "MiB"}),
		print(benchout.Row{Bench: "soft coordinate", Case: "virtual, best fixed partition", Metric: "of ideal", Value: 100 * best.Throughput, Unit: "%"}),
		print(benchout.Row{Bench: "soft coordinate", Case: "virtual, best fixed partition", Metric: "memory", Value: 100 * float64(vhost.Memory) / ideal, Unit: "%"}),
	); err != nil {
		return err
	}
	lines := []plot.Line{lineOf("best fixed partition", best.Series)}
	for i, c := range contenders {
		o.progress(i+1, total, c.name)
		h.Hopeful = c.hopeful
		r, err := h.Run(ctx, c.make(), length)
		if err != nil {
			return err
		}
		lines = append(lines, lineOf(c.name, r.Series))
		row := benchout.Row{Bench: "soft coordinate", Case: "virtual, " + c.name, Metric: "of ideal", Value: 100 * r.Throughput, Unit: "%"}
		if err := print(row.Against("best fixed partition", 100*best.Throughput, benchout.Higher)); err != nil {
			return err
		}
		if c.published > 0 {
			if err := print(row.Against("published", c.published, benchout.Higher)); err != nil {
				return err
			}
		}
		at, ok := vhost.Reaches(r.Series, best.Series, 0.95)
		if !ok {
			continue
		}
		row = benchout.Row{Bench: "soft coordinate", Case: "virtual, " + c.name, Metric: "equilibrium", Value: max(at, vhost.Resolution).Minutes(), Unit: "min"}
		if err := print(row.Against("Midas, published", 20, benchout.Lower)); err != nil {
			return err
		}
	}
	if o.Plots == nil {
		return nil
	}
	// The policies that there are, and what the ideas of the last one bring.
	c := plot.Chart{
		Title: "four applications share 30 % of the memory that ideal takes, in virtual time",
		X:     "minutes",
		Panels: []plot.Panel{
			{Y: "% of ideal", Lines: append(lines[:5:5], lines[len(lines)-1])},
			{Y: "% of ideal", Lines: append(lines[:1:1], lines[5:]...)},
		},
	}
	return c.WriteSVG(o.Plots)
}

func shares(list []float64) map[uint64]float64 {
	m := make(map[uint64]float64)
	for i, v := range list {
		m[uint64(i+1)] = v
	}
	return m
}

// lineOf is a series to plot, smoothed over ten points.
func lineOf(name string, series []vhost.Point) plot.Line {
	const smooth = 10
	l := plot.Line{Name: name}
	sum := 0.0
	for i, p := range series {
		sum += p.Throughput
		if i >= smooth {
			sum -= series[i-smooth].Throughput
		}
		l.Points = append(l.Points, plot.Point{X: p.At.Minutes(), Y: 100 * sum / float64(min(i+1, smooth))})
	}
	return l
}

// wallClock runs the applications as processes of their own, each with a soft
// heap, under a coordinator that has memory for a third of them. Time of
// requests and of rebuilding is waited for, not worked: so many cores there
// are not.
func wallClock(ctx context.Context, o Options) error {
	length := 60 * time.Second
	list := []contender{
		{name: "best fixed partition", make: func() policy.Policy { return &policy.Static{Shares: wallBest()} }},
		{name: "even", make: func() policy.Policy { return policy.Even{} }},
		{name: "cliffhanger", make: func() policy.Policy { return &policy.Cliffhanger{} }},
		{name: "hill climbing", make: func() policy.Policy { return &policy.HillClimbing{} }},
		{name: "curves", make: func() policy.Policy { return &policy.Curves{} }},
	}
	if o.Short {
		length = 8 * time.Second
		list = []contender{list[1], list[4]}
	}
	var first float64
	for i, c := range list {
		o.progress(i, len(list), "wall clock, "+c.name)
		v, err := wallClockPolicy(ctx, o, c.make(), length)
		if err != nil {
			return err
		}
		row := benchout.Row{Bench: "soft coordinate", Case: "wall clock, " + c.name, Metric: "of ideal", Value: 100 * v, Unit: "%"}
		if i == 0 {
			first = v
		} else {
			row = row.Against(list[0].name, 100*first, benchout.Higher)
		}
		if err := o.Printer.Print(row); err != nil {
			return err
		}
	}
	return nil
}

func wallClockPolicy(ctx context.Context, o Options, p policy.Policy, length time.Duration) (_ float64, err error) {
	dir, err := os.MkdirTemp("", "polder-soft-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	socket := filepath.Join(dir, "s")
	c, err := coordinator.New(coordinator.Config{Socket: socket, Max: wallMemory, Policy: p, MinShare: 0.1, Logger: quiet})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	workers := make([]*worker, len(wallApps))
	for i := range wallApps {
		w, err := o.start("app", socket, strconv.Itoa(i), length.String())
		if err != nil {
			return 0, err
		}
		defer w.stop()
		workers[i] = w
		if _, err := w.expect("registered"); err != nil { // the others come later: numbers are in this order
			return 0, err
		}
	}
	var mean float64
	for _, w := range workers {
		s, err := w.expect("throughput")
		if err != nil {
			return 0, err
		}
		v, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return 0, err
		}
		mean += v / float64(len(workers))
	}
	return mean, ctx.Err()
}
