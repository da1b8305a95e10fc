package softbench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"polder/internal/load"
	"polder/measure/benchout"
	"polder/soft"
)

// requestTime is how long a request takes when nothing is rebuilt. Neither this time nor the
// skew of the requests is published. It is fitted: with a Zipfian of theta 0.99 the published
// figures come out, about, so they say nothing of which system is better. What is measured is
// how often a heap misses; the throughput at other costs of rebuilding follows from that.
const requestTime = 100 * time.Microsecond

// RunRebuild sweeps the time that rebuilding an object takes, with a part of the objects in
// memory (figure 11): a synthetic application whose requests ask for one object each. Its hits
// and misses are a real heap's; the time of requests and of rebuilding is computed, not spent.
//
// Published: more than 80 % of the ideal throughput up to 128 us an object with 20 % of the
// objects in memory, up to 256 us with 50 %, up to 1024 us with 80 %.
func RunRebuild(ctx context.Context, o Options) error {
	const size = 4000
	objects := 128 << 10
	if o.Short {
		objects = 32 << 10
	}
	published := map[int]time.Duration{20: 128 * time.Microsecond, 50: 256 * time.Microsecond, 80: 1024 * time.Microsecond}
	for i, part := range []int{20, 50, 80} {
		name := fmt.Sprintf("%d %% in memory", part)
		o.progress(i, 3, name)
		// 8 MiB more than the objects and their headers: for the segments that a heap keeps open and free.
		cached, misses, err := missRatio(ctx, objects, size, int64(objects)*(size+32)*int64(part)/100+8<<20)
		if err != nil {
			return err
		}
		if err := o.Printer.Print(benchout.Row{Bench: "soft rebuild", Case: name, Metric: "of the objects", Value: 100 * cached, Unit: "%"}); err != nil {
			return err
		}
		if err := o.Printer.Print(benchout.Row{Bench: "soft rebuild", Case: name, Metric: "misses", Value: 100 * misses, Unit: "%"}); err != nil {
			return err
		}
		for cost := 16 * time.Microsecond; cost <= 4096*time.Microsecond; cost *= 2 {
			row := benchout.Row{
				Bench: "soft rebuild", Case: fmt.Sprintf("%s, %d us", name, cost.Microseconds()), Metric: "of ideal",
				Value: 100 * float64(requestTime) / (float64(requestTime) + misses*float64(cost)), Unit: "%",
			}
			if cost == published[part] {
				row = row.Against("Midas, published", 80, benchout.Higher)
			}
			if err := o.Printer.Print(row); err != nil {
				return err
			}
		}
	}
	return nil
}

// missRatio returns which part of the objects a heap with a budget of budget bytes holds, and
// which part of the requests miss once the heap is warm: those of the second half.
func missRatio(ctx context.Context, objects, size int, budget int64) (cached, ratio float64, err error) {
	h, err := soft.Open(soft.Config{Budget: budget, Logger: quiet})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	m, err := soft.NewMap(h, soft.MapConfig[uint32, []byte]{})
	if err != nil {
		return 0, 0, err
	}
	defer m.Close()
	value, buf := make([]byte, size), make([]byte, size)
	requests := load.Sequence(load.Scattered(objects), 16*objects, 1)
	misses := 0
	for i, k := range requests {
		if i == len(requests)/2 {
			misses = 0
		}
		if i%1024 == 0 && ctx.Err() != nil {
			return 0, 0, ctx.Err()
		}
		if _, ok := m.Append(buf[:0], k); !ok {
			misses++
			if err := m.Set(k, value); err != nil && !errors.Is(err, soft.ErrNoMemory) {
				return 0, 0, err
			}
		}
	}
	return float64(h.Stats().Objects) / float64(objects), float64(misses) / float64(len(requests)/2), nil
}
