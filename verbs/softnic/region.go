package softnic

import (
	"fmt"

	"polder/verbs"
)

// maxKeys is the most memory regions and windows: 24 bits of index, from 1.
const maxKeys = 1<<24 - 1

// firstAddr is the address of the first region; regions are regionAlign
// aligned and at least a guard of as many bytes apart.
const (
	firstAddr   = 1 << 32
	regionAlign = 4096
)

// region is a memory region or window: what a key names. For a window that is
// not bound, access, base and mem are zero, so that it grants nothing.
type region struct {
	key    verbs.RKey
	window verbs.MWType // 0: a memory region
	pd     *domain
	access verbs.Access
	base   uint64 // address of mem[0]
	mem    []byte
	qpn    uint32 // window of type 2B, bound: the only QP that may use it

	refs int // memory region: windows bound to it and rings lying in it

	mr         *region // window: what it is bound to, nil if unbound
	owner      *qp     // window of type 2B, bound: the QP of number qpn
	prev, next *region // window of type 2B, bound: among its owner's windows
}

// at returns the size bytes at addr, or nil if they are not all inside.
//
// Preconditions: size > 0.
func (r *region) at(addr, size uint64) []byte {
	off, have := addr-r.base, uint64(len(r.mem)) // off is huge if addr < base
	if off > have || size > have-off {
		return nil
	}
	return r.mem[off : off+size : off+size]
}

// keyTable maps the index of a key to its region.
type keyTable struct {
	regions  []*region // by index; regions[0] is unused
	lastKey  []uint8   // by index: the low 8 bits of the key last given out
	free     fifo[uint32]
	limit    int
	nextAddr uint64
}

func (t *keyTable) init(limit int) {
	t.regions, t.lastKey = make([]*region, 1), make([]uint8, 1)
	t.limit, t.nextAddr = limit, firstAddr
}

// add gives r an index that was not in use and a key that was not the index's.
func (t *keyTable) add(r *region) bool {
	// As in table.add: old indexes are used again late.
	if len(t.regions) <= t.limit && t.free.len() < 1024 {
		t.regions = append(t.regions, r)
		t.lastKey = append(t.lastKey, 0)
		r.key = verbs.MakeRKey(uint32(len(t.regions)-1), 0)
		return true
	}
	if t.free.len() == 0 {
		return false
	}
	index := *t.free.front()
	t.free.pop()
	t.lastKey[index]++
	t.regions[index] = r
	r.key = verbs.MakeRKey(index, t.lastKey[index])
	return true
}

// remove frees r's index.
func (t *keyTable) remove(r *region) {
	index := r.key.Index()
	t.regions[index] = nil
	t.lastKey[index] = r.key.Key()
	*t.free.push() = index
}

// get returns the region of exactly this key, or nil.
func (t *keyTable) get(key verbs.RKey) *region {
	if r := t.byIndex(key); r != nil && r.key == key {
		return r
	}
	return nil
}

// byIndex returns the region of key's index, or nil.
func (t *keyTable) byIndex(key verbs.RKey) *region {
	if index := int(key.Index()); index < len(t.regions) {
		return t.regions[index]
	}
	return nil
}

// remote returns the memory that a peer names, or nil if it may not do that.
//
// Preconditions: size > 0; need is one of the remote rights.
func (n *NIC) remote(q *qp, key verbs.RKey, addr, size uint64, need verbs.Access) []byte {
	r := n.keys.get(key)
	if r == nil || r.pd != q.pd || !r.access.Has(need) || r.qpn != 0 && r.qpn != q.num {
		return nil
	}
	return r.at(addr, size)
}

// local returns the memory that an SGE names, or nil if it may not be
// accessed with the right need (0 to read).
//
// Preconditions: size > 0.
func (n *NIC) local(pd *domain, key verbs.LKey, addr, size uint64, need verbs.Access) []byte {
	r := n.keys.get(verbs.RKey(key))
	if r == nil || r.window != 0 || r.pd != pd || !r.access.Has(need) {
		return nil
	}
	return r.at(addr, size)
}

// MR describes a registered memory region. Its lkey and rkey are equal.
type MR struct {
	Addr uint64
	Key  verbs.RKey
}

// RegMR registers buf, which is accessed until DeregMR. It must be aligned to
// 8 bytes if access allows remote atomics.
func (n *NIC) RegMR(pd uint32, buf []byte, access verbs.Access) (MR, error) {
	r, err := n.regMR(n.pds.get(pd), buf, access)
	if err != nil {
		return MR{}, fmt.Errorf("cannot register %d bytes: %w", len(buf), err)
	}
	return MR{Addr: r.base, Key: r.key}, nil
}

func (n *NIC) regMR(pd *domain, buf []byte, access verbs.Access) (*region, error) {
	switch {
	case pd == nil:
		return nil, fmt.Errorf("no such protection domain: %w", verbs.ErrInvalid)
	case len(buf) == 0:
		return nil, fmt.Errorf("the buffer is empty: %w", verbs.ErrInvalid)
	case !access.Valid():
		return nil, fmt.Errorf("access %q: remote writes and atomics need local writes: %w", access, verbs.ErrInvalid)
	case access.Has(verbs.AccessRemoteAtomic) && !aligned(buf):
		return nil, fmt.Errorf("memory for atomics is not aligned to 8 bytes: %w", verbs.ErrInvalid)
	}
	r := &region{pd: pd, access: access, base: n.keys.nextAddr, mem: buf}
	if !n.keys.add(r) {
		return nil, verbs.ErrNoResources
	}
	size := (uint64(len(buf)) + regionAlign - 1) &^ (regionAlign - 1)
	n.keys.nextAddr += size + regionAlign
	pd.refs++
	return r, nil
}

// DeregMR revokes a region's keys. It fails while windows are bound to the
// region or a queue pair's ring lies in it.
func (n *NIC) DeregMR(key verbs.RKey) error {
	r := n.keys.get(key)
	switch {
	case r == nil || r.window != 0:
		return fmt.Errorf("cannot deregister region %v: no such region: %w", key, verbs.ErrInvalid)
	case r.refs > 0:
		return fmt.Errorf("cannot deregister region %v: %d windows or rings are in it: %w", key, r.refs, verbs.ErrBusy)
	}
	n.removeRegion(r)
	return nil
}

func (n *NIC) removeRegion(r *region) {
	n.keys.remove(r)
	r.pd.refs--
	r.mem = nil
}
