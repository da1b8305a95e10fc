package heap

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"polder/internal/arena"
	"polder/internal/goroutine"
	"polder/internal/invariants"
	"polder/internal/processor"
)

// A Scope is what dereferencing takes (the paper's section 4.2.2): what Deref returns is valid until the scope is left,
// since the evacuator moves no object that may be in use under an open one. Entering and leaving take about a
// nanosecond, so that a scope for every access is affordable; a scope that is left late holds up the evacuator.
//
// A Scope belongs to one user at a time, usually a goroutine: make one with Heap.NewScope, keep it, and Enter and Leave
// it around every piece of work. It may be handed to another goroutine, open or not, as anything may that is not safe
// for concurrent use: by a channel, or under a lock. Entering an open scope nests.
//
// Enter may wait while memory is scarce. So a lock that is held while a scope is
// entered must not be waited for in a scope: enter first, and lock then.
//
// While the scope is open, whoever holds it must not wait for something that needs local memory elsewhere, such as
// Heap.SetLocal or a New that may wait: if such a call has to wait and the evacuator waits for the scope, it fails
// with ErrScopeOpen. (A scope of NewScope is taken to be held by the goroutine that first entered it.)
type Scope struct {
	// open is the epoch in which the scope was entered, 0 if it is closed.
	// Written by the holder, read by the evacuator.
	open int64
	// extra says why leaving takes the slow path; the scopeXxx flags. Written
	// by the holder, and by the janitor with atomics.
	extra uint32
	epoch *int64 // scopes.epoch; in a scope of NewScope scopes.unused until it is entered; the holder's
	H     *Heap  // immutable

	// The rest is the holder's.
	depth int // how often it was entered while it was open
	held  held
	used  int // bytes of local memory taken since it was entered
	share int // bytes of the reserve that are its own, if it has been admitted
	npins int

	// pins are the addresses of marked objects that the holder uses in place.
	// Written by the holder, read by the evacuator.
	pins [scopePins]atomic.Uintptr

	views  [scopePins]*LogSegment // segments of which the holder uses locked records in place; the holder's
	nviews int                    // the holder's

	made    uintptr       // pc of who made it; immutable
	user    atomic.Uint64 // the goroutine that entered it first; 0 before that, and if it is of the pool
	since   atomic.Int64
	watched int64 // the epoch in which the janitor saw it open; the janitor's
	warned  bool  // the janitor's

	_ [64]byte // nobody else's cache line
}

// held is what the holder of a scope has in it. It is the holder's.
type held struct {
	Err  error // of the first Deref that failed
	Ctx  context.Context
	Last bool // it takes nothing from the reserve before it has waited for room in vain
	With any  // what the host keeps with the scope
}

// HostOf returns whose heap s is of.
func HostOf(s *Scope) Host { return s.H.host }

// IsOpen reports whether s is open.
func IsOpen(s *Scope) bool { return s.isOpen() }

// HeldIn returns what the holder of s has in it.
func (h *Heap) HeldIn(s *Scope) *held { return &s.held }

// scopePins is how many marked objects a scope can use in place, and how many segments it can keep by View. The
// evacuator's pass spares further marked objects that it meets.
const scopePins = 8

const (
	scopeNested     uint32 = 1 << iota // depth is not 0
	scopePinned                        // npins is not 0
	scopeViews                         // nviews is not 0
	scopeUsed                          // used is not 0
	ScopeCounted                       // it is one of scopes.admitted
	scopeLate                          // the janitor wants to know where it is left
	scopeUnadmitted                    // it was let in without memory
)

// epochScarce, the sign, is set in the epoch while entering has to take the slow path: memory is scarce, every scope
// has to be admitted, or there is no membarrier(2).
const epochScarce int64 = math.MinInt64

// Err returns why a Deref in this scope returned nil: the reason of the first that did since the last call of Err.
// Leaving the scope does not reset it.
func (s *Scope) Err() error {
	err := s.held.Err
	s.held.Err = nil
	if err == nil && s.H.Shut.Load() {
		return ErrClosed
	}
	return err
}

// SetContext bounds what fetches in the scope wait for. It may be called at any time by the holder; the context stays
// until it is replaced. Without one, fetches end after 10 s.
func (s *Scope) SetContext(ctx context.Context) { s.held.Ctx = ctx }

// Fail makes err what Err returns, if there is none yet.
func (h *Heap) Fail(s *Scope, err error) {
	if s.held.Err == nil {
		s.held.Err = err
	}
}

// setExtra adds or removes flags.
func (s *Scope) setExtra(f uint32)   { atomic.OrUint32(&s.extra, f) }
func (s *Scope) ClearExtra(f uint32) { atomic.AndUint32(&s.extra, ^f) }

