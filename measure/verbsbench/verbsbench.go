// Package verbsbench measures verbs in three ways:
//
//   - How long one READ, WRITE or CMP_SWAP takes, and how many go through a queue pair in a
//     second with many on their way. The drivers inproc and tcp are measured beside a plain TCP
//     connection that carries the same bytes, the driver shm beside a plain Unix socket.
//   - How long they take on a chunk of a node on this machine, which package pool accesses in
//     place, beside a plain copy of the same bytes or a plain atomic instruction.
//   - How many short READs of several callers a pool with 2 or 4 groups of queue pairs
//     (pool.Config.Groups) completes in a second, and how long one takes beside bulk writes, beside
//     a pool with a single group.
//
// In the first, the far end, ours and the rival's alike, is a process of its own if
// Options.Server says how to start it; inproc's is always in this process. Short
// rounds of every contestant alternate, and the median round counts, since the
// machine may be doing other things.
package verbsbench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"polder/measure/benchout"
	"polder/verbs"
)

// Options say how to run.
type Options struct {
	// Short ends within 45 s, at some cost in steadiness.
	Short bool
	// Out receives the figures.
	Out benchout.Printer
	// Server is a command that calls Serve with its standard input and
	// output. If it is empty, both ends are in this process.
	Server []string
}

// depth is how many requests are on their way in the pipelined part.
const depth = 128

// bcase is one operation at one size.
type bcase struct {
	op   verbs.Opcode
	size int
}

func cases() []bcase {
	var cs []bcase
	for _, op := range []verbs.Opcode{verbs.OpRead, verbs.OpWrite} {
		for _, size := range []int{8, 64, 4 << 10, 64 << 10} {
			cs = append(cs, bcase{op, size})
		}
	}
	return append(cs, bcase{verbs.OpCmpSwap, 8})
}

func (c bcase) String() string {
	size := fmt.Sprintf("%d B", c.size)
	if c.size >= 1<<10 {
		size = fmt.Sprintf("%d KiB", c.size>>10)
	}
	return fmt.Sprintf("%v %s", c.op, size)
}

// rawSizes returns the sizes of the request and the response that carry the
// case over a plain socket.
func (c bcase) rawSizes() (req, resp int) {
	switch c.op {
	case verbs.OpRead:
		return rawHeader, rawHeader + c.size
	case verbs.OpWrite:
		return rawHeader + c.size, rawHeader
	}
	return rawHeader + 16, rawHeader + 8 // CMP_SWAP: two operands, one result
}

// contestant is a driver or a rival that can do the cases.
type contestant interface {
	// roundTrips makes one request after the other for about d, and
	// appends to lat how long each took.
	roundTrips(c bcase, d time.Duration, lat []time.Duration) ([]time.Duration, error)
	// pipelined keeps depth requests on their way for about d, and returns
	// how many completed in a second.
	pipelined(c bcase, d time.Duration, depth int) (rate float64, err error)
	close()
}

// Run runs the benchmark "verbs".
func Run(ctx context.Context, o Options) error {
	rounds, span := 11, 200*time.Millisecond
	if o.Short {
		rounds, span = 5, 60*time.Millisecond
	}
	if err := run(ctx, o, rounds, span); err != nil {
		return fmt.Errorf("cannot run the verbs benchmark: %w", err)
	}
	return nil
}

