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

// How often a member looks at the register while a partition is on its way to or from it (pollEvery) and while
// another server's beat is overdue (watchEvery); and how long it waits at first and at most before it retries what
// has failed.
const (
	pollEvery  = 10 * time.Millisecond
	watchEvery = 50 * time.Millisecond
	firstPause = 10 * time.Millisecond
	mostPause  = 5 * time.Second
)

// Config says who joins, and what it does with partitions.
//
// Open, Prepare and Close are called in goroutines of their own: concurrently for different partitions. Open and
// Close of one partition are called one after the other. Prepare may still be running, with its ctx ended, when Close
// is called because the map has given the partition to another server.
type Config struct {
	// Register has the map. It belongs to the caller, who closes it after the Member.
	Register holder.Register
	// ID is this server's ID: 40 hexadecimal digits in lower case, and no other server's. A server that is started
	// again may use the same ID.
	ID string
	// Addr is HOST:PORT for clients.
	Addr string
	// Partitions is how many partitions there are, up to MaxPartitions. 0 means as many as the map has, and is an
	// error if there is no map yet.
	Partitions int
	// Beat is how often the server changes its beat in the map, by default DefaultBeat.
	Beat time.Duration
	// Patience is how long another server's beat must not have changed until this server takes it out of the map: by
	// default DefaultPatience, at least three times Beat. It should be the same at all servers.
	Patience time.Duration

	// Open has this server serve the partition. It is called when the partition is to come next: it prepares what it
	// can, and waits until mine is closed, which says that the map makes this server the owner. Only then does the
	// previous owner give the partition up, so Open must wait for that as well. If Open fails it is called again,
	// after pauses that grow up to 5 s. ctx ends when the partition is to be another server's, or when Member.Close
	// has ended the hand-overs.
	Open func(ctx context.Context, p int, mine <-chan struct{}) error
	// Prepare, if set, is called before a partition is handed over, while it is still served, to make Close quick. If
	// it fails the partition is handed over anyway. ctx ends as that of Open does.
	Prepare func(ctx context.Context, p int) error
	// Close stops serving a partition that Open has opened and gives it up, so that the next owner can have it at
	// once. An error is logged, and the partition counts as closed. ctx ends when that of Member.Close does, or when
	// Member.Close has not reached the register for a Patience.
	Close func(ctx context.Context, p int) error
	// Spent, if set, returns how much time has been spent on clients' requests to partition p since Open has opened
	// it. It decides which partitions move because of load. If a server does not set it, no partition moves because
	// of load.
	Spent func(p int) time.Duration
	// Vacant, if set, is called when the server joins and the register's value is not a map. It says whether a map
	// may replace the value, and which epoch the map's must exceed.
	Vacant func(value []byte) (epoch uint64, ok bool)
	// Changed, if set, is called with each new map whose Epoch or Next differs from the one before, one call at a
	// time. It must neither wait nor change the map.
	Changed func(m *Map)
	// Logger gets messages about servers and partitions; by default nothing is logged.
	Logger *slog.Logger
}

// CountError says that the map does not have the wanted number of partitions.
type CountError struct{ Have, Want int }

func (e *CountError) Error() string {
	return fmt.Sprintf("the map has %d partitions, want %d", e.Have, e.Want)
}

// Member is a server's membership in the map. All methods may be called by any number of goroutines.
type Member struct {
	cfg      Config
	changing chan struct{} // capacity 1: a lock, held by filling it, of change

	ctx   context.Context // ended by halt: no partition is opened or handed over after that
	stop  context.CancelFunc
	life  context.Context // given to Config.Close; ends when Config.Close must stop waiting
	abort context.CancelFunc
	wg    sync.WaitGroup

	gone    chan struct{} // closed when this member has found the map removed
	removed func()        // closes gone, once

	leaving  atomic.Bool
	once     sync.Once // of Close
	closeErr error     // set by once

	installing sync.Mutex // held while a map is installed and Config.Changed is told
	m          atomic.Pointer[Map]

	mu      sync.Mutex
	version uint64            // of m in the register; guarded by mu, m changes with it
	doubt   chan struct{}     // capacity 1: see Doubt
	renewed chan struct{}     // closed and replaced whenever a new version is installed; guarded by mu
	beat    uint64            // this server's last beat; guarded by changing
	seen    map[string]beatOf // by the server's ID; guarded by mu
	looked  time.Time         // when the register last answered; guarded by mu
	parts   map[int]*served   // partitions being opened, served or closed here; guarded by mu
	planned map[int]uint64    // by partition, the next owner's beat when the move was first seen; guarded by mu
	handing int               // the partition being handed over, or nobody; guarded by mu

	meters  map[int]*meter       // of the partitions that are open here; guarded by changing
	pressed map[string]time.Time // by ID, since when a server has had too much to do; guarded by mu
	moved   map[int]time.Time    // by partition, when this member first saw its present owner; guarded by mu
}

