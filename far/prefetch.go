package far

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"polder/far/heap"
	"polder/far/object"
	"polder/far/objects"
)

// A Prefetcher guesses which objects of a data structure a goroutine will use
// next. Every scope has one for each structure that is used in it, so it needs
// no lock. Objects are numbered in the structure's order; an object of an Array
// or a Vector is a group of elements.
//
// Access is told of object i when it is used for the first time in a while,
// which is when it was far, was prefetched, or has survived a pass of the
// evacuator unused: what is hot costs nothing, and is not seen. It appends the
// numbers of the objects that are to be fetched to dst and returns that. Window
// is how many objects may be on their way or waiting to be used; numbers outside
// of the structure are passed over.
type Prefetcher interface {
	Access(i, window int, dst []int) []int
}

// NoPrefetch is a Prefetcher that never asks for anything.
type NoPrefetch struct{}

// Access returns dst.
func (NoPrefetch) Access(i, window int, dst []int) []int { return dst }

// Stride is the Prefetcher that structures have if they are given no other. It
// finds sequences and strides, in both directions: after two equal steps it asks
// for the objects ahead, and again when half of those have been used. The
// zero Stride is ready.
type Stride struct {
	last, step int
	seen       int // so many equal steps
	next       int // the first that was not asked for
	begun      bool
}

// Access does as Prefetcher says.
func (p *Stride) Access(i, window int, dst []int) []int {
	d := i - p.last
	if d == 0 && p.begun {
		return dst
	}
	p.last = i
	if !p.begun {
		p.begun = true
		return dst
	}
	// Objects that are hot are skipped, so a multiple of the step is one, too.
	if p.step == 0 || d%p.step != 0 || d/p.step < 1 || d/p.step > max(window, 1) {
		p.step, p.seen, p.next = d, 1, i+d
		return dst
	}
	if p.seen++; p.seen < 2 {
		return dst
	}
	return p.ahead(i, window, dst)
}

// ahead asks for what is missing of the window beyond i.
func (p *Stride) ahead(i, window int, dst []int) []int {
	lead := (p.next-i)/p.step - 1
	if lead < 0 {
		p.next, lead = i+p.step, 0
	}
	if lead > window/2 {
		return dst
	}
	for ; lead < window; lead++ {
		dst = append(dst, p.next)
		p.next += p.step
	}
	return dst
}

// PrefetchStats is how well a structure's prefetching did.
type PrefetchStats struct {
	Issued  uint64 // far objects that were asked for
	Used    uint64 // of those, used afterwards
	Unused  uint64 // of those, evacuated before they were used
	Dropped uint64 // objects not asked for since all prefetching goroutines were busy
}

// tracker is what a structure knows of its objects, for prefetching and for
// statistics.
type tracker struct {
	h     *Heap
	c     *objects.Class
	kind  string // such as "array"
	group int    // elements in an object
	make  func() Prefetcher
	word  func(i int) *uint64 // of object i, nil if there is none
	index func(p *uint64) int // the object of a word, -1 if there is none
	len   func() int          // elements

	nodeParts atomic.Int64 // of a List's table of nodes

	issued, used, unused, dropped atomic.Uint64
}

func (tr *tracker) stats() PrefetchStats {
	return PrefetchStats{tr.issued.Load(), tr.used.Load(), tr.unused.Load(), tr.dropped.Load()}
}

// object returns the object of p, as a structure uses it: with its prefetcher
// told.
func (tr *tracker) object(s *heap.Scope, p *uint64, what int) object.Object {
	tr.touch(s, p)
	return tr.use(s, p, what)
}

// use is object for callers that hold a lock, under which the prefetcher, which may be the
// program's, is not told.
func (tr *tracker) use(s *heap.Scope, p *uint64, what int) object.Object {
	if s.H != &tr.h.core {
		panic("BUG: a far structure is used in a scope of another heap")
	}
	o, err := tr.h.objects.Deref(s, p, what)
	if err != nil {
		tr.h.core.Fail(s, err)
		return nil
	}
	return o
}

// touch tells the prefetcher of an access if that is the first in a while.
func (tr *tracker) touch(s *heap.Scope, p *uint64) {
	w := objects.Load(p)
	if w.Warm() {
		return
	}
	tr.h.ahead.usedNow(tr, p)
	if i := tr.index(p); i >= 0 {
		tr.access(s, i, w.Local() && w.Coldness() == objects.Coldest)
	}
}

// access lets the prefetcher of s work.
func (tr *tracker) access(s *heap.Scope, i int, stream bool) {
	a := tr.h.aheadOf(s)
	if guesses := a.of(tr).Access(i, tr.window(), a.guesses[:0]); len(guesses) > 0 {
		var words [maxAhead]*uint64
		guesses = guesses[:min(len(guesses), maxAhead)]
		for j, g := range guesses {
			words[j] = tr.word(g)
		}
		tr.fetch(words[:len(guesses)], stream)
	}
}