// scopes is a heap's register of scopes and its epoch.
type scopes struct {
	// epoch counts the evacuator's passes, from 1; with epochScarce.
	epoch int64
	_     [56]byte

	Fenced bool // entering needs no fence of its own; immutable

	// unused is the epoch of scopes of NewScope that were never entered. It has epochScarce, so that the first Enter
	// takes the slow path, which finds out the goroutine. Immutable.
	unused int64

	Mu       sync.Mutex
	all      []*Scope
	least    int       // bytes that every scope may take for certain; immutable
	limit    int       // most is not above it, under Mu
	most     int       // the most that a scope has taken lately, at least least; under Mu
	admitted int       // how many scopes are admitted, while scopes have to be, under Mu
	Queue    []*Ticket // those who wait for an admitted scope to be left, in order, under Mu
	called   int       // those whose turn has come and who are not in yet, under Mu
	tickets  uint64    // number of the last one, under Mu

	scarce  bool // what the logs say, under Logs.Mu
	Counted bool // there are so many that they have to be admitted, under Logs.Mu

	// early says that scopes may still be open that were entered before scopes had to be admitted, under Mu.
	early bool

	// allowance is how many bytes of the reserve a scope may take if it need not be admitted: the last target for
	// which the reserve was enough. Written under Logs.Mu.
	allowance atomic.Int64
	target    int64 // what allowance is to become, under Logs.Mu

	peak  int         // the most that a scope has taken since the last decay, under Mu
	pools []scopePool // by processor
}

// scopePool is scopes that nobody holds.
type scopePool struct {
	mu   sync.Mutex
	free []*Scope
	_    [32]byte
}

func (sc *scopes) init(least int) {
	sc.least, sc.most = least, least
	sc.allowance.Store(int64(least))
	sc.epoch = 1
	sc.unused = epochScarce | 1
	sc.Fenced = !asymmetric || arena.CanMembarrier() == nil
	if !sc.Fenced {
		atomic.OrInt64(&sc.epoch, epochScarce)
	}
	sc.pools = make([]scopePool, min(max(runtime.GOMAXPROCS(0), 1), 64))
}

// Now is the epoch without epochScarce.
func (sc *scopes) Now() int64 { return atomic.LoadInt64(&sc.epoch) &^ epochScarce }

// Advance begins another epoch.
func (sc *scopes) Advance() int64 { return atomic.AddInt64(&sc.epoch, 1) &^ epochScarce }

// Begin begins another epoch and fences: a scope that Passed does not yet see as open sees all that was stored before
// Begin.
func (sc *scopes) Begin() int64 {
	epoch := sc.Advance()
	if sc.Fenced {
		if err := Fence(); err != nil {
			panic("BUG: " + err.Error()) // it has worked before
		}
	}
	return epoch
}

// NewScope makes a scope, which Scope.Close forgets. Messages say that its caller made it, or the caller that is skip
// levels further up. A heap keeps some of its memory in reserve for every scope there is, so make a scope for every
// worker and not for every request; Do has a pool of scopes.
func (h *Heap) NewScope(skip int) *Scope {
	s := h.newScope(skip)
	s.epoch = &h.Scopes.unused
	return s
}

func (h *Heap) newScope(skip int) *Scope {
	s := &Scope{H: h, epoch: &h.Scopes.epoch, held: held{Ctx: context.Background()}}
	var pc [1]uintptr
	if runtime.Callers(3+skip, pc[:]) > 0 {
		s.made = pc[0]
	}
	sc := &h.Scopes
	sc.Mu.Lock()
	sc.all = append(sc.all, s)
	sc.Mu.Unlock()
	h.reserveForScopes()
	return s
}

// Close forgets the scope, which must have been left.
func (s *Scope) Close() {
	if s.isOpen() {
		panic("BUG: a far.Scope is closed that has not been left")
	}
	sc := &s.H.Scopes
	sc.Mu.Lock()
	for i, o := range sc.all {
		if o == s {
			last := len(sc.all) - 1
			sc.all[i] = sc.all[last]
			sc.all[last] = nil
			sc.all = sc.all[:last]
			break
		}
	}
	sc.Mu.Unlock()
	s.H.reserveForScopes()
}

// Acquire returns a scope of the pool, for a call that has none.
func (h *Heap) Acquire(ctx context.Context) *Scope {
	p := &h.Scopes.pools[processor.Number()%len(h.Scopes.pools)]
	p.mu.Lock()
	var s *Scope
	if n := len(p.free); n > 0 {
		s = p.free[n-1]
		p.free = p.free[:n-1]
	}
	p.mu.Unlock()
	if s == nil {
		s = h.newScope(0)
	}
	s.held.Ctx = ctx
	return s
}

