package named

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"polder/far/store"
	"polder/holder"
	"polder/internal/brief"
	"polder/internal/turns"
)

// Defaults of a Config.
const (
	DefaultLease    = 500 * time.Millisecond
	DefaultBeat     = time.Second
	DefaultPatience = 4 * time.Second

	mostLease = time.Minute
)

// Config says how a heap is owned.
type Config struct {
	// Me is the name of the owner that other processes are told, such as an address.
	Me string
	// Standby makes Own wait until the heap's owner is gone, instead of failing with an OwnedError.
	Standby bool
	// Lease is for how long evidence is valid, by default DefaultLease, at most a minute.
	Lease time.Duration
	// Fenced says that nothing is answered by a lease: whoever answers asks Log.Shown, and the next owner waits for
	// no lease.
	Fenced bool
	// Beat is the longest time between two changes of the manifest by its owner, by default DefaultBeat.
	Beat time.Duration
	// Patience is how long the manifest must have been unchanged for its owner to be taken for dead, by default
	// DefaultPatience. It should be several times the longest Beat of the processes that own the heap.
	Patience time.Duration
	// Gone, if it is set, is asked when the manifest has not changed for longer than a Beat: is it known that the
	// owner of that name has died? It may wait a little.
	Gone func(ctx context.Context, owner string) bool
	// Seen, if it is set, is told the manifest each time that Own looks at it, and for how long it has not changed,
	// as far as Own knows. It must not wait, nor change the manifest.
	Seen func(m *Manifest, still time.Duration)
	// Sessions returns, by node, what the node must be told to give its memory to another process. It is called with
	// each change of the manifest, and must not wait. If it is nil, the manifest keeps the sessions that it has.
	Sessions func() map[string][]byte
	// Logger is told what happens to the ownership; by default nothing is logged.
	Logger *slog.Logger
	// Process runs the owner: nil, or a simulated process.
	Process *turns.Process
}

// OwnedError says that another process has the heap open.
type OwnedError struct {
	Owner string
	Epoch uint64
}

func (e *OwnedError) Error() string {
	return fmt.Sprintf("%s has the heap open (epoch %d)", e.Owner, e.Epoch)
}

// ErrSuperseded says that another process owns the heap now.
var ErrSuperseded = store.ErrSuperseded

// clock is brief.Boottime, except in tests.
var clock = brief.Boottime

// now is the time since the owner's machine was started.
func (c *Config) now() time.Duration {
	if c.Process != nil {
		return time.Duration(c.Process.Now().UnixNano())
	}
	return clock()
}

// lease is for how long this owner may go on answering after it was superseded.
func (c *Config) lease() time.Duration {
	if c.Fenced {
		return 0
	}
	return c.Lease
}

// Owner is a process's ownership of a heap. All methods may be called by any number of goroutines.
type Owner struct {
	cfg   Config
	proc  *turns.Process
	reg   holder.Register
	epoch uint64
	nonce uint64
	first *Manifest     // as it was before this owner raised the epoch
	until time.Duration // when the lease of the owner before is over, since this machine was started

	changing chan struct{} // capacity 1: whoever has taken its element may change the manifest

	// Guarded by changing.
	m       *Manifest
	version uint64
	unsure  bool          // it is not known whether the last change has happened
	changed time.Duration // when the last change was asked for, since this machine was started

	evidence atomic.Int64 // when the newest evidence was asked for, in nanoseconds since this machine was started
	hungry   chan struct{}

	mu      sync.Mutex
	renewed chan struct{} // closed and replaced when there is newer evidence; guarded by mu
	why     error         // why this process no longer is the owner; guarded by mu

	superseded chan struct{} // closed when another process owns the heap
	stop       context.CancelFunc
	ctx        context.Context
	wg         turns.Group

	moves  moves
	copies atomic.Int64        // copies of each segment, 0 before Store
	log    atomic.Pointer[Log] // nil before Store.OpenLog
}

