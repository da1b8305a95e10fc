package copies

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"polder/far/store"
	"polder/internal/turns"
)

// Keep makes a store outlive its process: its places keep what they lent, and another process reopens the segments by
// their names.
type Keep struct {
	// Epoch is higher than that of any process that had the store before. At most 1<<31 - 1.
	Epoch uint64
	// Names has, by number, the present names of segments whose copies have moved, so that older names of these
	// segments may be given to Reopen. They are what Moved of earlier processes was told.
	Names map[uint64]string
	// Moved is called after copies of a segment have been replaced by others, and before the memory of the old copies
	// is given back. name returns where the copies lie now. Moved returns when any process that opens the store after
	// this one will know that, or when ctx ends. Several goroutines call it.
	Moved func(ctx context.Context, number uint64, name func() string) error
}

// A Reopener is the Store of a place that keeps what it lent.
type Reopener interface {
	store.Store
	// Reopen borrows a segment again by its name. It fails with a *store.LostError if the segment is gone for good.
	Reopen(ctx context.Context, name string) (store.Segment, error)
	// Prune gives back what an earlier process has borrowed and nobody has reopened. It fails if the place cannot be
	// reached; then it is called again later.
	Prune(ctx context.Context) error
}

// maxEpoch is the highest epoch: the number of a segment consists of an epoch and 32 more bits.
const maxEpoch = 1<<31 - 1

func (k *Keep) check() error {
	switch {
	case k.Epoch == 0 || k.Epoch > maxEpoch:
		return fmt.Errorf("epoch %d, want 1 to %d", k.Epoch, maxEpoch)
	case k.Moved == nil:
		return errors.New("nobody is told where copies have moved: Keep.Moved is nil")
	}
	return nil
}

// between separates the copies in a segment's name. A name has at most mostNamed copies: those that count, and those
// that cannot be reached.
const (
	between   = " and "
	mostNamed = 2 * MaxCopies
)

// nameOf returns the name by which a segment with these copies can be reopened.
func nameOf(number uint64, cs []copyOf) string {
	var b strings.Builder
	fmt.Fprintf(&b, "segment %d at ", number)
	for i, c := range cs {
		if i > 0 {
			b.WriteString(between)
		}
		b.WriteString(c.place.Name)
		b.WriteByte('/')
		b.WriteString(strings.TrimPrefix(c.seg.Name(), c.place.Name+"/"))
	}
	return b.String()
}

// parseName is the inverse of nameOf: it returns the number, and the name of each copy, place included.
func parseName(name string) (number uint64, copies []string, err error) {
	rest, ok := strings.CutPrefix(name, "segment ")
	digits, rest, found := strings.Cut(rest, " at ")
	if number, err = strconv.ParseUint(digits, 10, 64); !ok || !found || err != nil || number == 0 {
		return 0, nil, fmt.Errorf("%q names no segment, which would be as in %q", name, "segment 17 at 10.0.0.1:7070/chunk 3")
	}
	copies = strings.Split(rest, between)
	if len(copies) > mostNamed {
		return 0, nil, fmt.Errorf("%q has %d copies, at most %d are possible", name, len(copies), mostNamed)
	}
	return number, copies, nil
}

