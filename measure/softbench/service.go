package softbench

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sort"
	"strconv"
	"sync"
	"time"

	"polder/internal/arena"
	"polder/measure/delay"
	"polder/soft"
)

// The service caches blocks of a device. Reading a block takes fetchTime, and inFlight requests
// are served at a time.
const (
	objectSize = 4000
	fetchTime  = 100 * time.Microsecond
	inFlight   = 32 // requests
)

func fetch() error { return delay.Sleep(fetchTime) }

// serviceWorker answers requests out of a soft cache as fast as it can, and
// reports ten times a second how fast that was.
func serviceWorker(ctx context.Context, out io.Writer, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("want a socket and a size, not %q", args)
	}
	size, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return err
	}
	h, err := soft.Open(soft.Config{Budget: soft.MinBudget, Max: size, Coordinator: args[0], Name: "service", Logger: quiet})
	if err != nil {
		return err
	}
	defer h.Close()
	debug.SetMemoryLimit(96 << 20) // of the Go heap, which the control group counts too
	pool, err := soft.NewPool(h, soft.PoolConfig[int, [objectSize]byte]{
		Name: "objects",
		Rebuild: func(ctx context.Context, k int) (v [objectSize]byte, err error) {
			v[0] = byte(k)
			return v, fetch()
		},
	})
	if err != nil {
		return err
	}
	defer pool.Close()
	n := int(size / 4096)
	cdf := make([]float64, n)
	sum := 0.0
	for k := range cdf {
		sum += math.Pow(float64(k+1), -0.9)
		cdf[k] = sum
	}
	var mu sync.Mutex
	var took []time.Duration
	var failed error
	var wg sync.WaitGroup
	for g := range inFlight {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 5))
			batch := make([]time.Duration, 0, 256)
			for ctx.Err() == nil {
				k := sort.SearchFloat64s(cdf, r.Float64()*sum)
				t := time.Now()
				v, err := pool.GetOrRebuild(ctx, k)
				batch = append(batch, time.Since(t))
				if err == nil && v[0] != byte(k) {
					err = fmt.Errorf("key %d has a wrong value", k)
				}
				if len(batch) == cap(batch) || err != nil {
					mu.Lock()
					took = append(took, batch...)
					if failed == nil {
						failed = err
					}
					mu.Unlock()
					batch = batch[:0]
				}
			}
		})
	}
	defer wg.Wait()
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	last, counted, used := time.Now(), h.Stats(), cpuTime()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if time.Since(last) < 50*time.Millisecond { // this tick follows one that came late
			continue
		}
		mu.Lock()
		list, err := took, failed
		took = make([]time.Duration, 0, len(list)+1024)
		mu.Unlock()
		if err != nil {
			return err
		}
		slices.Sort(list)
		p99 := 0.0
		if len(list) > 0 {
			p99 = float64(list[len(list)*99/100].Nanoseconds()) / 1e3
		}
		now := time.Now()
		s, cpu := h.Stats(), cpuTime()
		fmt.Fprintf(out, "point %.0f %.0f %d %d %d %d %.4f\n", float64(len(list))/now.Sub(last).Seconds(), p99, s.Budget-s.Free, s.Budget,
			s.Hits+s.Misses-counted.Hits-counted.Misses, s.Hits-counted.Hits, (cpu - used).Seconds())
		last, counted, used = now, s, cpu
	}
}

// antagonistWorker allocates memory at a rate, in bytes a second, or as fast
// as it can if the rate is 0, and keeps it.
func antagonistWorker(ctx context.Context, out io.Writer, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("want a size and a rate, not %q", args)
	}
	size, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		return err
	}
	rate, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return err
	}
	m, err := arena.Anonymous(int(size), false)
	if err != nil {
		return err
	}
	defer m.Close()
	b := m.Bytes()
	begin := time.Now()
	for off := 0; off < len(b) && ctx.Err() == nil; off += 4096 {
		b[off] = 1
		if rate > 0 && off%mib == 0 {
			time.Sleep(time.Until(begin.Add(time.Duration(float64(off) / float64(rate) * 1e9))))
		}
	}
	fmt.Fprintln(out, "full")
	<-ctx.Done()
	return nil
}
