package bytemap

import (
	"polder/far/heap"
	"polder/far/index"
	"polder/far/record"
	"polder/internal/sizeclass"
)

// wantLeaf is set in the Number of a heap.Want for a leaf. The lower half of that Number is the number of the range.
const wantLeaf = 1 << 63

// boardLeaf is board for the leaf of tag.
func (m *Map) boardLeaf(b *heap.Batch, number int, sh *shard, tag uint32) (f *heap.Flight, leader bool, busy <-chan struct{}) {
	h := m.h
	i := sh.cold.Of(tag)
	ref := sh.cold.At(i)
	if f := h.core.Join(ref.Addr(), heap.UseBytes); f != nil {
		if b != nil {
			b.Join(f, number)
		}
		return f, false, nil
	}
	h.leafReads.Add(1)
	size := sizeclass.Size(ref.Class())
	f, busy, err := h.core.Board(b, &heap.Want{
		Owner:  (*owner)(m),
		Number: wantLeaf | uint64(sh.id)<<32 | uint64(i),
		Word:   uint64(ref),
		Addr:   ref.Addr(),
		N:      min(size, h.core.Far.SegSize-h.core.Far.Offset(ref.Addr())),
		Size:   size,
		Index:  number,
		Use:    heap.UseBytes,
	})
	if err != nil {
		panic("BUG: " + err.Error()) // Board's errors are about objects, whose words no lock keeps
	}
	return f, true, busy
}

// isLeaf reports whether w is for a leaf.
func isLeaf(w *heap.Want) bool { return w.Number&wantLeaf != 0 }

// refersToLeaf reports whether the index refers to the leaf that is wanted.
func (m *Map) refersToLeaf(w *heap.Want) bool {
	sh, i := m.placeOf(w)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.hasLeaves() && int(i) < sh.cold.Len() && sh.cold.At(int(i)).Addr() == w.Addr
}

// checkLeaf checks the leaf that is wanted.
func (h *Maps) checkLeaf(r record.Record, w *heap.Want) error {
	_, err := h.leaves.Open(r.Body(), h.core.Far.Seg(w.Addr).Position(), h.core.Far.Offset(w.Addr))
	return err
}

// leaf returns the leaf at addr, nil if hd does not hold it.
func (hd *holding) leaf(addr uint64) index.Leaf {
	if hd == nil {
		return nil
	}
	for _, f := range hd.flights {
		if f.Addr == addr && isLeaf(&f.Want) && f.Rec != nil {
			return index.Leaf(f.Rec.Body())
		}
	}
	return nil
}

// tell makes the tag of key known to its shard, by the leaf that f has brought. It reports false if there was no
// place in the table.
func (m *Map) tell(f *heap.Flight, key []byte) bool {
	hs := m.hash(key)
	sh := m.shard(hs)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.known(hs.Tag()) || sh.consult(m.h, hs.Tag(), &holding{[]*heap.Flight{f}}) != crowded
}
