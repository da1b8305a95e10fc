package softbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"polder/internal/cgroup"
	"polder/internal/hostmem"
	"polder/measure/benchout"
	"polder/measure/plot"
	"polder/measure/softbench/rivals"
	"polder/soft/coordinator"
)

// RunPressure runs a service with a soft cache beside an antagonist that
// allocates memory, in one control group with a hard limit: if they take too
// much, the kernel kills one of them. The antagonist allocates memory at a
// moderate rate, holds it, and lets it go. Then it does so as fast as the kernel
// permits, until only the reserve is left (figures 8, 9 and 10).
//
// RunPressure fails where no control group can be made: without the limit there
// would be no pressure.
func RunPressure(ctx context.Context, o Options) (err error) {
	p := pressure{limit: 2 * gib, calm: 10 * time.Second, slow: 10 * time.Second, hold: 4 * time.Second, warm: 90 * time.Second, patience: 60 * time.Second}
	if o.Short {
		p = pressure{limit: gib / 2, calm: 4 * time.Second, slow: 4 * time.Second, hold: 2 * time.Second, warm: 12 * time.Second, patience: 8 * time.Second}
	}
	p.reserve = coordinator.DefaultReserve(p.limit)
	p.group, err = cgroup.New(p.limit)
	if err != nil {
		return fmt.Errorf("cannot put a service under memory pressure: %w", err)
	}
	defer func() { err = errors.Join(err, p.group.Close()) }()
	dir, err := os.MkdirTemp("", "polder-soft-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	p.socket = filepath.Join(dir, "s")
	return p.run(ctx, o)
}

type pressure struct {
	limit, reserve   int64         // of the control group; the coordinator's default for that
	calm, slow, hold time.Duration // undisturbed; how long the moderate antagonist allocates; and holds
	warm, patience   time.Duration // the longest waits for the first filling and for recovery
	group            *cgroup.Group
	socket           string

	filled time.Duration // when the cache had filled for the first time
	marks  []plot.Mark
	mu     sync.Mutex
	points []point
	grants []grant // recorded after the antagonist has let its memory go
}

// grant is how much memory the service was allowed to use at a time.
type grant struct {
	at    time.Duration
	bytes int64
}

// point is what the service reported at a time, and how much memory was free then.
type point struct {
	at         time.Duration
	ops        float64 // a second
	p99        float64 // microseconds
	soft, free int64   // bytes: of soft memory in use, and free in the control group
	granted    int64   // bytes that the service may use; soft is the part in use
	hits, cpu  float64 // values that were there, and processor time in seconds, since the last point
	requests   float64 // since the last point
}

// groupSensor is a host with the memory of the control group in which process pid is.
type groupSensor struct{ pid string }

func (g groupSensor) Read() (hostmem.Memory, error) {
	limit, free, ok := hostmem.Host{}.Limit(g.pid)
	if !ok {
		return hostmem.Memory{}, errors.New("the control group is gone")
	}
	return hostmem.Memory{Total: limit, Available: free}, nil
}

func (groupSensor) Limit(string) (int64, int64, bool) { return 0, 0, false }

func (p *pressure) run(ctx context.Context, o Options) (err error) {
	service, err := o.start("service", p.socket, strconv.FormatInt(p.limit, 10))
	if err != nil {
		return err
	}
	defer service.stop()
	if err := p.group.Add(service.p.PID()); err != nil {
		return err
	}
	host := groupSensor{strconv.Itoa(service.p.PID())}
	c, err := coordinator.New(coordinator.Config{
		Socket: p.socket, Host: host, Policy: rivals.Even{}, Logger: quiet,
		Interval: 100 * time.Millisecond, Grace: time.Millisecond,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()

	begin := time.Now()
	listening := make(chan error, 1)
	go func() { // ends with the service
		for {
			s, err := service.expect("point")
			if err != nil {
				listening <- err
				return
			}
			var x point
			if _, err := fmt.Sscan(s, &x.ops, &x.p99, &x.soft, &x.granted, &x.requests, &x.hits, &x.cpu); err != nil {
				continue
			}
			m, _ := host.Read()
			x.at, x.free = time.Since(begin), m.Available
			p.mu.Lock()
			p.points = append(p.points, x)
			p.mu.Unlock()
		}
	}()
	wait := func(d time.Duration) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case err := <-listening:
			return fmt.Errorf("the service has ended: %w", err)
		}
	}
	// Wait until the cache is full and evicts: what comes later is compared with a full cache.
	o.progress(0, 4, "the cache fills")
	full := func() bool { s := c.Stats(); return s.Clients > 0 && s.Resident >= s.Granted*19/20 }
	for end := time.Now().Add(p.warm); !full() && time.Now().Before(end); {
		if err := wait(100 * time.Millisecond); err != nil {
			return err
		}
	}
	p.filled = time.Since(begin)
	from := p.filled
	o.progress(1, 4, "undisturbed")
	if err := wait(p.calm); err != nil {
		return err
	}
	before := p.between(from, time.Since(begin))
	if err := p.print(o, before, phase{"undisturbed", before}); err != nil {
		return err
	}

	antagonist := func(size, rate int64) (during, after summary, err error) {
		from := time.Since(begin)
		a, err := o.start("antagonist", strconv.FormatInt(size, 10), strconv.FormatInt(rate, 10))
		if err != nil {
			return during, after, err
		}
		defer a.stop()
		if err := p.group.Add(a.p.PID()); err != nil {
			return during, after, err
		}
		began := time.Now()
		if _, err := a.expect("full"); err != nil {
			return during, after, fmt.Errorf("the antagonist was killed: %w", err)
		}
		took := time.Since(began)
		p.mark(time.Since(begin), "")
		if err := wait(p.hold); err != nil {
			return during, after, err
		}
		during = p.between(from, time.Since(begin))
		during.rate = float64(size) / gib / took.Seconds()
		released := time.Since(begin)
		p.mark(released, "")
		gone := make(chan time.Duration, 1)
		go func() { a.stop(); gone <- time.Since(begin) }() // the kernel takes a while to free its memory
		// Objects that the cache has lost come back only when they are asked for again: recovery
		// takes as long as the service takes to rebuild them.
		var back time.Duration // since when the throughput is back
		for now := released; back == 0 || now < back+p.calm/2; now = time.Since(begin) {
			if back == 0 && (now > released+p.patience || p.recovered(released, before.ops, nil) > 0) {
				back = now
			}
			p.grants = append(p.grants, grant{now, c.Stats().Granted})
			if err := wait(2 * time.Millisecond); err != nil {
				return during, after, err
			}
		}
		free := <-gone
		after = p.between(time.Since(begin)-p.calm/2, time.Since(begin))
		after.recovery = p.recovered(released, before.ops, nil)
		after.allowed = p.recovered(released, before.ops, p.allows)
		after.refill = time.Duration(max(after.mostSoft-during.leastSoft, 0)/objectSize) * fetchTime / inFlight
		after.gone = free - released
		after.regrant, err = p.regranted(free, released, after.granted*9/10)
		return during, after, err
	}
	size := p.limit - p.reserve - 160*mib
	for i, a := range []struct {
		name       string
		size, rate int64
	}{
		{"moderate antagonist", size / 2, int64(float64(size/2) / p.slow.Seconds())},
		{"antagonist at full speed", size, 0},
	} {
		o.progress(2+i, 4, a.name)
		p.mark(time.Since(begin), a.name)
		during, after, err := antagonist(a.size, a.rate)
		if err != nil {
			return err
		}
		if err := p.print(o, before, phase{a.name, during}, phase{"after the " + a.name, after}); err != nil {
			return err
		}
	}
	kills, err := p.group.Kills()
	if err != nil {
		return err
	}
	return errors.Join(p.plot(o), p.printAll(o, kills, c.Stats()))
}

func (p *pressure) mark(at time.Duration, name string) {
	p.marks = append(p.marks, plot.Mark{X: at.Seconds(), Name: name})
}

type phase struct {
	name string
	summary
}

// summary is what happened in a part of the run.
type summary struct {
	ops, p99  float64 // the mean; the worst
	hitRatio  float64
	perCPU    float64 // requests for each second of processor time
	leastSoft int64
	mostSoft  int64
	leastFree int64
	rate      float64 // at which the antagonist allocated, GiB/s
	granted   int64   // the most

	// The following are of the time after the antagonist has let its memory go.
	gone     time.Duration // until the kernel had freed it
	regrant  time.Duration // from then until the service might use it again; 0 if it might before
	allowed  time.Duration // until the throughput was what the memory in use allows
	recovery time.Duration // until the throughput was back
	refill   time.Duration // the least time for fetching what the cache had lost
}

func (p *pressure) between(from, to time.Duration) (s summary) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var n, requests, hits, cpu float64
	s.leastSoft, s.leastFree = 1<<62, 1<<62
	for _, x := range p.points {
		if x.at < from || x.at > to {
			continue
		}
		n++
		s.ops += x.ops
		requests, hits, cpu = requests+x.requests, hits+x.hits, cpu+x.cpu
		s.p99 = max(s.p99, x.p99)
		s.leastSoft, s.mostSoft = min(s.leastSoft, x.soft), max(s.mostSoft, x.soft)
		s.leastFree = min(s.leastFree, x.free)
		s.granted = max(s.granted, x.granted)
	}
	s.ops /= max(n, 1)
	s.hitRatio, s.perCPU = hits/max(requests, 1), requests/max(cpu, 1e-3)
	return s
}

