package softbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"polder/measure/benchout"
	"polder/measure/plot"
	"polder/measure/softbench/rivals"
	"polder/measure/softbench/vhost"
	"polder/soft/coordinator"
	"polder/soft/policy"
)

// RunCoordinate divides too little memory among table 1's four applications,
// in virtual time under every policy, and in wall clock with real processes
// under some.
//
// Published: 48.7 % of ideal for a static partition, 56.0 % for Cliffhanger,
// 75.0 % for Midas, with 30 % of the memory. How long a policy takes to get there is not
// compared with published figures, because time and memory are scaled here.
func RunCoordinate(ctx context.Context, o Options) error {
	panels, err := virtual(ctx, o)
	if err != nil {
		return err
	}
	panel, err := wallClock(ctx, o)
	if err != nil || o.Plots == nil {
		return err
	}
	c := plot.Chart{
		Title:  "four applications share 30 % of the memory that ideal takes",
		X:      "minutes of the applications' time",
		Panels: append(panels, panel),
	}
	return c.WriteSVG(o.Plots)
}

// contender is a policy with its name in the results.
type contender struct {
	name      string
	make      func() policy.Policy
	published float64 // per cent of ideal, 0 if nothing is published
}

// thirds is the static partition: a quarter for each application; SocialNet's
// quarter is divided evenly among its three services.
var thirds = map[string]float64{
	"HDSearch": 0.25, "WiredTiger": 0.25, "Storage": 0.25,
	"SocialNet sessions": 0.25 / 3, "SocialNet timelines": 0.25 / 3, "SocialNet posts": 0.25 / 3,
}

var contenders = []contender{
	{"static", func() policy.Policy { return &rivals.Static{Shares: thirds} }, 48.7},
	{"even, by service", func() policy.Policy { return rivals.Even{} }, 0},
	{"cliffhanger", func() policy.Policy { return &rivals.Cliffhanger{} }, 56.0},
	{"hill climbing", func() policy.Policy { return &rivals.HillClimbing{} }, 75.0},
	{"curves for rebuilding saved", func() policy.Policy { return &rivals.Saved{} }, 0},
	{"curves", func() policy.Policy { return &policy.Curves{} }, 75.0},
}

// virtual runs every contender in virtual time, as many at a time as there are
// processors.
func virtual(ctx context.Context, o Options) ([]plot.Panel, error) {
	const length = 30 * time.Minute
	h, err := vhost.New(ctx)
	if err != nil {
		return nil, err
	}
	best := contender{name: "best fixed partition", make: func() policy.Policy { return &rivals.Static{Shares: vhost.BestShares} }}
	list := append([]contender{best}, contenders...)
	results := make([]vhost.Result, len(list))
	errs := make([]error, len(list))
	finished := make(chan int)
	free := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, c := range list {
		go func() {
			free <- struct{}{}
			results[i], errs[i] = h.Run(ctx, c.make(), length)
			<-free
			finished <- i
		}()
	}
	for n := range list {
		o.progress(n, len(list), "in virtual time")
		<-finished
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}

	print := func(r benchout.Row) { errs = append(errs, o.Printer.Print(r)) }
	ideal := float64(h.IdealMemory())
	top := 100 * results[0].Throughput
	print(benchout.Row{Bench: "soft coordinate", Case: "virtual, over-provisioned ideal", Metric: "memory", Value: ideal / mib, Unit: "MiB"})
	print(benchout.Row{Bench: "soft coordinate", Case: "virtual, best fixed partition", Metric: "memory", Value: 100 * float64(vhost.Memory) / ideal, Unit: "%"})
	print(benchout.Row{Bench: "soft coordinate", Case: "virtual, best fixed partition", Metric: "of ideal", Value: top, Unit: "%"})
	lines := []plot.Line{lineOf(best.name, results[0].Series, 1)}
	for i, c := range contenders {
		r := results[i+1]
		lines = append(lines, lineOf(c.name, r.Series, 1))
		row := benchout.Row{Bench: "soft coordinate", Case: "virtual, " + c.name, Metric: "of ideal", Value: 100 * r.Throughput, Unit: "%"}
		print(row.Against(best.name, top, benchout.Higher))
		if c.published > 0 {
			print(row.Against("published", c.published, benchout.Higher))
		}
		if at, ok := vhost.Reaches(r.Series, results[0].Series, 0.95, time.Minute); ok {
			print(benchout.Row{Bench: "soft coordinate", Case: "virtual, " + c.name, Metric: "equilibrium", Value: at.Minutes(), Unit: "min"})
		}
	}
	return []plot.Panel{{Y: "% of ideal, in virtual time", Lines: lines}}, errors.Join(errs...)
}

