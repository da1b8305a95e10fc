package far

// mapOwner is a ByteMap as the heap sees it: the owner of its entries. Whatever
// happens to an entry happens under the lock of its shard, which is held for no longer
// than it takes to copy one.
type mapOwner ByteMap

// Evacuate implements Owner.
func (o *mapOwner) Evacuate(ev *evacuation, r local) bool {
	m, e := (*ByteMap)(o), entry(r.mem)
	h := m.h
	sh := m.shard(e.hash())
	sh.mu.Lock()
	defer sh.mu.Unlock()
	p := sh.t.find(e.hash().tag(), word(r.addr))
	if p == none {
		return false // overwritten, deleted or moved
	}
	if e.expired() {
		sh.expire(h, p, e)
		return false
	}
	w := sh.t.word(p)
	n := e.size()
	clean := e.clean() && !h.far.seg(e.far()).gone()
	switch f, to, at := ev.place(entries, n, n, w.hot() > 0, clean); f {
	case fateKept:
		copy(to, e[:n])
		if e.clean() {
			h.logs.seg(r.addr).clean.Add(-int64(n))
			h.logs.seg(at).clean.Add(int64(n))
		}
		if ev.cools() && w.hot() > 0 {
			*w -= hotOne
		}
		*w = w.at(at)
	case fateDropped:
		h.logs.seg(r.addr).clean.Add(-int64(n))
		*w = newWord(e.far(), n, w.flags()) | wordFar
	case fateStaged:
		h.unclean(e, r.addr)
		sealCopy(to, e, at)
		e.setFlag(flagStaged)
	}
	return true
}

// Settled implements Owner.
func (o *mapOwner) Settled(r local, s *farSegment, addr uint64, written bool) bool {
	m, e := (*ByteMap)(o), entry(r.mem)
	sh := m.shard(e.hash())
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e.clearFlag(flagStaged)
	p := sh.t.find(e.hash().tag(), word(r.addr))
	if !written || p == none || s.gone() {
		return false
	}
	w := sh.t.word(p)
	*w = newWord(addr, e.size(), w.flags()) | wordFar
	return true
}

// Check implements Owner.
func (o *mapOwner) Check(e entry) error {
	if e.big() {
		return o.h.checkBig(e)
	}
	return nil
}

// Live implements Owner. It removes the entry if it has expired.
func (o *mapOwner) Live(e entry, addr uint64) bool {
	m := (*ByteMap)(o)
	sh := m.shard(e.hash())
	sh.mu.Lock()
	defer sh.mu.Unlock()
	p := sh.copyOf(m.h, e.hash().tag(), addr)
	if p == none {
		return false
	}
	if e.expired() {
		if w := *sh.t.word(p); !w.far() {
			e = m.h.logs.at(w.addr())
		}
		sh.expire(m.h, p, e)
		return false
	}
	return true
}

// Moved implements Owner.
func (o *mapOwner) Moved(e entry, from, to uint64, s *farSegment) bool {
	m := (*ByteMap)(o)
	sh := m.shard(e.hash())
	sh.mu.Lock()
	defer sh.mu.Unlock()
	p := sh.copyOf(m.h, e.hash().tag(), from)
	if p == none || s.gone() {
		return false
	}
	w := sh.t.word(p)
	if w.far() {
		*w = w.at(to)
	} else {
		m.h.logs.at(w.addr()).setFar(to)
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
			if e := h.logs.at(w.addr()); e.clean() && e.far() == addr {
				return p
			}
		}
	}
	return none
}

// unclean makes a local entry one without a far copy. Its shard's lock must be
// held.
func (h *Heap) unclean(e entry, addr uint64) {
	if !e.clean() {
		return
	}
	n := e.size()
	h.logs.seg(addr).clean.Add(-int64(n))
	h.buryFar(e.far(), roundSize(n))
	e.setFar(0)
	h.logs.stir()
}

// buryLocal accounts for the death of a local entry. Its shard's lock must be held.
func (h *Heap) buryLocal(e entry, addr uint64) {
	s := h.logs.seg(addr)
	n := int64(e.size())
	s.live.Add(-n)
	if e.clean() {
		s.clean.Add(-n)
	}
}
