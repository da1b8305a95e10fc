package softbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"polder/files"
	"polder/internal/cgroup"
	"polder/internal/load"
	"polder/measure/benchout"
	"polder/soft"
)

// fileSize is the length of each file that is served.
const fileSize = 64 << 10

// library is a directory of files to serve, with another file that only the antagonist reads.
type library struct {
	dir   string
	scan  string
	count int
	limit int64 // of the control group in which a server and the antagonist are
	warm  time.Duration
	phase time.Duration
}

// RunFiles serves files over HTTP, at most half of which fit into memory: with package files,
// as polder serve files does, from a page cache in soft memory, and with net/http from the
// kernel's page cache. Each server is in a control group with the same limit, first alone, and
// then together with an antagonist that reads a file of twice the group's memory over and over,
// as a backup does. "Read from disk" is what the kernel has read from disk for the server.
//
// RunFiles fails where no control group can be made: without the limit the kernel's page cache
// would have everything. It drops only its own files from the kernel's cache.
func RunFiles(ctx context.Context, o Options) (err error) {
	l := &library{count: 16 << 10, limit: 512 * mib, warm: 20 * time.Second, phase: 15 * time.Second}
	if o.Short {
		l = &library{count: 6 << 10, limit: 192 * mib, warm: 5 * time.Second, phase: 4 * time.Second}
	}
	dir, err := os.MkdirTemp("", "polder-files-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	l.dir, l.scan = filepath.Join(dir, "served"), filepath.Join(dir, "scanned")
	o.progress(0, 3, "writing files")
	if err := l.write(ctx); err != nil {
		return err
	}
	o.progress(1, 3, "kernel")
	theirs, err := l.measure(ctx, o, "kernel")
	if err != nil {
		return fmt.Errorf("cannot measure the kernel's page cache: %w", err)
	}
	o.progress(2, 3, "soft")
	ours, err := l.measure(ctx, o, "soft")
	if err != nil {
		return fmt.Errorf("cannot measure the page cache in soft memory: %w", err)
	}
	for i, phase := range []string{"alone", "beside a scan"} {
		a, b := ours[i], theirs[i]
		for _, r := range []struct {
			metric, unit string
			ours, theirs float64
			better       benchout.Better
		}{
			{"throughput", "op/s", a.rate, b.rate, benchout.Higher},
			{"p50", "us", a.p50, b.p50, benchout.Lower},
			{"p99", "us", a.p99, b.p99, benchout.Lower},
			{"read from disk", "KiB/op", a.read, b.read, benchout.Lower},
		} {
			row := benchout.Row{Bench: "soft files", Case: phase, Metric: r.metric, Value: r.ours, Unit: r.unit}
			if err := o.Printer.Print(row.Against("page cache", r.theirs, r.better)); err != nil {
				return err
			}
		}
	}
	return nil
}

// write makes the files, and drops them from the kernel's page cache.
func (l *library) write(ctx context.Context) error {
	if err := os.Mkdir(l.dir, 0o755); err != nil {
		return err
	}
	content := make([]byte, fileSize)
	for i := range l.count {
		if err := ctx.Err(); err != nil {
			return err
		}
		copy(content, fileName(i))
		if err := writeCold(filepath.Join(l.dir, fileName(i)), content, 1); err != nil {
			return err
		}
	}
	return writeCold(l.scan, make([]byte, mib), int(2*l.limit/mib))
}

// fileName returns the name of the i-th file, with which its content begins, too.
func fileName(i int) string { return fmt.Sprintf("%08d", i) }

// writeCold writes a file of n times piece, syncs it, and drops it from the kernel's page cache.
func writeCold(path string, piece []byte, n int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	for range n {
		if _, err := f.Write(piece); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
}

// drop drops the files from the kernel's page cache.
func (l *library) drop() error {
	for i := range l.count {
		f, err := os.Open(filepath.Join(l.dir, fileName(i)))
		if err != nil {
			return err
		}
		if err := errors.Join(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// serverSize is the memory of the control group that a server takes besides its cache: for its
// heap, its sockets, and its program, which must stay in memory so that the server does not wait
// for the disk at every turn.
const serverSize = 64 * mib

// served is the result of a server over a while.
type served struct {
	rate, p50, p99 float64 // requests a second, microseconds
	read           float64 // KiB a request
}

// measure runs a server, alone and beside a scan.
func (l *library) measure(ctx context.Context, o Options, kind string) (results []served, err error) {
	if err := l.drop(); err != nil {
		return nil, err
	}
	group, err := cgroup.New(l.limit)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, group.Close()) }()
	server, err := o.start("files", kind, l.dir, strconv.FormatInt(l.limit-serverSize, 10), group.Procs())
	if err != nil {
		return nil, err
	}
	defer server.stop()
	addr, err := server.expect("ready")
	if err != nil {
		return nil, err
	}
	if _, err := l.visit(ctx, server, addr, l.warm); err != nil {
		return nil, err
	}
	alone, err := l.visit(ctx, server, addr, l.phase)
	if err != nil {
		return nil, err
	}
	scan, err := o.start("scan", l.scan, group.Procs())
	if err != nil {
		return nil, err
	}
	defer scan.stop()
	if _, err := scan.expect("once"); err != nil {
		return nil, err
	}
	beside, err := l.visit(ctx, server, addr, l.phase)
	return []served{alone, beside}, err
}

// visitors is how many requests are in flight.
const visitors = 8

// visit asks a server for files, with visitors requests in flight, for length.
func (l *library) visit(ctx context.Context, server *worker, addr string, length time.Duration) (s served, err error) {
	transport := &http.Transport{MaxIdleConnsPerHost: visitors}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	before, err := readBytes(server.p.PID())
	if err != nil {
		return s, err
	}
	keys := load.Scattered(l.count)
	took := make([][]time.Duration, visitors)
	errs := make([]error, visitors)
	begun := time.Now()
	var wg sync.WaitGroup
	for v := range visitors {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(v), 3))
			buf := make([]byte, fileSize)
			for errs[v] == nil && ctx.Err() == nil && time.Since(begun) < length {
				name := fileName(keys.Next(r))
				t := time.Now()
				errs[v] = fetchFile(ctx, client, "http://"+addr+"/"+name, name, buf)
				took[v] = append(took[v], time.Since(t))
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(begun)
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return s, err
	}
	after, err := readBytes(server.p.PID())
	all := slices.Concat(took...)
	slices.Sort(all)
	n := float64(len(all))
	return served{
		rate: n / elapsed.Seconds(), read: float64(after-before) / 1024 / n,
		p50: float64(all[len(all)/2].Nanoseconds()) / 1e3, p99: float64(all[len(all)*99/100].Nanoseconds()) / 1e3,
	}, err
}

// fetchFile asks for a file and reads all of it into buf. It fails unless the file begins with its name.
func fetchFile(ctx context.Context, client *http.Client, url, name string, buf []byte) (err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	if _, err := io.ReadFull(res.Body, buf); err != nil {
		return fmt.Errorf("%s: %s: %w", url, res.Status, err)
	}
	if got := string(buf[:len(name)]); got != name {
		return fmt.Errorf("%s begins with %q", url, got)
	}
	return nil
}

// readBytes returns how many bytes the kernel has read from disk for a process.
func readBytes(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(line, "read_bytes: "); ok {
			return strconv.ParseInt(strings.TrimSpace(n), 10, 64)
		}
	}
	return 0, errors.New("the kernel does not say what processes read from disk")
}

// enter puts this process into a control group.
func enter(procs string) error {
	return os.WriteFile(procs, []byte(strconv.Itoa(os.Getpid())), 0o644)
}

// filesWorker serves the files of a directory, from the kernel's page cache or from a soft heap
// with a budget.
func filesWorker(ctx context.Context, out io.Writer, args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("want a kind, a directory, a size and a control group, not %q", args)
	}
	budget, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		return err
	}
	if err := enter(args[3]); err != nil {
		return err
	}
	debug.SetMemoryLimit(32 * mib) // of the Go heap, which the control group counts too
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "ready", lis.Addr())
	if args[0] == "kernel" {
		server := &http.Server{Handler: http.FileServer(http.Dir(args[1]))}
		stop := context.AfterFunc(ctx, func() { server.Close() })
		defer stop()
		return server.Serve(lis)
	}
	h, err := soft.Open(soft.Config{Budget: budget, Logger: quiet})
	if err != nil {
		return err
	}
	defer h.Close()
	server, err := files.New(files.Config{Dir: args[1], Heap: h, MaxConns: 1024, Logger: quiet})
	if err != nil {
		return err
	}
	defer server.Close()
	return server.Serve(lis)
}

// scanWorker reads a file over and over, and reports when it has read all of it for the first time.
func scanWorker(ctx context.Context, out io.Writer, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("want a file and a control group, not %q", args)
	}
	if err := enter(args[1]); err != nil {
		return err
	}
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	const rate = 128 * mib // bytes a second, which leaves some of the disk to the server
	begin, buf := time.Now(), make([]byte, mib)
	for done, passes := int64(0), 0; ctx.Err() == nil; {
		n, err := f.Read(buf)
		if errors.Is(err, io.EOF) {
			if passes++; passes == 1 {
				fmt.Fprintln(out, "once")
			}
			if _, err := f.Seek(0, io.SeekStart); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		done += int64(n)
		time.Sleep(time.Until(begin.Add(time.Duration(float64(done) / rate * 1e9))))
	}
	return nil
}
