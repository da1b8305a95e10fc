package ahead

import (
	"sync/atomic"

	"polder/far/heap"
	"polder/far/objects"
)

// Structure is what an Engine knows of a data structure.
type Structure struct {
	Class *objects.Class      // of its objects
	New   func() Prefetcher   // makes the prefetcher of a scope; nil for a Stride
	Word  func(i int) *uint64 // of object i, nil if there is none

	issued, used, unused, dropped atomic.Uint64
}

// Stats is how well a structure's prefetching did.
type Stats struct {
	Issued  uint64 // far objects that were asked for
	Used    uint64 // of those, used afterwards
	Unused  uint64 // of those, evacuated before they were used
	Dropped uint64 // objects not asked for since all prefetching goroutines were busy
}

// Add adds q to p, so that structures of one name count as one.
func (p *Stats) Add(q Stats) {
	p.Issued += q.Issued
	p.Used += q.Used
	p.Unused += q.Unused
	p.Dropped += q.Dropped
}

// Stats returns how well the structure's prefetching did.
func (st *Structure) Stats() Stats {
	return Stats{st.issued.Load(), st.used.Load(), st.unused.Load(), st.dropped.Load()}
}

// Access lets the prefetcher of s work: object i is used for the first time in a while.
func (e *Engine) Access(s *heap.Scope, st *Structure, i int, stream bool) {
	a := e.of(s)
	if guesses := a.of(st).Access(i, e.Window(st), a.guesses[:0]); len(guesses) > 0 {
		var words [Most]*uint64
		guesses = guesses[:min(len(guesses), Most)]
		for j, g := range guesses {
			words[j] = st.Word(g)
		}
		e.Fetch(st, words[:len(guesses)], stream)
	}
}

// Fetch asks for the far ones among the objects of words, which may be nil.
func (e *Engine) Fetch(st *Structure, words []*uint64, stream bool) {
	b := job{st: st, stream: stream}
	limit := max(1, min(JobObjects, int(e.InFlight())/goroutines/max(st.Class.Size, 1)))
	for _, p := range words {
		if p == nil || !objects.Load(p).Far() {
			continue
		}
		n := e.space.Number(p)
		if e.slot(n).Swap(n) == n {
			continue // it has been asked for
		}
		b.refs[b.n] = n
		if b.n++; b.n == limit {
			e.submit(&b)
			b.n = 0
		}
	}
	if b.n > 0 {
		e.submit(&b)
	}
}

// Demand brings the far object i, and those that follow up to n, not included, and
// are next to be used in an iteration, as far as they are far: the caller would have to wait
// anyway, and fetches many for not much more than one. That is what becomes of
// prefetching when no processor is left for it. It takes no local memory that is
// kept for scopes, and waits for it only as long as the evacuator usually takes to make
// some: what is missing then, and whatever goes wrong, who dereferences the objects comes upon. It must not be called in a
// scope.
func (e *Engine) Demand(s *heap.Scope, st *Structure, i, n int, stream bool) {
	if st.New != nil {
		n = i + 1 // what is fetched ahead is the prefetcher's
	}
	p := st.Word(i)
	w := objects.Load(p)
	if !w.Far() || e.core.HeldIn(s).Ctx.Err() != nil {
		return
	}
	ctx := e.core.HeldIn(s).Ctx
	if f := e.core.Join(w.FarAddr(), heap.UseLocal); f != nil {
		_ = e.space.Join(ctx, f)
		return
	}
	asked := e.space.Number(p)
	var refs [JobObjects]uint64
	k := 0
	for ; i < n && k < len(refs) && k*st.Class.Size < DemandBytes; i++ {
		if p = st.Word(i); p == nil || !objects.Load(p).Far() {
			break
		}
		refs[k] = e.space.Number(p)
		k++
	}
	what := 0
	if stream {
		what = objects.Stream
	}
	read, _ := e.space.Fetch(ctx, refs[:k], what, asked, false)
	if read == 0 {
		return
	}
	for _, n := range refs[1:read] {
		if e.slot(n).Swap(n) != n {
			st.issued.Add(1)
		}
	}
}

// Window is how many objects may be ahead of their use.
func (e *Engine) Window(st *Structure) int {
	return int(max(1, min(e.InFlight()/int64(max(st.Class.Size, 1)), Most)))
}

// Used notes the use of the object of p, which may have been prefetched.
func (e *Engine) Used(st *Structure, p *uint64) {
	n := e.space.Number(p)
	if s := e.slot(n); s.Load() == n && s.CompareAndSwap(n, 0) {
		st.used.Add(1)
	}
}

// Evacuated notes that the object with number n of a word has been evacuated, and with that what was prefetched in vain.
func (e *Engine) Evacuated(st *Structure, n uint64) {
	if s := e.slot(n); s.Load() == n && s.CompareAndSwap(n, 0) {
		st.unused.Add(1)
	}
}

// ofScope is the prefetchers of a scope, for the structures that were used
// in it last.
type ofScope struct {
	slots [4]struct {
		st     *Structure
		stride Stride
		other  Prefetcher
	}
	next    int
	guesses [Most]int
}

// of returns the prefetchers of s.
func (e *Engine) of(s *heap.Scope) *ofScope {
	with := &e.core.HeldIn(s).With
	a, ok := (*with).(*ofScope)
	if !ok {
		a = new(ofScope)
		*with = a
	}
	return a
}

// of returns the prefetcher for st.
func (a *ofScope) of(st *Structure) Prefetcher {
	for i := range a.slots {
		if sl := &a.slots[i]; sl.st == st {
			if sl.other != nil {
				return sl.other
			}
			return &sl.stride
		}
	}
	sl := &a.slots[a.next]
	a.next = (a.next + 1) % len(a.slots)
	sl.st, sl.stride, sl.other = st, Stride{}, nil
	if st.New != nil {
		sl.other = st.New()
		return sl.other
	}
	return &sl.stride
}