// lineOf returns a series as a line to plot, smoothed over ten points. X is the
// applications' time, which goes faster times as fast as that of the points.
func lineOf(name string, series []vhost.Point, faster float64) plot.Line {
	const smooth = 10
	l := plot.Line{Name: name}
	sum := 0.0
	for i, p := range series {
		sum += p.Throughput
		if i >= smooth {
			sum -= series[i-smooth].Throughput
		}
		l.Points = append(l.Points, plot.Point{X: p.At.Minutes() * faster, Y: 100 * sum / float64(min(i+1, smooth))})
	}
	return l
}

// wallClock runs the applications as processes of their own, each of whose
// services has a soft heap, under a coordinator that has 30 % of the memory that
// they could use. The applications sleep for the time that requests and
// rebuilding take, because this machine has too few cores to do the work.
// Requests come 15 times as fast as in virtual time, or 40 times in a short run,
// so that the caches are warm within the run.
func wallClock(ctx context.Context, o Options) (plot.Panel, error) {
	length, faster := 2*time.Minute, 15.0
	list := []contender{
		{name: "best fixed partition", make: func() policy.Policy { return &rivals.Static{Shares: wallShares()} }},
		{name: "hill climbing", make: func() policy.Policy { return &rivals.HillClimbing{} }},
		{name: "curves", make: func() policy.Policy { return &policy.Curves{} }},
	}
	panel := plot.Panel{Y: "% of ideal, real processes"}
	if o.Short {
		length, faster = 10*time.Second, 40
		list = []contender{list[0], list[len(list)-1]}
	}
	var best []vhost.Point
	for i, c := range list {
		o.progress(i, len(list), "wall clock, "+c.name)
		series, err := wallClockPolicy(ctx, o, c.make(), length, faster)
		if err != nil {
			return panel, err
		}
		panel.Lines = append(panel.Lines, lineOf(c.name, series, faster))
		row := benchout.Row{Bench: "soft coordinate", Case: "wall clock, " + c.name, Metric: "of ideal", Value: 100 * late(series), Unit: "%"}
		if i == 0 {
			best = series
		} else {
			row = row.Against(list[0].name, 100*late(best), benchout.Higher)
		}
		if err := o.Printer.Print(row); err != nil {
			return panel, err
		}
		at, ok := vhost.Reaches(series, best, 0.95, 4*time.Second)
		if i == 0 || !ok {
			continue
		}
		row = benchout.Row{Bench: "soft coordinate", Case: "wall clock, " + c.name, Metric: "equilibrium", Value: at.Seconds(), Unit: "s"}
		if err := o.Printer.Print(row); err != nil {
			return panel, err
		}
	}
	return panel, nil
}

// wallShares returns the best fixed partition, with 10 MiB added for each heap,
// which it keeps open or free.
func wallShares() map[string]float64 {
	const overhead = 10. * mib / wallMemory
	m := make(map[string]float64)
	left := 1 - overhead*float64(len(vhost.BestShares))
	for name, v := range vhost.BestShares {
		m[name] = v*left + overhead
	}
	return m
}

// late returns the mean throughput in the last third, as vhost.Result.Throughput is.
func late(series []vhost.Point) (mean float64) {
	last := series[len(series)*2/3:]
	for _, p := range last {
		mean += p.Throughput / float64(len(last))
	}
	return mean
}

// wallClockPolicy runs the applications under a policy and returns the mean of their
// throughputs, each as a part of its ideal, over time.
func wallClockPolicy(ctx context.Context, o Options, p policy.Policy, length time.Duration, faster float64) (series []vhost.Point, err error) {
	dir, err := os.MkdirTemp("", "polder-soft-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	socket := filepath.Join(dir, "s")
	c, err := coordinator.New(coordinator.Config{Socket: socket, Max: wallMemory, Policy: p, MinShare: 0.1, Grace: time.Millisecond, Logger: quiet})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	apps, err := vhost.Apps()
	if err != nil {
		return nil, err
	}
	workers := make([]*worker, len(apps))
	clients := 0
	for i, a := range apps {
		w, err := o.start("app", socket, strconv.Itoa(i), length.String(), strconv.FormatFloat(faster, 'g', -1, 64))
		if err != nil {
			return nil, err
		}
		defer w.stop()
		workers[i] = w
		clients += len(a.Services)
	}
	for c.Stats().Clients < clients {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Millisecond):
		}
		for _, w := range workers {
			select {
			case <-w.p.Done():
				return nil, fmt.Errorf("an application has ended: %w", w.p.Ended())
			default:
			}
		}
	}
	series = make([]vhost.Point, length/wallEvery)
	for i := range series {
		series[i].At = time.Duration(i+1) * wallEvery
		for _, w := range workers {
			s, err := w.expect("point")
			if err != nil {
				return nil, err
			}
			v, err := strconv.ParseFloat(s, 64)
			if err != nil {
				return nil, fmt.Errorf("a worker says %q: %w", s, err)
			}
			series[i].Throughput += v / float64(len(apps))
		}
	}
	return series, ctx.Err()
}
