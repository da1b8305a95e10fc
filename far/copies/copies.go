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

// ErrTooFew: fewer than Config.Min copies can be had.
var ErrTooFew = errors.New("too few places answer")

// A Place is where copies lie. No two copies of a segment lie at the same place.
type Place struct {
	// Name is what statistics and messages call it, unique in the store.
	Name string
	// Zone returns the name of what fails together with the place, such as a rack, or "" if the place fails alone.
	// The zone may not be known before the place has been used. A nil Zone is "".
	Zone func() string
	// Store lends the memory of this place alone. The segments of all places have one size.
	Store store.Store
	// State says how the place is. It must not wait. A place whose State is nil can always be used, and has room
	// without limit.
	State func() State
	// Every gives the place a copy of every segment, as long as it can be used and has room. This copy is beside the
	// Config.Copies that lie at the other places, and is read only if no other place answers: the place is a disk,
	// which survives what memory does not. Its name begins with store.DiskName.
	Every bool
}

// State is how a place is.
type State struct {
	Usable bool
	// Leaving: the place is about to end. Its copies are moved to other places. It gets a new copy only where a
	// segment would otherwise have too few.
	Leaving bool
	// Idle: the place lends memory that its host does not need now, but may need later. It gets spare copies, which
	// are beside those that a segment is to have and which it may drop at any time; its segments are Vanishers. It
	// gets copies that count only where other places have no room, and these are moved when it is Leaving.
	Idle  bool
	Space int64 // bytes that the place has to lend, as far as is known
}

