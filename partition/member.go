package partition

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"polder/holder"
)

// Defaults of a Config.
const (
	DefaultBeat     = time.Second
	DefaultPatience = 4 * time.Second
)

// How often a member looks at the register while a partition is on its way to it, and while a server is overdue; and how long it waits at first, and at most, before it
// tries again what has failed.
const (
	pollEvery  = 10 * time.Millisecond
	watchEvery = 50 * time.Millisecond
	firstPause = 10 * time.Millisecond
	mostPause  = 5 * time.Second
)

// Config says who joins, and what it does with partitions.
//
// Open, Prepare and Close are called in goroutines of their own, for different partitions at the same time, for one partition one after the other.
type Config struct {
	// Register has the map. It stays the caller's, who closes it after the Member.
	Register holder.Register
	// ID is this server's: 40 hexadecimal digits in lower case, and no other server's. A server that is started again may have the same one.
	ID string
	// Addr is HOST:PORT for clients.
	Addr string
	// Partitions is how many there are, up to MaxPartitions. 0 is as many as the map has, and an error if there is no map yet.
	Partitions int
	// Beat is how often the server changes its beat in the map, by default DefaultBeat.
	Beat time.Duration
	// Patience is for how long another server's beat must not have changed until it is taken out, by default DefaultPatience, at least three
	// times Beat. It should be the same at all servers.
	Patience time.Duration

	// Open makes the partition served here. It is called when the partition is to come next: it prepares for it, and waits until
	// mine is closed, when the partition is this server's. The owner before gives it up only then, so Open waits for that, too.
	// If it fails it is called again, after pauses that grow up to 5 s. ctx ends when the partition is
	// to be another server's, or Member.Close is called.
	Open func(ctx context.Context, p int, mine <-chan struct{}) error
	// Prepare, if set, is called before a partition is handed over, while it is still served: it makes Close quick.
	// If it fails the partition is handed over anyway. ctx ends as that of Open.
	Prepare func(ctx context.Context, p int) error
	// Close ends the serving of a partition that Open has opened and gives it up, so that the next owner can have it at once. An error
	// is logged, and the partition counts as closed. ctx ends when that of Member.Close does.
	Close func(ctx context.Context, p int) error
	// Spent, if set, is how much time has been spent on what clients ask of partition p since Open has opened it. Partitions move because of it. If
	// a server does not have it, no partition moves because of load.
	Spent func(p int) time.Duration
	// Vacant, if set, is asked about a value of the register that is not a map when the server joins: whether it may be replaced by one, and above which
	// epoch.
	Vacant func(value []byte) (epoch uint64, ok bool)
	// Changed, if set, is called with each map that is another one than before, except for beats: one call at a time. It must neither wait nor change the map.
	Changed func(m *Map)
	// Logger gets what becomes of servers and partitions; by default nothing is logged.
	Logger *slog.Logger
}

// CountError says that the map has another number of partitions than was wanted.
type CountError struct{ Have, Want int }

func (e *CountError) Error() string {
	return fmt.Sprintf("the map has %d partitions, want %d", e.Have, e.Want)
}

// Member is a server's membership in the map. All methods may be called by any number of goroutines.
type Member struct {
	cfg      Config
	changing chan struct{} // capacity 1: who has put something in changes the map

	ctx   context.Context // ends when no partition is opened or handed over any more
	stop  context.CancelFunc
	life  context.Context // ends when Config.Close is not to take longer
	abort context.CancelFunc
	wg    sync.WaitGroup

	gone    chan struct{} // closed when the map was removed
	removed func()        // closes gone, once

	leaving  atomic.Bool
	once     sync.Once // of Close
	closeErr error     // set by once

	installing sync.Mutex // held while a map is installed and Config.Changed is told
	m          atomic.Pointer[Map]

	mu      sync.Mutex
	version uint64            // of m in the register; guarded by mu, m changes with it
	doubt   chan struct{}     // capacity 1: see Doubt
	renewed chan struct{}     // closed and replaced with each version; guarded by mu
	beat    uint64            // the last one of this server; guarded by changing
	seen    map[string]beatOf // by the ID of the server; guarded by mu
	looked  time.Time         // when the register was seen last; guarded by mu
	parts   map[int]*served   // that are opened, served or closed here; guarded by mu
	planned map[int]uint64    // by the number of a partition, the beat of the next owner when the move was seen first; guarded by mu
	handing int               // the partition that is being handed over, or nobody; guarded by mu

	meters  map[int]*meter       // of the partitions that are open here; guarded by changing
	pressed map[string]time.Time // by ID, since when servers have had too much to do; guarded by mu
	moved   map[int]time.Time    // when partitions were seen to have got their owners; guarded by mu
}

