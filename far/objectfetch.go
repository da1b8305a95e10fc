package far

import (
	"context"
	"errors"
	"fmt"

	"polder/far/heap"
)

// extentLeast is the size in bytes from which on far objects that lie side by side are read
// together to where they stay. Smaller ones are read into a buffer and copied.
const extentLeast = 1 << 10

// wantOf is the far object of p, whose word is w, as something to be fetched.
func (h *Heap) wantOf(p *uint64, w pword, what int) heap.Want {
	c := h.class(w.farClass())
	want := heap.Want{
		Owner:  (*pointers)(h),
		Number: h.words.number(p),
		Word:   uint64(w),
		Of:     c,
		Addr:   w.farAddr(),
		Size:   w.farSize(),
		Use:    heap.UseLocal,
		Kind:   heap.Scoped,
		ID:     c.owner(),
	}
	if what&derefStream != 0 {
		want.Kind = heap.Streamed
	}
	// Objects of a class are of one size, exactly, or else there are so many bytes at the most.
	want.N = min(want.Size, h.core.Far.SegSize-h.core.Far.Offset(want.Addr))
	if c.size >= 0 {
		want.N = min(heap.FarObjectSize(c.size), want.Size)
		want.Row = c.size >= extentLeast && want.N == heap.FarObjectSize(c.size)
	}
	return want
}

// miss brings the far object of p, whose word is w, into local memory. It
// returns nil if the word is to be looked at again.
func (h *Heap) miss(s *heap.Scope, p *uint64, w pword, what int) error {
	if err := h.core.Begin(); err != nil {
		return err
	}
	defer h.core.End()
	ctx := h.core.HeldIn(s).Ctx
	if ctx.Err() != nil {
		return h.tooLate(ctx)
	}
	if f := h.core.Join(w.farAddr(), heap.UseLocal); f != nil {
		return h.join(ctx, f)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, heap.StoreTimeout)
		defer cancel()
	}
	want := h.wantOf(p, w, what)
	want.Scope = s
	f, busy, err := h.core.Board(nil, &want)
	for busy != nil {
		select {
		case <-busy:
		case <-ctx.Done():
			return fmt.Errorf("all buffers are in use: %w", h.tooLate(ctx))
		}
		f, busy, err = h.core.Board(nil, &want)
	}
	switch {
	case err == heap.ErrMoved || err == heap.ErrFlying:
		return nil
	case err != nil:
		return h.core.NoRoom(s, err, w.farSize())
	}
	defer h.core.LetGo(f)
	h.core.Fly(ctx, f)
	if f.Local() {
		c := f.Of.(*class)
		c.misses.Add(1)
		c.bytesIn.Add(uint64(len(f.Object) - heap.ObjectHeader))
	}
	return h.core.NoRoom(s, f.Err, w.farSize())
}

// join waits for f, which the caller has joined. It returns nil if the word is to be looked at
// again.
func (h *Heap) join(ctx context.Context, f *heap.Flight) error {
	defer h.core.LetGo(f)
	if f.Wait(ctx) != nil {
		return h.tooLate(ctx)
	}
	f.Of.(*class).coalesced.Add(1)
	return f.Told() // other errors may have been the other's own
}

// tooLate is the error of a fetch whose ctx has ended. It says what is wrong with
// far memory, if something is: others waited because of that.
func (h *Heap) tooLate(ctx context.Context) error {
	err := context.Cause(ctx)
	if why := h.core.Logs.Why(); why != nil {
		err = errors.Join(err, why)
	}
	return fmt.Errorf("cannot fetch an object: %w", err)
}

// Prefetch brings the objects of refs that are far into local memory, in as few
// reads of the store as it can, and returns when they are there: dereferencing them need not wait. It
// waits for local memory within ctx, and so must not be called in a scope. Refs
// to nothing and objects that are local are passed over; that an object is lost
// or corrupt, whoever dereferences it is told.
func (h *Heap) Prefetch(ctx context.Context, refs ...AnyRef) error {
	for range lockedTries {
		if _, err := h.fetchObjects(ctx, refs, 0, 0, true); err != nil {
			return err
		}
		if waited, err := h.awaitOthers(ctx, refs); !waited || err != nil {
			return err
		}
	}
	return nil
}

// awaitOthers waits for the objects of refs that others are fetching, and reports whether there
// were any. These may still be far then: the others may have given up.
func (h *Heap) awaitOthers(ctx context.Context, refs []AnyRef) (waited bool, err error) {
	if err := h.core.Begin(); err != nil {
		return false, err
	}
	defer h.core.End()
	for _, r := range refs {
		if r.n == 0 {
			continue
		}
		w := loadWord(h.words.at(r.n))
		if !w.far() {
			continue
		}
		f := h.core.Join(w.farAddr(), heap.UseLocal)
		if f == nil {
			continue
		}
		waited = true
		failed := f.Wait(ctx) != nil
		h.core.LetGo(f)
		if failed {
			return true, h.tooLate(ctx)
		}
	}
	return waited, nil
}

