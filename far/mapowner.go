package far

import "polder/far/heap"

// mapOwner is a ByteMap as the heap sees it: the owner of its entries. Whatever
// happens to an entry happens under the lock of its shard, which is held for no longer
// than it takes to copy one.
type mapOwner ByteMap

// Evacuate implements Owner.
func (o *mapOwner) Evacuate(ev *heap.Evacuation, r heap.Local) bool {
	m, e := (*ByteMap)(o), heap.Record(r.Mem)
	h := m.h
	sh := m.shard(hashOf(e))
	sh.mu.Lock()
	defer sh.mu.Unlock()
	p := sh.t.find(hashOf(e).tag(), word(r.Addr))
	if p == none {
		return false // overwritten, deleted or moved
	}
	if e.Expired() {
		sh.expire(h, p, e)
		return false
	}
	w := sh.t.word(p)
	n := e.Size()
	clean := e.Clean() && !h.core.Far.Seg(e.Far()).Gone()
	switch f, to, at := ev.Place(heap.Locked, n, n, w.hot() > 0, clean); f {
	case heap.FateKept:
		copy(to, e[:n])
		if e.Clean() {
			h.core.Logs.Seg(r.Addr).Clean.Add(-int64(n))
			h.core.Logs.Seg(at).Clean.Add(int64(n))
		}
		if ev.Cools() && w.hot() > 0 {
			*w -= hotOne
		}
		*w = w.at(at)
	case heap.FateDropped:
		h.core.Logs.Seg(r.Addr).Clean.Add(-int64(n))
		*w = newWord(e.Far(), n, w.flags()) | wordFar
	case heap.FateStaged:
		h.unclean(e, r.Addr)
		heap.SealCopy(to, e, at)
		e.SetFlag(heap.FlagStaged)
	}
	return true
}

// Settled implements Owner.
func (o *mapOwner) Settled(r heap.Local, s *heap.FarSegment, addr uint64, written bool) bool {
	m, e := (*ByteMap)(o), heap.Record(r.Mem)
	sh := m.shard(hashOf(e))
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e.ClearFlag(heap.FlagStaged)
	p := sh.t.find(hashOf(e).tag(), word(r.Addr))
	if !written || p == none || s.Gone() {
		return false
	}
	w := sh.t.word(p)
	*w = newWord(addr, e.Size(), w.flags()) | wordFar
	return true
}

// Check implements Owner.
func (o *mapOwner) Check(e heap.Record) error {
	if e.Big() {
		return o.h.checkBig(e)
	}
	return nil
}

// Live implements Owner. It removes the entry if it has expired.
func (o *mapOwner) Live(e heap.Record, addr uint64) bool {
	m := (*ByteMap)(o)
	sh := m.shard(hashOf(e))
	sh.mu.Lock()
	defer sh.mu.Unlock()
	p := sh.copyOf(m.h, hashOf(e).tag(), addr)
	if p == none {
		return false
	}
	if e.Expired() {
		if w := *sh.t.word(p); !w.far() {
			e = m.h.core.Logs.At(w.addr())
		}
		sh.expire(m.h, p, e)
		return false
	}
	return true
}

// Moved implements Owner.
func (o *mapOwner) Moved(e heap.Record, from, to uint64, s *heap.FarSegment) bool {
	m := (*ByteMap)(o)
	sh := m.shard(hashOf(e))
	sh.mu.Lock()
	defer sh.mu.Unlock()
	p := sh.copyOf(m.h, hashOf(e).tag(), from)
	if p == none || s.Gone() {
		return false
	}
	w := sh.t.word(p)
	if w.far() {
		*w = w.at(to)
	} else {
		m.h.core.Logs.At(w.addr()).SetFar(to)
	}
	return true
}

// copyOf returns the entry whose far copy is at addr.
func (sh *shard) copyOf(h *Heap, tag uint32, addr uint64) place {
	if p := sh.t.find(tag, wordFar|word(addr)); p != none {
		if sh.t.word(p).isLost() {
			return none
		}
		return p
	}
	for p := range sh.t.matches(tag) {
		if w := *sh.t.word(p); !w.far() {
			if e := h.core.Logs.At(w.addr()); e.Clean() && e.Far() == addr {
				return p
			}
		}
	}
	return none
}

// unclean makes a local entry one without a far copy. Its shard's lock must be
// held.
func (h *Heap) unclean(e heap.Record, addr uint64) {
	if !e.Clean() {
		return
	}
	n := e.Size()
	h.core.Logs.Seg(addr).Clean.Add(-int64(n))
	h.core.BuryFar(e.Far(), heap.RoundSize(n))
	e.SetFar(0)
	h.core.Logs.Stir()
}

// buryLocal accounts for the death of a local entry. Its shard's lock must be held.
func (h *Heap) buryLocal(e heap.Record, addr uint64) {
	s := h.core.Logs.Seg(addr)
	n := int64(e.Size())
	s.Live.Add(-n)
	if e.Clean() {
		s.Clean.Add(-n)
	}
}
