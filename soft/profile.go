package soft

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// accounts are section 4.4's profiler: it warns of state that is dear to rebuild and
// seldom used, for which soft memory is the wrong place.
type accounts struct {
	mu   sync.Mutex
	list []*Account
}

// An Account counts what a pool, or whatever else makes values anew, gets from soft memory and
// what it has to make. Its methods may be called by any number of goroutines.
type Account struct {
	h            *Heap
	name         string
	hits         spread
	rebuilds     atomic.Uint64
	rebuildNanos atomic.Uint64
	mismatches   atomic.Uint64
	warned       atomic.Bool
}

// Account opens an account, which [Heap.Profiles] lists by its name until it is closed. A [Pool] has one
// already.
func (h *Heap) Account(name string) *Account {
	a := &Account{h: h, name: name}
	h.accounts.mu.Lock()
	defer h.accounts.mu.Unlock()
	h.accounts.list = append(h.accounts.list, a)
	return a
}

// Close ends the account.
func (a *Account) Close() {
	all := &a.h.accounts
	all.mu.Lock()
	defer all.mu.Unlock()
	all.list = slices.DeleteFunc(all.list, func(b *Account) bool { return a == b })
}

// Hit counts a value that was there.
func (a *Account) Hit() { a.hits.add() }

// Rebuilt counts n values that were rebuilt together in d, for the heap as well.
func (a *Account) Rebuilt(d time.Duration, n int) {
	a.rebuilds.Add(uint64(n))
	a.rebuildNanos.Add(uint64(d))
	a.h.rebuilt(d, n)
}

// Rebuilt records that the program has spent d to rebuild a value itself. It is for programs that store into a Map
// what they made. Pools record it themselves, and so does a ByteMap whose items say what they took.
func (h *Heap) Rebuilt(d time.Duration) { h.rebuilt(d, 1) }

// rebuilt counts n values that were rebuilt together in the given time.
func (h *Heap) rebuilt(d time.Duration, n int) {
	h.count.rebuilds.Add(uint64(n))
	h.count.rebuildNanos.Add(uint64(d))
}

// Profile is what an account says.
type Profile struct {
	Name        string
	Hits        uint64
	Rebuilds    uint64
	MeanRebuild time.Duration
	Mismatches  uint64 // found by the debug mode

	// Unsuitable: rebuilding is dear and what is rebuilt is seldom used
	// again, so that the pool costs more than it saves whenever memory is
	// taken.
	Unsuitable bool
}

// A pool is unsuitable if its values take longer than dearRebuild to make and
// are used fewer than seldomUsed times for each time that they are made.
const (
	dearRebuild   = time.Millisecond
	seldomUsed    = 1.0
	profileSample = 100 // rebuilds before anything is said
)

// Profiles returns what every account of the heap says.
func (h *Heap) Profiles() []Profile {
	h.accounts.mu.Lock()
	defer h.accounts.mu.Unlock()
	list := make([]Profile, 0, len(h.accounts.list))
	for _, a := range h.accounts.list {
		list = append(list, a.profile())
	}
	return list
}

func (a *Account) profile() Profile {
	p := Profile{Name: a.name, Hits: a.hits.load(), Rebuilds: a.rebuilds.Load(), Mismatches: a.mismatches.Load()}
	if p.Rebuilds > 0 {
		p.MeanRebuild = time.Duration(a.rebuildNanos.Load() / p.Rebuilds)
		p.Unsuitable = p.Rebuilds >= profileSample && p.MeanRebuild >= dearRebuild &&
			float64(p.Hits) < seldomUsed*float64(p.Rebuilds)
	}
	return p
}

// warn tells the log, once, of pools that are unsuitable.
func (all *accounts) warn(log *slog.Logger) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, a := range all.list {
		if p := a.profile(); p.Unsuitable && !a.warned.Swap(true) {
			log.Warn("a soft pool holds what is dear to rebuild and seldom used",
				"pool", p.Name, "rebuilds", p.Rebuilds, "mean_rebuild", p.MeanRebuild, "hits", p.Hits)
		}
	}
}
