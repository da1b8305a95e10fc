package respbench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"polder/far"
	"polder/internal/load"
	"polder/measure/benchout"
)

// Config says what to measure and where to print it. Polder and Printer are
// required.
type Config struct {
	Polder  string // the path of this program
	Printer benchout.Printer
	Short   bool // end within 45 s
	// Progress, if set, is told what is being done.
	Progress func(done, total int, what string)
	// Note, if set, is told what cannot be measured here, and why.
	Note func(what string)
}

func (c *Config) note(what string) {
	if c.Note != nil {
		c.Note(what)
	}
}

const (
	conns = 50
	// sequenceLength is how many keys are drawn before the clock starts.
	sequenceLength = 4 << 20

	rival   = "redis"
	farPart = 5 // the local budget is 1/farPart of the memory that the data takes
)

var (
	sizes     = []int{64, 1 << 10, 4 << 10}
	pipelines = []int{1, 16}
	ops       = []load.Op{load.Get, load.Set}
)

// scale is how much a run does.
type scale struct {
	rounds   int
	duration time.Duration // of a measurement
	warmup   time.Duration // of a measurement
	settle   time.Duration // of reads before the first measurement of a far server
	data     int64         // bytes of a data set, keys and values
	most     int           // keys of a data set
	wide     int           // fields and keys of a command that has many
	large    int           // bytes of the value of a command that has a large one
}

var (
	full  = scale{rounds: 5, duration: time.Second, warmup: 200 * time.Millisecond, settle: 3 * time.Second, data: 256 << 20, most: 1_500_000, wide: 100_000, large: 36 << 20}
	short = scale{rounds: 3, duration: 65 * time.Millisecond, warmup: 15 * time.Millisecond, settle: 200 * time.Millisecond, data: 56 << 20, most: 300_000, wide: 20_000, large: 36 << 20}
)

// entryOverhead is what the far heap keeps beside a key and a value: header,
// alignment, and its place in the index.
const entryOverhead = 56

// Run measures and prints.
func Run(ctx context.Context, cfg Config) error {
	b := &bench{cfg: cfg, scale: full}
	if cfg.Short {
		b.scale = short
	}
	if b.cfg.Progress == nil {
		b.cfg.Progress = func(int, int, string) {}
	}
	return b.run(ctx)
}

func (b *bench) run(ctx context.Context) error {
	perSize := len(pipelines) * len(ops) * b.scale.rounds
	b.total = len(sizes) * perSize * (2 + 3) // the servers of both phases
	b.total += (len(wideCases(0)) + 2) * b.scale.rounds * 2
	b.total += perSize * 2 * 2 // the origin and its cache, here and at a distance
	if err := b.wide(ctx); err != nil {
		return fmt.Errorf("cannot measure commands with many arguments: %w", err)
	}
	for _, size := range sizes {
		if err := b.size(ctx, size); err != nil {
			return fmt.Errorf("cannot measure values of %s: %w", sizeName(size), err)
		}
	}
	if err := b.origin(ctx); err != nil {
		return fmt.Errorf("cannot measure a cache before a Redis: %w", err)
	}
	return nil
}

type bench struct {
	cfg         Config
	scale       scale
	done, total int // measurements
}

// size measures both phases with values of one size.
func (b *bench) size(ctx context.Context, size int) (err error) {
	keys := min(int(b.scale.data)/(load.KeySize+size), b.scale.most)
	memory := int64(keys) * int64(load.KeySize+size+entryOverhead)
	const mib = 1 << 20
	lend := 2*memory + 128*mib // dead entries take room, too, until they are cleaned away

	redis, err := startRedis(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, redis.close()) }()
	if err := b.fill(ctx, redis, keys, size); err != nil {
		return err
	}

	ample := memory*3/2 + 32*mib
	local, err := startUp(ctx, b.cfg.Polder, "local", ample, lend)
	if err != nil {
		return err
	}
	uniform := load.Sequence(load.Uniform(keys), sequenceLength, uint64(size))
	err = b.fill(ctx, local, keys, size)
	if err == nil {
		// Overwrite until every page of the budget has been touched: the time
		// that the operating system takes for the first use of a page is not the
		// server's, and Redis has spent it during the fill.
		err = b.set(ctx, local, uniform, int(ample/int64(load.KeySize+size)), size)
	}
	if err == nil {
		err = b.phase(ctx, []*server{redis, local}, uniform, size)
	}
	if err = errors.Join(err, local.close()); err != nil {
		return err
	}

	budget := max(memory/farPart, far.MinLocal)
	zipf := load.Sequence(load.Scattered(keys), sequenceLength, uint64(size))
	tcp, err := startFar(ctx, b.cfg.Polder, "far tcp", budget, lend)
	if err != nil {
		return err
	}
	inproc, err := startUp(ctx, b.cfg.Polder, "far inproc", budget, lend)
	if err != nil {
		return errors.Join(err, tcp.close())
	}
	ours := []*server{tcp, inproc}
	defer func() { err = errors.Join(err, closeAll(ours)) }()
	for _, s := range ours {
		if err := b.fill(ctx, s, keys, size); err != nil {
			return err
		}
		b.cfg.Progress(b.done, b.total, s.name+" settles")
		if _, err := b.load(ctx, s, load.Config{
			Pipeline: 16, Op: load.Get, ValueSize: size, Sequence: zipf, Duration: b.scale.settle,
		}); err != nil {
			return err
		}
	}
	return b.phase(ctx, append([]*server{redis}, ours...), zipf, size)
}

