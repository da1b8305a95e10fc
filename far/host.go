package far

import (
	"time"

	"polder/far/heap"
)

// host is a Heap as its memory sees it.
type host Heap

// Owner implements Host.
func (o *host) Owner(id uint16) heap.Owner {
	if id >= objectOwners {
		return (*pointers)(o)
	}
	if maps := *o.maps.Load(); int(id) < len(maps) {
		return (*mapOwner)(maps[id])
	}
	return nil
}

// Marker implements Host.
func (o *host) Marker() heap.Marker { return (*pointers)(o) }

// Lost implements Host. What is lost of objects, whoever dereferences them comes upon.
func (o *host) Lost(s *heap.FarSegment) {
	h := (*Heap)(o)
	heads := false
	for _, m := range *h.maps.Load() {
		for i := range m.shards() {
			heads = m.at(i).lose(h, s) || heads
		}
	}
	if heads {
		h.strays.Store(true)
	}
}

// maxStrayWait is the longest wait before the index is searched for stray
// pieces again, after some of what it refers to could not be read.
const maxStrayWait = 10 * time.Second

// Chores implements Host: it removes the pieces of large values that are gone, and
// looks for entries whose time has come and that nobody asks for.
func (o *host) Chores(tick bool) {
	h := (*Heap)(o)
	if tick && time.Now().After(h.strayNext) && h.strays.Swap(false) {
		if h.buryStrays() {
			h.strayWait = 0
		} else {
			h.strays.Store(true)
			h.strayWait = min(2*h.strayWait+heap.SweepEvery, maxStrayWait)
			h.strayNext = time.Now().Add(h.strayWait)
		}
	}
	h.buryOrphans()
	for tick && h.core.Ctx.Err() == nil && h.sweeper.sweep(h) {
	}
}

// Freeing implements Host.
func (o *host) Freeing() bool {
	h := (*Heap)(o)
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.orphans) > 0
}