// beatOf is a beat of another server, and since when it has not changed as far as is known here.
type beatOf struct {
	beat  uint64
	since time.Time
}

// Join adds this server to the map, which it creates if there is none. It fails with a *CountError if there is another number of partitions
// than cfg wants, and if the register's value is not a map.
func Join(ctx context.Context, cfg Config) (*Member, error) {
	if cfg.Beat == 0 {
		cfg.Beat = DefaultBeat
	}
	if cfg.Patience == 0 {
		cfg.Patience = DefaultPatience
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if err := checkServer(cfg.ID, cfg.Addr); err != nil {
		return nil, fmt.Errorf("cannot join: %w", err)
	}
	if cfg.Partitions < 0 || cfg.Partitions > MaxPartitions || cfg.Beat < 0 || cfg.Patience < 3*cfg.Beat {
		return nil, fmt.Errorf("cannot join with %d partitions, a beat of %v and a patience of %v: want up to %d, and a patience of at least three beats",
			cfg.Partitions, cfg.Beat, cfg.Patience, MaxPartitions)
	}
	m := &Member{
		cfg: cfg, changing: make(chan struct{}, 1), doubt: make(chan struct{}, 1), renewed: make(chan struct{}), beat: uint64(rand.Uint32()),
		gone: make(chan struct{}), seen: map[string]beatOf{}, parts: map[int]*served{}, planned: map[int]uint64{}, handing: nobody,
		moved: map[int]time.Time{},
	}
	m.ctx, m.stop = context.WithCancel(context.Background())
	m.removed = sync.OnceFunc(func() { close(m.gone) })
	m.life, m.abort = context.WithCancel(context.Background())
	if err := m.change(ctx, m.live); err != nil {
		m.halt()
		return nil, fmt.Errorf("cannot join: %w", err)
	}
	m.wg.Go(m.run)
	return m, nil
}

// Map is the map as it was last seen. It must not be changed.
func (m *Member) Map() *Map { return m.m.Load() }

// Removed is closed when there is no map any more. The member then does nothing but to end what it serves, when it is closed.
func (m *Member) Removed() <-chan struct{} { return m.gone }

// Gone reads the register, and reports whether there is no server with that ID in the map any more. It is false if that cannot be known.
func (m *Member) Gone(ctx context.Context, id string) bool {
	now, _, err := m.look(ctx)
	if err != nil {
		return false
	}
	_, ok := now.Server(id)
	return !ok
}

// Doubt says that a server has not got what the map says, or is not there: the map is read soon.
func (m *Member) Doubt() {
	select {
	case m.doubt <- struct{}{}:
	default:
	}
}

// run beats, and looks at the register more often while a partition is on its way here or from here, a server is overdue, or the map is in doubt. What the map
// does not say of this server although others wait for it, it says at once.
func (m *Member) run() {
	next, answered, lost := time.Now().Add(m.cfg.Beat), time.Now(), false
	for {
		pause := max(time.Until(next), 0)
		switch {
		case m.moving():
			pause = min(pause, pollEvery)
		case m.overdue():
			pause = min(pause, watchEvery)
		}
		if !sleep(m.ctx, min(pause, pollEvery)) {
			return
		}
		select {
		case <-time.After(pause - pollEvery):
		case <-m.doubt:
		case <-m.ctx.Done():
			return
		}
		var err error
		ctx, cancel := context.WithTimeout(m.ctx, m.cfg.Patience/2)
		switch now := time.Now(); {
		case !now.Before(next):
			next = now.Add(m.cfg.Beat)
			err = m.change(ctx, m.live)
		case m.expecting(m.Map()):
			err = m.change(ctx, m.expect)
		default:
			_, _, err = m.look(ctx)
		}
		cancel()
		switch now := time.Now(); {
		case err == nil:
			if lost {
				m.cfg.Logger.Info("the register of the partitions answers again", "after", now.Sub(answered))
			}
			answered, lost = now, false
		case !lost && now.Sub(answered) > m.cfg.Patience:
			lost = true
			m.cfg.Logger.Warn("the register of the partitions does not answer: serving what is open", "error", err)
		}
	}
}

// moving reports whether a partition is on its way here or from here.
func (m *Member) moving() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.Map()
	if me, _ := now.Server(m.cfg.ID); m.handing != nobody || me.Expects != 0 {
		return true
	}
	for p, next := range now.Next {
		if next != "" && (next == m.cfg.ID || now.Owner[p] == m.cfg.ID) {
			return true
		}
	}
	return false
}