// beatOf is the last beat seen of a server, and when this member first saw it.
type beatOf struct {
	beat  uint64
	since time.Time
}

// Join adds this server to the map, and creates the map if there is none. It fails with a *CountError if the map does
// not have as many partitions as cfg wants. It also fails if the register has a value that is not a map, unless
// cfg.Vacant allows to replace it.
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

// Removed is closed when this member has found that the map was removed. From then on the member changes nothing any
// more; Close still ends what it serves.
func (m *Member) Removed() <-chan struct{} { return m.gone }

// Gone reads the register, and reports whether the map has no server with this ID any more. It returns false if the
// register does not answer.
func (m *Member) Gone(ctx context.Context, id string) bool {
	now, _, err := m.look(ctx)
	if err != nil {
		return false
	}
	_, ok := now.Server(id)
	return !ok
}

// Doubt is called when a server does not have what the map says, or cannot be found: this member then reads the map
// soon.
func (m *Member) Doubt() {
	select {
	case m.doubt <- struct{}{}:
	default:
	}
}

// run beats, and in between looks at the register: more often while a partition is on its way to or from this server,
// while a server is overdue, or after Doubt. If Expects of this server has to change it changes the map at once,
// without waiting for the next beat, because another server waits for it.
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

// overdue reports whether another server has not beaten for so long that it may soon be taken out, by any of the
// others, and its partitions given to this server.
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

// live changes this server's beat, puts the server into the map if it is not there, and does whatever else the map
// needs.
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

// expect sets in the map which partition is to come here next. It is one at a time, so that no partition waits for
// this server while others are being opened. expect reports whether it has changed the map.
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

// comes reports whether partition p is on its way here, or came less than a Beat ago and is not open yet.
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

// look reads the map and acts on it. If there is no map it returns an empty one, on which it does not act.
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
	case same && now != nil: // fast path: not decoded again
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

// change reads the map, has f change a copy, and writes it back; if another server has changed the map meanwhile it
// starts again. f must change nothing and return false if there is nothing to do, or if its change has been made
// already. If change fails, f's change may still have been made.
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

// rest is sleep, but keeps looking at the register while a partition is on its way to or from this server: the
// partition must not wait just because other servers change the map, too.
func (m *Member) rest(ctx context.Context, d time.Duration) bool {
	for ; d > pollEvery && m.moving(); d -= pollEvery {
		if !sleep(ctx, pollEvery) {
			return false
		}
		_, _, _ = m.look(ctx) // change will report an error when it reads the map again
	}
	return sleep(ctx, d)
}

// install replaces the map that this member acts on, unless it has a newer one than the given map. It also records
// which servers have beaten.
func (m *Member) install(now *Map, version uint64) {
	m.installing.Lock()
	defer m.installing.Unlock()
	m.mu.Lock()
	was := m.Map()
	if version < m.version {
		m.mu.Unlock()
		return
	}
	// While this server could not reach the register, the others may not have reached it either: that their beats
	// have not changed proves nothing.
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

// Close leaves the map. If there are other servers it hands the partitions over, one after the other, until ctx ends
// or the register has not answered for a Patience. Then it closes the partitions that are left and takes this server
// out of the map; if ctx has ended by then, this may take up to a Beat longer. If that fails Close returns an error,
// and the other servers will take this server out. When Close has returned no goroutine of the Member is left. It is
// idempotent.
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
	_ = m.change(asking, m.live) // says at once that it leaves; if this fails the next beat says it
	asked()
	for ctx.Err() == nil {
		m.mu.Lock()
		renewed, silent := m.renewed, time.Since(m.looked)
		m.mu.Unlock()
		if m.handedOver() {
			break
		}
		if silent >= m.cfg.Patience { // partitions cannot be handed over without the register
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
	if ctx.Err() != nil { // one change more, which saves the others from waiting for a Patience
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

// sleep waits for d, and reports whether it did so before ctx ended.
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
