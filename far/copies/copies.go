package copies

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"polder/far/store"
	"polder/internal/turns"
)

// Defaults of a Config.
const (
	DefaultCopies      = 2
	DefaultLate        = 20 * time.Millisecond
	DefaultRepairAfter = 5 * time.Second
	DefaultRamp        = 30 * time.Second
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
	Store store.Store
	// State says how it is. It must not wait. Nil is a place that can be used and has as many bytes as the others.
	State func() State
	// Every has the place have a copy of every segment, beside the Config.Copies that the other places have, as long as it can be used and
	// has room. It is read only if no other place answers: it is a disk, which survives what memory does not. Its name begins with store.DiskName.
	Every bool
}

// State is how a place is.
type State struct {
	Usable bool
	// Leaving: it is to end. Its copies are moved to other places, and it gets new ones only where there would
	// otherwise be too few.
	Leaving bool
	// Idle: it lends what its host does not need, and may need that. It gets copies beside those that are to be
	// (spare copies), which it may drop at any time; its segments are Vanishers. Of the others it gets what has no room
	// elsewhere, and they are moved when it is Leaving.
	Idle  bool
	Space int64 // bytes that it has to lend, as far as is known
}

// Config says what a Store keeps where.
type Config struct {
	// Places are where copies may lie, at least one. Add adds others.
	Places []Place
	// Copies is how many copies of each segment there are to be, by default DefaultCopies, and at most as many
	// as there are places, unless Joins is set.
	Copies int
	// Joins says that places are to be added later, so that there may be fewer than Copies at first.
	Joins bool
	// Ramp is for how long a place that was added gets fewer new copies than one that has been there, from
	// none at all to what its room would have it get, by default DefaultRamp: one that is empty would get
	// all of them.
	Ramp time.Duration
	// Min is how many there must be for a write to count, by default 1: while places do not answer, the
	// store goes on with fewer than Copies, and makes up for that later.
	Min int
	// Late is for how long a copy may be behind the first one, by default DefaultLate; half a second at
	// least where places have hardly room for another segment.
	Late time.Duration
	// RepairAfter is how long a place may be of no use until its copies count as lost, by default
	// DefaultRepairAfter.
	RepairAfter time.Duration
	// Keep, if it is not nil, has what is borrowed outlive this process. The stores of all places are Reopeners then.
	Keep *Keep
	// Logger gets what becomes of places and copies; by default nothing is logged.
	Logger *slog.Logger
	// Process is what runs the store: nil, or one that is simulated.
	Process *turns.Process
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
	if c.Ramp == 0 {
		c.Ramp = DefaultRamp
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	n := 0 // places that share the copies out
	for _, p := range c.Places {
		if !p.Every {
			n++
		}
	}
	switch {
	case c.Copies < 1 || c.Copies > MaxCopies:
		return c, fmt.Errorf("%d copies, want 1 to %d", c.Copies, MaxCopies)
	case len(c.Places) > MaxPlaces:
		return c, fmt.Errorf("%d places, want at most %d", len(c.Places), MaxPlaces)
	case len(c.Places) == 0:
		return c, errors.New("no places")
	case c.Copies > n && !c.Joins:
		return c, fmt.Errorf("%d copies, want at most as many as there are places, which are %d", c.Copies, n)
	case c.Copies+len(c.Places)-n > MaxCopies:
		return c, fmt.Errorf("%d copies and those at %d places that have every segment, want at most %d", c.Copies, len(c.Places)-n, MaxCopies)
	case c.Min < 1 || c.Min > c.Copies:
		return c, fmt.Errorf("at least %d copies, want 1 to the number of copies, which is %d", c.Min, c.Copies)
	case c.Late < 0 || c.RepairAfter < 0 || c.Ramp < 0:
		return c, errors.New("a time is negative")
	}
	if c.Keep != nil {
		if err := c.Keep.check(); err != nil {
			return c, err
		}
	}
	names := make(map[string]bool)
	for i, p := range c.Places {
		if err := p.check(names[p.Name], c.Keep != nil); err != nil {
			return c, fmt.Errorf("place %d: %w", i, err)
		}
		names[p.Name] = true
	}
	return c, nil
}

// check finds what is wrong with p, whose name may be taken, in a store that may be kept.
func (p *Place) check(taken, kept bool) error {
	_, reopens := p.Store.(Reopener)
	switch {
	case p.Every != strings.HasPrefix(p.Name, store.DiskName):
		return fmt.Errorf("%q begins with %q, or does not, which those do that have a copy of every segment", p.Name, store.DiskName)
	case p.Name == "" || taken:
		return fmt.Errorf("it is named %q, want a name of its own", p.Name)
	case p.Store == nil:
		return fmt.Errorf("%s has no store", p.Name)
	case kept && !reopens:
		return fmt.Errorf("%s does not keep what it lends", p.Name)
	case kept && strings.Contains(p.Name, between):
		return fmt.Errorf("%q has %q in its name", p.Name, between)
	}
	return nil
}

// Store is a store.Store whose segments have copies. It is a store.Mirror, a store.Computer and a store.Finder. With Config.Keep
// it has what a store.Keeper needs but the root.
type Store struct {
	cfg    Config
	proc   *turns.Process
	log    *slog.Logger
	places atomic.Pointer[[]*place] // changes under mu, to another slice
	counts counts

	bare atomic.Uint64 // how often a segment may have lost, or never had, its copy at a place that has every one
	full atomic.Uint64 // what bare was when each of them had

	ctx  context.Context
	stop context.CancelFunc
	wg   turns.Group // of what ends with the store

	rescan chan struct{} // capacity 1: something may have become of a copy
	told   int64         // how many segments were said to be lost; scan's

	mu        sync.Mutex
	segments  map[*segment]struct{} // guarded by mu
	next      uint64                // number of the next segment; guarded by mu
	queue     []*segment            // to be repaired; guarded by mu
	repairing int                   // goroutines that do; guarded by mu
	began     time.Time             // when the first of them did; guarded by mu
	sparing   bool                  // spare copies are being made; guarded by mu
	balancing bool                  // copies are being moved to where there is more room; guarded by mu
	scrubber  scrubber
	few       bool                 // fewer copies than there should be are being made; guarded by mu
	removed   [MaxPlaces]time.Time // when the place of an index was removed; guarded by mu
	reopened  map[uint64]bool      // numbers of segments that were; guarded by mu

	asked  atomic.Uint64 // how often there was a choice of places
	tokens atomic.Int64  // second reads that may be made, in hundredths
	used   atomic.Int64  // when somebody last read or wrote, in Unix nanoseconds
}

var (
	_ store.Mirror   = (*Store)(nil)
	_ store.Computer = (*Store)(nil)
	_ store.Finder   = (*Store)(nil)
)

// Open makes a store over the places of cfg, which stay the caller's. Close it when the heap has been closed.
func Open(cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("cannot keep copies: %w", err)
	}
	s := &Store{cfg: cfg, proc: cfg.Process, log: cfg.Logger, segments: make(map[*segment]struct{}), reopened: make(map[uint64]bool), rescan: make(chan struct{}, 1)}
	if cfg.Keep != nil {
		s.next = cfg.Keep.Epoch << 32
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	places := make([]*place, len(cfg.Places))
	for i, p := range cfg.Places {
		places[i] = newPlace(s, p, i)
	}
	s.places.Store(&places)
	s.wg.Go(s.proc, s.keep)
	return s, nil
}

// all are the places.
func (s *Store) all() []*place { return *s.places.Load() }

// named is the place of that name among all, or nil.
func named(all []*place, name string) *place {
	for _, p := range all {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Places returns the names of the places that share the copies out.
func (s *Store) Places() (names []string) {
	for _, p := range s.all() {
		if !p.Every {
			names = append(names, p.Name)
		}
	}
	return names
}

// leastRoom is how many segments there is room for where a late copy still closes one: with less, it is waited for. There would soon be no other
// segment to go on in, and what the heap keeps for its next checkpoint would be used up by segments in which there is little.
const leastRoom = 16

// patience is for how long a copy that follows others may be late.
func (s *Store) patience() time.Duration {
	if n, known := s.Room(); known && n < leastRoom {
		return max(s.cfg.Late, lateFull)
	}
	return s.cfg.Late
}

// Room is how many segments the places say that they could lend now with all their copies, if that is known.
func (s *Store) Room() (n int, known bool) {
	var space []int64
	for _, p := range s.all() {
		if st := p.state(); st.Usable && !st.Leaving && !st.Idle && !p.Every && !p.silent.Load() && p.State != nil {
			space = append(space, st.Space)
		}
	}
	if len(space) < s.cfg.Copies {
		return 0, false
	}
	slices.Sort(space)
	return int(space[len(space)-s.cfg.Copies] / int64(s.SegmentSize())), true
}

// forgotten is for how long nobody gets the index of a place that was removed: reads that know it have ended then.
const forgotten = time.Minute

// Add adds a place. It gets new copies little by little (Config.Ramp), but at once if there would otherwise be too few.
func (s *Store) Add(p Place) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all()
	if err := p.check(named(all, p.Name) != nil, s.cfg.Keep != nil); err != nil {
		return fmt.Errorf("cannot add a place: %w", err)
	}
	taken := s.removed
	now := s.proc.Now()
	for _, o := range all {
		taken[o.index] = now
	}
	i := slices.IndexFunc(taken[:], func(t time.Time) bool { return now.Sub(t) >= forgotten })
	if i < 0 {
		return fmt.Errorf("cannot add place %s: there are %d, or have been within %v, which is the most", p.Name, MaxPlaces, forgotten)
	}
	n := newPlace(s, p, i)
	n.joined = now
	all = append(slices.Clone(all), n)
	s.places.Store(&all)
	s.wake()
	s.log.Info("a place was added", "place", p.Name, "places", len(all))
	return nil
}

// ErrInUse: a place cannot be removed.
var ErrInUse = errors.New("place is in use")

// Remove removes the place of that name. It fails with ErrInUse if that can be used, has copies, or is the last one.
func (s *Store) Remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all()
	p := named(all, name)
	switch {
	case p == nil:
		return fmt.Errorf("cannot remove place %s: there is none of that name", name)
	case len(all) == 1:
		return fmt.Errorf("cannot remove place %s: %w: it is the only one", name, ErrInUse)
	case p.state().Usable:
		return fmt.Errorf("cannot remove place %s: %w: it can be used", name, ErrInUse)
	case p.segments()+int(p.awaited.Load()) > 0:
		return fmt.Errorf("cannot remove place %s: %w: it has %d copies", name, ErrInUse, p.segments()+int(p.awaited.Load()))
	}
	s.removed[p.index] = s.proc.Now()
	all = slices.DeleteFunc(slices.Clone(all), func(o *place) bool { return o == p })
	s.places.Store(&all)
	s.log.Info("a place was removed", "place", name, "places", len(all))
	return nil
}

// Close ends what the store does by itself. It gives nothing back, which is the heap's to do.
func (s *Store) Close() error {
	s.stop()
	s.wg.Wait(s.proc)
	return nil
}

// SegmentSize implements store.Store.
func (s *Store) SegmentSize() int { return s.all()[0].Store.SegmentSize() }

// Alloc implements store.Store: as many copies as there should be, or if places do not answer as many as can be had,
// down to Config.Min. It fails with store.ErrStoreFull if it is only for lack of memory that there are not
// enough.
func (s *Store) Alloc(ctx context.Context) (store.Segment, error) {
	g := &segment{store: s, lost: make(chan struct{})}
	cs, err := s.borrow(ctx, s.cfg.Copies, nil)
	if len(cs) < s.cfg.Copies && (errors.Is(err, store.ErrStoreFull) || len(cs) < s.cfg.Min || ctx.Err() != nil) {
		for _, c := range cs {
			c.place.giveBack(c.seg)
		}
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, store.ErrStoreFull):
			return nil, err
		case err == nil:
			err = errUnusable
		}
		return nil, fmt.Errorf("%w for %d copies: %w", ErrTooFew, s.cfg.Min, err)
	}
	cs = append(cs, s.borrowEvery(ctx, cs)...)
	g.copies.Store(&cs)
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.bare() {
		s.bare.Add(1)
	}
	s.next++
	g.number = s.next
	s.segments[g] = struct{}{}
	if few := len(cs) < s.cfg.Copies || g.bare(); few != s.few {
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
	seg   store.Segment // nil for one that is waited for
}