func run(ctx context.Context, o Options, rounds int, span time.Duration) (err error) {
	addrs, stop, err := startServer(ctx, o.Server)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	names := []string{"raw TCP", "raw Unix", "tcp", "shm", "inproc"}
	var contestants []contestant
	for _, open := range []func() (contestant, error){
		func() (contestant, error) { return &raw{"tcp", addrs.rawTCP}, nil },
		func() (contestant, error) { return &raw{"unix", addrs.rawUnix}, nil },
		func() (contestant, error) { return newTCP(ctx, addrs.tcp) },
		func() (contestant, error) { return newSHM(ctx, addrs.shm) },
		func() (contestant, error) { return newInproc(ctx) },
	} {
		c, err := open()
		if err != nil {
			return err
		}
		defer c.close()
		contestants = append(contestants, c)
	}
	b := &bench{ctx: ctx, out: o.Out, names: names, contestants: contestants,
		rounds: rounds, span: span, lat: make([]time.Duration, 0, 1<<20)}
	for _, c := range cases() {
		if err := b.measure(c); err != nil {
			return fmt.Errorf("%v: %w", c, err)
		}
	}
	if err := b.inPlace(); err != nil {
		return fmt.Errorf("in place: %w", err)
	}
	if err := b.groups(); err != nil {
		return fmt.Errorf("groups of queue pairs: %w", err)
	}
	return nil
}

// bench is a run. The first two contestants are the rivals of the others.
type bench struct {
	ctx         context.Context
	out         benchout.Printer
	names       []string
	contestants []contestant
	rounds      int
	span        time.Duration
	lat         []time.Duration // for one round's latencies
}

// measure measures a case with all contestants, by turns, and prints the medians.
func (b *bench) measure(c bcase) error {
	p50s, rates := make([][]float64, len(b.names)), make([][]float64, len(b.names))
	for range b.rounds {
		for i, who := range b.contestants {
			if err := b.ctx.Err(); err != nil {
				return err
			}
			times, err := who.roundTrips(c, b.span, b.lat[:0])
			if err != nil {
				return fmt.Errorf("%s: %w", b.names[i], err)
			}
			slices.Sort(times)
			p50s[i] = append(p50s[i], float64(times[len(times)/2])/1e3)
			rate, err := who.pipelined(c, b.span, depth)
			if err != nil {
				return fmt.Errorf("%s, pipelined: %w", b.names[i], err)
			}
			rates[i] = append(rates[i], rate)
		}
	}
	for i := 2; i < len(b.names); i++ {
		rival := 0
		if b.names[i] == "shm" {
			rival = 1
		}
		row := benchout.Row{Bench: "verbs", Case: b.names[i] + " " + c.String(),
			Metric: "round trip", Value: median(p50s[i]), Unit: "us"}
		if err := b.out.Print(row.Against(b.names[rival], median(p50s[rival]), benchout.Lower)); err != nil {
			return err
		}
		row.Metric, row.Value, row.Unit = "pipelined", median(rates[i]), "op/s"
		if err := b.out.Print(row.Against(b.names[rival], median(rates[rival]), benchout.Higher)); err != nil {
			return err
		}
	}
	return nil
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// timed calls f for about d, or until lat is full, and appends to lat how long
// each call took. The calls of the first tenth of d warm up and do not count.
func timed(d time.Duration, lat []time.Duration, f func() error) ([]time.Duration, error) {
	start := time.Now()
	for warm, last := true, start; len(lat) < cap(lat); {
		if err := f(); err != nil {
			return nil, err
		}
		now := time.Now()
		if !warm {
			lat = append(lat, now.Sub(last))
		}
		last = now
		warm = now.Sub(start) < d/10
		if len(lat) > 0 && now.Sub(start) > d {
			break
		}
	}
	return lat, nil
}

// counted calls step for about d and returns how many requests completed in a
// second. step waits until some requests have completed, and starts as many new
// ones if more is true. Another tenth of d, before that, is for warming up. At the
// end counted calls step(false) until all depth requests on their way have completed.
func counted(d time.Duration, step func(more bool) (done int, err error)) (rate float64, err error) {
	begin := time.Now()
	from, total := begin, 0
	for warm := true; ; {
		n, err := step(true)
		if err != nil {
			return 0, err
		}
		now := time.Now()
		if warm {
			if warm = now.Sub(begin) < d/10; !warm {
				from = now
			}
			continue
		}
		total += n
		if now.Sub(from) > d {
			rate = float64(total) / now.Sub(from).Seconds()
			break
		}
	}
	for left := depth; left > 0; {
		n, err := step(false)
		if err != nil {
			return 0, err
		}
		left -= n
	}
	return rate, nil
}
