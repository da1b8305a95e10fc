// Package sharebench measures shared memory between real processes: puts and
// gets beside a copy of the same bytes and beside redis-server over its Unix
// socket, the allocation of regions by many clients, and the replay of a trace
// of LLM requests.
//
// [Run] drives worker processes, which run [Worker], one task at a time, and
// prints what they have measured. It is for one goroutine.
package sharebench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/child"
	"polder/internal/config"
	"polder/measure/benchout"
	"polder/share"
)

// Options say what to measure, and with what.
type Options struct {
	// Daemon is the command that runs "polder share", without its flags.
	Daemon []string
	// WorkerCommand is the command of a process that calls Worker.
	WorkerCommand []string
	Out           benchout.Printer
	Short         bool
	// Dir is where the daemon keeps its log: a directory on the disk that is to
	// be measured. The default is the temporary directory.
	Dir string
	// Progress, if not nil, is told how far the run is.
	Progress func(done, total int, what string)

	// Trace, if not empty, is replayed instead of all else.
	Trace string
	// Chunk is how many bytes a block of the trace stands for. The default is
	// 16 KiB.
	Chunk int
	// Workers is how many processes replay it. The default is 4.
	Workers int
	// Capacities are the sizes of the pool, in per cent of what all distinct
	// blocks need. The default is 10, 25, 50, 75 and 100.
	Capacities []int
}

const bench = "share"

// Run measures and prints.
func Run(ctx context.Context, opt Options) error {
	if opt.Progress == nil {
		opt.Progress = func(int, int, string) {}
	}
	dir, err := os.MkdirTemp(opt.Dir, "polder-bench-share")
	if err != nil {
		return fmt.Errorf("cannot make a directory: %w", err)
	}
	defer os.RemoveAll(dir)
	if opt.Trace != "" {
		return runTrace(ctx, opt, dir)
	}
	if err := runSizes(ctx, opt, filepath.Join(dir, "sizes")); err != nil {
		return err
	}
	if err := runSocket(ctx, opt, filepath.Join(dir, "socket")); err != nil {
		return err
	}
	if err := runMaru(ctx, opt, filepath.Join(dir, "maru")); err != nil {
		return err
	}
	if err := runAllocs(ctx, opt, dir); err != nil {
		return err
	}
	return runKeys(ctx, opt, filepath.Join(dir, "keys"))
}

// aDaemon is a running daemon.
type aDaemon struct {
	*child.Process
	socket string
}

func startDaemon(ctx context.Context, opt Options, dir string, flags ...string) (*aDaemon, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	d := &aDaemon{socket: filepath.Join(dir, "s")}
	args := append(slices.Clone(opt.Daemon[1:]), "--dir", filepath.Join(dir, "state"), "--socket", d.socket, "--log-level", "error")
	var err error
	if d.Process, err = child.Start(child.Command{Path: opt.Daemon[0], Args: append(args, flags...)}); err != nil {
		return nil, fmt.Errorf("cannot start the daemon: %w", err)
	}
	for {
		c, err := share.Open(ctx, share.Config{Socket: d.socket})
		if err == nil {
			return d, c.Close()
		}
		select {
		case <-d.Done():
			return nil, fmt.Errorf("the daemon has ended: %w", d.Ended())
		case <-ctx.Done():
			d.Kill()
			return nil, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// process is a worker process.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	enc *json.Encoder
	out *bufio.Reader
}

func startWorker(ctx context.Context, opt Options) (*process, error) {
	p := &process{cmd: exec.CommandContext(ctx, opt.WorkerCommand[0], opt.WorkerCommand[1:]...)}
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.in, p.enc, p.out = in, json.NewEncoder(in), bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start a worker: %w", err)
	}
	return p, nil
}

func (p *process) send(t task) error { return p.enc.Encode(t) }

func (p *process) receive() (result, error) {
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return result{}, fmt.Errorf("cannot hear from a worker: %w", err)
	}
	var r result
	if err := json.Unmarshal(line, &r); err != nil {
		return result{}, fmt.Errorf("cannot understand a worker: %w", err)
	}
	if r.Err != "" {
		return r, fmt.Errorf("a worker says: %s", r.Err)
	}
	return r, nil
}

