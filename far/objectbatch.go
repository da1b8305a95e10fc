package far

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"polder/far/heap"
)

// Prefetch brings the objects of refs that are far into local memory, in as few
// reads of the store as it can, so that dereferencing them need not wait. It
// waits for local memory within ctx, and so must not be called in a scope. Refs
// to nothing and objects that are local are passed over; that an object is lost
// or corrupt, whoever dereferences it is told. With stream set they are objects
// without temporal locality.
func (h *Heap) Prefetch(ctx context.Context, refs []AnyRef, stream bool) error {
	what := 0
	if stream {
		what = derefStream
	}
	var b objectBatch
	_, err := b.fetch(ctx, h, refs, what, true)
	return err
}

// objectBatch is objects that are fetched in one read of the store. It may be used
// again, with what it has allocated; the zero objectBatch is ready.
type objectBatch struct {
	extents []extent
	led     []landing
	ops     []heap.ReadOp // of extents, and then of led
	pending int           // bytes of them
	count   int           // objects in them
	asked   uint64        // number of the word of the one that somebody waits for, or 0

	items   []item          // that were claimed
	runs    []*run          // that were claimed
	flights []*objectFlight // of objects that were claimed alone, whose words are
	alone   []*uint64
}

// run is the fetches under way of the objects of words in a row.
type run struct {
	lo, hi uint64        // numbers of the first and the last one
	done   chan struct{} // closed when they have ended
}

// runs is the runs of a heap. Those of one object are in its fetching.
type runs struct {
	count atomic.Int32
	mu    sync.Mutex
	list  []*run // under mu
}