// Own makes this process the owner of the heap whose manifest is in reg. The register stays the caller's. Own fails
// with an *OwnedError if another process has the heap, unless cfg.Standby is set.
func Own(ctx context.Context, reg holder.Register, cfg Config) (*Owner, error) {
	if cfg.Lease == 0 {
		cfg.Lease = DefaultLease
	}
	if cfg.Beat == 0 {
		cfg.Beat = DefaultBeat
	}
	if cfg.Patience == 0 {
		cfg.Patience = DefaultPatience
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case cfg.Me == "":
		return nil, errors.New("cannot own a heap: Config.Me is empty, and others could not be told who has it")
	case cfg.Lease < 0 || cfg.Lease > mostLease || cfg.Beat < 0 || cfg.Patience < 0:
		return nil, fmt.Errorf("cannot own a heap: a lease of %v, a beat of %v and a patience of %v: want times above 0, and a lease of up to %v", cfg.Lease, cfg.Beat, cfg.Patience, mostLease)
	}
	o := &Owner{
		cfg: cfg, proc: cfg.Process, reg: reg, nonce: cfg.Process.Uint64(),
		changing: make(chan struct{}, 1), hungry: make(chan struct{}, 1), renewed: make(chan struct{}), superseded: make(chan struct{}),
	}
	o.changing <- struct{}{}
	o.moves.init()
	if err := o.raise(ctx); err != nil {
		return nil, fmt.Errorf("cannot own the heap: %w", err)
	}
	o.ctx, o.stop = context.WithCancel(context.Background())
	o.wg.Go(o.proc, o.renew)
	return o, nil
}

// raise raises the epoch once the owner before is gone.
func (o *Owner) raise(ctx context.Context) error {
	m, version, err := o.await(ctx, nil, 0)
	if err != nil {
		return err
	}
	o.see(m, 0)
	said, began := false, o.cfg.now()
	for {
		if m.Owner != "" {
			now, v, err := o.watch(ctx, m, version, began)
			if err != nil {
				return err
			}
			if v != version {
				owned := &OwnedError{m.Owner, m.Epoch}
				if !o.cfg.Standby {
					return owned
				}
				if m, version = now, v; m.Owner != "" && !said {
					said = true
					o.cfg.Logger.Info("waiting until the heap's owner is gone", "owner", owned.Owner, "epoch", owned.Epoch)
				}
				continue
			}
		}
		next := m.clone()
		next.Epoch, next.Nonce, next.Owner, next.Lease, next.Beat = m.Epoch+1, o.nonce, o.cfg.Me, o.cfg.lease(), 0
		if m.Owner != "" { // if this owner is superseded soon, that lease may not be over
			next.Lease = max(next.Lease, m.Lease)
		}
		if next.Process = ""; o.proc == nil {
			next.Process = identity(os.Getpid())
		}
		if next.Epoch >= 1<<31 {
			return fmt.Errorf("epoch %d was the last one", m.Epoch)
		}
		asked := o.cfg.now()
		v, err := o.reg.Swap(ctx, version, next.Encode())
		if err != nil && !errors.Is(err, holder.ErrChanged) && !errors.Is(err, holder.ErrUnknown) {
			return err
		}
		if err != nil {
			was := m
			if m, version, err = o.await(ctx, m, version); err != nil {
				return err
			}
			if m.Epoch != next.Epoch || m.Nonce != o.nonce {
				continue // another process was faster, or the heap has been closed
			}
			next, v, m = m, version, was // the change has happened
		}
		o.first, o.m, o.version, o.epoch, o.changed = m, next, v, next.Epoch, asked
		if m.Owner != "" {
			o.until = o.cfg.now() + m.Lease + m.Lease/20
		}
		o.evidence.Store(int64(asked))
		if l, ok := o.reg.(holder.Lonely); ok {
			l.Own()
		}
		return nil
	}
}

// look reads the manifest; that of a heap that never existed is empty. If the register still has the version at, look
// returns known, which is what the manifest was in that version.
func (o *Owner) look(ctx context.Context, known *Manifest, at uint64) (*Manifest, uint64, error) {
	b, version, err := o.reg.Read(ctx)
	switch {
	case err != nil:
		return nil, 0, err
	case known != nil && version == at: // fast path
		return known, version, nil
	case b == nil:
		return &Manifest{}, version, nil
	}
	m, err := DecodeManifest(b)
	return m, version, err
}

