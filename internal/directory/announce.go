package directory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"polder/internal/etcd"
)

// DefaultTTL is how long a node stays in the directory after its last heartbeat.
const DefaultTTL = 10 * time.Second

// beats is how many heartbeats there are in the time of a lease.
const beats = 4

// Config says what to announce.
type Config struct {
	Now    func() Node // what to announce about the node; the address stays the same
	TTL    time.Duration
	Logger *slog.Logger
}

// A TakenError says that another node has announced an address, and keeps it.
type TakenError struct {
	Address string
	Host    string // the other's machine
}

func (e *TakenError) Error() string {
	return fmt.Sprintf("cannot announce the address %s: a node on host %q has announced it, and goes on to; expected an address of its own for each node", e.Address, e.Host)
}

// An Announcer keeps a node announced. Run does the work, in one goroutine; the other methods may be called by any.
type Announcer struct {
	d    *Directory
	cfg  Config
	addr string
	key  string

	withdrawn atomic.Bool
	poke      chan struct{} // capacity 1: withdrawn has changed
	is        atomic.Bool   // announced, under a lease that was kept in time

	// Of Run's goroutine.
	lease   etcd.Lease // 0 if there is none
	ttl     time.Duration
	mod     int64 // of the key, 0 if it is not there
	written Node
	wrote   time.Time // when the key was last found or written with the right value
	ever    bool      // the node has been announced once
	other   string    // the ID of a node that has taken the address, or ""
	since   time.Time // when other was found
	said    bool      // an error has been logged
}

// Announcer makes an announcer, which has announced nothing yet.
func (d *Directory) Announcer(cfg Config) *Announcer {
	if cfg.TTL == 0 {
		cfg.TTL = DefaultTTL
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	addr := cfg.Now().Address
	return &Announcer{d: d, cfg: cfg, addr: addr, key: d.prefix + addr, ttl: cfg.TTL, poke: make(chan struct{}, 1)}
}

// Announced reports whether the node is announced, as far as is known.
func (a *Announcer) Announced() bool { return a.is.Load() }

// Withdraw removes the node from the directory, or, with false, adds it again.
func (a *Announcer) Withdraw(yes bool) {
	a.withdrawn.Store(yes)
	select {
	case a.poke <- struct{}{}:
	default:
	}
}

// Run announces the node until ctx ends, and then withdraws it, which takes up to withdrawTime. While etcd does not
// answer Run tries again, and logs that once. If another node has the address from the start, and still has it when
// the lease of a node that has ended would be over, Run fails with a *TakenError.
func (a *Announcer) Run(ctx context.Context) error {
	defer a.end(ctx)
	for {
		err := a.step(ctx)
		if ctx.Err() != nil {
			return nil
		}
		a.is.Store(err == nil && !a.withdrawn.Load())
		if taken := a.say(err); taken != nil && !a.ever {
			return taken
		}
		timer := time.NewTimer(a.ttl / beats)
		select {
		case <-timer.C:
		case <-a.poke:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// say logs err when it is news. It returns err if it says that another node has the address for good.
func (a *Announcer) say(err error) *TakenError {
	var taken *TakenError
	if errors.As(err, &taken) && time.Since(a.since) < 3*a.ttl {
		return nil // perhaps the node that was here before, whose lease has not ended
	}
	if err != nil && taken == nil {
		a.other = "" // leases last longer while etcd is away
	}
	switch {
	case err == nil && a.said:
		a.cfg.Logger.Info("the node is announced again", "address", a.addr)
	case err != nil && !a.said:
		a.cfg.Logger.Warn("the node cannot be announced: it goes on to serve, and tries again", "address", a.addr, "error", err)
	}
	a.said = err != nil
	return taken
}

// step brings the directory up to date.
func (a *Announcer) step(ctx context.Context) error {
	if a.withdrawn.Load() {
		return a.revoke(ctx)
	}
	if a.lease != 0 {
		err := a.d.client.Keep(ctx, a.lease)
		if err != nil && !errors.Is(err, etcd.ErrNoLease) {
			return err
		}
		if err != nil { // the key under it is gone, too
			a.lease, a.mod = 0, 0
		}
	}
	if a.lease == 0 {
		lease, ttl, err := a.d.client.Grant(ctx, a.cfg.TTL)
		if err != nil {
			return err
		}
		a.lease, a.ttl, a.mod = lease, ttl, 0
	}
	now := a.cfg.Now()
	if a.mod != 0 && time.Since(a.wrote) < a.ttl {
		return nil
	}
	if a.mod != 0 && !a.differs(now) {
		kv, _, err := a.d.client.Get(ctx, a.key)
		if err != nil {
			return err
		}
		if kv.Mod == a.mod {
			a.wrote = time.Now()
			return nil
		}
	}
	return a.write(ctx, now)
}

// differs reports whether now differs from what is written by enough to matter to others.
func (a *Announcer) differs(now Node) bool {
	change := now.Free - a.written.Free
	now.Free = a.written.Free
	return now != a.written || max(change, -change) > now.Capacity/16
}

// write writes the key, unless it is another node's.
func (a *Announcer) write(ctx context.Context, now Node) error {
	for range 3 { // the key may be ours, under our lease before this one
		done, revision, err := a.d.client.Swap(ctx, a.key, a.mod, now.encode(), a.lease)
		if errors.Is(err, etcd.ErrNoLease) {
			a.lease = 0
		}
		if err != nil && !errors.Is(err, etcd.ErrUnknown) {
			return err
		}
		if done {
			a.mod, a.written, a.wrote, a.ever, a.other = revision, now, time.Now(), true, ""
			return nil
		}
		kv, _, err := a.d.client.Get(ctx, a.key)
		if err != nil {
			return err
		}
		a.mod = kv.Mod
		if kv.Mod == 0 {
			continue
		}
		// An entry that is not a node's is replaced.
		if n, err := decode(a.addr, kv.Value); err == nil && n.ID != now.ID {
			a.mod = 0
			if a.other != n.ID {
				a.other, a.since = n.ID, time.Now()
			}
			return &TakenError{Address: a.addr, Host: n.Host}
		}
	}
	return fmt.Errorf("cannot announce %s: it is changed all the time", a.addr)
}

func (a *Announcer) revoke(ctx context.Context) error {
	if a.lease == 0 {
		return nil
	}
	err := a.d.client.Revoke(ctx, a.lease)
	if err == nil {
		a.lease, a.mod = 0, 0
	}
	return err
}

// withdrawTime is how long Run waits for etcd at the end.
const withdrawTime = 2 * time.Second

// end withdraws the node. If that fails the node stays in the directory until its lease ends.
func (a *Announcer) end(ctx context.Context) {
	a.is.Store(false)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTime)
	defer cancel()
	if err := a.revoke(ctx); err != nil {
		a.cfg.Logger.Warn("the node is named until its lease ends: it could not be withdrawn", "address", a.addr, "error", err)
	}
}