// of returns the run that word n is of, or nil.
func (rs *runs) of(n uint64) *run {
	if rs.count.Load() == 0 {
		return nil // fast path
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.list {
		if r.lo <= n && n <= r.hi {
			return r
		}
	}
	return nil
}

// begin makes a run of the words from lo to hi, or of the first ones of them,
// if the others are of another. If lo is, it returns nil.
func (rs *runs) begin(lo, hi uint64) *run {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.list {
		if r.lo <= hi && lo <= r.hi {
			if r.lo <= lo {
				return nil
			}
			hi = r.lo - 1
		}
	}
	r := &run{lo, hi, make(chan struct{})}
	rs.list = append(rs.list, r)
	rs.count.Add(1)
	return r
}

// end ends a run: whoever waits for it looks at the words again.
func (rs *runs) end(r *run) {
	rs.mu.Lock()
	for i, o := range rs.list {
		if o == r {
			last := len(rs.list) - 1
			rs.list[i] = rs.list[last]
			rs.list[last] = nil
			rs.list = rs.list[:last]
			break
		}
	}
	rs.mu.Unlock()
	rs.count.Add(-1)
	close(r.done)
}

// fetch does what Prefetch says, and returns how many objects it has read. Unless
// it is patient, it ends where it would have to wait for local memory for long.
func (b *objectBatch) fetch(ctx context.Context, h *Heap, refs []AnyRef, what int, patient bool) (read int, err error) {
	if err := h.core.Begin(); err != nil {
		return 0, err
	}
	defer h.core.End()
	for len(refs) > 0 && err == nil {
		n, busy, wait := b.board(h, refs, what)
		refs = refs[n:]
		read += b.count
		// Who waits must hold nothing that others wait for.
		err = b.read(ctx, h)
		switch {
		case err != nil:
		case !patient && wait == heap.ErrNoRoom:
			soon, cancel := context.WithTimeout(ctx, heap.MaxPoll)
			none := h.core.RoomSoon(soon)
			cancel()
			if none != nil {
				return read, wait
			}
		case !patient && busy != nil:
			return read, nil
		case wait == heap.ErrNoRoom:
			err = h.core.RoomSoon(ctx)
		case wait != nil:
			err = wait
		case busy != nil:
			select {
			case <-busy:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
	}
	return read, err
}

// board makes those of the first objects of refs that are far, and that nobody
// fetches, a part of the batch, until it is large enough. It returns how many of
// refs it has dealt with, and what there is to wait for before the next, if there
// is.
func (b *objectBatch) board(h *Heap, refs []AnyRef, what int) (n int, busy <-chan struct{}, err error) {
	for n < len(refs) && b.count < maxBatch && b.pending < maxBatchBytes {
		items := b.claim(h, refs[n:min(len(refs), n+maxBatch-b.count)])
		if len(items) == 0 {
			n++ // nothing to fetch
		}
		for len(items) > 0 && b.pending < maxBatchBytes {
			k, busy, err := b.boardFirst(h, items, what)
			var lost *heap.LostError
			switch {
			case err == errAgain || errors.As(err, &lost):
				k = 1
			case err != nil || busy != nil:
				return n, busy, err
			}
			items = items[k:]
			n += k
		}
	}
	return n, nil, nil
}

// boardFirst boards the first object of items, and those that lie behind it.
func (b *objectBatch) boardFirst(h *Heap, items []item, what int) (n int, busy <-chan struct{}, err error) {
	n, c, each := h.extentOf(items)
	if n > 0 {
		n = min(n, max(1, (maxBatchBytes-b.pending)/each))
	}
	if n == 0 || n == 1 && each < fetchInPlace {
		d := landing{p: items[0].p, w: items[0].w, what: what}
		if busy, err = h.boardObject(nil, &d); err == nil && busy == nil {
			b.led = append(b.led, d)
			b.add(len(d.target()), 1)
		}
		return 1, busy, err
	}
	var x extent
	if err = h.boardExtent(&x, items[:n], c, each, logFor(what)); err != nil {
		return 0, nil, err
	}
	b.extents = append(b.extents, x)
	b.add(len(x.target()), len(x.items))
	return len(x.items), nil, nil
}

func (b *objectBatch) add(bytes, objects int) {
	b.pending += bytes
	b.count += objects
}

// claim makes the objects of the first of refs, as far as their words are in a row,
// and they are far and nobody fetches them, such as the caller fetches, until
// the batch is read.
func (b *objectBatch) claim(h *Heap, refs []AnyRef) []item {
	begin := len(b.items)
	for i, r := range refs {
		if r.n != refs[0].n+uint64(i) || r.n == 0 {
			break
		}
		it := item{p: h.words.at(r.n)}
		if it.w = loadWord(it.p); !it.w.far() || h.isFetched(it.p) {
			break
		}
		b.items = append(b.items, it)
	}
	items := b.items[begin:]
	switch len(items) {
	case 0:
		return nil
	case 1:
		f := &objectFlight{done: make(chan struct{})}
		if h.runs.of(refs[0].n) != nil || h.fetchAlone(items[0].p, f) != f {
			return nil
		}
		b.flights, b.alone = append(b.flights, f), append(b.alone, items[0].p)
	default:
		r := h.runs.begin(refs[0].n, refs[len(items)-1].n)
		if r == nil {
			return nil
		}
		b.runs = append(b.runs, r)
		items = items[:r.hi-r.lo+1]
	}
	return items
}

// isFetched reports whether somebody fetches the object of p alone.
func (h *Heap) isFetched(p *uint64) bool {
	part := h.fetchingOf(p)
	if part.count.Load() == 0 {
		return false // fast path
	}
	part.mu.Lock()
	defer part.mu.Unlock()
	return part.by[p] != nil
}

// fetchAlone makes f the fetch of the object of p, if there is none, and returns the one
// there is.
func (h *Heap) fetchAlone(p *uint64, f *objectFlight) *objectFlight {
	part := h.fetchingOf(p)
	part.mu.Lock()
	defer part.mu.Unlock()
	if f := part.by[p]; f != nil {
		return f
	}
	if part.by == nil {
		part.by = map[*uint64]*objectFlight{}
	}
	part.by[p] = f
	part.count.Add(1)
	return f
}

// endFlight ends a fetch that fetchAlone has begun.
func (h *Heap) endFlight(p *uint64, f *objectFlight, err error) {
	part := h.fetchingOf(p)
	part.mu.Lock()
	delete(part.by, p)
	part.count.Add(-1)
	part.mu.Unlock()
	f.err = err
	close(f.done)
}

// read fetches what is in the batch, and empties it.
func (b *objectBatch) read(ctx context.Context, h *Heap) (err error) {
	defer b.reset(h)
	if b.count == 0 {
		return context.Cause(ctx)
	}
	rctx := ctx
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		rctx, cancel = context.WithTimeout(ctx, heap.StoreTimeout)
		defer cancel()
	}
	for i := range b.extents {
		x := &b.extents[i]
		b.ops = append(b.ops, heap.ReadOp{Seg: x.seg.Seg, Off: h.core.Far.Offset(x.items[0].w.farAddr()), Buf: x.target()})
	}
	for i := range b.led {
		d := &b.led[i]
		b.ops = append(b.ops, heap.ReadOp{Seg: d.seg.Seg, Off: h.core.Far.Offset(d.w.farAddr()), Buf: d.target()})
	}
	h.core.Far.Store.Read(rctx, b.ops)
	extents, led := b.extents, b.led // that have not landed
	defer func() { b.abandon(h, extents, led) }()
	for i := range b.extents {
		extents = b.extents[i+1:]
		if e := h.landExtent(&b.extents[i], b.asked, b.ops[i].Err); err == nil {
			err = e
		}
	}
	for i := range b.led {
		d := &b.led[i]
		led = b.led[i+1:]
		switch e := h.landObject(nil, d, b.ops[len(b.extents)+i].Err); {
		case e == nil:
			h.class(d.w.farClass()).brought(1, h.words.number(d.p) == b.asked)
		case err == nil && !isTheirs(e):
			err = e
		}
	}
	return errOr(err, context.Cause(ctx))
}

// abandon ends fetches whose bytes nobody looks at, since a Fetched of another
// object panics.
func (b *objectBatch) abandon(h *Heap, extents []extent, led []landing) {
	for i := range extents {
		h.dropSlot(extents[i].addr, heap.HeadLen(extents[i].slot.Head()))
		h.unpinFar(extents[i].seg)
	}
	for i := range led {
		h.abandon(&led[i])
	}
}

// reset empties the batch and ends what was claimed for it.
func (b *objectBatch) reset(h *Heap) {
	for _, r := range b.runs {
		h.runs.end(r)
	}
	for i, f := range b.flights {
		h.endFlight(b.alone[i], f, nil)
	}
	clear(b.extents)
	clear(b.led)
	clear(b.ops)
	clear(b.runs)
	clear(b.flights)
	b.extents, b.led, b.ops = b.extents[:0], b.led[:0], b.ops[:0]
	b.runs, b.flights, b.alone = b.runs[:0], b.flights[:0], b.alone[:0]
	b.items, b.pending, b.count = b.items[:0], 0, 0
}

// brought counts n objects that a batch has brought, of which one may have been
// asked for.
func (c *class) brought(n int, asked bool) {
	if asked {
		c.misses.Add(1)
		n--
	}
	c.prefetched.Add(uint64(n))
}
