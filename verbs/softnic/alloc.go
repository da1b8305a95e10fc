package softnic

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"

	"polder/verbs"
)

// allocator is a verbs.Allocator: chunks that a table describes and a queue
// lists, both in registered memory, where work-request chains reach them, too.
type allocator struct {
	cfg   AllocatorConfig
	pd    *domain
	table []byte // the entries
	ring  []byte
	freed []byte // ring, or another one
	head  *uint64
	tail  *uint64
	last  *uint64 // the tail of freed
	refs  int     // queue pairs attached
}

// lease is what a queue pair may allocate.
type lease struct {
	from   *allocator
	owner  uint64
	budget uint64
	group  []uint32
	before uint64 // chunks that it had when it was attached
	allocs uint64
	frees  uint64
}

// AllocatorConfig is verbs.AllocatorInit, with keys for regions.
type AllocatorConfig struct {
	Table            verbs.RKey
	Entries          uint64
	Count            uint32
	Windows          int
	Queue            verbs.RKey
	Head, Tail       uint64
	Ring, Size       uint64
	Freed, FreedRing uint64
	Zero             bool
	Memory           verbs.RKey
	ChunkSize        uint64
	Access           verbs.Access
}

// CreateAllocator makes an allocator and returns its number.
func (n *NIC) CreateAllocator(pd uint32, c AllocatorConfig) (uint32, error) {
	d := n.pds.get(pd)
	table, queue, memory := n.keys.get(c.Table), n.keys.get(c.Queue), n.keys.get(c.Memory)
	for _, r := range []*region{table, queue, memory} {
		if d == nil || r == nil || r.window != 0 || r.pd != d {
			return 0, fmt.Errorf("cannot create an allocator: a region is not of its protection domain: %w", verbs.ErrInvalid)
		}
	}
	switch {
	case !table.access.Has(verbs.AccessLocalWrite), !queue.access.Has(verbs.AccessLocalWrite),
		c.Zero && !memory.access.Has(verbs.AccessLocalWrite):
		return 0, fmt.Errorf("cannot create an allocator: a region allows no local writes: %w", verbs.ErrInvalid)
	case c.Windows < 2 || c.Windows > verbs.MaxWindows:
		return 0, fmt.Errorf("cannot create an allocator: %d windows, not 2 to %d: %w", c.Windows, verbs.MaxWindows, verbs.ErrInvalid)
	case c.Size < 8 || c.Size&(c.Size-1) != 0 || c.Ring%c.Size != 0 || c.FreedRing%c.Size != 0:
		return 0, fmt.Errorf("cannot create an allocator: a ring of %d bytes at %#x: %w", c.Size, c.Ring, verbs.ErrInvalid)
	case c.Count == 0 || c.ChunkSize == 0:
		return 0, fmt.Errorf("cannot create an allocator of nothing: %w", verbs.ErrInvalid)
	}
	a := &allocator{cfg: c, pd: d}
	a.table = table.at(c.Entries, uint64(c.Count)*verbs.EntrySize)
	a.ring, a.freed = queue.at(c.Ring, c.Size), queue.at(c.FreedRing, c.Size)
	for _, w := range []struct {
		addr uint64
		to   **uint64
	}{{c.Head, &a.head}, {c.Tail, &a.tail}, {c.Freed, &a.last}} {
		if mem := queue.at(w.addr, 8); mem != nil && aligned(mem) {
			*w.to = word(mem)
		}
	}
	if a.table == nil || a.ring == nil || a.freed == nil || a.head == nil || a.tail == nil || a.last == nil ||
		!aligned(a.ring) || !aligned(a.freed) {
		return 0, fmt.Errorf("cannot create an allocator: its table or queue is not in the region: %w", verbs.ErrInvalid)
	}
	num, ok := n.allocators.add(a)
	if !ok {
		return 0, fmt.Errorf("cannot create an allocator: %w", verbs.ErrNoResources)
	}
	for _, r := range []*region{table, queue, memory} {
		r.refs++
	}
	return num, nil
}

// DestroyAllocator destroys an allocator that no queue pair is attached to.
func (n *NIC) DestroyAllocator(num uint32) error {
	a := n.allocators.get(num)
	switch {
	case a == nil:
		return fmt.Errorf("cannot destroy allocator %d: no such allocator: %w", num, verbs.ErrInvalid)
	case a.refs > 0:
		return fmt.Errorf("cannot destroy allocator %d: %d queue pairs use it: %w", num, a.refs, verbs.ErrBusy)
	}
	for _, key := range []verbs.RKey{a.cfg.Table, a.cfg.Queue, a.cfg.Memory} {
		n.keys.get(key).refs--
	}
	n.allocators.remove(num)
	return nil
}

// AttachAllocator lets the peer of a queue pair allocate, for the queue pairs
// of group.
func (n *NIC) AttachAllocator(num, qpn uint32, owner, budget, held uint64, group []uint32) error {
	a, q := n.allocators.get(num), n.qps.get(qpn)
	switch {
	case a == nil || q == nil || q.pd != a.pd || q.alloc != nil:
		return fmt.Errorf("cannot attach QP %d to allocator %d: %w", qpn, num, verbs.ErrInvalid)
	case held > budget:
		return fmt.Errorf("cannot attach QP %d: %d chunks exceed the budget of %d: %w", qpn, held, budget, verbs.ErrInvalid)
	case owner == 0 || len(group) != a.cfg.Windows-1:
		return fmt.Errorf("cannot attach QP %d: owner %d, a group of %d: %w", qpn, owner, len(group), verbs.ErrInvalid)
	}
	a.refs++
	q.alloc = &lease{from: a, owner: owner, budget: budget, before: held, group: slices.Clone(group)}
	return nil
}