// Config says what a Store keeps where.
type Config struct {
	// Places are where copies may lie, at least one. Store.Add adds more.
	Places []Place
	// Copies is how many copies each segment is to have, by default DefaultCopies. It is at most the number of places
	// without Every, unless Joins is set.
	Copies int
	// Joins says that places will be added later, so at first there may be fewer places than Copies.
	Joins bool
	// Ramp is for how long a place that was added gets fewer new copies than its room would give it, by default
	// DefaultRamp. Its share grows from nothing to all that its room would give it: otherwise an empty place would
	// get all new copies.
	Ramp time.Duration
	// Min is how many copies a segment must have for a write to it to count, by default 1. While places do not
	// answer, the store goes on with fewer than Copies, and makes the missing ones later.
	Min int
	// Late is for how long a copy may be behind the first one, by default DefaultLate. Where the places have little
	// room left it is at least half a second.
	Late time.Duration
	// RepairAfter is how long a place may be unusable until its copies count as lost, by default DefaultRepairAfter.
	RepairAfter time.Duration
	// Keep, if it is not nil, makes borrowed segments outlive this process. The stores of all places must then be
	// Reopeners.
	Keep *Keep
	// Logger is told what happens to places and copies; by default nothing is logged.
	Logger *slog.Logger
	// Process runs the store: nil, or a simulated process.
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
	n := 0 // places that are not Every
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

// check returns what is wrong with p, or nil. taken says that another place has its name already, kept that the store
// has a Config.Keep.
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

// Store is a store.Store whose segments have copies. It is a store.Mirror, a store.Computer and a store.Finder. With
// Config.Keep it has all that a store.Keeper needs except the root.
type Store struct {
	cfg    Config
	proc   *turns.Process
	log    *slog.Logger
	places atomic.Pointer[[]*place] // replaced by another slice, under mu
	counts counts

	bare atomic.Uint64 // raised whenever a segment may lack, or may have lost, its copy at a place with Every
	full atomic.Uint64 // a value of bare at which every segment had these copies

	ctx  context.Context
	stop context.CancelFunc
	wg   turns.Group // goroutines that end with the store

	rescan chan struct{} // capacity 1: something may have happened to a copy
	told   int64         // how many lost segments scan has logged; only scan uses it

	mu        sync.Mutex
	segments  map[*segment]struct{} // guarded by mu
	next      uint64                // number of the next segment; guarded by mu
	queue     []*segment            // segments to be repaired; guarded by mu
	repairing int                   // goroutines that repair; guarded by mu
	began     time.Time             // when the first of these goroutines began; guarded by mu
	sparing   bool                  // spare copies are being made; guarded by mu
	balancing bool                  // copies are being moved to where there is more room; guarded by mu
	scrubber  scrubber
	judging   judging
	few       bool                 // the newest segment got fewer copies than it should; guarded by mu
	removed   [MaxPlaces]time.Time // when the place of an index was removed; guarded by mu
	reopened  map[uint64]bool      // numbers of the segments that were reopened; guarded by mu

	asked  atomic.Uint64 // how often candidates was called
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

// all returns the places.
func (s *Store) all() []*place { return *s.places.Load() }

// named returns the place with that name among all, or nil.
func named(all []*place, name string) *place {
	for _, p := range all {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Places returns the names of the places that share the copies out, which are those without Every.
func (s *Store) Places() (names []string) {
	for _, p := range s.all() {
		if !p.Every {
			names = append(names, p.Name)
		}
	}
	return names
}

// leastRoom: if the places have room for fewer segments than this, a late copy does not close its segment so soon: it
// is waited for longer, see patience. Otherwise there would soon be no other segment to go on in, and segments that
// hold little would use up what the heap keeps for its next checkpoint.
const leastRoom = 16

// patience is how long a copy may be behind the first one before it is late.
func (s *Store) patience() time.Duration {
	if n, known := s.Room(); known && n < leastRoom {
		return max(s.cfg.Late, lateFull)
	}
	return s.cfg.Late
}

// Room returns how many segments, each with all its copies, the places say that they could lend now. If fewer than
// Config.Copies places say what room they have, known is false. Places with Every, and places that cannot be used,
// are leaving or lend idle memory, are left out.
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

// forgotten is how long the index of a removed place stays unused. By then, the reads that know the index have ended.
const forgotten = time.Minute

// Add adds a place. It gets new copies little by little (Config.Ramp), but gets them at once where a segment would
// otherwise have too few.
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

// ErrInUse: the place cannot be removed.
var ErrInUse = errors.New("place is in use")

// Remove removes the place of that name. It fails with ErrInUse if the place can be used, has copies, has copies that
// segments wait for, or is the only place.
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

// Close stops what the store does in the background. It gives no segments back: that is up to the heap.
func (s *Store) Close() error {
	s.stop()
	s.wg.Wait(s.proc)
	return nil
}

// SegmentSize implements store.Store.
func (s *Store) SegmentSize() int { return s.all()[0].Store.SegmentSize() }

// Alloc implements store.Store. It borrows Config.Copies copies or, if places do not answer, as many as it can get,
// but at least Config.Min. If it gets fewer than Config.Copies because a place that can be used has no memory, it
// fails with store.ErrStoreFull: see borrow.
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
	seg   store.Segment // nil for a copy of which only the place is known: see segment.waiting
}

// lost reports whether the copy is lost.
func (c copyOf) lost() bool { return store.Gone(c.seg) }

var (
	errUnusable = errors.New("the others cannot be used now")
	errNeeded   = errors.New("the others lend what is idle, and their hosts need it now")
)

// borrow borrows up to n copies at places where no copy of beside is, in other zones if possible. It borrows at
// places that are leaving only if the segment would otherwise have fewer than Config.Copies. If it gets fewer than n,
// err is the reason: store.ErrStoreFull if a place that can be used has no memory, or nil if no other place can be
// used. A place that lends idle memory and has none left counts as a place that cannot be used, since its host will
// not need the memory for ever; but if there is no copy at all, err is store.ErrStoreFull.
func (s *Store) borrow(ctx context.Context, n int, beside []copyOf) (cs []copyOf, err error) {
	all := slices.Clone(beside)
	candidates := s.candidates()
	var needed error // why a place that lends idle memory has none to lend
	ordinary, most := len(shared(beside)), s.cfg.Copies
	for _, round := range []struct{ leaving, elsewhere bool }{{false, true}, {false, false}, {true, true}, {true, false}} {
		elsewhere := round.elsewhere // first only in zones that have no copy yet
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
			seg, e := s.allocAt(ctx, p)
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

// allocAt borrows a segment of p for a copy that counts: if p is full, spare copies make way for it.
func (s *Store) allocAt(ctx context.Context, p *place) (store.Segment, error) {
	seg, err := p.alloc(ctx)
	if errors.Is(err, store.ErrStoreFull) && s.makeWay(ctx, p) {
		return p.alloc(ctx)
	}
	return seg, err
}

// shared returns those of cs that are at places without Every.
func shared(cs []copyOf) (at []copyOf) {
	for _, c := range cs {
		if !c.place.Every {
			at = append(at, c)
		}
	}
	return at
}

// borrowEvery borrows copies at the places with Every that have none of beside. Copies that cannot be had now are
// made later.
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

// candidates returns the places that can be used, those with most to lend first. Places that lend idle memory come
// after the others. Places that were just added come last, unless it is their turn (hasTurn).
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

// hasTurn reports whether a place that was added since ago takes part in the nth choice of places. The share of the
// choices in which it takes part is the share of the ramp that has passed, and is spread evenly.
func hasTurn(n uint64, since, ramp time.Duration) bool {
	_, turn := math.Modf(float64(n) * (math.Phi - 1))
	return turn < float64(since)/float64(ramp)
}