// window is how many points make half a second.
const window = 5

// recovered returns how long after from the throughput, over half a second, has first been
// nine tenths of level, and 0 if it never has. If allows is not nil and allows less for the
// soft memory in use at a point, that counts there instead of level.
func (p *pressure) recovered(from time.Duration, level float64, allows func(soft int64) float64) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := window; i < len(p.points); i++ {
		if p.points[i-window].at < from {
			continue
		}
		sum, want := 0.0, 0.0
		for _, x := range p.points[i-window : i] {
			sum += x.ops
			if want += level; allows != nil {
				want += min(allows(x.soft)-level, 0)
			}
		}
		if sum >= 0.9*want {
			return p.points[i].at - from
		}
	}
	return 0
}

// allows returns the throughput with soft bytes in use: what it was, over half a second, when
// the cache had that size while it filled for the first time, undisturbed. p.mu must be held.
func (p *pressure) allows(soft int64) (ops float64) {
	n := 0
	for n < len(p.points) && p.points[n].at <= p.filled && p.points[n].soft <= soft {
		n++
	}
	list := p.points[max(n-window, 0):n]
	for _, x := range list {
		ops += x.ops
	}
	return ops / float64(max(len(list), 1))
}

// regranted returns how long after free the coordinator has granted bytes bytes again, and 0 if
// it has done so before free. Only grants since released count.
func (p *pressure) regranted(free, released time.Duration, bytes int64) (time.Duration, error) {
	for _, x := range p.grants {
		if x.at >= released && x.bytes >= bytes {
			return max(x.at-free, 0), nil
		}
	}
	return 0, errors.New("the memory that the antagonist had is not granted again")
}

