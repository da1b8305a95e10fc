package farbench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"polder/far"
	"polder/internal/failpoint"
	"polder/measure/benchout"
	"polder/measure/plot"
)

// page is the element of the arrays that these benchmarks work on.
type page [4096]byte

// array is pages of far memory.
type array struct {
	heap  *far.Heap
	pages far.Run[page]
}

// newArray makes an array of size bytes, of which scopes touch up to scope bytes
// at a time.
func newArray(ctx context.Context, local, size int64, scope int) (*array, error) {
	store := far.NewMemStore(2<<20, int(2*size>>21)+64)
	heap, err := far.NewHeap(store, far.Config{Local: local, MaxLocal: local, ScopeBytes: scope + scope/8, HeldTooLong: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	a := &array{heap: heap}
	class, err := far.NewClass[page](heap, far.ClassConfig{Name: "pages"})
	if err == nil {
		a.pages, err = class.NewRun(ctx, int(size/int64(len(page{}))))
	}
	if err != nil {
		heap.Close()
		return nil, err
	}
	s := heap.NewScope()
	defer s.Close()
	for i := range a.pages.Len() {
		s.Enter()
		p := a.pages.At(i).DerefMut(s)
		if p == nil {
			s.Leave()
			heap.Close()
			return nil, s.Err()
		}
		p[0] = byte(i)
		s.Leave()
	}
	return a, nil
}

// world lets a benchmark stop its mutators while the evacuator works, as a
// stop-the-world collector does. The product has no such thing.
type world struct {
	mu      sync.Mutex
	changed sync.Cond
	stop    bool
	running int
	asked   atomic.Bool // stop, to be looked at often
}

func newWorld() *world {
	w := &world{}
	w.changed.L = &w.mu
	return w
}

// hit is the failpoint hook of a stop-the-world run.
func (w *world) hit(name string) {
	switch name {
	case "far.marking":
		w.mu.Lock()
		w.stop = true
		w.asked.Store(true)
		for w.running > 0 {
			w.changed.Wait()
		}
		w.mu.Unlock()
	case "far.passed":
		w.mu.Lock()
		w.stop = false
		w.asked.Store(false)
		w.changed.Broadcast()
		w.mu.Unlock()
	}
}

// enter enters s while the world is not stopped. Nil worlds never are.
func (w *world) enter(s *far.Scope) {
	if w == nil {
		s.Enter()
		return
	}
	for {
		s.Enter()
		w.mu.Lock()
		if !w.stop {
			w.running++
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		s.Leave()
		w.mu.Lock()
		for w.stop {
			w.changed.Wait()
		}
		w.mu.Unlock()
	}
}

func (w *world) leave(s *far.Scope) {
	s.Leave()
	if w != nil {
		w.mu.Lock()
		w.running--
		w.changed.Broadcast()
		w.mu.Unlock()
	}
}

// poll is a safepoint.
func (w *world) poll(s *far.Scope) {
	if w != nil && w.asked.Load() {
		w.leave(s)
		w.enter(s)
	}
}

const (
	mutators = 4
	// paced is the part of what both evacuators can sustain that the mutators
	// write.
	paced = 0.3
)

// RunPause measures an iteration of a mutator that dirties 4 MB while the
// evacuator works, beside one that stops the world (figure 14), at a rate that
// both can sustain and from the time at which it was due, and then lets 100
// goroutines read 1 MB each in a scope that they go on holding (figure 15).
func RunPause(ctx context.Context, o Options) error {
	length := 15 * time.Second
	if o.Short {
		length = 5 * time.Second
	}
	// What either can sustain, without a pause between iterations, comes first: who
	// writes faster than that waits for memory and not for the evacuator.
	rivals := []struct {
		name  string
		world func() *world
	}{{"stop-the-world", newWorld}, {"pauseless", func() *world { return nil }}}
	least := math.Inf(1)
	for _, r := range rivals {
		it, err := measureIterations(ctx, r.world(), length/3, 0)
		if err != nil {
			return err
		}
		rate := float64(it.total.TotalCount()) / (length / 3).Seconds()
		least = min(least, rate)
		if err := o.Out.Print(benchout.Row{Bench: "far pause", Case: "dirty 4 MB, " + r.name, Metric: "sustained", Value: 4 * rate, Unit: "MB/s"}); err != nil {
			return err
		}
	}
	var taken [2]iterations
	for i := range taken {
		taken[i].total = hdrhistogram.New(1, 60e6, 3)
	}
	for round := range 4 { // in turn, so that what else the machine does hits both
		for i, r := range rivals {
			it, err := measureIterations(ctx, r.world(), length/3, time.Duration(float64(mutators*time.Second)/(least*paced)))
			if err != nil {
				return err
			}
			taken[i].add(it, time.Duration(round)*length/3)
		}
	}
	stw, ours := taken[0].total, taken[1].total
	for _, q := range []struct {
		name string
		at   float64
	}{{"p50", 50}, {"p99", 99}, {"p99.9", 99.9}, {"max", 100}} {
		row := benchout.Row{Bench: "far pause", Case: "dirty 4 MB", Metric: q.name, Value: float64(ours.ValueAtPercentile(q.at)) / 1e3, Unit: "ms"}
		if err := o.Out.Print(row.Against("stop-the-world", float64(stw.ValueAtPercentile(q.at))/1e3, benchout.Lower)); err != nil {
			return err
		}
	}
	var free []plot.Line
	for _, compute := range []time.Duration{4 * time.Millisecond, 0} {
		l, err := measureCrowd(ctx, o, compute, length)
		if err != nil {
			return err
		}
		free = append(free, l)
	}
	if o.Plots == nil {
		return nil
	}
	c := plot.Chart{
		Title: "evacuation beside mutators that dirty 4 MB an iteration, and 100 goroutines that fetch 1 MB a scope",
		X:     "seconds",
		Panels: []plot.Panel{
			{Y: "ms an iteration", Log: true, Lines: []plot.Line{
				{Name: "stop-the-world", Points: taken[0].points, Dots: true},
				{Name: "pauseless", Points: taken[1].points, Dots: true},
			}},
			{Y: "% free", Lines: free},
		},
	}
	return c.WriteSVG(o.Plots)
}

// iterations is how long iterations took.
type iterations struct {
	total  *hdrhistogram.Histogram // microseconds
	points []plot.Point            // when they ended, in seconds, and milliseconds
}

// add adds those of another run, which is drawn from at on.
func (it *iterations) add(other iterations, at time.Duration) {
	it.total.Merge(other.total)
	for _, p := range other.points {
		it.points = append(it.points, plot.Point{X: p.X + at.Seconds(), Y: p.Y})
	}
}

// measureIterations lets each mutator begin an iteration every interval, and
// counts from when it was due.
func measureIterations(ctx context.Context, w *world, length, interval time.Duration) (iterations, error) {
	const pages = 4 << 20 / 4096
	if w != nil {
		failpoint.Set(w.hit)
		defer failpoint.Set(nil) // after the heap has been closed
	}
	a, err := newArray(ctx, 256<<20, 384<<20, 4<<20)
	if err != nil {
		return iterations{}, err
	}
	defer a.heap.Close()
	begin := time.Now()
	var wg sync.WaitGroup
	var mu sync.Mutex
	it := iterations{total: hdrhistogram.New(1, 60e6, 3)}
	var failed error
	for id := range mutators {
		wg.Go(func() {
			s := a.heap.NewScope()
			defer s.Close()
			r := rand.New(rand.NewPCG(uint64(id), 5))
			due := begin.Add(interval * time.Duration(id) / mutators)
			for time.Since(begin) < length && ctx.Err() == nil {
				start := time.Now()
				if interval > 0 {
					time.Sleep(time.Until(due))
					start, due = due, due.Add(interval)
				}
				at := r.IntN(a.pages.Len() / pages / mutators) // each its own part
				err := a.dirty(s, w, (at*mutators+id)*pages, pages)
				took := time.Since(start)
				mu.Lock()
				if err != nil && failed == nil {
					failed = err
				}
				_ = it.total.RecordValue(max(took.Microseconds(), 1))
				it.points = append(it.points, plot.Point{X: time.Since(begin).Seconds(), Y: took.Seconds() * 1e3})
				stop := failed != nil
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	wg.Wait()
	return it, errors.Join(failed, ctx.Err())
}

// dirty writes to n pages from first on, in one scope; it begins again where it
// was if the scope gets no more memory.
func (a *array) dirty(s *far.Scope, w *world, first, n int) error {
	w.enter(s)
	defer func() { w.leave(s) }()
	for i := first; i < first+n; {
		w.poll(s)
		p := a.pages.At(i).DerefMut(s)
		if p == nil {
			if err := s.Err(); !errors.Is(err, far.ErrScopeFull) {
				return err
			}
			w.leave(s)
			w.enter(s)
			continue
		}
		for j := 0; j < len(p); j += 64 {
			p[j]++
		}
		i++
	}
	return nil
}

// measureCrowd lets 100 goroutines read 1 MB each in a scope, over and over, and
// go on computing in it. It returns the free memory over time.
func measureCrowd(ctx context.Context, o Options, compute time.Duration, length time.Duration) (plot.Line, error) {
	const crowd, pages = 100, 1 << 20 / 4096
	a, err := newArray(ctx, 512<<20, 768<<20, 1<<20)
	if err != nil {
		return plot.Line{}, err
	}
	defer a.heap.Close()
	name := fmt.Sprintf("100 goroutines, %v of work", compute)
	begin := time.Now()
	stop := make(chan struct{})
	var done, full atomic.Int64
	waits := hdrhistogram.New(1, 60e6, 3) // to enter, in microseconds
	var wg, sampling sync.WaitGroup
	var mu sync.Mutex
	var failed error
	fail := func(err error) {
		mu.Lock()
		failed = errors.Join(failed, err)
		mu.Unlock()
	}
	least, over := 100.0, int64(0)
	drawn := plot.Line{Name: fmt.Sprintf("%v of work a scope", compute)}
	sampling.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			st := a.heap.Stats()
			over = max(over, st.Resident-st.Budget)
			free := 100 * float64(st.Free) / float64(st.Budget)
			least = min(least, free)
			drawn.Points = append(drawn.Points, plot.Point{X: time.Since(begin).Seconds(), Y: free})
		}
	})
	scopes := make([]*far.Scope, crowd)
	for id := range scopes {
		scopes[id] = a.heap.NewScope()
		defer scopes[id].Close()
	}
	for id, s := range scopes {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(id), 6))
			for time.Since(begin) < length && ctx.Err() == nil {
				start := time.Now()
				s.Enter()
				waited := time.Since(start)
				mu.Lock()
				_ = waits.RecordValue(max(waited.Microseconds(), 1))
				mu.Unlock()
				first := r.IntN(a.pages.Len() - pages)
				sum := byte(0)
				for i := range pages {
					p := a.pages.At(first + i).Deref(s)
					if p == nil {
						if err := s.Err(); !errors.Is(err, far.ErrScopeFull) {
							fail(err)
							s.Leave()
							return
						}
						full.Add(1)
						break
					}
					sum += p[0]
				}
				for end := time.Now().Add(compute); time.Now().Before(end); {
					sum++
				}
				s.Leave()
				done.Add(1)
			}
		})
	}
	wg.Wait()
	close(stop)
	sampling.Wait()
	for _, row := range []benchout.Row{
		{Metric: "read", Value: float64(done.Load()) / time.Since(begin).Seconds(), Unit: "MB/s"},
		{Metric: "least free memory", Value: least, Unit: "%"},
		{Metric: "most over the budget", Value: float64(over), Unit: "B"},
		{Metric: "allocations refused", Value: float64(full.Load()), Unit: ""},
		{Metric: "p50 wait to enter", Value: float64(waits.ValueAtPercentile(50)) / 1e3, Unit: "ms"},
		{Metric: "p99 wait to enter", Value: float64(waits.ValueAtPercentile(99)) / 1e3, Unit: "ms"},
		{Metric: "longest wait to enter", Value: float64(waits.Max()) / 1e3, Unit: "ms"},
	} {
		row.Bench, row.Case = "far pause", name
		if err := o.Out.Print(row); err != nil {
			return plot.Line{}, err
		}
	}
	return drawn, errors.Join(failed, ctx.Err())
}