// fetchObjects does what Prefetch says, and returns how many objects it has read. Somebody waits for that
// of the word asked, unless that is 0. Unless it is patient, it ends where it would have to wait for local memory for
// long.
func (h *Heap) fetchObjects(ctx context.Context, refs []AnyRef, what int, asked uint64, patient bool) (read int, err error) {
	if err := h.core.Begin(); err != nil {
		return 0, err
	}
	defer h.core.End()
	rctx := ctx
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		rctx, cancel = context.WithTimeout(ctx, heap.StoreTimeout)
		defer cancel()
	}
	b := h.core.NewBatch(len(refs))
	var got brought
	board := func(i int) (n int, busy <-chan struct{}, err error) {
		n, busy, err = h.boardFirst(b, refs[i:], what)
		read += n
		_, lost := err.(*heap.LostError)
		if n == 0 && (err == nil && busy == nil || err == heap.ErrMoved || err == heap.ErrFlying || lost) {
			return 1, nil, nil // nothing to fetch, or whoever dereferences it comes upon it
		}
		return n, busy, err
	}
	landed := func(f *heap.Flight, _ int, _ error) {
		if f.Local() {
			got.add(f, f.Number == asked)
		} else if err == nil && f.Told() == nil && f.Err != heap.ErrNoRoom {
			err = f.Err
		}
	}
	for i := 0; i < len(refs) && err == nil; {
		var busy <-chan struct{}
		var wait error
		i, busy, wait = b.Run(rctx, i, len(refs), board, landed)
		got.count()
		// Who waits must hold nothing that others wait for.
		switch err = errOr(err, context.Cause(ctx)); {
		case err != nil:
		case !patient && wait == heap.ErrNoRoom:
			soon, cancel := context.WithTimeout(ctx, heap.MaxPoll)
			none := h.core.RoomSoon(soon)
			cancel()
			if none != nil {
				b.End()
				return read, wait
			}
		case !patient && busy != nil:
			b.End()
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
	b.End()
	return read, err
}

// boardFirst makes the first of refs a part of b, if it is far and nobody fetches it, with those
// that follow as far as they are read together. It returns how many those are.
func (h *Heap) boardFirst(b *heap.Batch, refs []AnyRef, what int) (n int, busy <-chan struct{}, err error) {
	b.Wants = b.Wants[:0]
	most := 0
	for _, r := range refs {
		if r.n == 0 {
			break
		}
		p := h.words.at(r.n)
		w := loadWord(p)
		if !w.far() {
			break
		}
		if len(b.Wants) == 0 {
			want := h.wantOf(p, w, what)
			if b.Wants = append(b.Wants, want); !want.Row {
				break
			}
			most = b.Room(want.N)
			continue
		}
		want := b.Wants[len(b.Wants)-1]
		next := want.Addr + uint64(want.N/heap.Unit)
		if len(b.Wants) == most || w.farAddr() != next || objectOwners+w.farClass() != want.ID || next/h.core.Far.Units != want.Addr/h.core.Far.Units {
			break
		}
		want.Number, want.Word, want.Addr, want.Size = r.n, uint64(w), next, w.farSize()
		b.Wants = append(b.Wants, want)
	}
	switch len(b.Wants) {
	case 0:
		return 0, nil, nil
	case 1:
		f, busy, err := h.core.Board(b, &b.Wants[0])
		if f == nil {
			return 0, busy, err
		}
		return 1, nil, nil
	}
	n, err = b.BoardRow(b.Wants)
	return n, nil, err
}

// brought counts the objects of a class that a batch has brought.
type brought struct {
	c       *class
	n, size int
	asked   bool // somebody waited for one of them
}

func (g *brought) add(f *heap.Flight, asked bool) {
	if c := f.Of.(*class); c != g.c {
		g.count()
		g.c = c
	}
	g.n++
	g.size += len(f.Object) - heap.ObjectHeader
	g.asked = g.asked || asked
}

func (g *brought) count() {
	if g.n == 0 {
		return
	}
	g.c.bytesIn.Add(uint64(g.size))
	if g.asked {
		g.c.misses.Add(1)
		g.n--
	}
	g.c.prefetched.Add(uint64(g.n))
	*g = brought{c: g.c}
}

// errOr is err, or other if it is nil.
func errOr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// replace makes the new object at addr, of class c, that of p, if that is far or was
// never used, and otherwise drops it. It reports which.
func (h *Heap) replace(p *uint64, addr uintptr, c *class) bool {
	for {
		w := loadWord(p)
		if !w.far() && !w.zero() {
			h.core.DropSlot(addr, c.size)
			return false
		}
		if casWord(p, w, localWord(addr, coldest)) {
			if w.far() {
				h.core.BuryFar(w.farAddr(), w.farSize())
			}
			return true
		}
	}
}