// AllocatorCounts is how many chunks were allocated and freed over a queue pair.
func (n *NIC) AllocatorCounts(qpn uint32) (allocs, frees uint64, err error) {
	if q := n.qps.get(qpn); q != nil && q.alloc != nil {
		return q.alloc.allocs, q.alloc.frees, nil
	}
	return 0, 0, fmt.Errorf("QP %d has no allocator: %w", qpn, verbs.ErrInvalid)
}

// allocate executes an ALLOC and returns the answer.
func (n *NIC) allocate(q *qp) []byte {
	le, out := binary.LittleEndian, n.answer[:]
	clear(out)
	status, entry := n.takeChunk(q)
	le.PutUint32(out, uint32(status))
	if status != verbs.AllocOK {
		return out
	}
	a := q.alloc.from
	b := a.entry(entry)
	copy(out[8:16], b[verbs.EntrySlots:])
	le.PutUint64(out[16:], entry)
	for j := 1; j < a.cfg.Windows; j++ {
		copy(out[20+4*j:], b[verbs.EntrySlots+j*verbs.SlotSize+8:][:4])
	}
	return out
}

// entry is the memory of the entry at addr.
func (a *allocator) entry(addr uint64) []byte {
	off := addr - a.cfg.Entries
	return a.table[off : off+verbs.EntrySize : off+verbs.EntrySize]
}

// valid reports whether addr is the address of an entry.
func (a *allocator) valid(addr uint64) bool {
	off := addr - a.cfg.Entries // huge if addr is below
	return off%verbs.EntrySize == 0 && off < uint64(len(a.table))
}

// takeChunk takes the queue's first entry, and binds its windows.
func (n *NIC) takeChunk(q *qp) (verbs.AllocStatus, uint64) {
	g := q.alloc
	a := g.from
	if g.before+g.allocs-g.frees >= g.budget {
		return verbs.AllocBudget, 0
	}
	head := atomic.LoadUint64(a.head)
	element := word(a.ring[head&(a.cfg.Size-1)&^7:])
	entry := atomic.LoadUint64(element)
	// It is claimed before the head is moved on: the host may take entries, too.
	if !a.valid(entry) || !atomic.CompareAndSwapUint64(element, entry, 0) {
		return verbs.AllocEmpty, 0
	}
	b := a.entry(entry)
	for j := range a.cfg.Windows {
		qpn := q.num
		if j > 0 {
			qpn = g.group[j-1]
		}
		if !n.bindSlot(q, b[verbs.EntrySlots+j*verbs.SlotSize:], qpn) {
			for k := range j {
				n.unbindSlot(b[verbs.EntrySlots+k*verbs.SlotSize:])
			}
			atomic.StoreUint64(element, entry)
			return verbs.AllocFailed, 0
		}
	}
	maskedAdd(a.head, 8, a.cfg.Size>>1)
	atomic.StoreUint64(word(b), g.owner)
	g.allocs++
	n.counters.Allocs++
	return verbs.AllocOK, entry
}

// bindSlot binds the window of a slot to the queue pair qpn.
func (n *NIC) bindSlot(q *qp, slot []byte, qpn uint32) bool {
	le := binary.LittleEndian
	c := &q.alloc.from.cfg
	return n.bind(q, &wqe{
		op: verbs.OpBindMW, access: c.Access, qpn: qpn, length: c.ChunkSize,
		addr: le.Uint64(slot), rkey: verbs.RKey(le.Uint32(slot[8:])), lkey: verbs.LKey(le.Uint32(slot[12:])),
	})
}

// unbindSlot invalidates the window of a slot, whoever has it, and counts its
// key up.
func (n *NIC) unbindSlot(slot []byte) {
	le := binary.LittleEndian
	key := verbs.RKey(le.Uint32(slot[8:]))
	if mw := n.keys.get(key); mw != nil && mw.window == verbs.MWType2B && mw.mr != nil {
		n.unbind(mw)
		n.counters.Invalidations++
	}
	le.PutUint32(slot[8:], uint32(verbs.MakeRKey(key.Index(), key.Key()+1)))
}

// free executes a FREE.
func (n *NIC) free(q *qp, p *Packet) {
	g := q.alloc
	if g == nil || len(p.Payload) > 0 {
		n.refuse(q, p.PSN, verbs.StatusRemInvReqErr)
		return
	}
	a := g.from
	if !a.valid(p.Addr) {
		n.refuse(q, p.PSN, verbs.StatusRemAccessErr)
		return
	}
	b := a.entry(p.Addr)
	first := verbs.RKey(binary.LittleEndian.Uint32(b[verbs.EntrySlots+8:]))
	if mw := n.keys.get(first); mw == nil || mw.owner != q {
		n.refuse(q, p.PSN, verbs.StatusRemAccessErr)
		return
	}
	for j := range a.cfg.Windows {
		n.unbindSlot(b[verbs.EntrySlots+j*verbs.SlotSize:])
	}
	if a.cfg.Zero {
		if mem := n.keys.get(a.cfg.Memory).at(binary.LittleEndian.Uint64(b[verbs.EntrySlots:]), a.cfg.ChunkSize); mem != nil {
			clear(mem)
		}
	}
	atomic.StoreUint64(word(b), 0)
	tail := maskedAdd(a.last, 8, a.cfg.Size>>1)
	atomic.StoreUint64(word(a.freed[tail&(a.cfg.Size-1)&^7:]), p.Addr)
	g.frees++
	n.counters.Frees++
	q.rsp.ackOwed, q.rsp.ackPSN = true, p.PSN
	n.schedule(q)
}