func (p *process) do(t task) (result, error) {
	if err := p.send(t); err != nil {
		return result{}, fmt.Errorf("cannot talk to a worker: %w", err)
	}
	return p.receive()
}

func (p *process) close() error {
	return errors.Join(p.in.Close(), p.cmd.Wait())
}

// startBoth starts a daemon and a worker.
func startBoth(ctx context.Context, opt Options, dir string, flags ...string) (*aDaemon, *process, error) {
	d, err := startDaemon(ctx, opt, dir, flags...)
	if err != nil {
		return nil, nil, err
	}
	w, err := startWorker(ctx, opt)
	if err != nil {
		return nil, nil, errors.Join(err, d.Stop())
	}
	return d, w, nil
}

// stopAll ends the workers and then the daemon, and returns the errors of their ends.
func stopAll(d *aDaemon, ps ...*process) error {
	var errs []error
	for _, p := range ps {
		if p != nil {
			errs = append(errs, p.close())
		}
	}
	return errors.Join(append(errs, d.Stop())...)
}

type sizeCase struct{ size, n int }

func sizes(short bool) []sizeCase {
	if short {
		return []sizeCase{{4 << 10, 2000}, {256 << 10, 400}, {1 << 20, 200}, {16 << 20, 24}}
	}
	return []sizeCase{{4 << 10, 20000}, {256 << 10, 2000}, {1 << 20, 1000}, {16 << 20, 64}}
}

// runSizes measures puts by one process and gets by another, beside redis-server, for each size of blobs.
func runSizes(ctx context.Context, opt Options, dir string) (err error) {
	d, w, err := startBoth(ctx, opt, dir, "--pool", "memfd:4GiB")
	if err != nil {
		return err
	}
	var r *process
	defer func() { err = errors.Join(err, stopAll(d, w, r)) }()
	if r, err = startWorker(ctx, opt); err != nil {
		return err
	}
	rs, err := child.StartRedis(ctx, "--unixsocket", filepath.Join(dir, "redis"), "--maxmemory", "3gb")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rs.Close()) }()
	cases := sizes(opt.Short)
	for i, c := range cases {
		name := config.FormatSize(int64(c.size))
		opt.Progress(i, len(cases), name)
		t := task{Socket: d.socket, Size: c.size, N: c.n, Prefix: name, Page: c.size, Region: c.size * (c.n + batchSize*batches(c.n))}
		open := t
		open.Op = "open"
		for _, p := range []*process{w, r} {
			if _, err := p.do(open); err != nil {
				return err
			}
		}
		results := map[string]result{}
		for _, step := range []struct {
			op string
			p  *process
		}{{"put", w}, {"get", r}, {"redis", r}} {
			t.Op, t.Socket = step.op, d.socket
			if step.op == "redis" {
				t.Socket = filepath.Join(dir, "redis")
			}
			if results[step.op], err = step.p.do(t); err != nil {
				return fmt.Errorf("cannot measure %s of %s: %w", step.op, name, err)
			}
		}
		if err := printSize(opt.Out, name, results["put"].Series, results["get"].Series, results["redis"].Series); err != nil {
			return err
		}
		t.Op, t.Socket = "delete", d.socket
		if _, err := w.do(t); err != nil {
			return err
		}
	}
	return nil
}