// Reopen borrows a segment again by the name that it had in an earlier process. It fails with a *store.LostError if
// all its copies are gone for good.
func (s *Store) Reopen(ctx context.Context, name string) (store.Segment, error) {
	if s.cfg.Keep == nil {
		return nil, errors.New("cannot reopen a segment: the store keeps nothing")
	}
	number, called, err := parseName(name)
	if err == nil {
		if moved, ok := s.cfg.Keep.Names[number]; ok {
			var n uint64
			if n, called, err = parseName(moved); err == nil && n != number {
				err = fmt.Errorf("segment %d is said to be %q now", number, moved)
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot reopen a segment: %w", err)
	}
	g := &segment{store: s, number: number, acked: true, lost: make(chan struct{})}
	g.end.Store(int64(s.SegmentSize()))
	cs, away, why := s.reopenAll(ctx, called)
	for _, a := range away {
		if a.place != nil {
			a.place.missed.Store(true)
		}
	}
	g.away, g.closed, g.awaited = away, len(away) > 0, s.proc.Now().Add(s.cfg.RepairAfter)
	switch {
	case len(cs) == 0 && len(away) > 0:
		return nil, fmt.Errorf("cannot reach any copy of segment %d: %w", number, errors.Join(why...))
	case len(cs) == 0:
		return nil, &store.LostError{Segment: name}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reopened[number] {
		for _, c := range cs {
			c.place.copies.Add(-1)
		}
		return nil, fmt.Errorf("cannot reopen segment %d: it is open already", number)
	}
	s.reopened[number] = true
	g.copies.Store(&cs)
	g.count(away, 1)
	if g.bare() {
		s.bare.Add(1)
	}
	s.segments[g] = struct{}{}
	return g, nil
}

// An awayCopy is a copy that could not be reached when its segment was reopened. It has all that was written. For
// Config.RepairAfter it counts like a copy at a place that does not answer, and no other copy is made in its place.
// After that it stays in the segment's name until another copy takes its place, and the segment is not suspected.
// Whenever it can be reached it becomes one of the segment's copies again.
type awayCopy struct {
	called string
	place  *place // nil: a disk that is not one of the places; the name leaves the copy out
}

// count adds n to awaited at the place of each copy in away.
func (g *segment) count(away []awayCopy, n int64) {
	for _, a := range away {
		if a.place != nil {
			a.place.awaited.Add(n)
		}
	}
}

// waiting returns the copies that g waits for, of which only the places are known.
func (g *segment) waiting() (cs []copyOf) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.expired() {
		return nil
	}
	for _, a := range g.away {
		if a.place != nil {
			cs = append(cs, copyOf{place: a.place})
		}
	}
	return cs
}

// isAway reports whether a copy could not be reached when g was reopened, and may come back.
func (g *segment) isAway() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(g.away, func(a awayCopy) bool { return a.place != nil })
}

// expired reports whether g has stopped waiting for the copies in away. g.mu must be held.
func (g *segment) expired() bool { return !g.store.proc.Now().Before(g.awaited) }

// comesBack reports whether a copy that could not be reached can perhaps be reached now.
func (g *segment) comesBack() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.freed && !g.reaching && slices.ContainsFunc(g.away, func(a awayCopy) bool { return a.place != nil && a.place.usable() })
}

// Reach tries again to reopen the copies of a segment that could not be reached when it was reopened. It returns how
// many still cannot be reached.
func (s *Store) Reach(ctx context.Context, seg store.Segment) (away int) {
	g := seg.(*segment)
	g.mu.Lock()
	was := g.away
	if g.reaching || g.freed || len(was) == 0 {
		g.mu.Unlock()
		return len(was)
	}
	g.reaching = true
	g.mu.Unlock()
	called := make([]string, len(was))
	for i, a := range was {
		called[i] = a.called
	}
	cs, still, _ := s.reopenAll(ctx, called)
	g.mu.Lock()
	g.reaching = false
	g.count(was, -1)
	freed := g.freed
	if !freed {
		g.away = still
		g.count(still, 1)
		if len(cs) > 0 {
			all := append(slices.Clone(*g.copies.Load()), cs...)
			g.copies.Store(&all)
		}
	}
	g.mu.Unlock()
	if freed {
		for _, c := range cs {
			c.place.giveBack(c.seg)
		}
	}
	return len(still)
}

// reopenAll reopens the copies with these names. It returns those that it has reopened, those that cannot be reached,
// and why. Copies that are gone for good are in neither.
func (s *Store) reopenAll(ctx context.Context, called []string) (cs []copyOf, away []awayCopy, why []error) {
	for _, c := range called {
		seg, p, err := s.reopenAt(ctx, c)
		var gone *store.LostError
		switch {
		case err == nil:
			cs = append(cs, copyOf{p, seg})
		case !errors.As(err, &gone):
			away, why = append(away, awayCopy{c, p}), append(why, fmt.Errorf("%s: %w", c, err))
		}
	}
	return cs, away, why
}