// plot draws figures 8, 9 and 10: throughput, latency and memory over time.
func (p *pressure) plot(o Options) error {
	if o.Plots == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	line := func(name string, of func(point) float64) plot.Line {
		l := plot.Line{Name: name}
		for _, x := range p.points {
			l.Points = append(l.Points, plot.Point{X: x.at.Seconds(), Y: of(x)})
		}
		return l
	}
	c := plot.Chart{
		Title: "a service with a soft cache beside a moderate and a full-speed antagonist",
		X:     "seconds",
		Marks: p.marks,
		Panels: []plot.Panel{
			{Y: "op/s", Lines: []plot.Line{line("throughput", func(x point) float64 { return x.ops })}},
			{Y: "µs", Log: true, Lines: []plot.Line{line("p99", func(x point) float64 { return x.p99 })}},
			{Y: "MiB", Lines: []plot.Line{
				line("soft memory", func(x point) float64 { return float64(x.soft) / mib }),
				line("granted", func(x point) float64 { return float64(x.granted) / mib }),
				line("free memory", func(x point) float64 { return float64(x.free) / mib }),
				line("the reserve", func(point) float64 { return float64(p.reserve) / mib }),
			}},
		},
	}
	return c.WriteSVG(o.Plots)
}

// print prints what happened in parts of the run, beside the undisturbed part.
func (p *pressure) print(o Options, before summary, phases ...phase) error {
	var errs []error
	for _, x := range phases {
		row := func(metric string, v float64, unit string) benchout.Row {
			return benchout.Row{Bench: "soft pressure", Case: x.name, Metric: metric, Value: v, Unit: unit}
		}
		print := func(r benchout.Row) { errs = append(errs, o.Printer.Print(r)) }
		ops, perCPU, p99 := row("throughput", x.ops, "op/s"), row("for one cpu", x.perCPU, "op/s"), row("p99, worst", x.p99, "us")
		if x.name != "undisturbed" {
			ops = ops.Against("undisturbed", before.ops, benchout.Higher)
			perCPU = perCPU.Against("undisturbed", before.perCPU, benchout.Higher)
			p99 = p99.Against("undisturbed", before.p99, benchout.Lower)
		}
		print(ops)
		print(perCPU)
		print(row("hit ratio", 100*x.hitRatio, "%"))
		print(p99)
		print(row("least soft", float64(x.leastSoft)/mib, "MiB"))
		print(row("most soft", float64(x.mostSoft)/mib, "MiB"))
		print(row("least free", float64(x.leastFree)/mib, "MiB"))
		if x.rate > 0 {
			print(row("allocates", x.rate, "GiB/s"))
		}
		if x.gone > 0 {
			print(row("memory is free in", x.gone.Seconds(), "s"))
			print(row("and back in", x.regrant.Seconds(), "s"))
		}
		if x.allowed > 0 {
			print(row("throughput is what the memory in use allows in", x.allowed.Seconds(), "s"))
		}
		if x.recovery > 0 {
			print(row("throughput is back in", x.recovery.Seconds(), "s").Against("fetching what was lost", x.refill.Seconds(), benchout.Lower))
		}
	}
	return errors.Join(errs...)
}

func (p *pressure) printAll(o Options, kills int, st coordinator.Stats) error {
	var errs []error
	for _, x := range []struct {
		metric string
		v      float64
		unit   string
	}{
		{"given back", float64(st.Cooperative) * 2, "MiB"},
		{"taken", float64(st.Direct) * 2, "MiB"},
		{"killed", float64(kills), ""},
	} {
		errs = append(errs, o.Printer.Print(benchout.Row{Bench: "soft pressure", Case: "in all", Metric: x.metric, Value: x.v, Unit: x.unit}))
	}
	if kills > 0 {
		errs = append(errs, fmt.Errorf("the kernel killed %d processes", kills))
	}
	return errors.Join(errs...)
}