// runSocket measures puts without mailboxes, through the socket alone: the difference to runSizes is what mailboxes
// gain.
func runSocket(ctx context.Context, opt Options, dir string) (err error) {
	d, w, err := startBoth(ctx, opt, dir, "--pool", "memfd:4GiB", "--poll", "0s")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopAll(d, w)) }()
	for _, c := range sizes(opt.Short) {
		if c.size > 1<<20 {
			break // the copy takes so long that one message does not count
		}
		name := config.FormatSize(int64(c.size))
		opt.Progress(0, 1, name+" by the socket")
		t := task{Op: "open", Socket: d.socket, Size: c.size, N: c.n, Prefix: name, Page: c.size, Region: c.size * (c.n + batchSize*batches(c.n))}
		if _, err := w.do(t); err != nil {
			return err
		}
		t.Op = "put"
		res, err := w.do(t)
		if err != nil {
			return fmt.Errorf("cannot measure put of %s by the socket: %w", name, err)
		}
		put, copied := res.Series["put"], res.Series["memcpy"]
		if err := printAll(opt.Out, []benchout.Row{
			row("put "+name+" by the socket", "p50", put.P50/1e3, "µs").Against("memcpy", copied.P50/1e3, benchout.Lower),
			row("put "+name+" by the socket", "p99", put.P99/1e3, "µs"),
		}); err != nil {
			return err
		}
	}
	return nil
}

// untouched marks a case that opens a view and reads none of its bytes, whereas the
// rival's GET copies them all.
const untouched = ", no byte touched"

func printSize(out benchout.Printer, name string, put, get, redis map[string]summary) error {
	const micro = 1e3
	rows := []benchout.Row{
		row("put "+name, "p50", put["put"].P50/micro, "µs").Against("memcpy", put["memcpy"].P50/micro, benchout.Lower),
		row("put "+name, "p50", put["put"].P50/micro, "µs").Against("redis SET", redis["set"].P50/micro, benchout.Lower),
		row("put "+name+", of it to fill the page", "p50", put["fill"].P50/micro, "µs").Against("memcpy", put["memcpy"].P50/micro, benchout.Lower),
		row("put "+name, "p99", put["put"].P99/micro, "µs").Against("redis SET", redis["set"].P99/micro, benchout.Lower),
		row("put "+name, "throughput", put["put"].gbps(), "GB/s").Against("memcpy", put["memcpy"].gbps(), benchout.Higher),
		row(fmt.Sprintf("put %s, %d at once", name, batchSize), "p50", put["batch"].P50/micro, "µs").Against("memcpy of as many", put["memcpy of a batch"].P50/micro, benchout.Lower),
		row("put "+name, "throughput", put["put"].gbps(), "GB/s").Against("redis SET", redis["set"].gbps(), benchout.Higher),
		row("get "+name+untouched, "p50", get["get"].P50/micro, "µs").Against("redis GET", redis["get"].P50/micro, benchout.Lower),
		row("get "+name+untouched, "p99", get["get"].P99/micro, "µs").Against("redis GET", redis["get"].P99/micro, benchout.Lower),
		row("get again "+name+untouched, "p50", get["get again"].P50/micro, "µs").Against("redis GET", redis["get"].P50/micro, benchout.Lower),
		row("get again "+name+untouched, "p99", get["get again"].P99/micro, "µs").Against("redis GET", redis["get"].P99/micro, benchout.Lower),
		row("get and first copy "+name, "throughput", get["get and first copy"].gbps(), "GB/s").Against("redis GET", redis["get"].gbps(), benchout.Higher),
		row("get and copy "+name, "throughput", get["get and copy"].gbps(), "GB/s").Against("memcpy", put["memcpy"].gbps(), benchout.Higher),
		row("get and copy "+name, "throughput", get["get and copy"].gbps(), "GB/s").Against("redis GET", redis["get"].gbps(), benchout.Higher),
	}
	return printAll(out, rows)
}

func row(what, metric string, value float64, unit string) benchout.Row {
	return benchout.Row{Bench: bench, Case: what, Metric: metric, Value: value, Unit: unit}
}

func printAll(out benchout.Printer, rows []benchout.Row) error {
	for _, r := range rows {
		if err := out.Print(r); err != nil {
			return err
		}
	}
	return nil
}