// reopenAt reopens a copy by its name, place included.
func (s *Store) reopenAt(ctx context.Context, called string) (store.Segment, *place, error) {
	var at *place
	for _, p := range s.all() { // if the names of two places fit, the longer one is meant
		if strings.HasPrefix(called, p.Name+"/") && (at == nil || len(p.Name) > len(at.Name)) {
			at = p
		}
	}
	if at == nil && strings.HasPrefix(called, store.DiskName) {
		return nil, nil, errors.New("the disk is not here: start the server that has it with --disk")
	}
	if at == nil {
		return nil, nil, &store.LostError{Segment: called} // the place is no longer one of the store's
	}
	r, ok := at.Store.(Reopener)
	if !ok {
		return nil, nil, &store.LostError{Segment: called}
	}
	seg, err := r.Reopen(ctx, called[len(at.Name)+1:])
	if err == nil {
		at.copies.Add(1)
	}
	return seg, at, err
}

// Prune gives back what earlier processes have borrowed and nobody has reopened. At places that cannot be reached
// now, keep does so later.
func (s *Store) Prune(ctx context.Context) error {
	var wg turns.Group
	for _, p := range s.all() {
		if _, ok := p.Store.(Reopener); ok {
			p.stale.Store(true)
			wg.Go(s.proc, func() { p.prune(ctx) })
		}
	}
	wg.Wait(s.proc)
	return context.Cause(ctx)
}

// Renamed tells the store that nobody will reopen segments by names from an earlier process any more. From then on,
// places that could not be reached when segments were reopened are pruned, too.
func (s *Store) Renamed() {
	for _, p := range s.all() {
		p.missed.Store(false)
	}
}

// mayPrune reports whether p can be reached, and nobody will ask any more for segments of p that nobody has reopened.
func (p *place) mayPrune() bool { return p.usable() && !p.missed.Load() && p.awaited.Load() == 0 }

// prune gives back the segments of p that nobody has reopened, if mayPrune allows it.
func (p *place) prune(ctx context.Context) {
	if !p.mayPrune() || p.pruning.Swap(true) {
		return
	}
	defer p.pruning.Store(false)
	ctx, cancel := p.store.proc.WithTimeout(ctx, repairTimeout)
	defer cancel()
	if err := p.Store.(Reopener).Prune(ctx); err == nil {
		p.stale.Store(false)
	} else if context.Cause(ctx) == nil {
		p.store.log.Warn("cannot give back what nobody has reopened", "place", p.Name, "error", err)
	}
}

// replaced is called when g has got other copies than before, and gives back the copies in old. If the store is kept,
// it first has Keep.Moved told where the copies are now; if that fails, the memory of old stays borrowed until the
// store is opened again. It reports whether whoever opens the store next knows where the copies are.
func (g *segment) replaced(ctx context.Context, old []copyOf) bool {
	s := g.store
	if k := s.cfg.Keep; k != nil {
		if err := k.Moved(ctx, g.number, g.Name); err != nil {
			for _, c := range old {
				c.place.copies.Add(-1)
			}
			if ctx.Err() == nil {
				s.log.Warn("the memory of copies that were replaced is not given back, since nobody could be told where the others are", "segment", g.Name(), "error", err)
			}
			return false
		}
	}
	for _, c := range old {
		c.place.giveBack(c.seg)
	}
	return true
}

// Number returns the number of the segment, which no other segment of the store ever has.
func (g *segment) Number() uint64 { return g.number }

// EachCopy reads the beginning of each copy of a segment into buf, one copy after the other. After each it calls f,
// with the error if the copy could not be read.
func (s *Store) EachCopy(ctx context.Context, seg store.Segment, buf []byte, f func(err error)) {
	for _, c := range *seg.(*segment).copies.Load() {
		op := [1]store.ReadOp{{Seg: c.seg, Buf: buf, Bulk: true}}
		c.place.Store.Read(ctx, op[:])
		f(op[0].Err)
	}
}