// fetch asks for the far ones among the objects of words, which may be nil.
func (tr *tracker) fetch(words []*uint64, stream bool) {
	ph := &tr.h.ahead
	b := prefetchJob{tr: tr, stream: stream}
	limit := max(1, min(prefetchJobObjects, int(ph.inFlight())/prefetchers/max(tr.c.Size, 1)))
	for _, p := range words {
		if p == nil || !objects.Load(p).Far() {
			continue
		}
		n := tr.h.objects.Number(p)
		if ph.slot(n).Swap(n) == n {
			continue // it has been asked for
		}
		b.refs[b.n] = n
		if b.n++; b.n == limit {
			ph.submit(tr.h, &b)
			b.n = 0
		}
	}
	if b.n > 0 {
		ph.submit(tr.h, &b)
	}
}

// demand brings the far object i, and those that follow up to n, not included, and
// are next to be used in an iteration, as far as they are far: the caller would have to wait
// anyway, and fetches many for not much more than one. That is what becomes of
// prefetching when no processor is left for it. It takes no local memory that is
// kept for scopes, and waits for it only as long as the evacuator usually takes to make
// some: what is missing then, and whatever goes wrong, who dereferences the objects comes upon. It must not be called in a
// scope.
func (tr *tracker) demand(s *heap.Scope, i, n int, stream bool) {
	h := tr.h
	if tr.make != nil {
		n = i + 1 // what is fetched ahead is the prefetcher's
	}
	p := tr.word(i)
	w := objects.Load(p)
	if !w.Far() || h.core.HeldIn(s).Ctx.Err() != nil {
		return
	}
	ctx := h.core.HeldIn(s).Ctx
	if f := h.core.Join(w.FarAddr(), heap.UseLocal); f != nil {
		_ = h.objects.Join(ctx, f)
		return
	}
	asked := h.objects.Number(p)
	var refs [prefetchJobObjects]uint64
	k := 0
	for ; i < n && k < len(refs) && k*tr.c.Size < demandBytes; i++ {
		if p = tr.word(i); p == nil || !objects.Load(p).Far() {
			break
		}
		refs[k] = h.objects.Number(p)
		k++
	}
	what := 0
	if stream {
		what = objects.Stream
	}
	read, _ := h.objects.Fetch(ctx, refs[:k], what, asked, false)
	if read == 0 {
		return
	}
	for _, n := range refs[1:read] {
		if h.ahead.slot(n).Swap(n) != n {
			tr.issued.Add(1)
		}
	}
}

// window is how many objects may be ahead of their use.
func (tr *tracker) window() int {
	return int(max(1, min(tr.h.ahead.inFlight()/int64(max(tr.c.Size, 1)), maxAhead)))
}

const (
	// maxAhead is the most objects that one goroutine may be ahead of.
	maxAhead = 256
	// prefetchers is how many goroutines of a heap prefetch. Each has one read
	// of the store under way.
	prefetchers = 4
	// prefetchJobObjects is how many objects one read asks for at the most.
	prefetchJobObjects = 64
	prefetchQueue      = 64
	// firstAhead is the bytes in flight before anything has been measured.
	firstAhead = 256 << 10
	// demandBytes is about how much a goroutine fetches that has to wait for
	// some of it.
	demandBytes = 256 << 10
)

// prefetchJob is objects to be fetched in one read.
type prefetchJob struct {
	tr     *tracker
	stream bool
	n      int
	refs   [prefetchJobObjects]uint64 // numbers of their words

	since  time.Time // of submit
	before int64     // bytes that had come in until then
}

// prefetching is a heap's goroutines that prefetch, and what they have
// measured. How much is in flight follows BBR: twice the rate at which bytes come
// in times the least time from a request to the arrival of its objects, so that
// it grows while that makes reading faster and no longer.
type prefetching struct {
	once sync.Once
	jobs chan prefetchJob

	delivered atomic.Int64 // bytes
	rate      atomic.Int64 // bytes a second, the largest of late
	latency   atomic.Int64 // ns, the least of late
	reads     atomic.Int64 // that were measured
	limit     atomic.Int64 // bytes that may be in flight; 0: not known

	// pending is the words of objects that were prefetched and not yet used, by
	// a hash of the word. One that is displaced counts neither as used nor as
	// unused.
	pending [1 << 12]atomic.Uint64
}

func (ph *prefetching) inFlight() int64 {
	if n := ph.limit.Load(); n > 0 {
		return n
	}
	return firstAhead
}

func (ph *prefetching) slot(n uint64) *atomic.Uint64 {
	return &ph.pending[n*0x9e3779b97f4a7c15>>52]
}

// usedNow notes the use of the object of p, which may have been prefetched.
func (ph *prefetching) usedNow(tr *tracker, p *uint64) {
	n := tr.h.objects.Number(p)
	if s := ph.slot(n); s.Load() == n && s.CompareAndSwap(n, 0) {
		tr.used.Add(1)
	}
}

