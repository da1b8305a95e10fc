package bytemap

import (
	"polder/far/entry"
	"polder/far/heap"
	"polder/far/index"
	"polder/far/record"
	"polder/internal/sizeclass"
)

// owner is a Map as the heap sees it: the owner of its entries. Whatever happens to an entry happens under the lock of
// its shard, which is held for no longer than it takes to copy one.
type owner Map

// Evacuate implements Owner.
func (o *owner) Evacuate(ev *heap.Evacuation, r heap.Local) bool {
	m, e := (*Map)(o), entry.Local(r.Mem)
	h := m.h
	sh := m.shard(e.Hash())
	sh.mu.Lock()
	defer sh.mu.Unlock()
	p := sh.t.Find(e.Hash().Tag(), index.Word(r.Addr))
	if p == index.None {
		return false // overwritten, deleted or moved
	}
	if e.Expired() {
		sh.expire(h, p, e)
		return false
	}
	w := sh.t.Word(p)
	n := e.Size()
	clean := e.Clean() && !h.core.Far.Seg(e.Far()).Gone()
	switch f, to, at := ev.Place(heap.Locked, n, e.FarSize(), w.Hot() > 0, clean); f {
	case heap.FateKept:
		clear(to[copy(to, e):])
		if e.Clean() {
			h.core.Logs.Seg(r.Addr).Clean.Add(-int64(n))
			h.core.Logs.Seg(at).Clean.Add(int64(n))
		}
		if ev.Cools() && w.Hot() > 0 {
			*w -= index.HotOne
		}
		*w = w.At(at)
	case heap.FateDropped:
		h.core.Logs.Seg(r.Addr).Clean.Add(-int64(n))
		*w = index.NewWord(e.Far(), e.FarSize(), w.Flags()|*w&index.Settled) | index.Far
	case heap.FateStaged:
		h.unclean(e, r.Addr)
		e.PutFar(to)
		e.SetStaged()
	}
	return true
}

// Settled implements Owner.
func (o *owner) Settled(r heap.Local, s *heap.FarSegment, addr uint64, written, stays bool) bool {
	m, e := (*Map)(o), entry.Local(r.Mem)
	sh := m.shard(e.Hash())
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e.SetFar(0)
	p := sh.t.Find(e.Hash().Tag(), index.Word(r.Addr))
	if !written || p == index.None || s.Gone() {
		return false
	}
	w := sh.t.Word(p)
	if stays {
		e.SetFar(addr)
		m.h.core.Logs.Seg(r.Addr).Clean.Add(int64(e.Size()))
		*w &^= index.Settled
		return true
	}
	*w = index.NewWord(addr, e.FarSize(), w.Flags()) | index.Far
	return true
}

// Check implements Owner. It turns the record that is wanted into an entry.
func (o *owner) Check(r record.Record, want *heap.Want) error {
	if want != nil && isLeaf(want) && r.Kind() == record.Page && r.Owner() == o.id {
		return o.h.checkLeaf(r, want)
	}
	if k := r.Kind(); want != nil && isLeaf(want) || k != record.Entry && k != record.Piece {
		return heap.ErrForeign
	}
	if r.Flags()&record.Large != 0 {
		if err := o.h.checkBig(r.Value()); err != nil {
			return err
		}
	}
	if want == nil {
		return nil
	}
	e := entry.Localize(r, want.Addr)
	sh, tag := (*Map)(o).placeOf(want)
	w := index.Word(want.Word)
	if e.Owner() != o.id || e.Hash().Tag() != tag || (*Map)(o).shard(e.Hash()) != sh ||
		entry.WordFlags(e) != w.OfEntry() || sizeclass.Round(e.FarSize()) != w.Size() {
		return heap.ErrForeign
	}
	return nil
}

// entryOf is the entry that f has brought, or its head; nil if it has brought none.
func entryOf(f *heap.Flight) entry.Local {
	if f.Rec == nil {
		return nil
	}
	return entry.Localized(f.Rec)
}

// placeOf returns the shard and the tag under which the index may refer to what w wants.
func (m *Map) placeOf(w *heap.Want) (sh *shard, tag uint32) {
	return m.at(int(w.Number &^ wantLeaf >> 32)), uint32(w.Number)
}

// farPlace returns the place of the far entry that is wanted, none if the index does not refer
// to it any more. The lock of sh, which is its shard, must be held.
func (sh *shard) farPlace(tag uint32, w *heap.Want) index.Place {
	p := sh.t.Find(tag, index.Far|index.Word(w.Addr))
	if p != index.None && sh.t.Word(p).IsLost() {
		return index.None
	}
	return p
}

