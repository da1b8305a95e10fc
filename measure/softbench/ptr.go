package softbench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"time"

	"polder/measure/benchout"
	"polder/soft"
)

// RunPtr measures reads and writes through a soft pointer beside copies
// through a plain one. It goes through an array of pointers to objects that lie
// in random order; in some cases the objects fit into the cache, in others not.
//
// Published for Midas, 32 B in DRAM: 400 cycles (370 at the median, 516 at the
// 90th percentile) beside 367 (382, 510) for unique_ptr; 4 MiB: 1.77 million
// beside 0.97 million. Midas's own program on a machine like this: 17.9 ns for
// 8 B in cache, 186 ns in DRAM.
func RunPtr(ctx context.Context, o Options) error {
	dram := 256 << 20
	if o.Short {
		dram = 128 << 20
	}
	const cache = 16 << 10
	cases := []struct {
		size, where string
		bytes       int
		measure     func(ctx context.Context, o Options, size, where string, bytes int) error
	}{
		{"8 B", "cache", cache, measurePtr[[8]byte]},
		{"32 B", "cache", cache, measurePtr[[32]byte]},
		{"4 KiB", "cache", 2 * cache, measurePtr[[4096]byte]},
		{"8 B", "DRAM", dram, measurePtr[[8]byte]},
		{"32 B", "DRAM", dram, measurePtr[[32]byte]},
		{"4 KiB", "DRAM", 2 * dram, measurePtr[[4096]byte]},
		{"4 MiB", "DRAM", dram, measurePtr[[4 << 20]byte]},
	}
	for i, c := range cases {
		o.progress(i, len(cases), c.size+" in "+c.where)
		if err := c.measure(ctx, o, c.size, c.where, c.bytes); err != nil {
			return err
		}
	}
	return nil
}

// batch is how many small accesses are timed together: the clock itself takes
// about 40 ns.
const batch = 64

// object is a type that pointers point to.
type object interface {
	[8]byte | [32]byte | [4096]byte | [4 << 20]byte
}

func measurePtr[T object](ctx context.Context, o Options, size, where string, bytes int) error {
	var zero T
	width := int(reflect.TypeFor[T]().Size())
	n := max(bytes/max(width, 32), 4) // an object takes at least 32 bytes of soft memory
	h, err := soft.Open(soft.Config{Budget: int64(n*(width+64)) + 64<<20})
	if err != nil {
		return err
	}
	defer h.Close()
	pool, err := soft.NewPointers[T, int](h, nil)
	if err != nil {
		return err
	}
	order := rand.New(rand.NewPCG(1, 1)).Perm(n)
	objects := make([]T, n)
	plain := make([]*T, n)
	ptrs := make([]soft.Ptr[T], n)
	for _, i := range order { // objects lie in a random order, and not in that of their pointers
		if err := pool.Init(&ptrs[i], zero); err != nil {
			return err
		}
	}
	zero = *new(T)
	for i, j := range order {
		objects[i] = zero // without a write, all would be the kernel's one page of zeros
		plain[j] = &objects[i]
	}
	runtime.GC()

	per := batch
	if width > 4096 {
		per = 1
	}
	rounds := 200000 / per
	if width >= 4096 {
		rounds = 20000 / per
	}
	if width > 4096 {
		rounds = 200
	}
	if o.Short {
		rounds /= 2
	}
	v, w := new(T), new(T)
	type kind struct {
		name       string
		soft, bare func(i int)
	}
	lost := 0
	for _, k := range []kind{
		{"read", func(i int) {
			// Which object is next depends on the byte read (always zero), so that
			// one read waits for the other: this is latency, as Midas measured it.
			for range per {
				if !ptrs[i%n].Load(v) {
					lost++
				}
				i += 1 + int((*v)[0])
			}
		}, func(i int) {
			for range per {
				*w = *plain[i%n]
				i += 1 + int((*w)[0])
			}
		}},
		{"write", func(i int) {
			for j := range per {
				if ptrs[(i+j)%n].StoreFrom(v) != nil {
					lost++
				}
			}
		}, func(i int) {
			for j := range per {
				*plain[(i+j)%n] = *w
			}
		}},
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		// Rounds of both in turns, so that whatever else runs on the machine
		// disturbs both alike. The first rounds warm up and do not count.
		soft := make([]time.Duration, 0, rounds)
		bare := make([]time.Duration, 0, rounds)
		at := 0
		for r := range rounds + rounds/4 {
			begin := time.Now()
			k.soft(at % n)
			mid := time.Now()
			k.bare(at % n)
			end := time.Now()
			at += per
			if r >= rounds/4 {
				soft = append(soft, mid.Sub(begin))
				bare = append(bare, end.Sub(mid))
			}
		}
		for _, q := range []struct {
			name string
			p    float64
		}{{"p50", 0.5}, {"p90", 0.9}} {
			row := benchout.Row{
				Bench: "soft ptr", Case: fmt.Sprintf("%s %s in %s", k.name, size, where),
				Metric: q.name, Value: quantile(soft, q.p) / float64(per), Unit: "ns",
			}
			if err := o.Printer.Print(row.Against("plain pointer", quantile(bare, q.p)/float64(per), benchout.Lower)); err != nil {
				return err
			}
		}
	}
	if lost > 0 {
		return fmt.Errorf("%d accesses missed", lost)
	}
	return nil
}

func quantile(d []time.Duration, p float64) float64 {
	s := slices.Clone(d)
	slices.Sort(s)
	return float64(s[int(p*float64(len(s)-1))].Nanoseconds())
}
