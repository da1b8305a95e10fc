package soft

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
)

var errOwners = errors.New("cannot make a container: a heap serves at most 65536")

// An owner holds slots that name objects: a map, an array, a queue, the
// pointer table, the large values. Every object's header says who owns it and
// under which reference, which is figure 5's reverse pointer: through it the
// evacuator redirects or clears the one slot that names an object.
type owner interface {
	// swing makes the slot of ref name to instead of from, or nothing if to
	// is zero, and reports whether the slot did name from. Tags are ignored.
	swing(ref uint64, from, to word) bool

	// holdsLarge reports whether the object of ref is there and names the large value id.
	holdsLarge(ref uint64, id largeID) bool

	// sweep clears the slots whose objects are gone, after a revocation.
	sweep()
}

// owners are the containers of a heap by their number in object headers. The number of a closed container is used
// again: closing clears all the container's slots, so that a late swing finds nothing.
type owners struct {
	list atomic.Pointer[[]ownerEntry] // replaced, never changed

	mu   sync.Mutex // held by those who replace it
	free []uint16
}

type ownerEntry struct {
	owner owner
	prio  int
}

const maxOwners = 1 << 16

// A Priority shifts when objects are evicted: each step up is worth as much
// as one more access since the evacuator last came by. The default is 0.
type Priority int8

const (
	LowestPriority  Priority = -hottest
	HighestPriority Priority = hottest
)

func (o *owners) add(x owner, p Priority) (uint16, bool) {
	p = min(max(p, LowestPriority), HighestPriority)
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.all()
	var id uint16
	switch n := len(o.free); {
	case n > 0:
		id = o.free[n-1]
		o.free = o.free[:n-1]
	case len(list) == maxOwners:
		return 0, false
	default:
		id = uint16(len(list))
		list = append(list, ownerEntry{})
	}
	list[id] = ownerEntry{x, int(p)}
	o.list.Store(&list)
	return id, true
}

func (o *owners) remove(id uint16) {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.all()
	list[id] = ownerEntry{}
	o.list.Store(&list)
	o.free = append(o.free, id)
}

func (o *owners) get(id uint16) ownerEntry {
	list := o.list.Load()
	if list == nil || int(id) >= len(*list) {
		return ownerEntry{}
	}
	return (*list)[id]
}

// all returns a copy of the list.
func (o *owners) all() []ownerEntry {
	if list := o.list.Load(); list != nil {
		return slices.Clone(*list)
	}
	return nil
}