// Refers implements Owner.
func (o *owner) Refers(w *heap.Want) bool {
	if isLeaf(w) {
		return (*Map)(o).refersToLeaf(w)
	}
	sh, tag := (*Map)(o).placeOf(w)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.farPlace(tag, w) != index.None || !sh.known(tag)
}

// Landed implements Owner.
func (o *owner) Landed(f *heap.Flight) heap.Landing {
	h := o.h
	if isLeaf(&f.Want) {
		if (*Map)(o).refersToLeaf(&f.Want) {
			return heap.Kept // by whoever holds the flight
		}
		return heap.Elsewhere
	}
	sh, tag := (*Map)(o).placeOf(&f.Want)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	p := sh.farPlace(tag, &f.Want)
	switch {
	case p == index.None && !sh.known(tag):
		return heap.Kept // where it is: the index referred to it when the flight began
	case p == index.None:
		return heap.Elsewhere
	case !f.Admit && f.Use != heap.UseLocal:
		return heap.StaysFar
	}
	w := sh.t.Word(p)
	e := entryOf(f)
	n := e.Size()
	ol := h.openLog(sh)
	ol.Mu.Lock()
	defer ol.Mu.Unlock()
	local, addr, ok := h.core.Logs.Place(ol, n, heap.ForMutator)
	if !ok {
		return heap.StaysFar
	}
	clear(local[copy(local, e):])
	if f.Segment().Gone() { // rescued just in time
		entry.Local(local).SetFar(0)
		f.Segment().Live.Add(-int64(w.Size()))
	} else {
		h.core.Logs.Seg(addr).Clean.Add(int64(n))
	}
	*w = index.NewWord(addr, e.FarSize(), w.Flags()|*w&index.Settled)
	if f.Use != heap.UseBytes {
		*w |= index.Fresh // it was not used yet
	}
	return heap.Kept
}

// Live implements Owner. It removes the entry if it has expired.
func (o *owner) Live(r record.Record, addr uint64) bool {
	m, hs := (*Map)(o), entry.Hash(r.Number())
	sh := m.shard(hs)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	p := sh.copyOf(m.h, hs.Tag(), addr)
	if p == index.None || sh.t.Word(p).Size() != sizeclass.Round(r.Size()) {
		return false // a longer one would hide its neighbours, and count for more when it is moved
	}
	if entry.Expired(r.Expiry()) {
		e := sh.bytesAt(m.h, p)
		if e == nil {
			e = entry.Localize(r, addr) // which nobody else looks at any more
		}
		sh.expire(m.h, p, e)
		return false
	}
	return true
}

// Moved implements Owner.
func (o *owner) Moved(r record.Record, from, to uint64, s *heap.FarSegment) bool {
	m, hs := (*Map)(o), entry.Hash(r.Number())
	sh := m.shard(hs)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	p := sh.copyOf(m.h, hs.Tag(), from)
	if p == index.None || s.Gone() {
		return false
	}
	w := sh.t.Word(p)
	*w &^= index.Settled
	if w.Far() {
		*w = w.At(to)
	} else {
		m.h.entryAt(w.Addr()).SetFar(to)
	}
	return true
}

// copyOf returns the entry whose far copy is at addr.
func (sh *shard) copyOf(h *Maps, tag uint32, addr uint64) index.Place {
	if p := sh.t.Find(tag, index.Far|index.Word(addr)); p != index.None {
		if sh.t.Word(p).IsLost() {
			return index.None
		}
		return p
	}
	for p := range sh.t.Matches(tag) {
		if w := *sh.t.Word(p); !w.Far() {
			if e := h.entryAt(w.Addr()); e.Clean() && e.Far() == addr {
				return p
			}
		}
	}
	return index.None
}

// unclean gives up the far copy of a local entry, if it has one. Its shard's lock must be held.
func (h *Maps) unclean(e entry.Local, addr uint64) {
	if !e.Clean() {
		return
	}
	h.core.Logs.Seg(addr).Clean.Add(-int64(e.Size()))
	h.core.BuryFar(e.Far(), sizeclass.Round(e.FarSize()))
	e.SetFar(0)
	h.core.Logs.Stir()
}

// buryLocal accounts for the death of a local entry. Its shard's lock must be held.
func (h *Maps) buryLocal(e entry.Local, addr uint64) {
	s := h.core.Logs.Seg(addr)
	n := int64(e.Size())
	s.Live.Add(-n)
	if e.Clean() {
		s.Clean.Add(-n)
	}
}