// evacuated is a class's Evacuated: it notes what was prefetched in vain.
func (tr *tracker) evacuated(n uint64) {
	if s := tr.h.ahead.slot(n); s.Load() == n && s.CompareAndSwap(n, 0) {
		tr.unused.Add(1)
	}
}

// submit hands a job to the goroutines that prefetch, unless all are busy and
// enough waits for them.
func (ph *prefetching) submit(h *Heap, b *prefetchJob) {
	ph.once.Do(func() {
		ph.jobs = make(chan prefetchJob, prefetchQueue)
		if h.core.Begin() != nil {
			return // closed: nobody takes the jobs, and submit drops them
		}
		defer h.core.End()
		for range prefetchers {
			h.core.Wg.Go(func() { ph.work(h) })
		}
	})
	b.since, b.before = time.Now(), ph.delivered.Load()
	select {
	case ph.jobs <- *b:
		b.tr.issued.Add(uint64(b.n))
	default:
		b.tr.dropped.Add(uint64(b.n))
		ph.forget(b.refs[:b.n])
	}
}

// forget undoes that objects are on their way.
func (ph *prefetching) forget(refs []uint64) {
	for _, n := range refs {
		ph.slot(n).CompareAndSwap(n, 0)
	}
}

// work fetches until the heap is closed.
func (ph *prefetching) work(h *Heap) {
	for {
		select {
		case b := <-ph.jobs:
			ph.run(h, &b)
		case <-h.core.Ctx.Done():
			return
		}
	}
}

func (ph *prefetching) run(h *Heap, b *prefetchJob) {
	// What has been used meanwhile was late.
	refs := slices.DeleteFunc(b.refs[:b.n], func(n uint64) bool { return ph.slot(n).Load() != n })
	// Words in a row are fetched as one, which a walk backwards has the other
	// way round.
	slices.Sort(refs)
	what := 0
	if b.stream {
		what = objects.Stream
	}
	ctx, cancel := context.WithTimeout(h.core.Ctx, heap.StoreTimeout)
	defer cancel()
	read, err := h.objects.Fetch(ctx, refs, what, 0, true)
	if err != nil {
		// Whoever uses the objects is told; they were not prefetched.
		ph.forget(refs)
		return
	}
	if read > 0 {
		ph.measure(h, b.before, int64(read*max(b.tr.c.Size, 1)), time.Since(b.since))
	}
}

// measure takes note of a read of n bytes that took so long, when before bytes
// had come in until it began.
func (ph *prefetching) measure(h *Heap, before, n int64, took time.Duration) {
	ns := max(int64(took), 1)
	rate := int64(float64(ph.delivered.Add(n)-before) / float64(ns) * 1e9)
	// The largest and the least of late: what is not seen again fades.
	rate = max(rate, ph.rate.Load()/64*63)
	ph.rate.Store(rate)
	if old := ph.latency.Load(); old != 0 {
		ns = min(ns, old+old/256+1)
	}
	ph.latency.Store(ns)
	flight := int64(2 * float64(rate) * float64(ns) / 1e9)
	if ph.reads.Add(1)%32 < 4 {
		flight /= 4 // so that nothing queues, and the latency is seen as it is
	} else {
		flight = max(flight, usualAhead)
	}
	ph.limit.Store(min(max(flight, minAhead), max(h.Local()/8, minAhead)))
}

const (
	// minAhead is the least bytes that may be in flight.
	minAhead = 32 << 10
	// usualAhead is the least where the budget allows that: with less, waking
	// goroutines for a few objects each would cost more than reading them.
	usualAhead = 1 << 20
)

// scopeAhead is the prefetchers of a scope, for the structures that were used
// in it last.
type scopeAhead struct {
	slots [4]struct {
		tr     *tracker
		stride Stride
		other  Prefetcher
	}
	next    int
	guesses [maxAhead]int
}

// aheadOf returns the prefetchers of s.
func (h *Heap) aheadOf(s *heap.Scope) *scopeAhead {
	with := &h.core.HeldIn(s).With
	a, ok := (*with).(*scopeAhead)
	if !ok {
		a = new(scopeAhead)
		*with = a
	}
	return a
}

// of returns the prefetcher for tr.
func (a *scopeAhead) of(tr *tracker) Prefetcher {
	for i := range a.slots {
		if sl := &a.slots[i]; sl.tr == tr {
			if sl.other != nil {
				return sl.other
			}
			return &sl.stride
		}
	}
	sl := &a.slots[a.next]
	a.next = (a.next + 1) % len(a.slots)
	sl.tr, sl.stride, sl.other = tr, Stride{}, nil
	if tr.make != nil {
		sl.other = tr.make()
		return sl.other
	}
	return &sl.stride
}
