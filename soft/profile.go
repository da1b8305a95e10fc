package soft

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// profiler is section 4.4's: it warns of state that is dear to rebuild and
// seldom used, for which soft memory is the wrong place.
type profiler struct {
	mu   sync.Mutex
	list []*profile
}

// profile is what is known about one pool.
type profile struct {
	name         string
	hits         spread
	rebuilds     atomic.Uint64
	rebuildNanos atomic.Uint64
	mismatches   atomic.Uint64
	warned       atomic.Bool
}

func (p *profiler) init() {}

func (p *profiler) add(name string) *profile {
	x := &profile{name: name}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = append(p.list, x)
	return x
}

func (p *profiler) remove(x *profile) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = slices.DeleteFunc(p.list, func(y *profile) bool { return x == y })
}

func (p *profile) hit() { p.hits.add() }

func (p *profile) rebuilt(d time.Duration) {
	p.rebuilds.Add(1)
	p.rebuildNanos.Add(uint64(d))
}

// Profile is the account of one pool.
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

// Profiles returns the account of every pool of the heap.
func (h *Heap) Profiles() []Profile {
	h.profiles.mu.Lock()
	defer h.profiles.mu.Unlock()
	list := make([]Profile, 0, len(h.profiles.list))
	for _, x := range h.profiles.list {
		list = append(list, x.account())
	}
	return list
}

func (p *profile) account() Profile {
	a := Profile{Name: p.name, Hits: p.hits.load(), Rebuilds: p.rebuilds.Load(), Mismatches: p.mismatches.Load()}
	if a.Rebuilds > 0 {
		a.MeanRebuild = time.Duration(p.rebuildNanos.Load() / a.Rebuilds)
		a.Unsuitable = a.Rebuilds >= profileSample && a.MeanRebuild >= dearRebuild &&
			float64(a.Hits) < seldomUsed*float64(a.Rebuilds)
	}
	return a
}

// warn tells the log, once, of pools that are unsuitable.
func (p *profiler) warn(log *slog.Logger) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range p.list {
		if a := x.account(); a.Unsuitable && !x.warned.Swap(true) {
			log.Warn("a soft pool holds what is dear to rebuild and seldom used",
				"pool", a.Name, "rebuilds", a.Rebuilds, "mean_rebuild", a.MeanRebuild, "hits", a.Hits)
		}
	}
}
