package copies

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"polder/far/heap"
)

// Defaults of a Config.
const (
	DefaultCopies      = 2
	DefaultLate        = 20 * time.Millisecond
	DefaultRepairAfter = 5 * time.Second
)

// MaxCopies is the most copies of a segment, and MaxPlaces the most places of a store.
const (
	MaxCopies = 8
	MaxPlaces = 64
)

// ErrTooFew: fewer copies can be had than Config.Min.
var ErrTooFew = errors.New("too few places answer")

// A Place is where copies lie, of which no two of a segment are at the same.
type Place struct {
	// Name is what statistics and messages call it, unique in the store.
	Name string
	// Zone returns what the place fails together with, such as a rack, or "" if it is with nothing else.
	// It may not be known before the place was of use. Nil is "".
	Zone func() string
	// Store lends the memory of this place alone. The segments of all places have one size.
	Store heap.Store
	// State says how it is. It must not wait. Nil is a place that can be used and has as many bytes as the others.
	State func() State
}

// State is how a place is.
type State struct {
	Usable bool
	// Leaving: it is to end. Its copies are moved to other places, and it gets new ones only where there would
	// otherwise be too few.
	Leaving bool
	Space   int64 // bytes that it has to lend, as far as is known
}

// Config says what a Store keeps where.
type Config struct {
	// Places are where copies may lie, at least one.
	Places []Place
	// Copies is how many copies of each segment there are to be, by default DefaultCopies, and at most as many
	// as there are places.
	Copies int
	// Min is how many there must be for a write to count, by default 1: while places do not answer, the
	// store goes on with fewer than Copies, and makes up for that later.
	Min int
	// Late is for how long a copy may be behind the first one, by default DefaultLate.
	Late time.Duration
	// RepairAfter is how long a place may be of no use until its copies count as lost, by default
	// DefaultRepairAfter.
	RepairAfter time.Duration
	// Logger gets what becomes of places and copies; by default nothing is logged.
	Logger *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	if c.Copies == 0 {
		c.Copies = DefaultCopies
	}
	if c.Min == 0 {
		c.Min = 1
	}
	if c.Late == 0 {
		c.Late = DefaultLate
	}
	if c.RepairAfter == 0 {
		c.RepairAfter = DefaultRepairAfter
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case c.Copies < 1 || c.Copies > MaxCopies:
		return c, fmt.Errorf("%d copies, want 1 to %d", c.Copies, MaxCopies)
	case len(c.Places) > MaxPlaces:
		return c, fmt.Errorf("%d places, want at most %d", len(c.Places), MaxPlaces)
	case c.Copies > len(c.Places):
		return c, fmt.Errorf("%d copies, want at most as many as there are places, which are %d", c.Copies, len(c.Places))
	case c.Min < 1 || c.Min > c.Copies:
		return c, fmt.Errorf("at least %d copies, want 1 to the number of copies, which is %d", c.Min, c.Copies)
	case c.Late < 0 || c.RepairAfter < 0:
		return c, errors.New("a time is negative")
	}
	names := make(map[string]bool)
	for i, p := range c.Places {
		switch {
		case p.Name == "" || names[p.Name]:
			return c, fmt.Errorf("place %d is named %q, want a name of its own", i, p.Name)
		case p.Store == nil:
			return c, fmt.Errorf("place %s has no store", p.Name)
		}
		names[p.Name] = true
	}
	return c, nil
}

// Store is a heap.Store whose segments have copies. It is a heap.Mirror, a heap.Computer and a heap.Finder.
type Store struct {
	cfg    Config
	log    *slog.Logger
	places []*place
	counts counts

	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup // of what ends with the store

	rescan chan struct{} // capacity 1: something may have become of a copy

	mu        sync.Mutex
	segments  map[*segment]struct{} // guarded by mu
	next      uint64                // number of the next segment; guarded by mu
	queue     []*segment            // to be repaired; guarded by mu
	repairing int                   // goroutines that do; guarded by mu
	few       bool                  // fewer copies than there should be are being made; guarded by mu

	tokens atomic.Int64 // second reads that may be made, in hundredths
	used   atomic.Int64 // when somebody last read or wrote, in Unix nanoseconds
}

var (
	_ heap.Mirror   = (*Store)(nil)
	_ heap.Computer = (*Store)(nil)
	_ heap.Finder   = (*Store)(nil)
)