// lost reports whether the copy is lost.
func (c copyOf) lost() bool { return store.Gone(c.seg) }

var (
	errUnusable = errors.New("the others cannot be used now")
	errNeeded   = errors.New("the others lend what is idle, and their hosts need it now")
)

// borrow borrows up to n copies beside those that there are, at places of other zones if possible, and at such that are
// leaving only if there would otherwise be too few. If it gets fewer it says why; store.ErrStoreFull if a place that
// could be used has no memory. One that lends what is idle and has none is as one that cannot be used, unless there is no
// other: its host will not need the memory for ever.
func (s *Store) borrow(ctx context.Context, n int, beside []copyOf) (cs []copyOf, err error) {
	all := slices.Clone(beside)
	candidates := s.candidates()
	var needed error // why a place that lends what is idle has nothing to lend
	ordinary, most := len(shared(beside)), s.cfg.Copies
	for _, round := range []struct{ leaving, elsewhere bool }{{false, true}, {false, false}, {true, true}, {true, false}} {
		elsewhere := round.elsewhere // first in zones of their own
		for _, p := range candidates {
			if len(cs) == n {
				return cs, nil
			}
			if p.state().Leaving != round.leaving || round.leaving && ordinary >= most || p.Every {
				continue
			}
			if slices.ContainsFunc(all, func(c copyOf) bool { return c.place == p || elsewhere && c.place.zone() == p.zone() }) || !p.usable() {
				continue
			}
			seg, e := p.alloc(ctx)
			if errors.Is(e, store.ErrStoreFull) && s.makeWay(ctx, p) {
				seg, e = p.alloc(ctx)
			}
			switch {
			case e == nil:
				c := copyOf{p, seg}
				cs, all = append(cs, c), append(all, c)
				ordinary++
			case errors.Is(e, store.ErrStoreFull) && p.state().Idle:
				needed = e
			case err == nil || errors.Is(e, store.ErrStoreFull):
				err = e
			}
		}
	}
	switch {
	case len(cs) == n:
		err = nil
	case err != nil || needed == nil:
	case len(all) == 0:
		err = needed
	default:
		err = errNeeded
	}
	return cs, err
}

