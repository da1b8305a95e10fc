package sharebench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/arena"
	"polder/share"
)

// task is what the benchmark tells a worker process to do, a line of JSON.
type task struct {
	Op     string // "open", "put", "get", "delete", "alloc", "redis", "maru", "echo", "trace"
	Socket string
	Size   int // of a blob
	N      int
	Prefix string
	Page   int
	Region int
	Count  int // clients at the same time
	Rate   int // allocations a second by all clients together, 0 for as many as they can

	Echoes []string // addresses of the echoes: the one in Go, the bare one

	Trace   string // file
	Index   int    // of this worker
	Workers int
	Limit   int // requests, 0 for all
}

// result is a worker's answer, a line of JSON.
type result struct {
	Err     string             `json:",omitempty"`
	Series  map[string]summary `json:",omitempty"`
	Figures map[string]float64 `json:",omitempty"`
	Addrs   []string           `json:",omitempty"` // of the echoes
}

// summary sums up a series of latencies, in nanoseconds.
type summary struct {
	N              int
	P50, P99, Mean float64
	Longest        float64
	Total          float64
	Bytes          float64
	// Samples are the latencies themselves, where several workers measure the
	// same thing: a quantile of all of them cannot be had from their quantiles.
	Samples   []time.Duration `json:",omitempty"`
	latencies []time.Duration
}

func (s *summary) add(d time.Duration) { s.latencies = append(s.latencies, d) }

// withSamples is finish for a summary that is to be merged with others: it keeps the samples.
func (s *summary) withSamples() summary {
	all := s.finish(0)
	all.Samples = s.latencies
	return all
}

// merge returns the summary of all samples of several workers.
func merge(parts ...summary) summary {
	var all summary
	for _, s := range parts {
		all.latencies = append(all.latencies, s.Samples...)
	}
	return all.finish(0)
}

func (s *summary) finish(bytes int) summary {
	slices.Sort(s.latencies)
	n := len(s.latencies)
	if n == 0 {
		return summary{}
	}
	var total time.Duration
	for _, d := range s.latencies {
		total += d
	}
	return summary{
		Longest: float64(s.latencies[n-1]),
		N:       n, P50: float64(s.latencies[n/2]), P99: float64(s.latencies[n*99/100]),
		Mean: float64(total) / float64(n), Total: float64(total), Bytes: float64(n) * float64(bytes),
	}
}

// gbps is the throughput in GB/s.
func (s summary) gbps() float64 {
	if s.Total == 0 {
		return 0
	}
	return s.Bytes / s.Total
}

// Worker carries out the tasks that it reads, until its input ends. The processes
// that the benchmark starts run it.
func Worker(ctx context.Context, in io.Reader, out io.Writer) error {
	w := worker{}
	defer w.close()
	lines := bufio.NewScanner(in)
	enc := json.NewEncoder(out)
	for lines.Scan() {
		var t task
		if err := json.Unmarshal(lines.Bytes(), &t); err != nil {
			return fmt.Errorf("cannot read a task: %w", err)
		}
		res, err := w.do(ctx, t)
		if err != nil {
			res.Err = err.Error()
		}
		if err := enc.Encode(res); err != nil {
			return fmt.Errorf("cannot answer: %w", err)
		}
	}
	return lines.Err()
}

type worker struct {
	c      *share.Client
	echoes *echoes
}

func (w *worker) close() (err error) {
	if w.c != nil {
		err = w.c.Close()
		w.c = nil
	}
	if w.echoes != nil {
		err = errors.Join(err, w.echoes.close())
		w.echoes = nil
	}
	return err
}

func (w *worker) do(ctx context.Context, t task) (result, error) {
	switch t.Op {
	case "open":
		if err := w.close(); err != nil {
			return result{}, err
		}
		c, err := share.Open(ctx, share.Config{Socket: t.Socket, PageSize: t.Page, RegionSize: t.Region, Name: "polder bench share"})
		w.c = c
		return result{}, err
	case "put":
		return w.put(ctx, t)
	case "get":
		return w.get(ctx, t)
	case "delete":
		keys := make([]string, t.N)
		for i := range keys {
			keys[i] = t.key(i)
		}
		_, err := w.c.DeleteAll(ctx, keys)
		return result{}, err
	case "alloc":
		return alloc(ctx, t)
	case "redis":
		return redis(t)
	case "maru":
		return maruWork(t)
	case "echo":
		var err error
		if w.echoes, err = startEchoes(); err != nil {
			return result{}, err
		}
		return result{Addrs: w.echoes.addrs()}, nil
	case "trace":
		return w.replay(ctx, t)
	}
	return result{}, fmt.Errorf("there is no task %q", t.Op)
}

func (t task) key(i int) string { return fmt.Sprintf("%s/%d", t.Prefix, i) }

// blob returns the bytes that are stored, which differ from place to place.
func blob(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i * 131)
	}
	return b
}