// runAllocs measures the allocation of regions, with the log on a disk, and how long it
// takes to write and sync a page on that disk.
func runAllocs(ctx context.Context, opt Options, dir string) error {
	n := 4000
	if opt.Short {
		n = 800
	}
	disk, err := syncs(dir, n/8)
	if err != nil {
		return err
	}
	if err := printAll(opt.Out, []benchout.Row{row("the disk: write and sync 4KiB", "p50", disk.P50/1e3, "µs"), row("the disk: write and sync 4KiB", "p99", disk.P99/1e3, "µs")}); err != nil {
		return err
	}
	for _, sync := range []bool{false, true} {
		name := "log written"
		flags := []string{"--pool", "memfd:2GiB"}
		if sync {
			name, flags = "log synced", append(flags, "--sync")
		}
		if err := runAlloc(ctx, opt, filepath.Join(dir, strings.ReplaceAll(name, " ", "-")), name, n, flags); err != nil {
			return err
		}
	}
	return nil
}

// syncs measures a write and fdatasync of each of n pages of a file whose blocks have been written before.
func syncs(dir string, n int) (s summary, err error) {
	f, err := os.CreateTemp(dir, "sync")
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	page := make([]byte, 4<<10)
	for i := range 2 * n {
		began := time.Now()
		if _, err := f.WriteAt(page, int64(i%n*len(page))); err != nil {
			return s, err
		}
		if i < n {
			continue
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return s, err
		}
		s.add(time.Since(began))
	}
	return s.finish(0), nil
}

func runAlloc(ctx context.Context, opt Options, dir, name string, n int, flags []string) (err error) {
	d, w, err := startBoth(ctx, opt, dir, flags...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopAll(d, w)) }()
	for _, c := range []struct{ clients, rate int }{{1, 0}, {16, 0}, {64, 1000}} {
		what := fmt.Sprintf("allocate, %d clients, %s", c.clients, name)
		if c.rate > 0 {
			what = fmt.Sprintf("allocate, %d clients %d/s, %s", c.clients, c.rate, name)
		}
		opt.Progress(0, 1, what)
		res, err := w.do(task{Op: "alloc", Socket: d.socket, Count: c.clients, Rate: c.rate, N: max(n/c.clients, 10), Region: 4 << 10})
		if err != nil {
			return err
		}
		s := res.Series["alloc"]
		if err := printAll(opt.Out, []benchout.Row{row(what, "p50", s.P50/1e3, "µs"), row(what, "p99", s.P99/1e3, "µs")}); err != nil {
			return err
		}
	}
	return nil
}

// runTrace replays a trace with each of the capacities, with eviction and without.
func runTrace(ctx context.Context, opt Options, dir string) error {
	if opt.Chunk == 0 {
		opt.Chunk = 16 << 10
	}
	if opt.Workers == 0 {
		opt.Workers = 4
	}
	if len(opt.Capacities) == 0 {
		opt.Capacities = []int{10, 25, 50, 75, 100}
	}
	limit := 0
	if opt.Short {
		limit, opt.Chunk = 4000, min(opt.Chunk, 4<<10)
	}
	reqs, err := readTrace(opt.Trace, limit)
	if err != nil {
		return err
	}
	blocks, total := distinct(reqs)
	all := idealLRU(reqs, blocks)
	if err := printAll(opt.Out, []benchout.Row{
		row("trace", "requests", float64(len(reqs)), "requests"),
		row("trace", "blocks", float64(total), "blocks"),
		row("trace", "distinct", float64(blocks), "blocks"),
		row("trace", "hits at most", 100*all, "%"),
	}); err != nil {
		return err
	}
	for i, percent := range opt.Capacities {
		for j, lru := range []bool{true, false} {
			name := fmt.Sprintf("trace %d%%", percent)
			if !lru {
				name += " no eviction"
			}
			opt.Progress(2*i+j, 2*len(opt.Capacities), name)
			capacity := blocks * percent / 100
			ideal := 0.0
			if lru {
				ideal = idealLRU(reqs, capacity)
			}
			run := traceRun{opt: opt, dir: filepath.Join(dir, fmt.Sprintf("%d-%v", percent, lru)), name: name, limit: limit, lru: lru, capacity: capacity, ideal: ideal}
			if err := run.run(ctx); err != nil {
				return fmt.Errorf("cannot replay with %d%%: %w", percent, err)
			}
		}
	}
	return nil
}

type traceRun struct {
	opt      Options
	dir      string
	name     string
	limit    int
	lru      bool
	capacity int // blocks
	ideal    float64
}

