package ahead

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"polder/far/heap"
	"polder/far/objects"
)

const (
	// Most is how many objects at most are fetched ahead of one goroutine.
	Most = 256
	// JobObjects is how many objects one read asks for at the most.
	JobObjects = 64
	// DemandBytes is about how many bytes a goroutine fetches at once when it has to wait for some of them anyway.
	DemandBytes = 256 << 10

	// goroutines is how many goroutines of a heap prefetch. Each has one read of the store under way.
	goroutines = 4
	queued     = 64 // jobs
	// firstAhead is how many bytes may be in flight before anything has been measured.
	firstAhead = 256 << 10
)

// job is objects to be fetched in one read.
type job struct {
	st     *Structure
	stream bool
	n      int
	refs   [JobObjects]uint64 // numbers of their words

	since  time.Time // of submit
	before int64     // bytes that had come in until then
}

// Engine is the goroutines of a heap that prefetch, and what they have measured. How much may be in flight follows
// BBR: twice the rate at which bytes come in, times the least time from a request to the arrival of its objects. So
// it grows only as long as that makes reading faster.
type Engine struct {
	Core  *heap.Heap
	Space *objects.Space // of its objects

	once sync.Once
	jobs chan job

	delivered atomic.Int64 // bytes
	rate      atomic.Int64 // bytes a second, the largest of late
	latency   atomic.Int64 // ns, the least of late
	ended     atomic.Int64 // jobs that have ended
	limit     atomic.Int64 // bytes that may be in flight; 0: not known
	expected  atomic.Int64 // bytes that room is kept for
	came      atomic.Int64 // delivered at the last Chores

	// pending has the words of objects that were prefetched and not yet used, by their numbers: see slot. An object
	// that another one displaces counts neither as used nor as unused.
	pending [1 << 12]atomic.Uint64
}

// Init makes e the engine of the heap core, whose objects are those of space. The goroutines of e begin with the
// first job, and end with the heap.
func (e *Engine) Init(core *heap.Heap, space *objects.Space) { e.Core, e.Space = core, space }

// InFlight is how many bytes may be in flight.
func (e *Engine) InFlight() int64 {
	if n := e.limit.Load(); n > 0 {
		return n
	}
	return firstAhead
}

// Measured is how many bytes come in per second, and the least time of a read. Both are 0 until something was
// prefetched.
func (e *Engine) Measured() (rate int64, latency time.Duration) {
	return e.rate.Load(), time.Duration(e.latency.Load())
}

// slot is where pending has the word with number n: each eight words that follow each other share a cache line, which
// is that of a hash.
func (e *Engine) slot(n uint64) *atomic.Uint64 {
	return &e.pending[(n>>3)*0x9e3779b97f4a7c15>>52^n&7]
}

// submit hands a job to the goroutines that prefetch. If all of them are busy and the queue is full, it drops the
// job.
func (e *Engine) submit(b *job) {
	e.once.Do(func() {
		e.jobs = make(chan job, queued)
		if e.Core.Begin() != nil {
			return // closed: nobody takes the jobs, and submit drops them
		}
		defer e.Core.End()
		for range goroutines {
			e.Core.Wg.Go(func() { e.work() })
		}
	})
	b.since, b.before = time.Now(), e.delivered.Load()
	select {
	case e.jobs <- *b:
		b.st.issued.Add(uint64(b.n))
	default:
		b.st.dropped.Add(uint64(b.n))
		e.forget(b.refs[:b.n])
	}
}

// forget removes the words with these numbers from pending: their objects will not arrive.
func (e *Engine) forget(refs []uint64) {
	for _, n := range refs {
		e.slot(n).CompareAndSwap(n, 0)
	}
}

// work fetches until the heap is closed.
func (e *Engine) work() {
	for {
		select {
		case b := <-e.jobs:
			e.run(&b)
		case <-e.Core.Ctx.Done():
			return
		}
	}
}

func (e *Engine) run(b *job) {
	defer e.adjust()
	// Objects that have been used meanwhile are not fetched: the job is too late for them.
	refs := slices.DeleteFunc(b.refs[:b.n], func(n uint64) bool { return e.slot(n).Load() != n })
	if len(refs) == 0 {
		return
	}
	// Adjacent words are fetched as one run, if they are in ascending order. A walk backwards has them in descending
	// order.
	slices.Sort(refs)
	what := 0
	if b.stream {
		what = objects.Stream
	}
	ctx, cancel := context.WithTimeout(e.Core.Ctx, heap.StoreTimeout)
	defer cancel()
	read, err := e.Space.Fetch(ctx, refs, what, 0, true)
	if err != nil {
		// Whoever uses the objects gets the error; they do not count as prefetched.
		e.forget(refs)
		return
	}
	if read > 0 {
		e.measure(b.before, int64(read*max(b.st.Class.Size, 1)), time.Since(b.since))
	}
}

// measure takes note of a read of n bytes. It was submitted took ago, when before bytes had come in.
func (e *Engine) measure(before, n int64, took time.Duration) {
	ns := max(int64(took), 1)
	rate := int64(float64(e.delivered.Add(n)-before) / float64(ns) * 1e9)
	// The rate is the largest of late, the latency the least of late: a value that is not seen again fades.
	rate = max(rate, e.rate.Load()/64*63)
	e.rate.Store(rate)
	if old := e.latency.Load(); old != 0 {
		ns = min(ns, old+old/256+1)
	}
	e.latency.Store(ns)
}

// adjust sets how many bytes may be in flight. It is called at the end of each job, also of one that has read nothing:
// while little may be in flight, all jobs may come too late, and then there is nothing to measure.
func (e *Engine) adjust() {
	flight := int64(2 * float64(e.rate.Load()) * float64(e.latency.Load()) / 1e9)
	if e.ended.Add(1)%32 < 4 {
		flight /= 4 // so that nothing queues, and the latency is seen as it is
	} else {
		flight = max(flight, usualAhead)
	}
	e.limit.Store(min(max(flight, minAhead), max(e.Core.Local()/8, minAhead)))
	e.expect(e.delivered.Load()-e.came.Load(), false)
}

// expect has as much room kept as may be in flight, if many times that has come in since the last call of Chores:
// objects that are fetched ahead now and then are not worth the room. If less is set, there may be less room than is
// kept already.
func (e *Engine) expect(came int64, less bool) {
	n := min(max(e.InFlight(), usualAhead), came/manyTimes)
	if was := e.expected.Load(); n > was || less && n < was {
		e.expected.Store(n)
		e.Core.Logs.Expect(n)
	}
}

// Chores is called every heap.SweepEvery.
func (e *Engine) Chores() {
	now := e.delivered.Load()
	e.expect(now-e.came.Swap(now), true)
}

const (
	// minAhead is how many bytes may be in flight at least.
	minAhead = 32 << 10
	// usualAhead is how many bytes may be in flight at least where the budget allows that: with less, waking
	// goroutines for a few objects each would cost more than reading them.
	usualAhead = 1 << 20
	manyTimes  = 4
)
