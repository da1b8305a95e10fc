package farbench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"polder/far"
	"polder/measure/benchout"
)

// threadsScale is how large a run of far threads is.
type threadsScale struct {
	entries    int
	goroutines []int
	rounds     int
	span       time.Duration
}

// RunThreads measures how many gets a far map answers in a second when four of five miss, with different numbers of
// goroutines, each of which waits for its own get: the paper's figure 10b. The bound beside it is what as many
// goroutines would get if a miss cost a raw read, and a hit what it costs in an all-local map.
func RunThreads(ctx context.Context, o Options) error {
	sc := threadsScale{entries: 1 << 19, goroutines: []int{1, 2, 4, 8, 16, 32, 64, 128, 160, 256, 512}, rounds: 5, span: 300 * time.Millisecond}
	if o.Short {
		sc = threadsScale{entries: 1 << 17, goroutines: []int{1, 4, 16, 64, 160, 512}, rounds: 3, span: 100 * time.Millisecond}
	}
	if err := runThreads(ctx, o, sc); err != nil {
		return fmt.Errorf("cannot run the benchmark of goroutines: %w", err)
	}
	return nil
}

func runThreads(ctx context.Context, o Options, sc threadsScale) error {
	data := int64(sc.entries) * (entryBytes + indexBytes)
	local, err := openFarMap(ctx, "all local", far.NewMemStore(1<<20, 64), 2*data+(32<<20), sc.entries)
	if err != nil {
		return err
	}
	defer local.heap.Close()
	for _, fabric := range fabrics {
		if err := runThreadsOver(ctx, o, sc, fabric, local); err != nil {
			return fmt.Errorf("%s: %w", fabric, err)
		}
	}
	return nil
}

func runThreadsOver(ctx context.Context, o Options, sc threadsScale, fabric string, local *farMap) (err error) {
	data := int64(sc.entries) * (entryBytes + indexBytes)
	l, err := startLender(ctx, o.Polder, fabric, 4*data+(128<<20))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	raw, err := newRawReader(ctx, l.pool, int64(sc.entries)*entryBytes, entryBytes)
	if err != nil {
		return err
	}
	budget := max(int64(sc.entries)*(entryBytes/5+indexBytes)+(2<<20), far.MinLocal)
	f, err := openFarMap(ctx, fabric, l.store(), budget, sc.entries)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.heap.Close()) }()
	seq := newZipf(sc.entries, 0).sequence(1<<20, 4)
	if _, _, err := f.waits(ctx, seq, 64, sc.span); err != nil { // warm-up
		return err
	}
	for _, g := range sc.goroutines {
		var rate, missed, bound []float64
		for range sc.rounds {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			v, miss, err := f.waits(ctx, seq, g, sc.span)
			if err != nil {
				return err
			}
			rate, missed = append(rate, v), append(missed, miss)
			hits, _, err := local.waits(ctx, seq, g, sc.span/4)
			if err != nil {
				return err
			}
			reads, err := raw.rate(ctx, g, 1, sc.span/2)
			if err != nil {
				return err
			}
			bound = append(bound, 1/((1-miss)/hits+miss/reads))
		}
		row := benchout.Row{Bench: "far threads", Case: fmt.Sprintf("%s, %d goroutines", fabric, g)}
		miss := row
		miss.Metric, miss.Unit, miss.Value = "misses", "%", 100*median(missed)
		row.Metric, row.Unit, row.Value = "get", "op/s", median(rate)
		if err := printAll(o.Out, []benchout.Row{miss, row.Against("bound", median(bound), benchout.Higher)}); err != nil {
			return err
		}
	}
	return nil
}

// waits lets goroutines read the map, each of which waits for what it misses. It
// returns how many gets there were in a second, and which part of them missed.
func (f *farMap) waits(ctx context.Context, seq []uint32, goroutines int, span time.Duration) (rate, missed float64, err error) {
	before := f.heap.Stats().Maps[0]
	rate, err = crowd(goroutines, span, func(id int, over func() bool) (int, error) {
		w := farReader{m: f.m}
		at, n := (id*len(seq)/goroutines+f.turn)%len(seq), 0
		for ; n%4 != 0 || !over(); n++ {
			if err := w.read(ctx, putKey(&w.key, seq[at])); err != nil {
				return n, err
			}
			if at++; at == len(seq) {
				at = 0
			}
		}
		return n, nil
	})
	f.turn += len(seq) / 7
	after := f.heap.Stats().Maps[0]
	misses, hits := after.Misses-before.Misses, after.Hits-before.Hits
	return rate, float64(misses) / float64(max(misses+hits, 1)), err
}
