package objects

import (
	"context"
	"errors"
	"fmt"

	"polder/far/heap"
	"polder/far/object"
	"polder/internal/limit"
)

// extentLeast is the size in bytes from which on objects that are adjacent in far memory are read together, directly
// to where they stay. Smaller ones are read into a buffer and copied.
const extentLeast = 1 << 10

// wantOf says what to fetch to get the far object of p, whose word is w.
func (sp *Space) wantOf(p *uint64, w Word, what int) heap.Want {
	c := sp.class(w.FarClass())
	want := heap.Want{
		Owner:  (*owner)(sp),
		Number: sp.words.number(p),
		Word:   uint64(w),
		Of:     c,
		Addr:   w.FarAddr(),
		Size:   w.FarSize(),
		Use:    heap.UseLocal,
		Kind:   heap.Scoped,
		ID:     c.Owner(),
	}
	if what&Stream != 0 {
		want.Kind = heap.Streamed
	}
	// If all objects of the class are of one size, the record's length is known. Otherwise there is only an upper
	// bound.
	want.N = min(want.Size, sp.core.Far.SegSize-sp.core.Far.Offset(want.Addr))
	if c.Size >= 0 {
		want.N = min(object.FarSize(c.Size), want.Size)
		want.Row = c.Size >= extentLeast && want.N == object.FarSize(c.Size)
	}
	return want
}

// miss brings the far object of p, whose word is w, into local memory. If it returns nil, the caller looks at the
// word again.
func (sp *Space) miss(s *heap.Scope, p *uint64, w Word, what int) error {
	if err := sp.core.Begin(); err != nil {
		return err
	}
	defer sp.core.End()
	fetching := sp.sleep.fetchingOf(sp.words.number(p) / WordsPerPage)
	fetching.Add(1)
	defer fetching.Add(-1)
	ctx := sp.core.HeldIn(s).Ctx
	if ctx.Err() != nil {
		return sp.tooLate(ctx)
	}
	if f := sp.core.Join(w.FarAddr(), heap.UseLocal); f != nil {
		return sp.Join(ctx, f)
	}
	if _, ok := ctx.Deadline(); !ok {
		within := limit.Within(ctx, heap.StoreTimeout)
		defer within.End()
		ctx = within
	}
	want := sp.wantOf(p, w, what)
	want.Scope = s
	f, busy, err := sp.core.Board(nil, &want)
	for busy != nil {
		select {
		case <-busy:
		case <-ctx.Done():
			return fmt.Errorf("all buffers are in use: %w", sp.tooLate(ctx))
		}
		f, busy, err = sp.core.Board(nil, &want)
	}
	switch {
	case err == heap.ErrMoved || err == heap.ErrFlying:
		return nil
	case err != nil:
		return sp.core.NoRoom(s, err, w.FarSize())
	}
	defer sp.core.LetGo(f)
	sp.core.Fly(ctx, f)
	if f.Local() {
		c := f.Of.(*Class)
		c.misses.Add(1)
		c.bytesIn.Add(uint64(len(f.Object) - object.Header))
	}
	return sp.core.NoRoom(s, f.Err, w.FarSize())
}

// Join waits for f, which the caller has joined. If it returns nil, the caller looks at the word again.
func (sp *Space) Join(ctx context.Context, f *heap.Flight) error {
	defer sp.core.LetGo(f)
	if f.Wait(ctx) != nil {
		return sp.tooLate(ctx)
	}
	f.Of.(*Class).coalesced.Add(1)
	return f.Told() // f.Err may be due only to who has begun the flight
}

// tooLate is the error of a fetch whose ctx has ended. If something is wrong with far memory, the error says that,
// too, since it is why the fetch took so long.
func (sp *Space) tooLate(ctx context.Context) error {
	err := context.Cause(ctx)
	if why := sp.core.Logs.Why(); why != nil {
		err = errors.Join(err, why)
	}
	return fmt.Errorf("cannot fetch an object: %w", err)
}

// prefetchTries is how many rounds Prefetch makes: objects that others were fetching may be far still, if they gave
// up.
const prefetchTries = 3

// Prefetch brings the objects of refs, which are numbers of words, into local memory if they are far, as
// far.Heap.Prefetch says. It passes over a 0.
func (sp *Space) Prefetch(ctx context.Context, refs []uint64) error {
	for _, r := range refs {
		if r != 0 && Load(sp.words.at(r)).Asleep() {
			if err := sp.awaken(ctx, r/WordsPerPage); err != nil {
				return err
			}
		}
	}
	for range prefetchTries {
		if _, err := sp.Fetch(ctx, refs, 0, 0, true); err != nil {
			return err
		}
		if waited, err := sp.awaitOthers(ctx, refs); !waited || err != nil {
			return err
		}
	}
	return nil
}