// EnterAtOnce enters s for the sake of one object, whether there is memory for it or not. As long as held.Last is
// set, s takes nothing that other scopes have been promised; the holder clears Last if there is no other way.
func (h *Heap) EnterAtOnce(s *Scope) { atomic.StoreInt64(&s.open, h.Scopes.Now()) }

// One calls fn in a scope of the pool, for one object. If there was no local memory for the object, One waits for some
// and calls fn again. Unlike Enter, it waits for the evacuator only if fn needs memory: the caller may hold locks.
func (h *Heap) One(ctx context.Context, fn func(s *Scope)) error {
	s := h.Acquire(ctx)
	defer h.Release(s)
	s.held.Last = true
	for try := 0; ; try++ {
		h.EnterAtOnce(s)
		fn(s)
		err := s.Err()
		s.Leave()
		if err == nil || !errors.Is(err, ErrScopeFull) {
			return err
		}
		if err := h.AwaitRoomIn(ctx, s, try); err != nil {
			return err
		}
	}
}

// AwaitRoomIn waits until s, which has been left and got no memory for something, may try again. If there is no room
// soon, it lets s use the reserve: the store may be full, and what s reads drops out of local memory again; or the
// evacuator may wait for a scope that the caller holds.
func (h *Heap) AwaitRoomIn(ctx context.Context, s *Scope, try int) error {
	if !s.held.Last {
		err := h.RoomSoon(ctx)
		if try < fullTries && errors.Is(err, ErrFull) {
			h.Logs.retry() // the reserve may be whole again
			return nil
		}
		return err
	}
	soon, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := h.WaitRoom(soon); err == nil || ctx.Err() != nil || errors.Is(err, ErrClosed) {
		return err
	}
	s.held.Last = false
	return nil
}

// Release gives back a scope that Acquire has returned. It has been left, unless its user panics.
func (h *Heap) Release(s *Scope) {
	for s.isOpen() {
		s.Leave()
	}
	s.held.Err, s.held.Ctx, s.held.Last = nil, context.Background(), false
	p := &h.Scopes.pools[processor.Number()%len(h.Scopes.pools)]
	p.mu.Lock()
	p.free = append(p.free, s)
	p.mu.Unlock()
}

// Do calls fn in a scope of the heap's pool with ctx, and returns the error of fn or, if that is nil, of the scope.
// If the scope got no local memory because others use it, Do leaves the scope, waits for some, and calls fn again: fn
// must be fit to be called several times.
func (h *Heap) Do(ctx context.Context, fn func(s *Scope) error) error {
	s := h.Acquire(ctx)
	defer h.Release(s)
	full := false
	for try := 0; ; try++ {
		if full {
			h.EnterAtOnce(s) // Enter would let it in without memory
		} else {
			s.Enter()
		}
		err := s.call(fn)
		if e := s.Err(); err == nil || errors.Is(e, ErrScopeFull) {
			err = e
		}
		if err == nil || try >= ScopeTries || !errors.Is(err, ErrScopeFull) {
			return err
		}
		if err := h.RoomSoon(ctx); try < fullTries && errors.Is(err, ErrFull) {
			full = true // use the reserve, as One does: what is read into it drops out again
			h.Logs.retry()
		} else if err != nil {
			return err
		}
	}
}

const ScopeTries = 16

// fullTries is how often a call in a full heap tries again to use the reserve: what was read into the reserve drops
// out of it.
const fullTries = 8

// RoomSoon waits until the evacuator has made room, or ctx ends, but no longer than StoreTimeout if ctx has no
// deadline.
func (h *Heap) RoomSoon(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, StoreTimeout)
		defer cancel()
	}
	return h.WaitRoom(ctx)
}

// call calls fn and leaves s, even if fn panics.
func (s *Scope) call(fn func(s *Scope) error) error {
	defer s.Leave()
	return fn(s)
}

// enterSlow enters a scope that Enter does not: one that is open already, or is entered for the first time, or any
// scope while entering takes the slow path (see epochScarce).
//
//go:noinline
func (s *Scope) enterSlow() {
	if s.isOpen() {
		s.depth++
		s.setExtra(scopeNested)
		return
	}
	if sc := &s.H.Scopes; s.epoch == &sc.unused {
		s.epoch = &sc.epoch
		s.user.Store(goroutine.Number())
	}
	if atomic.LoadInt64(s.epoch) < 0 {
		s.H.admit(s)
	}
	atomic.StoreInt64(&s.open, s.H.Scopes.Now()) // atomic, as a fence, in case the evacuator cannot fence
}