// overdue reports whether another server has not beaten for so long that any of the others may soon take it out, and give what it had to this one.
func (m *Member) overdue() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, b := range m.seen {
		if id != m.cfg.ID && time.Since(b.since) >= m.cfg.Patience/2 {
			return true
		}
	}
	return false
}

// live changes this server's beat, puts it into the map if it is not there, and does what must be done.
func (m *Member) live(to *Map) bool {
	m.beat++
	me := Server{ID: m.cfg.ID, Addr: m.cfg.Addr, Beat: m.beat, Leaving: m.leaving.Load()}
	if i, ok := to.find(me.ID); ok {
		me.Extra, me.Expects = to.Servers[i].Extra, to.Servers[i].Expects
		to.Servers[i] = me
	} else {
		to.Servers = slices.Insert(to.Servers, i, me)
	}
	m.measure(to)
	step(to, m.dead)
	m.ease(to)
	m.expect(to)
	return true
}

// expect has the map say which partition is to come here next: one at a time, so that nobody waits for one while others are opened. It reports whether
// the map says something else.
func (m *Member) expect(to *Map) bool {
	i, ok := to.find(m.cfg.ID)
	if !ok {
		return false
	}
	was := to.Servers[i].Expects
	if p := was - 1; p != nobody && m.comes(to, p) {
		return false
	}
	p := slices.Index(to.Next, m.cfg.ID)
	to.Servers[i].Expects = p + 1
	return to.Servers[i].Expects != was
}

// expecting reports whether expect would change a map.
func (m *Member) expecting(now *Map) bool { return m.expect(now.clone()) }

// comes reports whether partition p is on its way here, or has just come and is not open yet.
func (m *Member) comes(now *Map, p int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Owner[p] != m.cfg.ID {
		return now.Next[p] == m.cfg.ID
	}
	s := m.parts[p]
	return s == nil || !s.open && (s.came.IsZero() || time.Since(s.came) < m.cfg.Beat)
}

// dead reports whether another server's beat has not changed for Patience.
func (m *Member) dead(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.seen[id]
	return ok && id != m.cfg.ID && time.Since(b.since) >= m.cfg.Patience
}

// look reads the map and acts on it. If there is none it returns an empty one.
func (m *Member) look(ctx context.Context) (*Map, uint64, error) {
	b, version, err := m.cfg.Register.Read(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("cannot read the map of partitions: %w", err)
	}
	m.mu.Lock()
	now, same := m.Map(), version == m.version
	m.mu.Unlock()
	want := m.cfg.Partitions
	if now != nil {
		want = now.Partitions
	}
	epoch, vacant := uint64(0), len(b) == 0
	if !vacant && now == nil && m.cfg.Vacant != nil && !IsMap(b) {
		epoch, vacant = m.cfg.Vacant(b)
	}
	switch {
	case same && now != nil: // fast path: it is not decoded again
	case now != nil && !IsMap(b):
		m.removed()
		return nil, 0, ErrRemoved
	case !vacant:
		if now, err = Decode(b); err != nil {
			return nil, 0, err
		}
	case want == 0:
		return nil, 0, errors.New("there is no map of partitions yet, and nobody has said how many there are to be")
	default:
		now = newMap(want)
		now.Epoch = epoch
		return now, version, nil
	}
	if now.Removing {
		m.removed()
		if m.Map() == nil {
			return nil, 0, fmt.Errorf("%w, or its loading has not come to its end", ErrRemoved)
		}
		return nil, 0, ErrRemoved
	}
	if want != 0 && want != now.Partitions {
		return nil, 0, &CountError{Have: now.Partitions, Want: want}
	}
	m.install(now, version)
	return now, version, nil
}