// await is look for a process that is to become the owner. It waits as long as what keeps the manifest does not answer,
// and says so when Patience has passed.
func (o *Owner) await(ctx context.Context, known *Manifest, at uint64) (*Manifest, uint64, error) {
	for said := false; ; said = true {
		within, cancel := o.proc.WithTimeout(ctx, o.cfg.Patience)
		m, version, err := o.look(within, known, at)
		late := err != nil && within.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case late && !said:
			o.cfg.Logger.Warn("what keeps the heap's manifest does not answer: waiting for it", "error", err)
		case late:
		case said && err == nil:
			o.cfg.Logger.Info("what keeps the heap's manifest answers")
			fallthrough
		default:
			return m, version, err
		}
	}
}

// see tells Config.Seen what the manifest is.
func (o *Owner) see(m *Manifest, still time.Duration) {
	if o.cfg.Seen != nil {
		o.cfg.Seen(m, still)
	}
}

// aliveEvery is how often the kernel is asked whether an owner on this machine has ended.
const aliveEvery = 25 * time.Millisecond

// The pause between two looks at the manifest is an eighth of the time since the first look, within these bounds. It
// is short at first, since the owner may be about to give the heap up.
const (
	firstEvery = 2 * time.Millisecond
	lastEvery  = 16 // the longest pause is Patience / lastEvery
)

// watch looks at the manifest m until it changes, until Patience has passed, or until it is known that its owner is
// dead. It returns the manifest as it is then. The first look at it, before watch was called, was at first.
func (o *Owner) watch(ctx context.Context, m *Manifest, version uint64, first time.Duration) (*Manifest, uint64, error) {
	began := o.cfg.now()
	deadline, looked := began+o.cfg.Patience, began
	here := isHere(m.Process)
	for {
		every := min(max((o.cfg.now()-first)/8, firstEvery), o.cfg.Patience/lastEvery)
		pause := every
		if here {
			pause = min(every, aliveEvery)
		}
		timer := o.proc.NewTimer(pause)
		if o.proc.Wait(timer, ctx.Done()) != turns.Late {
			timer.Stop()
			return nil, 0, context.Cause(ctx)
		}
		// now, and whether the owner has ended, are found out before the manifest is read, so that what is read is
		// younger.
		now := o.cfg.now()
		over := now >= deadline || hasEnded(m.Process)
		if !over && now-looked < every {
			continue
		}
		if still := now - began; !over && o.cfg.Gone != nil && still > o.cfg.Beat+o.cfg.Beat/4 {
			over = o.cfg.Gone(ctx, m.Owner)
		}
		looked = now
		m, v, err := o.await(ctx, m, version)
		if err != nil {
			return nil, 0, err
		}
		if v != version {
			began = o.cfg.now()
		}
		o.see(m, o.cfg.now()-began)
		if v != version || over {
			return m, v, nil
		}
	}
}

// Epoch returns the epoch of this owner.
func (o *Owner) Epoch() uint64 { return o.epoch }

// Sessions returns, by node, the sessions of the owner before, as the manifest had them.
func (o *Owner) Sessions() map[string][]byte { return maps.Clone(o.first.Sessions) }

// Fresh reports whether there is nothing to open yet: the heap had no root when it was owned.
func (o *Owner) Fresh() bool { return o.first.Root == nil }

// Superseded is closed when another process has taken the heap over.
func (o *Owner) Superseded() <-chan struct{} { return o.superseded }