// shared are the copies at places that do not have every segment.
func shared(cs []copyOf) (at []copyOf) {
	for _, c := range cs {
		if !c.place.Every {
			at = append(at, c)
		}
	}
	return at
}

// borrowEvery borrows copies at those places that have every segment and none of beside. What cannot be had now is made up for later.
func (s *Store) borrowEvery(ctx context.Context, beside []copyOf) (cs []copyOf) {
	for _, p := range s.all() {
		if !p.Every || !p.usable() || p.isFull() || slices.ContainsFunc(beside, func(c copyOf) bool { return c.place == p }) {
			continue
		}
		seg, err := p.alloc(ctx)
		if err == nil {
			cs = append(cs, copyOf{p, seg})
		} else if ctx.Err() == nil {
			p.refused()
			s.log.Warn("a place that is to have a copy of everything takes no more for now: what is there stays, and what is new is endangered until it has been copied there", "place", p.Name, "error", err)
		}
	}
	return cs
}

// candidates are the places that can be used, that which has most to lend first; but last those that lend what is
// idle, and those that have just been added, when it is not their turn.
func (s *Store) candidates() []*place {
	type candidate struct {
		p     *place
		space int64
		waits bool
		idle  bool
	}
	var all []candidate
	now, n := s.proc.Now(), s.asked.Add(1)
	for _, p := range s.all() {
		if st := p.state(); st.Usable && !p.silent.Load() {
			all = append(all, candidate{p, st.Space, !hasTurn(n, now.Sub(p.joined), s.cfg.Ramp), st.Idle})
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		switch {
		case a.waits != b.waits:
			if b.waits {
				return -1
			}
			return 1
		case a.idle != b.idle:
			if b.idle {
				return -1
			}
			return 1
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

// hasTurn reports whether a place that was added so long ago takes part in the nth choice: in the part of them
// that has passed of the ramp, spread evenly.
func hasTurn(n uint64, since, ramp time.Duration) bool {
	_, turn := math.Modf(float64(n) * (math.Phi - 1))
	return turn < float64(since)/float64(ramp)
}