// leaveSlow leaves a scope in which something happened.
//
//go:noinline
func (s *Scope) leaveSlow() {
	if invariants.Enabled && !s.isOpen() {
		panic("BUG: a far.Scope is left that was not entered")
	}
	if s.depth > 0 {
		if s.depth--; s.depth == 0 {
			s.ClearExtra(scopeNested)
		}
		return
	}
	x := atomic.LoadUint32(&s.extra)
	if x&scopeLate != 0 {
		s.reportLate()
	}
	if x&scopePinned != 0 {
		for i := range s.npins {
			s.pins[i].Store(0)
		}
		s.npins = 0
	}
	if x&scopeViews != 0 {
		s.H.endViews(s)
	}
	used := s.used
	s.used = 0
	s.ClearExtra(^uint32(0))
	atomic.StoreInt64(&s.open, 0)
	if x&ScopeCounted != 0 {
		s.H.Scopes.Dismiss()
	}
	if used > 0 {
		s.H.learn(used)
	}
}

// Claim charges n bytes of local memory to s, and says on whose behalf they may be taken. A nil s stands for a call
// that is in no scope.
func (h *Heap) Claim(s *Scope, n int) Claim {
	if s == nil {
		return ForMutator
	}
	s.used += n
	s.setExtra(scopeUsed)
	if s.entitled() {
		return ForScope
	}
	return ForMutator
}

// MustBeOpen panics if s is closed: an object that is dereferenced in it may move while it is used. Builds without
// invariants check this only when an object is not simply there, which is most of the time when local memory is
// short; builds with invariants check it every time.
func (h *Heap) MustBeOpen(s *Scope) {
	if !s.isOpen() {
		panic("BUG: a far object is dereferenced or made in a scope that is not open: call Scope.Enter before, and Scope.Leave when it is not used any more; or use Heap.Do, or Load and Store, which need no scope")
	}
}

// Pin publishes that s uses the marked object at addr in place. It fails if s has too many pins.
func (h *Heap) Pin(s *Scope, addr uintptr) bool {
	for i := range s.npins {
		if s.pins[i].Load() == addr {
			return true
		}
	}
	if s.npins == scopePins {
		return false
	}
	s.setExtra(scopePinned)
	s.pins[s.npins].Store(addr)
	s.npins++
	return true
}

// viewedShare bounds the segments in which scopes use locked records in place, each counted for every scope: together
// they may have one part in viewedShare of the budget.
const viewedShare = 8

// View keeps the bytes of the locked record at addr as they are until s is left: the evacuator leaves its segment
// alone, and the owner must not write to the record (see Viewed). It fails if scopes keep as much already as they may.
//
// Preconditions: the lock of the record's owner is held, and the record is alive.
func (h *Heap) View(s *Scope, addr uint64) bool {
	l := &h.Logs
	seg := l.Seg(addr)
	for _, o := range s.views[:s.nviews] {
		if o == seg {
			return true
		}
	}
	if s.nviews == scopePins {
		return false
	}
	if l.views.Add(1)*int64(l.SegSize) > h.Budget.Load()/viewedShare {
		l.views.Add(-1)
		return false
	}
	seg.views.Add(1)
	s.setExtra(scopeViews)
	s.views[s.nviews] = seg
	s.nviews++
	return true
}

// endViews lets the evacuator have the segments that s has kept.
func (h *Heap) endViews(s *Scope) {
	l := &h.Logs
	for i, seg := range s.views[:s.nviews] {
		l.views.Add(-1)
		if seg.views.Add(-1) == 0 && !l.ample.Load() {
			l.Wake()
		}
		s.views[i] = nil
	}
	s.nviews = 0
}

// each calls fn for every scope.
func (sc *scopes) each(fn func(s *Scope)) {
	sc.Mu.Lock()
	defer sc.Mu.Unlock()
	for _, s := range sc.all {
		fn(s)
	}
}

// Passed reports whether every scope that was open in an epoch before this one has been left.
func (sc *scopes) Passed(epoch int64) bool {
	sc.Mu.Lock()
	defer sc.Mu.Unlock()
	for _, s := range sc.all {
		if e := atomic.LoadInt64(&s.open); e != 0 && e < epoch {
			return false
		}
	}
	return true
}

// NoRoom returns err; but ErrNoRoom it turns into an ErrScopeFull that names the n bytes that the scope wanted, and
// what it has taken already.
func (h *Heap) NoRoom(s *Scope, err error, n int) error {
	if err != ErrNoRoom {
		return err
	}
	return fmt.Errorf("cannot have %d bytes of local memory beside the %d that the scope has taken: %w", n, s.used, ErrScopeFull)
}