// Ready returns when the lease of the owner before is over, so that no other process can answer out of the heap any
// more.
func (o *Owner) Ready(ctx context.Context) error {
	for {
		left := o.until - o.cfg.now()
		if left <= 0 {
			return nil
		}
		timer := o.proc.NewTimer(left)
		switch o.proc.Wait(timer, o.superseded, ctx.Done()) {
		case 0:
			timer.Stop()
			return ErrSuperseded
		case 1:
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

// Shown reports whether this process may show anybody what it knew when Shown was called. If there is no evidence for
// that, it waits up to wait for some. Once another process owns the heap, Shown always returns false.
func (o *Owner) Shown(wait time.Duration) bool {
	now := o.cfg.now()
	if now-time.Duration(o.evidence.Load()) < o.cfg.Lease { // fast path
		return o.ctx.Err() == nil
	}
	timer := o.proc.NewTimer(wait)
	defer timer.Stop()
	for {
		o.mu.Lock()
		renewed, why := o.renewed, o.why
		o.mu.Unlock()
		// Evidence that was asked for after Shown was called is enough, however old it is by now.
		if at := time.Duration(o.evidence.Load()); at >= now || o.cfg.now()-at < o.cfg.Lease {
			return why == nil
		}
		if why != nil {
			return false
		}
		select {
		case o.hungry <- struct{}{}:
		default:
		}
		if o.proc.Wait(timer, renewed, o.superseded, o.ctx.Done()) != 0 {
			return false
		}
	}
}

// hasEvidence notes that at some moment after asked this process was the owner.
func (o *Owner) hasEvidence(asked time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.why == nil && int64(asked) > o.evidence.Load() {
		o.evidence.Store(int64(asked))
		close(o.renewed)
		o.renewed = make(chan struct{})
	}
}

// supersede notes that m has another owner.
func (o *Owner) supersede(m *Manifest) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.why == nil {
		o.why = fmt.Errorf("%w: %s, in epoch %d, where this one had %d", ErrSuperseded, m.Owner, m.Epoch, o.epoch)
		o.evidence.Store(-1 << 62)
		close(o.superseded)
		o.cfg.Logger.Error("another process has taken the heap over", "owner", m.Owner, "epoch", m.Epoch)
	}
	return o.why
}

// lost is ErrSuperseded if this process knows that another one owns the heap, and nil otherwise.
func (o *Owner) lost() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.why
}

// begin takes the right to change the manifest.
func (o *Owner) begin(ctx context.Context) error {
	switch o.proc.Wait(nil, o.changing, o.superseded, ctx.Done()) {
	case 0:
		return nil
	case 1:
		return ErrSuperseded
	}
	return context.Cause(ctx)
}

func (o *Owner) end() { o.changing <- struct{}{} }

// retryPause is for how long the register is left alone after it has failed.
const retryPause = 50 * time.Millisecond

// sync reads the manifest, which also gives evidence. It fails with ErrSuperseded if another process owns the heap.
// o.changing must be held.
func (o *Owner) sync(ctx context.Context) error {
	asked := o.cfg.now()
	m, version, err := o.look(ctx, o.m, o.version)
	if err != nil {
		return err
	}
	if m.Epoch != o.epoch || m.Nonce != o.nonce {
		return o.supersede(m)
	}
	o.m, o.version, o.unsure = m, version, false
	o.hasEvidence(asked)
	return nil
}

// change has f change a copy of the manifest, and puts this in the register. It returns nil when the change is known
// to have happened, and tries again until then. It fails with errLong if the manifest would have more bytes than
// most, with ErrSuperseded if another process owns the heap, and with any error of f, which says by it that there is
// nothing to be done. If ctx ends, the change may have happened or not. f may be called several times. o.changing
// must be held.
func (o *Owner) change(ctx context.Context, most int, f func(m *Manifest) error) error {
	for {
		if err := o.lost(); err != nil {
			return err // the register may not answer any more
		}
		if o.unsure {
			if err := o.sync(ctx); errors.Is(err, ErrSuperseded) {
				return err
			} else if err != nil {
				if err := o.pause(ctx, err); err != nil {
					return err
				}
				continue
			}
		}
		next := o.m.clone()
		if o.cfg.Sessions != nil {
			if s := o.cfg.Sessions(); s != nil {
				next.Sessions = maps.Clone(s)
			}
		}
		if n := o.copies.Load(); n > 0 {
			next.Copies = int(n)
		}
		next.Beat++
		if o.cfg.now() >= o.until {
			next.Lease = o.cfg.lease()
		}
		if err := f(next); err != nil {
			return err
		}
		b := next.Encode()
		if len(b) > most {
			return errLong
		}
		asked := o.cfg.now()
		v, err := o.reg.Swap(ctx, o.version, b)
		if err == nil {
			o.m, o.version, o.changed = next, v, asked
			o.hasEvidence(asked)
			return nil
		}
		o.unsure = true
		if errors.Is(err, holder.ErrChanged) || errors.Is(err, holder.ErrUnknown) {
			continue // sync says what the manifest is now; if the change has happened, it is made once more
		}
		if err := o.pause(ctx, err); err != nil {
			return err
		}
	}
}

// Note puts what Config.Sessions returns now in the manifest. Call it when a session has begun, before anything is
// borrowed in it: otherwise, if this process died, nobody could give that back.
func (o *Owner) Note(ctx context.Context) error {
	if err := o.begin(ctx); err != nil {
		return err
	}
	defer o.end()
	return o.change(ctx, holder.MaxValue, func(*Manifest) error { return nil })
}

// errLong: the manifest would be longer than it may become.
var errLong = errors.New("the manifest is too long")

func (o *Owner) pause(ctx context.Context, why error) error {
	timer := o.proc.NewTimer(retryPause)
	defer timer.Stop()
	if o.proc.Wait(timer, ctx.Done()) == turns.Late {
		return nil
	}
	return fmt.Errorf("%w: %w", context.Cause(ctx), why)
}

// renew keeps the evidence young, and changes the manifest every Beat, until the owner is closed or superseded.
func (o *Owner) renew() {
	every := max(o.cfg.Lease/4, time.Millisecond)
	tick := o.proc.NewTimer(every)
	defer tick.Stop()
	failing := false
	lonely, _ := o.reg.(holder.Lonely)
	most := max(o.cfg.Lease, o.cfg.Beat)
	if lonely != nil {
		// Evidence comes first: one of the two nodes can give it, even when the manifest cannot be changed.
		most = o.cfg.Lease / 2
	}
	for {
		switch o.proc.Wait(tick, o.ctx.Done(), o.superseded, o.hungry) {
		case 0, 1:
			return
		case turns.Late:
			tick.Reset(every)
		}
		confirmed := lonely != nil && o.confirm(lonely, most)
		ctx, cancel := o.proc.WithTimeout(o.ctx, most)
		err := o.begin(ctx)
		if err == nil {
			if o.cfg.now()-o.changed >= o.cfg.Beat {
				err = o.change(ctx, holder.MaxValue, func(*Manifest) error { return nil })
			} else if !confirmed {
				err = o.sync(ctx)
			}
			o.end()
		}
		cancel()
		if failed := err != nil && !errors.Is(err, ErrSuperseded) && o.ctx.Err() == nil; failed != failing {
			failing = failed
			if failed && confirmed {
				o.cfg.Logger.Warn("the heap's manifest cannot be changed: there are no checkpoints, and what needs new memory at nodes waits", "error", err)
			} else if failed {
				o.cfg.Logger.Warn("what keeps the heap's manifest does not answer: nothing is answered without evidence that there is no other owner", "error", err)
			} else {
				o.cfg.Logger.Info("what keeps the heap's manifest answers again")
			}
		}
	}
}

// confirm asks l for evidence, for at most within, and reports whether it got some.
func (o *Owner) confirm(l holder.Lonely, within time.Duration) bool {
	ctx, cancel := o.proc.WithTimeout(o.ctx, within)
	defer cancel()
	asked := o.cfg.now()
	if l.Confirm(ctx) != nil {
		return false
	}
	o.hasEvidence(asked)
	return true
}

// Close gives the heap up, so that whoever opens it next need not wait. Close the heap and the store before. Close
// fails if the register cannot be told. It first waits as Ready does: the next owner would not know of the lease of
// the owner before this one.
func (o *Owner) Close(ctx context.Context) error {
	o.stop()
	o.wg.Wait(o.proc)
	if err := o.Ready(ctx); err != nil {
		return fmt.Errorf("cannot give the heap up: %w", err)
	}
	if err := o.begin(ctx); err != nil {
		return fmt.Errorf("cannot give the heap up: %w", err)
	}
	defer o.end()
	if o.m.Owner == "" && !o.unsure {
		return nil
	}
	err := o.change(ctx, holder.MaxValue, func(m *Manifest) error {
		m.Owner, m.Process = "", ""
		if l := o.log.Load(); l != nil && l.spent() {
			m.Tail = nil // the next owner prunes these segments, like all that nothing refers to
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot give the heap up: %w", err)
	}
	return nil
}