func (t traceRun) run(ctx context.Context) (err error) {
	// Each worker grows by a sixteenth of its share, in whole pages.
	region := max(1, t.capacity/t.opt.Workers/16) * t.opt.Chunk
	pool := max(t.capacity*t.opt.Chunk/region, t.opt.Workers) * region
	flags := []string{"--pool", fmt.Sprintf("memfd:%dB", pool)}
	if t.lru {
		flags = append(flags, "--lru")
	}
	d, err := startDaemon(ctx, t.opt, t.dir, flags...)
	if err != nil {
		return err
	}
	var ps []*process
	defer func() { err = errors.Join(err, stopAll(d, ps...)) }()
	for range t.opt.Workers {
		p, err := startWorker(ctx, t.opt)
		if err != nil {
			return err
		}
		ps = append(ps, p)
		if _, err := p.do(task{Op: "open", Socket: d.socket, Page: t.opt.Chunk, Region: region}); err != nil {
			return err
		}
	}
	began := time.Now()
	for i, p := range ps {
		if err := p.send(task{Op: "trace", Trace: t.opt.Trace, Size: t.opt.Chunk, Index: i, Workers: len(ps), Limit: t.limit}); err != nil {
			return err
		}
	}
	results := make(chan error, len(ps))
	got := make([]result, len(ps))
	for i, p := range ps {
		go func() {
			var err error
			got[i], err = p.receive()
			results <- err
		}()
	}
	use, err := t.watch(ctx, d.socket, results, len(ps))
	if err != nil {
		return err
	}
	return t.print(got, use, time.Since(began))
}

// watch samples the use of the pool until n workers have answered.
func (t traceRun) watch(ctx context.Context, socket string, results <-chan error, n int) (use []float64, err error) {
	c, err := share.Open(ctx, share.Config{Socket: socket})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for n > 0 {
		select {
		case werr := <-results:
			err = errors.Join(err, werr)
			n--
		case <-tick.C:
			info, serr := c.Stats(ctx)
			if serr != nil {
				return nil, errors.Join(err, serr)
			}
			use = append(use, 100*float64(info.Bytes)/float64(info.Pools[0].Size))
		}
	}
	return use, err
}

func (t traceRun) print(got []result, use []float64, took time.Duration) error {
	figures := map[string]float64{}
	var parts, pacedParts []summary
	for _, r := range got {
		for k, v := range r.Figures {
			figures[k] += v
		}
		parts = append(parts, r.Series["request"])
		pacedParts = append(pacedParts, r.Series["paced"])
	}
	requests, paced := merge(parts...), merge(pacedParts...)
	hits := row(t.name, "hits", 100*figures["hits"]/figures["blocks"], "%")
	if t.ideal > 0 {
		hits = hits.Against("one ideal LRU", 100*t.ideal, benchout.Higher)
	}
	rows := []benchout.Row{
		hits,
		row(t.name, "saved", figures["hits"]*float64(t.opt.Chunk)/1e6, "MB"),
		row(t.name, "not stored", figures["refused"], "blocks"),
		row(t.name, "p50", requests.P50/1e3, "µs"),
		row(t.name, "p99", requests.P99/1e3, "µs"),
		row(t.name, "rate", float64(requests.N)/took.Seconds(), "req/s"),
	}
	// In virtual time: requests come when the trace says, and take as long as they did above.
	if own := t.name + ", at the trace's rate"; figures["span"] > 0 {
		rows = append(rows,
			row(own, "rate", float64(requests.N)*float64(len(got))/figures["span"], "req/s"),
			row(own, "p50", paced.P50/1e3, "µs"),
			row(own, "p99", paced.P99/1e3, "µs"),
			row(own, "busy", 100*figures["busy"]/figures["span"], "%"))
	}
	for _, at := range []int{25, 50, 75, 100} {
		if len(use) > 0 {
			rows = append(rows, row(t.name, fmt.Sprintf("use at %d%%", at), use[max(0, len(use)*at/100-1)], "%"))
		}
	}
	return printAll(t.opt.Out, rows)
}