// fill stores every key once.
func (b *bench) fill(ctx context.Context, s *server, keys, size int) error {
	return b.set(ctx, s, load.Ascending(keys), keys, size)
}

// set stores count values.
func (b *bench) set(ctx context.Context, s *server, sequence []uint32, count, size int) error {
	b.cfg.Progress(b.done, b.total, "fill "+s.name)
	_, err := b.load(ctx, s, load.Config{Pipeline: 16, Op: load.Set, ValueSize: size, Sequence: sequence, Count: count})
	return err
}

// figures are the results of one server in one case, with one value for each round.
type figures struct {
	throughput, p50, p99 []float64
	hits                 []float64 // commands that the server answered from local memory, in per cent
}

// phase measures the servers in every case, and prints the medians beside the rival's. The rival is servers[0].
func (b *bench) phase(ctx context.Context, servers []*server, sequence []uint32, size int) error {
	for _, pipeline := range pipelines {
		for _, op := range ops {
			got := make([]figures, len(servers))
			for range b.scale.rounds {
				// Within a round all servers get the same keys; the next
				// round has other keys. The servers' order changes, too, so
				// that no server always runs after the same one.
				offset := rand.IntN(len(sequence))
				for _, i := range rand.Perm(len(servers)) {
					s := servers[i]
					b.cfg.Progress(b.done, b.total, caseName(s.name, op, size, pipeline))
					if err := b.measure(ctx, s, &got[i], load.Config{
						Pipeline: pipeline, Op: op, ValueSize: size, Sequence: sequence, Offset: offset,
						Duration: b.scale.duration, Warmup: b.scale.warmup,
					}); err != nil {
						return err
					}
					b.done++
				}
			}
			for i, s := range servers[1:] {
				if err := b.print(caseName(s.name, op, size, pipeline), got[i+1], got[0]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// measure adds a round to f.
func (b *bench) measure(ctx context.Context, s *server, f *figures, cfg load.Config) error {
	counted := s.admin != "" && cfg.Op == load.Get
	var commands, fetches int64
	var err error
	if counted {
		if commands, fetches, err = s.counted(ctx); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	r, err := b.load(ctx, s, cfg)
	if err != nil {
		return err
	}
	f.throughput = append(f.throughput, r.Throughput())
	f.p50 = append(f.p50, float64(r.Latency.ValueAtQuantile(50))/1000)
	f.p99 = append(f.p99, float64(r.Latency.ValueAtQuantile(99))/1000)
	if counted {
		commandsAfter, fetchesAfter, err := s.counted(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if n := commandsAfter - commands; n > 0 {
			f.hits = append(f.hits, 100*(1-float64(fetchesAfter-fetches)/float64(n)))
		}
	}
	return nil
}

func (b *bench) print(name string, ours, theirs figures) error {
	return b.printAs("resp", rival, name, ours, theirs)
}

func (b *bench) printAs(bench, rival, name string, ours, theirs figures) error {
	row := func(metric, unit string, ours, theirs []float64, better benchout.Better) error {
		r := benchout.Row{Bench: bench, Case: name, Metric: metric, Value: median(ours), Unit: unit}
		return b.cfg.Printer.Print(r.Against(rival, median(theirs), better))
	}
	err := errors.Join(
		row("throughput", "op/s", ours.throughput, theirs.throughput, benchout.Higher),
		row("p50", "us", ours.p50, theirs.p50, benchout.Lower),
		row("p99", "us", ours.p99, theirs.p99, benchout.Lower),
	)
	if len(ours.hits) > 0 {
		r := benchout.Row{Bench: bench, Case: name, Metric: "local hits", Value: median(ours.hits), Unit: "%"}
		err = errors.Join(err, b.cfg.Printer.Print(r))
	}
	return err
}

// load puts a load on a server, and fails if one command fails.
func (b *bench) load(ctx context.Context, s *server, cfg load.Config) (load.Result, error) {
	cfg.Addr, cfg.Conns = s.addr, cmp.Or(s.conns, conns)
	r, err := load.Run(ctx, cfg)
	switch {
	case err != nil:
	case r.Failed > 0:
		err = fmt.Errorf("%d commands failed, the first with %q", r.Failed, r.Failure)
	case r.Missing > 0:
		err = fmt.Errorf("%d keys were missing", r.Missing)
	}
	if err != nil {
		return r, fmt.Errorf("%s: %w", s.name, err)
	}
	return r, nil
}

func caseName(server string, op load.Op, size, pipeline int) string {
	return fmt.Sprintf("%s %v %s P%d", server, op, sizeName(size), pipeline)
}

func sizeName(n int) string {
	if n >= 1<<10 {
		return fmt.Sprintf("%dKiB", n>>10)
	}
	return fmt.Sprintf("%dB", n)
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	if n == 0 {
		return 0
	}
	return (v[(n-1)/2] + v[n/2]) / 2
}
