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

// DefaultTTL is how long a node stays listed after its last heartbeat.
const DefaultTTL = 10 * time.Second

// beats is how many heartbeats there are in the time to live of a lease.
const beats = 4

// Config says what to announce.
type Config struct {
	Now    func() Node // returns the node's entry; its address must stay the same
	TTL    time.Duration
	Logger *slog.Logger
}

// A TakenError says that another node has announced the address, and goes on doing so.
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
	is        atomic.Bool   // the node is announced, under a lease that was kept in time

	// Used by Run's goroutine only.
	lease   etcd.Lease // 0 if there is none
	ttl     time.Duration
	mod     int64 // revision of the key's last change, 0 if the key does not exist
	written Node
	wrote   time.Time // when the key was last written, or found as it should be
	ever    bool      // the node has been announced before
	other   string    // the ID of the node that has taken the address, or ""
	since   time.Time // when it was first found that other has the address
	said    bool      // a problem has been logged
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

// Withdraw takes the node off the list or, with false, puts it back.
func (a *Announcer) Withdraw(yes bool) {
	a.withdrawn.Store(yes)
	select {
	case a.poke <- struct{}{}:
	default:
	}
}

// Run announces the node until ctx ends. Then it withdraws the node, which takes up to withdrawTime. While etcd does
// not answer, Run tries again, and logs that once. If the node has never been announced, and another node keeps the
// address for longer than the lease of a node that has ended could last, Run fails with a *TakenError.
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

// say logs err if it is news. It returns a *TakenError if another node has the address for good.
func (a *Announcer) say(err error) *TakenError {
	var taken *TakenError
	if errors.As(err, &taken) && time.Since(a.since) < 3*a.ttl {
		return nil // perhaps it is the node that was here before, whose lease has not ended yet
	}
	if err != nil && taken == nil {
		a.other = "" // while etcd is away, leases last longer
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
		if err != nil { // the key that was under the lease is gone, too
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

// differs reports whether now differs from what was written by more than a small change of Free.
func (a *Announcer) differs(now Node) bool {
	change := now.Free - a.written.Free
	now.Free = a.written.Free
	return now != a.written || max(change, -change) > now.Capacity/16
}

// write sets the key to what it should be, unless another node has it.
func (a *Announcer) write(ctx context.Context, now Node) error {
	for range 3 { // the key may be there from our last lease
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
		// What is not a valid entry of a node is replaced.
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

// withdrawTime is how long end waits for etcd.
const withdrawTime = 2 * time.Second

// end withdraws the node. If that fails, the node stays listed until its lease ends.
func (a *Announcer) end(ctx context.Context) {
	a.is.Store(false)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTime)
	defer cancel()
	if err := a.revoke(ctx); err != nil {
		a.cfg.Logger.Warn("the node is named until its lease ends: it could not be withdrawn", "address", a.addr, "error", err)
	}
}
