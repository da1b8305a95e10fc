package sharebench

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// maruBatch is how many keys a client of Maru's looks up at once here.
const maruBatch = 64

// runMaru measures the door for clients of Maru's protocol, over TCP, beside a copy
// of the same bytes and beside the bare round trip of a request as long.
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
	defer func() { err = errors.Join(err, stopAll(d, w)) }()
	cases := sizes(opt.Short)
	for i, c := range cases {
		name := config.FormatSize(int64(c.size))
		opt.Progress(i, len(cases), "maru "+name)
		res, err := w.do(task{Op: "maru", Socket: "tcp://" + addrs[0], Size: c.size, N: c.n, Prefix: name})
		if err != nil {
			return fmt.Errorf("cannot measure Maru's clients with %s: %w", name, err)
		}
		if err := printMaru(opt, name, res.Series); err != nil {
			return err
		}
	}
	return nil
}

func printMaru(opt Options, name string, s map[string]summary) error {
	const micro = 1e3
	lookup, get, batch := s["lookup"], s["get"], s["batch"]
	many := fmt.Sprintf("maru lookup of %d, %s", maruBatch, name)
	return printAll(opt.Out, []benchout.Row{
		row("maru lookup "+name, "p50", lookup.P50/micro, "µs").Against("bare TCP", s["tcp"].P50/micro, benchout.Lower),
		row("maru lookup "+name, "p99", lookup.P99/micro, "µs").Against("bare TCP", s["tcp"].P99/micro, benchout.Lower),
		row("maru get "+name+untouched, "p50", get.P50/micro, "µs").Against("bare TCP", s["tcp"].P50/micro, benchout.Lower),
		row(many, "p50", batch.P50/micro, "µs").Against("bare TCP", s["tcp batch"].P50/micro, benchout.Lower),
		row("maru store "+name, "p50", s["store"].P50/micro, "µs").Against("memcpy", s["memcpy"].P50/micro, benchout.Lower),
		row("maru store "+name, "throughput", s["store"].gbps(), "GB/s").Against("memcpy", s["memcpy"].gbps(), benchout.Higher),
	})
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

// maruWork stores blobs as a client of Maru's does, and looks them up.
func maruWork(t task) (res result, err error) {
	c, err := marutest.Dial(t.Socket, "", "polder bench share")
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	region, err := c.Alloc(int64(t.Size) * int64(t.N))
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
	dst, err := rivalMemory(t.Size * t.N)
	if err != nil {
		return res, err
	}
	defer dst.Close()
	var store, copied, lookup, get, batch summary
	for i := range t.N {
		at := i * t.Size
		began := time.Now()
		copy(dst.Bytes()[at:at+t.Size], src)
		copied.add(time.Since(began))

		began = time.Now()
		copy(mem[at:at+t.Size], src)
		isNew, err := c.Register(server.MaruKey{Key: t.key(i), Region: region.ID, Offset: int64(at), Length: int64(t.Size)})
		store.add(time.Since(began))
		if err != nil || !isNew {
			return res, fmt.Errorf("cannot store %q: new %v, %w", t.key(i), isNew, err)
		}
	}
	keys := make([]string, maruBatch)
	for i := range max(t.N, 1000) {
		key := t.key(i % t.N)
		began := time.Now()
		f, err := c.Lookup(key)
		lookup.add(time.Since(began))
		if err != nil || f.Size != int64(t.Size) {
			return res, fmt.Errorf("cannot look %q up: %d bytes, %w", key, f.Size, err)
		}
		began = time.Now()
		b, err := c.Get(key)
		get.add(time.Since(began))
		if err != nil || len(b) != t.Size {
			return res, fmt.Errorf("cannot get %q: %d bytes, %w", key, len(b), err)
		}
		if i%4 != 0 {
			continue
		}
		for j := range keys {
			keys[j] = t.key((i + j) % t.N)
		}
		began = time.Now()
		found, err := c.LookupAll(keys)
		batch.add(time.Since(began))
		if err != nil || len(found) != len(keys) || found[0].Size != int64(t.Size) {
			return res, fmt.Errorf("cannot look %d keys up: %w", len(keys), err)
		}
	}
	for i := range t.N {
		if ok, err := c.Delete(t.key(i)); !ok || err != nil {
			return res, fmt.Errorf("cannot delete %q: %w", t.key(i), errors.Join(err))
		}
	}
	// A request and an answer of about the sizes that the above have.
	tcp, err := bareTCP(len(lookup.latencies), 48, 128)
	if err != nil {
		return res, err
	}
	tcpBatch, err := bareTCP(len(batch.latencies), 30+len(strings.Join(keys, "-")), 20+100*maruBatch)
	return result{Series: map[string]summary{
		"store": store.finish(t.Size), "memcpy": copied.finish(t.Size), "lookup": lookup.finish(t.Size), "get": get.finish(t.Size),
		"batch": batch.finish(t.Size), "tcp": tcp.finish(0), "tcp batch": tcpBatch.finish(0),
	}}, err
}

// bareTCP measures n round trips over loopback that carry nothing.
func bareTCP(n, request, answer int) (s summary, err error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return s, err
	}
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			nc, err := lis.Accept()
			if err != nil {
				return err
			}
			defer nc.Close()
			in, out := make([]byte, request), make([]byte, answer)
			for {
				if _, err := io.ReadFull(nc, in); err != nil {
					return nil
				}
				if _, err := nc.Write(out); err != nil {
					return err
				}
			}
		}()
	}()
	defer func() { err = errors.Join(err, lis.Close(), <-done) }()
	nc, err := net.Dial("tcp", lis.Addr().String())
	if err != nil {
		return s, err
	}
	defer nc.Close()
	out, in := make([]byte, request), make([]byte, answer)
	for range n {
		began := time.Now()
		if _, err := nc.Write(out); err != nil {
			return s, err
		}
		if _, err := io.ReadFull(nc, in); err != nil {
			return s, err
		}
		s.add(time.Since(began))
	}
	return s, nil
}
