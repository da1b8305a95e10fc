package sharebench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/config"
	"polder/measure/benchout"
	"polder/share/maru/marutest"
	"polder/share/server"
)

// maruBatch is how many keys a client of Maru's looks up at once in this benchmark.
const maruBatch = 64

// runMaru measures the daemon's door for clients of Maru's protocol, over TCP. Stores are
// compared with a copy of the same bytes, lookups with round trips of equally long
// messages to servers that do nothing but answer.
func runMaru(ctx context.Context, opt Options, dir string) (err error) {
	addrs, err := freeAddrs(2)
	if err != nil {
		return err
	}
	regions, err := os.MkdirTemp("/dev/shm", "polder-bench-share")
	if err != nil {
		return fmt.Errorf("cannot make a directory on tmpfs: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(regions)) }()
	d, w, err := startBoth(ctx, opt, dir, "--pool", "memfd:4GiB", "--maru-dir", regions, "--maru", "tcp://"+addrs[0], "--maru-resources", addrs[1])
	if err != nil {
		return err
	}
	var peer *process
	defer func() { err = errors.Join(err, stopAll(d, w, peer)) }()
	if peer, err = startWorker(ctx, opt); err != nil {
		return err
	}
	echoes, err := peer.do(task{Op: "echo"})
	if err != nil {
		return err
	}
	cases := sizes(opt.Short)
	for i, c := range cases {
		name := config.FormatSize(int64(c.size))
		opt.Progress(i, len(cases), "maru "+name)
		res, err := w.do(task{Op: "maru", Socket: "tcp://" + addrs[0], Size: c.size, N: c.n, Prefix: name, Echoes: echoes.Addrs})
		if err != nil {
			return fmt.Errorf("cannot measure Maru's clients with %s: %w", name, err)
		}
		if err := printMaru(opt, name, res.Series); err != nil {
			return err
		}
	}
	return nil
}

// printMaru prints how long requests take as a client sees it, and as "served" the part
// that is not spent in the client itself: from when the request is given to the system
// until its answer is there. The daemon's own work is what "served" takes beyond a server
// in Go that only answers.
func printMaru(opt Options, name string, s map[string]summary) error {
	const micro = 1e3
	rows := []benchout.Row{}
	for _, c := range []struct{ what, series, echo string }{
		{"maru lookup " + name, "lookup", "echo"},
		{"maru get " + name + untouched, "get", "echo"},
		{fmt.Sprintf("maru lookup of %d, %s", maruBatch, name), "batch", "echo of a batch"},
	} {
		whole, served := s[c.series], s[c.series+", served"]
		inGo, bare := s[c.echo+" in Go"], s[c.echo+" bare"]
		rows = append(rows,
			row(c.what, "p50", whole.P50/micro, "µs").Against("bare TCP", bare.P50/micro, benchout.Lower),
			row(c.what, "p99", whole.P99/micro, "µs").Against("bare TCP", bare.P99/micro, benchout.Lower),
			row(c.what+", served", "p50", served.P50/micro, "µs").Against("an echo in Go", inGo.P50/micro, benchout.Lower),
			row(c.what+", of it beyond an echo", "p50", (served.P50-inGo.P50)/micro, "µs"))
	}
	store, copied := s["store"], s["memcpy"]
	return printAll(opt.Out, append(rows,
		row("maru store "+name, "p50", store.P50/micro, "µs").Against("memcpy", copied.P50/micro, benchout.Lower),
		row("maru store "+name+", of it to register the key", "p50", s["register"].P50/micro, "µs"),
		row("maru store "+name, "throughput", store.gbps(), "GB/s").Against("memcpy", copied.gbps(), benchout.Higher),
		row(fmt.Sprintf("maru store %s, %d at once", name, batchSize), "p50", s["store of a batch"].P50/micro, "µs").Against("memcpy of as many", s["memcpy of a batch"].P50/micro, benchout.Lower),
	))
}

// freeAddrs finds addresses that nobody listens at.
func freeAddrs(n int) (addrs []string, err error) {
	for range n {
		lis, lerr := net.Listen("tcp", "127.0.0.1:0")
		if lerr != nil {
			return nil, fmt.Errorf("cannot find a free port: %w", lerr)
		}
		addrs = append(addrs, lis.Addr().String())
		defer func() { err = errors.Join(err, lis.Close()) }()
	}
	return addrs, nil
}

// maruWork is a worker's task: it stores blobs as a client of Maru's does, and looks them up.
func maruWork(t task) (res result, err error) {
	c, err := marutest.Dial(t.Socket, "", "polder bench share")
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	blobs := t.N + batchSize*batches(t.N)
	region, err := c.Alloc(int64(t.Size) * int64(blobs))
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, c.Return(region.ID)) }()
	mem, err := c.Map(region)
	if err != nil {
		return res, err
	}
	if err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE); err != nil {
		return res, fmt.Errorf("cannot populate a region: %w", err)
	}
	src := blob(t.Size)
	dst, err := rivalMemory(t.Size * blobs)
	if err != nil {
		return res, err
	}
	defer dst.Close()
	series := map[string]*summary{}
	for _, name := range []string{
		"memcpy", "store", "register", "memcpy of a batch", "store of a batch", "lookup", "lookup, served", "get", "get, served", "batch", "batch, served",
		"echo in Go", "echo bare", "echo of a batch in Go", "echo of a batch bare",
	} {
		series[name] = &summary{}
	}
	for i := range t.N {
		at := i * t.Size
		began := time.Now()
		copy(dst.Bytes()[at:at+t.Size], src)
		series["memcpy"].add(time.Since(began))

		began = time.Now()
		copy(mem[at:at+t.Size], src)
		filled := time.Now()
		isNew, err := c.Register(server.MaruKey{Key: t.key(i), Region: region.ID, Offset: int64(at), Length: int64(t.Size)})
		series["store"].add(time.Since(began))
		series["register"].add(time.Since(filled))
		if err != nil || !isNew {
			return res, fmt.Errorf("cannot store %q: %w", t.key(i), cmp.Or(err, errors.New("it is there already")))
		}
	}
	for i := t.N; i < blobs; i += batchSize {
		began := time.Now()
		for j := i; j < i+batchSize; j++ {
			copy(dst.Bytes()[j*t.Size:(j+1)*t.Size], src)
		}
		series["memcpy of a batch"].add(time.Since(began))

		began = time.Now()
		batch := make([]server.MaruKey, batchSize)
		for j := range batch {
			at := (i + j) * t.Size
			copy(mem[at:at+t.Size], src)
			batch[j] = server.MaruKey{Key: t.key(i + j), Region: region.ID, Offset: int64(at), Length: int64(t.Size)}
		}
		isNew, err := c.RegisterAll(batch)
		series["store of a batch"].add(time.Since(began))
		if err != nil || len(isNew) != batchSize || !isNew[batchSize-1] {
			return res, fmt.Errorf("cannot store %d at once: %w", batchSize, cmp.Or(err, fmt.Errorf("those that are new: %v", isNew)))
		}
	}
	keys := make([]string, maruBatch)
	for j := range keys {
		keys[j] = t.key(j % t.N)
	}
	// Requests and answers are about as long as those between client and daemon.
	echoes := map[string]*echo{}
	for i, how := range []string{" in Go", " bare"} {
		for what, sizes := range map[string][2]int{"echo": {48, 128}, "echo of a batch": {30 + len(strings.Join(keys, "-")), 20 + 100*maruBatch}} {
			e, err := dialEcho(t.Echoes[i], how == " bare", sizes[0], sizes[1])
			if err != nil {
				return res, err
			}
			defer e.Close()
			echoes[what+how] = e
		}
	}
	// By turns, so that whatever else runs on the machine disturbs all alike.
	for i := range max(t.N, 1000) {
		key := t.key(i % t.N)
		began := time.Now()
		f, err := c.Lookup(key)
		series["lookup"].add(time.Since(began))
		series["lookup, served"].add(c.Waited())
		if err != nil || f.Size != int64(t.Size) {
			return res, fmt.Errorf("cannot look %q up: %w", key, cmp.Or(err, fmt.Errorf("it has %d bytes, want %d", f.Size, t.Size)))
		}
		began = time.Now()
		b, err := c.Get(key)
		series["get"].add(time.Since(began))
		series["get, served"].add(c.Waited())
		if err != nil || len(b) != t.Size {
			return res, fmt.Errorf("cannot get %q: %w", key, cmp.Or(err, fmt.Errorf("it has %d bytes, want %d", len(b), t.Size)))
		}
		turn := []string{"echo in Go", "echo bare"}
		if i%4 == 0 {
			for j := range keys {
				keys[j] = t.key((i + j) % t.N)
			}
			began = time.Now()
			found, err := c.LookupAll(keys)
			series["batch"].add(time.Since(began))
			series["batch, served"].add(c.Waited())
			if err != nil || len(found) != len(keys) || found[0].Size != int64(t.Size) {
				return res, fmt.Errorf("cannot look %d keys up: %w", len(keys), cmp.Or(err, errors.New("some are missing, or have another size")))
			}
			turn = append(turn, "echo of a batch in Go", "echo of a batch bare")
		}
		for _, name := range turn {
			if err := echoes[name].measure(series[name]); err != nil {
				return res, fmt.Errorf("cannot measure %s: %w", name, err)
			}
		}
	}
	for i := range blobs {
		if ok, err := c.Delete(t.key(i)); !ok || err != nil {
			return res, fmt.Errorf("cannot delete %q: %w", t.key(i), cmp.Or(err, errors.New("it is not there")))
		}
	}
	res.Series = map[string]summary{}
	for name, s := range series {
		res.Series[name] = s.finish(t.Size)
	}
	return res, nil
}
