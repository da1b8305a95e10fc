package farbench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"polder/far"
	"polder/internal/failpoint"
	"polder/measure/benchout"
	"polder/measure/delay"
	"polder/measure/plot"
)

// page is the element of the arrays that these benchmarks work on.
type page [4096]byte

// array is pages of far memory.
type array struct {
	heap  *far.Heap
	pages *far.Array[page]
}

// newArray makes an array of size bytes in store, of which scopes touch up to scope bytes
// at a time.
func newArray(ctx context.Context, store far.Store, local, size int64, scope int) (*array, error) {
	heap, err := far.NewHeap(store, far.Config{Local: local, MaxLocal: local, ScopeBytes: scope + scope/8, HeldTooLong: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	a := &array{heap: heap}
	if a.pages, err = far.NewArray[page](ctx, heap, int(size/int64(len(page{}))), far.StructureConfig{Name: "pages"}); err != nil {
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
	asked   atomic.Bool // stop, to be read often and without mu
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
	// paced is how fast the mutators write, as a part of what both evacuators can sustain.
	paced = 0.3
	// slowWrite is how long a write to a slowStore takes.
	slowWrite = 5 * time.Millisecond
)

// slowStore is far memory in the same process whose writes take slowWrite each.
type slowStore struct{ *far.MemStore }

type slowSegment struct{ far.Segment }

func (s slowStore) Alloc(ctx context.Context) (far.Segment, error) {
	seg, err := s.MemStore.Alloc(ctx)
	if err != nil {
		return nil, err
	}
	return slowSegment{seg}, nil
}

func (s slowStore) Read(ctx context.Context, ops []far.ReadOp) {
	inner := slices.Clone(ops)
	for i := range inner {
		inner[i].Seg = ops[i].Seg.(slowSegment).Segment
	}
	s.MemStore.Read(ctx, inner)
	for i := range ops {
		ops[i].Err = inner[i].Err
	}
}

func (s slowSegment) Write(ctx context.Context, p []byte, off int) error {
	if err := delay.Sleep(slowWrite); err != nil {
		return err
	}
	return s.Segment.Write(ctx, p, off)
}

// pauseRun is a run of RunPause.
type pauseRun struct {
	Options
	length time.Duration // of a row
	rounds int
	local  int64 // bytes of local memory
	node   *lender
}

// store returns new far memory for size bytes: at the node for "tcp", a slowStore for "5 ms a write", and otherwise
// in this process.
func (p *pauseRun) store(where string, size int64) far.Store {
	inProcess := far.NewMemStore(2<<20, int(2*size>>21)+64)
	switch where {
	case "tcp":
		return p.node.store()
	case "5 ms a write":
		return slowStore{inProcess}
	}
	return inProcess
}

// evacuations are the ways to evacuate that RunPause compares.
var evacuations = []struct {
	name    string
	world   bool   // the world is stopped
	without string // the mechanism that is left out
}{
	{name: "stop-the-world", world: true},
	{name: "pauseless"},
	{name: "without admission", without: "far.admission"},
	{name: "without priority", without: "far.priority"},
}

// RunPause measures how long an iteration of a mutator takes that dirties 4 MB while the evacuator works, beside an
// evacuator that stops the world (figure 14). Iterations begin at a rate that both can sustain, and are timed from
// when they were due: over far memory in the same process, over a node, and where each write takes 5 ms. Then it lets
// 100 goroutines read 1 MB each in a scope that they go on holding (figure 15). Both are measured as well without the
// evacuator's priority, for which it sleeps before it is preempted, and without admission, which lets only as many
// goroutines into a scope as there is memory for.
func RunPause(ctx context.Context, o Options) (err error) {
	p := &pauseRun{Options: o, length: 5 * time.Second, rounds: 4, local: 256 << 20}
	if o.Short {
		p.length, p.rounds, p.local = time.Second, 1, 64<<20
	}
	if p.node, err = startLender(ctx, o.Polder, "tcp", 4*p.local); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.node.close()) }()
	var first []iterations
	for _, where := range []string{"in the process", "tcp", "5 ms a write"} {
		taken, err := p.dirty(ctx, where)
		if err != nil {
			return err
		}
		if first == nil {
			first = taken
		}
	}
	var free []plot.Line
	for _, ev := range evacuations[1:] {
		for _, compute := range []time.Duration{4 * time.Millisecond, 0} {
			l, err := p.crowd(ctx, ev.name, ev.without, compute)
			if err != nil {
				return err
			}
			free = append(free, l)
		}
	}
	if o.Plots == nil {
		return nil
	}
	c := plot.Chart{
		Title: "evacuation beside mutators that dirty 4 MB an iteration, and 100 goroutines that fetch 1 MB a scope",
		X:     "seconds",
		Panels: []plot.Panel{
			{Y: "ms an iteration", Log: true, Lines: []plot.Line{
				{Name: evacuations[0].name, Points: first[0].points, Dots: true},
				{Name: evacuations[1].name, Points: first[1].points, Dots: true},
			}},
			{Y: "% free", Lines: free},
		},
	}
	return c.WriteSVG(o.Plots)
}

// dirty measures iterations with each of evacuations.
func (p *pauseRun) dirty(ctx context.Context, where string) ([]iterations, error) {
	name := "dirty 4 MB, " + where
	// First comes what the two compared evacuators sustain, without a pause between iterations: a mutator that writes
	// faster waits for memory and not for the evacuator.
	least := math.Inf(1)
	for i, ev := range evacuations[:2] {
		it, err := p.iterate(ctx, where, i, 0)
		if err != nil {
			return nil, err
		}
		rate := float64(it.total.TotalCount()) / p.length.Seconds()
		least = min(least, rate)
		if err := p.Out.Print(benchout.Row{Bench: "far pause", Case: name + ", " + ev.name, Metric: "sustained", Value: 4 * rate, Unit: "MB/s"}); err != nil {
			return nil, err
		}
	}
	taken := make([]iterations, len(evacuations))
	for i := range taken {
		taken[i].total = hdrhistogram.New(1, 60e6, 3)
	}
	for round := range p.rounds { // in turn, so that other work of the machine hits all
		for i := range evacuations {
			it, err := p.iterate(ctx, where, i, time.Duration(float64(mutators*time.Second)/(least*paced)))
			if err != nil {
				return nil, err
			}
			taken[i].add(it, time.Duration(round)*p.length)
		}
	}
	for i, ev := range evacuations[1:] {
		for _, q := range []struct {
			name string
			at   float64
		}{{"p50", 50}, {"p99", 99}, {"p99.9", 99.9}, {"max", 100}} {
			row := benchout.Row{Bench: "far pause", Case: name + ", " + ev.name, Metric: q.name, Value: float64(taken[i+1].total.ValueAtPercentile(q.at)) / 1e3, Unit: "ms"}
			if err := p.Out.Print(row.Against(evacuations[0].name, float64(taken[0].total.ValueAtPercentile(q.at))/1e3, benchout.Lower)); err != nil {
				return nil, err
			}
		}
	}
	return taken, nil
}

// iterations is how long iterations took.
type iterations struct {
	total  *hdrhistogram.Histogram // microseconds
	points []plot.Point            // when each ended, in seconds, and how long it took, in milliseconds
}

// add adds the iterations of another run, whose points it shifts by at.
func (it *iterations) add(other iterations, at time.Duration) {
	it.total.Merge(other.total)
	for _, p := range other.points {
		it.points = append(it.points, plot.Point{X: p.X + at.Seconds(), Y: p.Y})
	}
}

// iterate lets each mutator begin an iteration every interval, timed from when it was due; if interval is 0, each
// begins when the one before has ended.
func (p *pauseRun) iterate(ctx context.Context, where string, evacuation int, interval time.Duration) (iterations, error) {
	const pages = 4 << 20 / 4096
	ev := &evacuations[evacuation]
	var w *world
	if ev.world {
		w = newWorld()
		failpoint.Set(w.hit)
		defer failpoint.Set(nil) // after the heap has been closed
	}
	size := p.local * 3 / 2
	a, err := newArray(ctx, p.store(where, size), p.local, size, 4<<20)
	if err != nil {
		return iterations{}, err
	}
	defer a.heap.Close()
	failpoint.SetWithout(ev.without)
	defer failpoint.SetWithout("")
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
			for time.Since(begin) < p.length && ctx.Err() == nil {
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

// dirty writes to n pages from first on, in one scope. If the scope gets no more memory, dirty leaves it, enters it
// again, and goes on where it was.
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

// crowd lets 100 goroutines read 1 MB each in a scope, over and over, and
// go on computing in it. It returns the free memory over time.
func (p *pauseRun) crowd(ctx context.Context, evacuation, without string, compute time.Duration) (plot.Line, error) {
	const crowd, pages = 100, 1 << 20 / 4096
	local := 2 * p.local
	a, err := newArray(ctx, p.store("", local*3/2), local, local*3/2, 1<<20)
	if err != nil {
		return plot.Line{}, err
	}
	defer a.heap.Close()
	failpoint.SetWithout(without)
	defer failpoint.SetWithout("")
	name := fmt.Sprintf("100 goroutines, %v of work, %s", compute, evacuation)
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
	drawn := plot.Line{Name: fmt.Sprintf("%v of work a scope, %s", compute, evacuation)}
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
			for time.Since(begin) < p.length && ctx.Err() == nil {
				start := time.Now()
				s.Enter()
				waited := time.Since(start)
				mu.Lock()
				_ = waits.RecordValue(max(waited.Microseconds(), 1))
				mu.Unlock()
				first := r.IntN(a.pages.Len() - pages)
				sum, read := byte(0), 0
				for i := range pages {
					page := a.pages.At(first + i).Deref(s)
					if page == nil {
						if err := s.Err(); !errors.Is(err, far.ErrScopeFull) {
							fail(err)
							s.Leave()
							return
						}
						full.Add(1)
						break
					}
					sum += page[0]
					read++
				}
				for end := time.Now().Add(compute); time.Now().Before(end); {
					sum++
				}
				s.Leave()
				done.Add(int64(read))
			}
		})
	}
	wg.Wait()
	close(stop)
	sampling.Wait()
	for _, row := range []benchout.Row{
		{Metric: "read", Value: float64(done.Load()) / pages / time.Since(begin).Seconds(), Unit: "MB/s"},
		{Metric: "least free memory", Value: least, Unit: "%"},
		{Metric: "most over the budget", Value: float64(over), Unit: "B"},
		{Metric: "allocations refused", Value: float64(full.Load()), Unit: ""},
		{Metric: "p50 wait to enter", Value: float64(waits.ValueAtPercentile(50)) / 1e3, Unit: "ms"},
		{Metric: "p99 wait to enter", Value: float64(waits.ValueAtPercentile(99)) / 1e3, Unit: "ms"},
		{Metric: "longest wait to enter", Value: float64(waits.Max()) / 1e3, Unit: "ms"},
	} {
		row.Bench, row.Case = "far pause", name
		if err := p.Out.Print(row); err != nil {
			return plot.Line{}, err
		}
	}
	return drawn, errors.Join(failed, ctx.Err())
}
