package bytemap

import (
	"context"
	"encoding/binary"
	"maps"

	"polder/far/entry"
	"polder/far/heap"
	"polder/far/index"
)

// lose marks the entries of sh that were in s and nowhere else as lost, and reports
// whether there were heads of large values among them.
func (sh *shard) lose(h *Maps, s *heap.FarSegment) (heads bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.loseLeaves(h, s)
	for p := range index.Place(len(sh.t.Buckets) * index.BucketEntries) {
		at := sh.t.Word(p)
		switch w := *at; {
		case w == 0 || w.IsLost():
		case !w.Far():
			if e := h.entryAt(w.Addr()); e.Clean() && e.Far()/h.core.Far.Units == s.ID {
				h.unclean(e, w.Addr())
			}
		case w.Addr()/h.core.Far.Units != s.ID:
		case w.Is(index.Pieces):
			// Nobody asks for a piece but through its head, which tells that it is missing.
			sh.remove(h, p, nil)
		default:
			*at = w&^index.Settled | index.Lost
			h.core.Count.Lost.Add(1)
			if w.Visible() {
				sh.entries--
				sh.lost++
			}
			heads = heads || w&index.Big != 0
		}
	}
	return heads
}

// buryStrays removes the pieces whose head was lost, so that nothing refers to them any more, and reports whether it
// could. It reads all heads and all pieces: losing memory is rare.
func (h *Maps) buryStrays() bool {
	ctx, cancel := context.WithTimeout(h.core.Ctx, heap.StoreTimeout)
	defer cancel()
	h.mu.Lock()
	last := h.version
	alive := maps.Clone(h.writing)
	h.mu.Unlock()
	ok := h.each(ctx, index.Big, func(_ *shard, _ index.Place, e entry.Local) {
		alive[entry.LargeOf(e).Version] = true
	})
	return ok && h.each(ctx, index.Piece, func(sh *shard, p index.Place, e entry.Local) {
		if v := binary.LittleEndian.Uint64(e.Key()); p != index.None && v <= last && !alive[v] {
			sh.remove(h, p, e)
		}
	})
}

// each calls fn with every entry that has the flags of kind, under the lock of its shard, and reports whether it could
// read all of them. The place is none for an entry that has moved while it was read.
func (h *Maps) each(ctx context.Context, kind index.Word, fn func(*shard, index.Place, entry.Local)) bool {
	for _, m := range *h.maps.Load() {
		for i := range m.shards() {
			if !m.each(ctx, m.at(i), kind, fn) {
				return false
			}
		}
	}
	return true
}

// eachHeads is the number of far entries that each reads in one batch.
const eachHeads = 64

func (m *Map) each(ctx context.Context, sh *shard, kind index.Word, fn func(*shard, index.Place, entry.Local)) bool {
	klen := MaxKeySize
	if kind&index.Piece != 0 {
		klen = entry.PieceKeySize
	}
	b := m.h.core.NewBatch(eachHeads)
	defer b.End()
	size := -1 // of the table; entries keep their places as long as it is the same
	for p := index.Place(0); ; {
		stuck := false
		sh.mu.Lock()
		if len(sh.t.Buckets) != size {
			p, size = 0, len(sh.t.Buckets)
		}
		end := index.Place(size * index.BucketEntries)
	collect:
		for ; p < end && b.Len() < eachHeads; p++ {
			w := *sh.t.Word(p)
			switch {
			case w&kind == 0 || kind == index.Piece && w.Hidden() || w.IsLost():
				continue
			case !w.Far():
				fn(sh, p, m.h.entryAt(w.Addr()))
				continue
			case m.h.core.Far.Seg(w.Addr()).Gone():
				continue
			}
			if _, _, busy := m.board(b, 0, sh, p, heap.UseHead, klen); busy != nil {
				stuck = b.Len() == 0
				break collect // go on from here when there are buffers again
			}
		}
		sh.mu.Unlock()
		b.Flush(ctx, func(f *heap.Flight, _ int, err error) {
			if err != nil || f.Rec == nil {
				stuck = stuck || !f.Segment().Gone()
				return
			}
			sh.mu.Lock()
			defer sh.mu.Unlock()
			_, tag := m.placeOf(&f.Want)
			fn(sh, sh.t.Find(tag, index.Far|index.Word(f.Addr)), entryOf(f))
		})
		switch {
		case stuck:
			return false
		case p == end:
			return true
		}
	}
}
