package main

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"polder/measure/benchout"
)

// figure is one measured value.
type figure struct {
	Case, Metric string
	Value        float64
	Unit         string
	Lower        bool // lower values are better
}

func (f figure) row() benchout.Row {
	return benchout.Row{Bench: "caches", Case: f.Case, Metric: f.Metric, Value: f.Value, Unit: f.Unit}
}

const mib = 1 << 20

// valueSize is the size of small values, blockSize that of the trace's blocks, in bytes.
const (
	valueSize = 256
	blockSize = 2048
)

func measure(name string, short bool) ([]figure, error) {
	memory, keys, ops := int64(256*mib), 4<<20, 20_000_000
	if short {
		memory, keys, ops = 64*mib, 1<<20, 2_000_000
	}
	var out []figure
	add := func(c, metric string, v float64, unit string, lower bool) {
		out = append(out, figure{c, metric, v, unit, lower})
	}

	// Zipf 0.99 read through the cache, with one goroutine for each processor.
	c, err := open(name, memory)
	if err != nil {
		return nil, err
	}
	trace := zipfTrace(keys, ops, 1)
	replay(c, trace[:ops/2], valueSize) // warm
	gc := gcSeconds()
	began, cpu := time.Now(), cpuSeconds()
	hits := replay(c, trace[ops/2:], valueSize)
	took, used := time.Since(began), cpuSeconds()-cpu
	add("zipf 0.99", "throughput", float64(ops/2)/took.Seconds()/1e6, "Mop/s", false)
	add("zipf 0.99", "for one cpu", float64(ops/2)/used/1e6, "Mop/s", false)
	add("zipf 0.99", "hit ratio", 100*float64(hits)/float64(ops/2), "%", false)
	add("zipf 0.99", "GC", 100*(gcSeconds()-gc)/used, "%cpu", true)
	runtime.GC()
	add("zipf 0.99", "collection", collection(), "ms", true)
	trace = nil
	debug.FreeOSMemory()
	add("zipf 0.99", "resident", resident()/mib, "MiB", true)

	// Reads of keys that are all in the cache.
	hot := zipfTrace(int(memory/valueSize/4), 1<<20, 2)
	for _, k := range hot {
		c.Set(uint64(k), make([]byte, valueSize))
	}
	began, cpu = time.Now(), cpuSeconds()
	rounds := 4
	for range rounds {
		replay(c, hot, valueSize)
	}
	add("all hits", "for one cpu", float64(rounds*len(hot))/(cpuSeconds()-cpu)/1e6, "Mop/s", false)
	add("all hits", "throughput", float64(rounds*len(hot))/time.Since(began).Seconds()/1e6, "Mop/s", false)
	c.Close()
	c = nil

	// One access at a time, in the processor's cache and in DRAM. The figure is the
	// 20th percentile of the batches, so that other users of the machine hardly matter.
	for _, entries := range []int{1000, 100_000} {
		get, read, set, err := accesses(name, entries)
		if err != nil {
			return nil, err
		}
		add(strconv.Itoa(entries)+" entries", "get", get, "ns", true)
		add(strconv.Itoa(entries)+" entries", "get and read", read, "ns", true)
		add(strconv.Itoa(entries)+" entries", "set", set, "ns", true)
	}

	// A real trace of blocks, 357 MiB of them. Capacities are multiples of 32 MiB,
	// because fastcache rounds up to such a multiple: instead of 36 MiB it would take 64.
	real, err := llmTrace()
	if err != nil {
		return nil, err
	}
	for _, size := range []int64{32 * mib, 128 * mib} {
		c, err := open(name, size)
		if err != nil {
			return nil, err
		}
		hits := 0
		buf, val := make([]byte, blockSize), make([]byte, blockSize)
		for _, k := range real {
			if _, ok := c.Get(uint64(k), buf); ok {
				hits++
			} else {
				c.Set(uint64(k), val)
			}
		}
		add("LLM trace, "+strconv.FormatInt(size/mib, 10)+" MiB", "hit ratio", 100*float64(hits)/float64(len(real)), "%", false)
		c.Close()
	}

	// The host's idle memory is halved and doubled. A cache that cannot be resized
	// keeps its capacity.
	c, err = open(name, memory/2)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	r, _ := c.(resizer)
	for i, phase := range []struct {
		name  string
		bytes int64
	}{{"as at the start", memory / 2}, {"idle memory halved", memory / 4}, {"idle memory doubled", memory}} {
		if r != nil && i > 0 {
			if err := r.Resize(phase.bytes); err != nil {
				return nil, err
			}
		}
		replay(c, zipfTrace(keys, ops/2, uint64(10+i)), valueSize)
		trace := zipfTrace(keys, ops/4, uint64(20+i))
		cpu := cpuSeconds()
		hits := replay(c, trace, valueSize)
		add(phase.name, "hit ratio", 100*float64(hits)/float64(ops/4), "%", false)
		add(phase.name, "for one cpu", float64(ops/4)/(cpuSeconds()-cpu)/1e6, "Mop/s", false)
	}
	return out, nil
}

