package ahead

import (
	"context"
	"errors"
	"sync/atomic"

	"polder/far/heap"
	"polder/far/object"
	"polder/far/objects"
)

// Structure is what an Engine knows of a data structure.
type Structure struct {
	Class *objects.Class      // of its objects
	Group int                 // elements in an object
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

// Enter enters s and returns object i, whose word is p. It is for structures whose objects are next to each other. If
// it fails, it returns nil, s is as it was, and the scope's error says why. If i is negative, the prefetcher is not
// told. The objects behind i up to n, not included, are those that will be used next.
func (e *Engine) Enter(s *heap.Scope, st *Structure, p *uint64, i, n, what int) object.Object {
	if w := objects.Load(p); w.Far() || w.Coldness() != 0 {
		e.Used(st, p)
	}
	if i >= 0 {
		e.Access(s, st, i, what&objects.Stream != 0)
		if objects.Load(p).Far() && !heap.IsOpen(s) {
			e.demand(s, st, i, n, what&objects.Stream != 0)
		}
	}
	for try := 0; ; try++ {
		if o := e.enterFor(s, p, what); o != nil {
			return o
		}
		// If s was open before, whoever holds it has to leave it.
		held := e.Core.HeldIn(s)
		if try == heap.ScopeTries || heap.IsOpen(s) || !errors.Is(held.Err, heap.ErrScopeFull) {
			return nil
		}
		if held.Err = e.Core.RoomSoon(held.Ctx); held.Err != nil {
			return nil
		}
	}
}

// enterFor enters s and returns the object of p. If it fails, it leaves s as it was and returns nil, and the scope's
// error says why. It also leaves s as it was if it panics.
func (e *Engine) enterFor(s *heap.Scope, p *uint64, what int) (o object.Object) {
	s.Enter()
	defer func() {
		if o == nil {
			s.Leave()
		}
	}()
	o, err := e.Space.Deref(s, p, what)
	if err != nil {
		e.Core.Fail(s, err)
	}
	return o
}

// WithScope calls fn with a scope of the heap's pool, and returns the scope's error. The scope is closed: fn enters
// and leaves it itself.
func (e *Engine) WithScope(ctx context.Context, fn func(s *heap.Scope)) error {
	s := e.Core.Acquire(ctx)
	defer e.Core.Release(s)
	fn(s)
	return s.Err()
}

// Access tells the prefetcher of s that object i is used for the first time in a while, and fetches what it asks for.
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

// Fetch has those objects of words fetched that are far and have not been asked for. Any of words may be nil.
func (e *Engine) Fetch(st *Structure, words []*uint64, stream bool) {
	b := job{st: st, stream: stream}
	limit := max(1, min(JobObjects, int(e.InFlight())/goroutines/max(st.Class.Size, 1)))
	for _, p := range words {
		if p == nil || !objects.Load(p).Far() {
			continue
		}
		n := e.Space.Number(p)
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

// demand fetches the far object i. With it, it fetches the far objects that follow without a gap, up to object n, not
// included, which will be used next in an iteration: the caller has to wait anyway, and many objects take not much
// longer than one. That is what becomes of prefetching when no processor is left for it. demand takes no local memory
// that is kept for scopes, and waits for local memory only as long as the evacuator usually takes to make some. It
// reports no errors: whoever dereferences an object that is still missing finds out why. It must not be called in a
// scope.
func (e *Engine) demand(s *heap.Scope, st *Structure, i, n int, stream bool) {
	if st.New != nil {
		n = i + 1 // the structure's own prefetcher decides what is fetched ahead
	}
	p := st.Word(i)
	w := objects.Load(p)
	if !w.Far() || e.Core.HeldIn(s).Ctx.Err() != nil {
		return
	}
	ctx := e.Core.HeldIn(s).Ctx
	if f := e.Core.Join(w.FarAddr(), heap.UseLocal); f != nil {
		_ = e.Space.Join(ctx, f)
		return
	}
	asked := e.Space.Number(p)
	var refs [JobObjects]uint64
	k := 0
	for ; i < n && k < len(refs) && k*st.Class.Size < DemandBytes; i++ {
		if p = st.Word(i); p == nil || !objects.Load(p).Far() {
			break
		}
		refs[k] = e.Space.Number(p)
		k++
	}
	what := 0
	if stream {
		what = objects.Stream
	}
	read, _ := e.Space.Fetch(ctx, refs[:k], what, asked, false)
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
	n := e.Space.Number(p)
	if s := e.slot(n); s.Load() == n && s.CompareAndSwap(n, 0) {
		st.used.Add(1)
	}
}

// Evacuated notes that the object whose word has number n has been evacuated. If it was prefetched and not used
// since, that was in vain.
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
	with := &e.Core.HeldIn(s).With
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