// Open makes a store over the places of cfg, which stay the caller's. Close it when the heap has been closed.
func Open(cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("cannot keep copies: %w", err)
	}
	s := &Store{cfg: cfg, log: cfg.Logger, segments: make(map[*segment]struct{}), rescan: make(chan struct{}, 1)}
	s.ctx, s.stop = context.WithCancel(context.Background())
	for i, p := range cfg.Places {
		s.places = append(s.places, newPlace(s, p, i))
	}
	s.wg.Go(s.keep)
	return s, nil
}

// Close ends what the store does by itself. It gives nothing back, which is the heap's to do.
func (s *Store) Close() error {
	s.stop()
	s.wg.Wait()
	return nil
}

// SegmentSize implements heap.Store.
func (s *Store) SegmentSize() int { return s.places[0].Store.SegmentSize() }

// Alloc implements heap.Store: as many copies as there should be, or if places do not answer as many as can be had,
// down to Config.Min. It fails with heap.ErrStoreFull if it is only for lack of memory that there are not
// enough.
func (s *Store) Alloc(ctx context.Context) (heap.Segment, error) {
	g := &segment{store: s, lost: make(chan struct{})}
	cs, err := s.borrow(ctx, s.cfg.Copies, nil)
	if len(cs) < s.cfg.Copies && (errors.Is(err, heap.ErrStoreFull) || len(cs) < s.cfg.Min || ctx.Err() != nil) {
		for _, c := range cs {
			c.place.giveBack(c.seg)
		}
		switch {
		case errors.Is(err, heap.ErrStoreFull) || ctx.Err() != nil:
			return nil, err
		case err == nil:
			err = errUnusable
		}
		return nil, fmt.Errorf("%w for %d copies: %w", ErrTooFew, s.cfg.Min, err)
	}
	g.copies.Store(&cs)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	g.number = s.next
	s.segments[g] = struct{}{}
	if few := len(cs) < s.cfg.Copies; few != s.few {
		s.few = few
		if few {
			s.log.Warn("what is evacuated has fewer copies than it should", "copies", len(cs), "should be", s.cfg.Copies, "error", err)
		} else {
			s.log.Info("what is evacuated has all its copies again", "copies", len(cs))
		}
	}
	return g, nil
}

// A copyOf is a copy of a segment.
type copyOf struct {
	place *place
	seg   heap.Segment
}

// lost reports whether the copy is lost.
func (c copyOf) lost() bool {
	select {
	case <-c.seg.Lost():
		return true
	default:
		return false
	}
}

var errUnusable = errors.New("the others cannot be used now")

// borrow borrows up to n copies beside those that there are, at places of other zones if possible, and at such that are
// leaving only if there would otherwise be too few. If it gets fewer it says why; heap.ErrStoreFull if a place that
// could be used has no memory.
func (s *Store) borrow(ctx context.Context, n int, beside []copyOf) (cs []copyOf, err error) {
	all := slices.Clone(beside)
	candidates := s.candidates()
	for _, round := range []struct{ leaving, elsewhere bool }{{false, true}, {false, false}, {true, true}, {true, false}} {
		elsewhere := round.elsewhere // first in zones of their own
		for _, p := range candidates {
			if len(cs) == n {
				return cs, nil
			}
			if p.state().Leaving != round.leaving || round.leaving && len(all) >= s.cfg.Copies {
				continue
			}
			if slices.ContainsFunc(all, func(c copyOf) bool { return c.place == p || elsewhere && c.place.zone() == p.zone() }) || !p.usable() {
				continue
			}
			seg, e := p.alloc(ctx)
			switch {
			case e == nil:
				c := copyOf{p, seg}
				cs, all = append(cs, c), append(all, c)
			case err == nil || errors.Is(e, heap.ErrStoreFull):
				err = e
			}
		}
	}
	if len(cs) == n {
		err = nil
	}
	return cs, err
}

// candidates are the places that can be used, that which has most to lend first.
func (s *Store) candidates() []*place {
	type candidate struct {
		p     *place
		space int64
	}
	var all []candidate
	for _, p := range s.places {
		if st := p.state(); st.Usable && !p.silent.Load() {
			all = append(all, candidate{p, st.Space})
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		switch {
		case a.space > b.space:
			return -1
		case a.space < b.space:
			return 1
		}
		return a.p.segments() - b.p.segments()
	})
	places := make([]*place, len(all))
	for i, c := range all {
		places[i] = c.p
	}
	return places
}