// put measures puts, each beside a copy of the same bytes into a memfd's memory
// that is populated, as the region is.
func (w *worker) put(ctx context.Context, t task) (result, error) {
	src := blob(t.Size)
	dst, err := rivalMemory(t.Size * max(t.N, batchSize*batches(t.N)))
	if err != nil {
		return result{}, err
	}
	defer dst.Close()
	// The first allocation gets the region, which task "alloc" measures.
	first, err := w.c.Alloc(ctx)
	if err != nil {
		return result{}, err
	}
	if err := first.Free(); err != nil {
		return result{}, err
	}
	var put, fill, copied summary
	for i := range t.N {
		began := time.Now()
		copy(dst.Bytes()[i*t.Size:(i+1)*t.Size], src)
		copied.add(time.Since(began))

		key := t.key(i)
		began = time.Now()
		p, err := w.c.Alloc(ctx)
		if err != nil {
			return result{}, err
		}
		n := copy(p.Bytes(), src)
		fill.add(time.Since(began))
		stored, err := w.c.Put(ctx, key, p, n)
		if err != nil {
			return result{}, err
		}
		put.add(time.Since(began))
		if !stored {
			return result{}, fmt.Errorf("the key %q was there", key)
		}
	}
	series := map[string]summary{"put": put.finish(t.Size), "fill": fill.finish(t.Size), "memcpy": copied.finish(t.Size)}
	series["batch"], series["memcpy of a batch"], err = w.putBatches(ctx, t, src, dst.Bytes())
	return result{Series: series}, err
}

// batchSize is how many blobs a batch of puts has.
const batchSize = 8

// putBatches measures puts in batches, such as an engine makes when it stores a
// prompt, each beside a copy of the same bytes into dst. A sample is a whole
// batch, since all of its blobs wait for one answer.
//
// Preconditions: dst has room for all batches.
func (w *worker) putBatches(ctx context.Context, t task, src, dst []byte) (put, copied summary, err error) {
	var s, c summary
	var all []string
	for round := range batches(t.N) {
		began := time.Now()
		for i := range batchSize {
			copy(dst[(round*batchSize+i)*t.Size:], src)
		}
		c.add(time.Since(began))

		began = time.Now()
		items := make([]share.Item, batchSize)
		keys := make([]string, batchSize)
		for i := range items {
			p, err := w.c.Alloc(ctx)
			if err != nil {
				return summary{}, summary{}, err
			}
			keys[i] = fmt.Sprintf("%s/batch/%d/%d", t.Prefix, round, i)
			items[i] = share.Item{Key: keys[i], Page: p, Len: copy(p.Bytes(), src)}
		}
		if _, err := w.c.PutAll(ctx, items); err != nil {
			return summary{}, summary{}, err
		}
		s.add(time.Since(began))
		all = append(all, keys...)
	}
	_, err = w.c.DeleteAll(ctx, all)
	return s.finish(batchSize * t.Size), c.finish(batchSize * t.Size), err
}

// batches returns how many batches are measured when n blobs are put one by one.
func batches(n int) int { return max(n/2/batchSize, 1) }

func rivalMemory(size int) (*arena.Mapping, error) {
	fd, err := arena.NewMemfd("rival", (size+arena.PageSize-1)&^(arena.PageSize-1))
	if err != nil {
		return nil, err
	}
	defer fd.Close()
	m, err := fd.Map(0, fd.Size(), true)
	if err != nil {
		return nil, err
	}
	if err := unix.Madvise(m.Bytes(), unix.MADV_POPULATE_WRITE); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot populate the rival's memory: %w", err), m.Close())
	}
	return m, nil
}

// get measures views in four rounds: of keys that the client asks for the first time;
// of keys whose places the client remembers; with a first copy of all bytes, which
// faults the pages in; and with another copy.
func (w *worker) get(ctx context.Context, t task) (result, error) {
	want := blob(t.Size)
	out := make([]byte, t.Size)
	var first, again, cold, read summary
	for round := range 4 {
		for i := range t.N {
			key := t.key(i)
			began := time.Now()
			v, err := w.c.Get(ctx, key)
			if err != nil {
				return result{}, err
			}
			opened := time.Since(began)
			n := len(v.Bytes())
			if round >= 2 {
				n = copy(out, v.Bytes())
			}
			if err := v.Close(); err != nil {
				return result{}, err
			}
			took := time.Since(began)
			switch {
			case n != t.Size:
				return result{}, fmt.Errorf("%q has %d bytes, want %d", key, n, t.Size)
			case round == 0 && i > 0: // the first of all maps the region
				first.add(opened)
			case round == 1:
				again.add(took)
			case round == 2: // faults the pages in
				cold.add(took)
			case round == 3:
				read.add(took)
				if !slices.Equal(out, want) {
					return result{}, fmt.Errorf("%q has other bytes than were put", key)
				}
			}
		}
	}
	return result{Series: map[string]summary{
		"get": first.finish(t.Size), "get again": again.finish(t.Size), "get and first copy": cold.finish(t.Size), "get and copy": read.finish(t.Size),
	}}, nil
}

// alloc measures the allocation of regions by several clients at a time: the
// daemon carves and logs each region, and the client maps and populates it.
func alloc(ctx context.Context, t task) (result, error) {
	series := make([]summary, t.Count)
	errs := make([]error, t.Count)
	var ready, wg sync.WaitGroup
	ready.Add(t.Count)
	for i := range t.Count {
		wg.Go(func() {
			c, err := share.Open(ctx, share.Config{Socket: t.Socket, PageSize: t.Region, RegionSize: t.Region, Name: "polder bench share"})
			ready.Done()
			if err != nil {
				errs[i] = err
				return
			}
			ready.Wait()
			for range t.N {
				if t.Rate > 0 { // all clients together allocate Rate regions a second
					time.Sleep(time.Duration(rand.ExpFloat64() * float64(time.Second) * float64(t.Count) / float64(t.Rate)))
				}
				began := time.Now()
				if _, err = c.Alloc(ctx); err != nil {
					break
				}
				series[i].add(time.Since(began))
			}
			errs[i] = errors.Join(err, c.Close())
		})
	}
	wg.Wait()
	var all summary
	for _, s := range series {
		all.latencies = append(all.latencies, s.latencies...)
	}
	return result{Series: map[string]summary{"alloc": all.finish(0)}}, errors.Join(errs...)
}