// awaitOthers waits for the objects of refs that others are fetching, and reports whether there
// were any. These may still be far then: the others may have given up.
func (sp *Space) awaitOthers(ctx context.Context, refs []uint64) (waited bool, err error) {
	if err := sp.core.Begin(); err != nil {
		return false, err
	}
	defer sp.core.End()
	for _, r := range refs {
		if r == 0 {
			continue
		}
		w := Load(sp.words.at(r))
		if !w.Far() {
			continue
		}
		f := sp.core.Join(w.FarAddr(), heap.UseLocal)
		if f == nil {
			continue
		}
		waited = true
		failed := f.Wait(ctx) != nil
		sp.core.LetGo(f)
		if failed {
			return true, sp.tooLate(ctx)
		}
	}
	return waited, nil
}

// Fetch brings the objects of refs that are far into local memory, except those that others are fetching, and returns
// how many it has read. Somebody waits for the object of word asked, unless asked is 0. Unless it is patient, Fetch
// returns early rather than wait for a buffer, or wait long for local memory (then with heap.ErrNoRoom).
func (sp *Space) Fetch(ctx context.Context, refs []uint64, what int, asked uint64, patient bool) (read int, err error) {
	if err := sp.core.Begin(); err != nil {
		return 0, err
	}
	defer sp.core.End()
	rctx := ctx
	if _, ok := ctx.Deadline(); !ok {
		within := limit.Within(ctx, heap.StoreTimeout)
		defer within.End()
		rctx = within
	}
	b := sp.core.NewBatch(len(refs))
	var got brought
	board := func(i int) (n int, busy <-chan struct{}, err error) {
		n, busy, err = sp.boardFirst(b, refs[i:], what)
		read += n
		_, lost := err.(*heap.LostError)
		if n == 0 && (err == nil && busy == nil || err == heap.ErrMoved || err == heap.ErrFlying || lost) {
			return 1, nil, nil // nothing to fetch here, or whoever dereferences the object finds out
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
			none := sp.core.RoomSoon(soon)
			cancel()
			if none != nil {
				b.End()
				return read, wait
			}
		case !patient && busy != nil:
			b.End()
			return read, nil
		case wait == heap.ErrNoRoom:
			err = sp.core.RoomSoon(ctx)
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

// boardFirst makes the object of refs[0] a part of b if it is far and nobody is fetching it, with as many of the
// following objects as can be read together with it. It returns how many objects it has made part of b.
func (sp *Space) boardFirst(b *heap.Batch, refs []uint64, what int) (n int, busy <-chan struct{}, err error) {
	b.Wants = b.Wants[:0]
	most := 0
	for _, r := range refs {
		if r == 0 {
			break
		}
		p := sp.words.at(r)
		w := Load(p)
		if !w.Far() {
			break
		}
		if len(b.Wants) == 0 {
			want := sp.wantOf(p, w, what)
			if b.Wants = append(b.Wants, want); !want.Row {
				break
			}
			most = b.Room(want.N)
			continue
		}
		want := b.Wants[len(b.Wants)-1]
		next := want.Addr + uint64(want.N/heap.Unit)
		if len(b.Wants) == most || w.FarAddr() != next || FirstOwner+w.FarClass() != want.ID || next/sp.core.Far.Units != want.Addr/sp.core.Far.Units {
			break
		}
		want.Number, want.Word, want.Addr, want.Size = r, uint64(w), next, w.FarSize()
		b.Wants = append(b.Wants, want)
	}
	switch len(b.Wants) {
	case 0:
		return 0, nil, nil
	case 1:
		f, busy, err := sp.core.Board(b, &b.Wants[0])
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
	c       *Class
	n, size int
	asked   bool // somebody waited for one of them
}

func (g *brought) add(f *heap.Flight, asked bool) {
	if c := f.Of.(*Class); c != g.c {
		g.count()
		g.c = c
	}
	g.n++
	g.size += len(f.Object) - object.Header
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

// Replace makes the new object at addr, of class c, the object of p if p's object is far, zero or lost; otherwise it
// drops the new object. It reports whether it has replaced p's object.
func (sp *Space) Replace(p *uint64, addr uintptr, c *Class) bool {
	for {
		w := Load(p)
		if !w.Far() && !w.Zero() && !w.lost() {
			sp.core.DropSlot(addr, c.Size)
			return false
		}
		if casWord(p, w, localWord(addr, Coldest)) {
			if w.Far() {
				sp.core.BuryFar(w.FarAddr(), w.FarSize())
			}
			return true
		}
	}
}
