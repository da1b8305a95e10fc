package farbench

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"

	"polder/measure/benchout"
)

// goLimit is how much memory the Go runtime may use beside a far heap while its garbage collection is measured: far
// less than the heap of Go's map.
const goLimit = 32 << 20

// collections measures what garbage collection costs a program that makes garbage: a fresh copy of every value that
// it gets. The data are in Go's map, and then in a far map that is all local.
func (b *mapBench) collections(ctx context.Context) error {
	seq := newZipf(b.scale.entries, 0.99).sequence(1<<20, 2)
	b.lock = nil // the collector must not have to mark the same data once more
	plain := newCollections()
	plainRate, err := b.plainGets(newReader(seq), b.scale.gc, true)
	if err != nil {
		return err
	}
	plain.end()
	plainHeap := plain.heap
	b.plain = nil
	runtime.GC()

	limit, percent := debug.SetMemoryLimit(goLimit), debug.SetGCPercent(400)
	defer func() {
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
	}()
	ours := newCollections()
	ourRate, _, err := b.local.gets(ctx, newReader(seq), b.scale.gc, true)
	if err != nil {
		return err
	}
	ours.end()
	row := func(metric string, v float64, unit string) benchout.Row {
		return benchout.Row{Bench: "far map", Case: "garbage collection, all local", Metric: metric, Value: v, Unit: unit}
	}
	return printAll(b.out, []benchout.Row{
		row("pause p99.9", ours.pause, "us").Against("Go's map", plain.pause, benchout.Lower),
		row("CPU share", ours.share, "%").Against("Go's map", plain.share, benchout.Lower),
		row("Go heap", ours.heap, "MiB").Against("Go's map", plainHeap, benchout.Lower),
		row("get, fresh", ourRate, "op/s").Against("Go's map", plainRate, benchout.Higher),
	})
}

// collections is what the garbage collector did from one time to another.
type collections struct {
	before, after []metrics.Sample

	pause float64 // p99.9, us
	share float64 // of the CPU time of the program, %
	heap  float64 // objects in it at the end, MiB
}

const (
	pauses    = "/sched/pauses/total/gc:seconds"
	gcTime    = "/cpu/classes/gc/total:cpu-seconds"
	gcIdle    = "/cpu/classes/gc/mark/idle:cpu-seconds"
	userTime  = "/cpu/classes/user:cpu-seconds"
	heapBytes = "/memory/classes/heap/objects:bytes"
)

func newCollections() *collections {
	c := &collections{}
	for _, name := range []string{pauses, gcTime, gcIdle, userTime, heapBytes} {
		c.before = append(c.before, metrics.Sample{Name: name})
		c.after = append(c.after, metrics.Sample{Name: name})
	}
	runtime.GC() // the runtime brings the CPU times up to date in a collection
	metrics.Read(c.before)
	return c
}

// end reads what the collector has done since newCollections. The CPU times are those at the end of the last
// collection, and so cover whole collections with what lies between them. Another collection now would count as well,
// although the program had no need for it.
func (c *collections) end() {
	metrics.Read(c.after)
	c.pause = 1e6 * quantile(c.before[0].Value.Float64Histogram(), c.after[0].Value.Float64Histogram(), 0.999)
	took := func(i int) float64 { return c.after[i].Value.Float64() - c.before[i].Value.Float64() }
	c.share = share(took(1), took(2), took(3))
	c.heap = float64(c.after[4].Value.Uint64()) / (1 << 20)
}

// share returns which part of the CPU time the collector took, in percent. What it did on idle processors costs
// nobody. If no collection has ended, user is 0, and the share is not known: gc may have the first pause of a
// collection that has begun.
func share(gc, idle, user float64) float64 {
	if user <= 0 {
		return 0
	}
	return 100 * (gc - idle) / (gc - idle + user)
}

// quantile returns a quantile of what after counts and before does not: the upper end of its bucket.
func quantile(before, after *metrics.Float64Histogram, q float64) float64 {
	total := uint64(0)
	for i, n := range after.Counts {
		total += n - before.Counts[i]
	}
	seen := uint64(0)
	for i, n := range after.Counts {
		if seen += n - before.Counts[i]; total > 0 && float64(seen) >= q*float64(total) {
			if up := after.Buckets[i+1]; !math.IsInf(up, 1) {
				return up
			}
			return after.Buckets[i]
		}
	}
	return 0
}