// replay reads the keys of trace through the cache, with a goroutine for each
// processor: a key that is missing is set. It returns how many reads hit.
func replay(c cache, trace []uint32, size int) int {
	n := runtime.GOMAXPROCS(0)
	hits := make([]int, n*16)
	var wg sync.WaitGroup
	for g := range n {
		wg.Go(func() {
			buf, val := make([]byte, size), make([]byte, size)
			r := rand.New(rand.NewPCG(1, uint64(g)))
			for i := range val {
				val[i] = byte(r.Uint32())
			}
			h := 0
			for i := g; i < len(trace); i += n {
				k := uint64(trace[i])
				if _, ok := c.Get(k, buf); ok {
					h++
				} else {
					c.Set(k, val)
				}
			}
			hits[g*16] = h
		})
	}
	wg.Wait()
	sum := 0
	for _, h := range hits {
		sum += h
	}
	return sum
}

// accesses measures how long it takes, in nanoseconds, to get an entry, to get it and read its
// value, and to replace it. A cache whose Get only returns a reference has not yet brought the
// value into the processor's cache; therefore the second.
func accesses(name string, entries int) (get, read, set float64, err error) {
	c, err := open(name, 128*mib)
	if err != nil {
		return 0, 0, 0, err
	}
	defer c.Close()
	val := make([]byte, valueSize)
	for range 2 {
		for k := range entries {
			c.Set(uint64(k), val)
		}
	}
	const batch = 500
	x := uint64(1)
	quick := func(access func(k uint64)) float64 {
		took := make([]time.Duration, 1000)
		for i := range took {
			began := time.Now()
			for range batch {
				x = x*6364136223846793005 + 1442695040888963407
				access((x >> 33) % uint64(entries))
			}
			took[i] = time.Since(began)
		}
		slices.Sort(took)
		return float64(took[len(took)/5].Nanoseconds()) / batch
	}
	get = quick(func(k uint64) { c.Get(k, val) })
	read = quick(func(k uint64) {
		v, _ := c.Get(k, val)
		for ; len(v) >= 8; v = v[8:] {
			seen ^= binary.LittleEndian.Uint64(v)
		}
	})
	set = quick(func(k uint64) { c.Set(k, val) })
	return get, read, set, nil
}

var seen uint64 // depends on the values read, so that the compiler cannot leave out reading them

// cpuSeconds returns the processor time that this process has taken. On a machine
// that others use too, it says more than the time that has passed.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// gcSeconds returns the processor time that the garbage collector has taken so far.
func gcSeconds() float64 {
	s := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}}
	metrics.Read(s)
	return s[0].Value.Float64()
}

// collection runs a full garbage collection and returns its processor time, in milliseconds.
func collection() float64 {
	began := cpuSeconds()
	runtime.GC()
	return (cpuSeconds() - began) * 1e3
}

// resident returns the process's resident memory in bytes.
func resident() float64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b))
	pages, err := strconv.ParseFloat(f[1], 64)
	if err != nil {
		return 0
	}
	return pages * float64(os.Getpagesize())
}