// change reads the map, has f change it, and replaces it, again until nobody else has changed it meanwhile. f must do nothing, and return false, if there is
// nothing to be done, or if what it does has been done already. If change fails f's change may happen or not.
func (m *Member) change(ctx context.Context, f func(*Map) bool) error {
	select {
	case m.changing <- struct{}{}:
		defer func() { <-m.changing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for most := firstPause; ; most = min(2*most, m.cfg.Beat) {
		was, version, err := m.look(ctx)
		if err != nil {
			return err
		}
		to := was.clone()
		if !f(to) {
			return nil
		}
		if !to.sameOwners(was) {
			to.Epoch++
		}
		version, err = m.cfg.Register.Swap(ctx, version, to.Encode())
		switch {
		case err == nil:
			m.install(to, version)
			return nil
		case !errors.Is(err, holder.ErrChanged) && !errors.Is(err, holder.ErrUnknown):
			return fmt.Errorf("cannot change the map of partitions: %w", err)
		case !m.rest(ctx, rand.N(most)):
			return context.Cause(ctx)
		}
	}
}

// rest is sleep, but looks at the register meanwhile while a partition is on its way here or from here: nobody is to wait for it because others change the map, too.
func (m *Member) rest(ctx context.Context, d time.Duration) bool {
	for ; d > pollEvery && m.moving(); d -= pollEvery {
		if !sleep(ctx, pollEvery) {
			return false
		}
		_, _, _ = m.look(ctx) // the change finds out what is wrong
	}
	return sleep(ctx, d)
}

// install makes a map the one that this member acts on, unless it has a newer one. It notes which servers have beaten.
func (m *Member) install(now *Map, version uint64) {
	m.installing.Lock()
	defer m.installing.Unlock()
	m.mu.Lock()
	was := m.Map()
	if version < m.version {
		m.mu.Unlock()
		return
	}
	// While the register could not be reached, others may not have reached it either: that they have not beaten says nothing.
	t := time.Now()
	if t.Sub(m.looked) > m.cfg.Patience/2 {
		clear(m.seen)
		clear(m.pressed)
	}
	m.looked = t
	seen := map[string]beatOf{}
	for _, s := range now.Servers {
		b, ok := m.seen[s.ID]
		if !ok || b.beat != s.Beat {
			b = beatOf{s.Beat, t}
		}
		seen[s.ID] = b
	}
	m.seen = seen
	if version == m.version && was != nil {
		m.mu.Unlock()
		return
	}
	for p, next := range now.Next {
		if s, ok := now.Server(next); ok && (was == nil || was.Next[p] != next) {
			m.planned[p] = s.Beat
		}
	}
	m.watch(was, now, t)
	m.version = version
	m.m.Store(now)
	m.serve()
	close(m.renewed)
	m.renewed = make(chan struct{})
	m.mu.Unlock()
	if m.cfg.Changed != nil && (was == nil || was.Epoch != now.Epoch || !slices.Equal(was.Next, now.Next)) {
		m.cfg.Changed(now)
	}
}

// Close leaves: it hands the partitions over one after the other if there are other servers, until ctx ends or the register has not answered for a
// Patience. Then it closes those that are
// left, and takes this server out of the map, for which it needs up to a Beat if it was not done by then. If that fails it says so, and the other servers
// will do it. When Close has returned no goroutine of the Member is left. It is idempotent.
func (m *Member) Close(ctx context.Context) error {
	m.once.Do(func() { m.closeErr = m.leave(ctx) })
	return m.closeErr
}

func (m *Member) leave(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, m.abort)()
	m.leaving.Store(true)
	asking, asked := context.WithTimeout(ctx, m.cfg.Patience/2)
	_ = m.change(asking, m.live) // at once; if it fails the next beat says it
	asked()
	for ctx.Err() == nil {
		m.mu.Lock()
		renewed, silent := m.renewed, time.Since(m.looked)
		m.mu.Unlock()
		if m.handedOver() {
			break
		}
		if silent >= m.cfg.Patience { // nobody can be told to take anything
			cancel()
		}
		select {
		case <-renewed:
		case <-m.gone:
			m.halt()
			return ErrRemoved
		case <-time.After(m.cfg.Patience - silent):
		case <-ctx.Done():
		}
	}
	m.halt()
	if ctx.Err() != nil { // to leave takes one change, which saves the others from waiting
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), m.cfg.Beat)
		defer cancel()
	}
	err := m.change(ctx, func(to *Map) bool {
		if _, ok := to.Server(m.cfg.ID); !ok {
			return false
		}
		to.remove(func(id string) bool { return id == m.cfg.ID })
		step(to, m.dead)
		return true
	})
	if err != nil {
		return fmt.Errorf("cannot leave the map, from which others will take this server: %w", err)
	}
	return nil
}

// sleep waits, and reports whether ctx has not ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
