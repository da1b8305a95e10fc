package bytemap

import (
	"context"
	"slices"
	"sync/atomic"

	"polder/far/heap"
	"polder/far/index"
	"polder/far/pagelog"
	"polder/internal/sizeclass"
)

const (
	// A look goes through at most sweepBuckets buckets of the index, and reads about sweepHeads headers of far
	// entries. If more than a quarter of the entries with an expiry have expired, the next look follows at once.
	sweepBuckets = 1024
	sweepHeads   = 64
)

// sweeper walks over the index, a little at a time, in search of entries whose time has come. It goes over the table
// of a shard, and then over its leaves, one leaf a look.
type sweeper struct {
	m, shard, bucket int
	leaf, slot       int         // when the table is done
	dated            atomic.Bool // there may be leaves of entries that expire
	klen             int         // length of the keys that are read with the headers
	read             []byte
}

// sweep looks at the next stretch of the index and reports whether it paid.
func (sw *sweeper) sweep(h *Maps) bool {
	seen, expired := 0, 0
	maps := *h.maps.Load()
	if len(maps) == 0 {
		return false
	}
	for n := 0; n < len(maps) && (sw.m >= len(maps) || len(maps[sw.m].shards()) == 0); n++ {
		sw.m, sw.shard, sw.bucket = (sw.m+1)%len(maps), 0, 0
	}
	m := maps[sw.m]
	b := h.core.NewBatch(sweepHeads)
	defer b.End()
	var leaf scannedLeaf
	for n := 0; leaf.seg == nil && len(m.shards()) > 0 && n < sweepBuckets && b.Len() < sweepHeads; {
		sh := m.at(sw.shard)
		sh.mu.Lock()
		for ; sw.bucket < len(sh.t.Buckets) && n < sweepBuckets && b.Len() < sweepHeads; sw.bucket++ {
			n++
			for i := range index.BucketEntries {
				p := index.Place(sw.bucket*index.BucketEntries + i)
				w := *sh.t.Word(p)
				switch {
				case w&index.TTL == 0 || w.IsLost() || w.Far() && h.core.Far.Seg(w.Addr()).Gone():
					continue
				case w.Far():
					_, _, _ = m.board(b, 0, sh, p, heap.UseHead, sw.klen) // another time if there is no buffer
					continue
				}
				seen++
				if e := h.entryAt(w.Addr()); e.Expired() {
					sh.expire(h, p, e)
					expired++
				}
			}
		}
		end := sw.bucket >= len(sh.t.Buckets)
		if end {
			_ = sh.shrink(h) // another time if the kernel has no memory for both tables
		}
		sh.mu.Unlock()
		if end {
			n++ // an empty shard is a look, too
			if leaf = sw.sweepLeaf(m, sh, b); leaf.seg != nil {
				break
			}
			sw.shard, sw.bucket = sw.shard+1, 0
			if sw.shard == m.h.shards {
				sw.m, sw.shard = sw.m+1, 0
				break
			}
		}
	}
	ctx, cancel := context.WithTimeout(h.core.Ctx, heap.StoreTimeout)
	defer cancel()
	b.Flush(ctx, func(f *heap.Flight, _ int, err error) {
		switch {
		case err != nil:
		case f.Short:
			sw.klen = MaxKeySize
		case f.Rec != nil:
			seen++
			if entryOf(f).Expired() && m.expireFar(f, leaf) {
				expired++
			}
		}
	})
	return 4*expired > seen
}

// sweepLeaf boards those entries of the next leaf of sh that may have expired. It returns the leaf, with seg nil if
// there is none.
func (sw *sweeper) sweepLeaf(m *Map, sh *shard, b *heap.Batch) (leaf scannedLeaf) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for ; sw.dated.Load() && sh.hasLeaves() && sw.leaf < sh.cold.Len(); sw.leaf, sw.slot = sw.leaf+1, 0 {
		ref := sh.cold.At(sw.leaf)
		if ref.Addr() == 0 || m.h.core.Far.Seg(ref.Addr()).Gone() {
			continue
		}
		sw.read = slices.Grow(sw.read[:0], sizeclass.Size(ref.Class()))
		reads := [1]pagelog.Read{pagelog.NewRead(m.h.core, ref.Addr(), sw.read[:sizeclass.Size(ref.Class())])}
		sh.mu.Unlock()
		leaves, errs := m.h.readLeaves(m.h.core.Ctx, reads[:])
		sh.mu.Lock()
		if errs[0] != nil || !sh.hasLeaves() || sw.leaf >= sh.cold.Len() {
			continue // another time
		}
		if sh.cold.At(sw.leaf).Addr() != ref.Addr() {
			sw.leaf-- // it has been replaced: once more
			continue
		}
		leaf = scannedLeaf{ref.Addr(), reads[0].Seg, leaves[0]}
		for lo, hi := sh.cold.Range(sw.leaf); sw.slot < leaf.leaf.Len() && b.Len() < sweepHeads; sw.slot++ {
			s := leaf.leaf.At(sw.slot)
			if w, tag := s.Word, uint64(s.Tag); w&index.TTL != 0 && !w.IsLost() && lo <= tag && tag < hi && !sh.known(s.Tag) && !m.h.core.Far.Seg(w.Addr()).Gone() {
				_, _, _ = m.boardWord(b, 0, sh, s.Tag, &w, heap.UseHead, sw.klen)
			}
		}
		if sw.slot >= leaf.leaf.Len() { // it may have become shorter
			sw.leaf, sw.slot = sw.leaf+1, 0
		}
		return leaf
	}
	sw.leaf, sw.slot = 0, 0
	return leaf
}

// expireFar removes the entry that f found expired, and reports whether it was still there. If only a leaf knows the
// entry, expireFar has the table learn it from leaf, which this look has read.
func (m *Map) expireFar(f *heap.Flight, leaf scannedLeaf) bool {
	sh, tag := m.placeOf(&f.Want)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.known(tag) {
		i := sh.cold.Of(tag)
		if sh.cold.At(i).Addr() != leaf.addr {
			if sw := &m.h.sweeper; leaf.seg != nil && sh == m.at(sw.shard) && i <= sw.leaf {
				sw.leaf, sw.slot = i, 0 // it has been replaced: once more
			}
			return false
		}
		if m.h.core.Far.Seg(leaf.addr) != leaf.seg || sh.learn(m.h, tag, i, leaf.leaf, 0) != present {
			return false
		}
	}
	p := sh.farPlace(tag, &f.Want)
	if p != index.None {
		sh.expire(m.h, p, entryOf(f))
	}
	return p != index.None
}
