package bytemap

import (
	"context"

	"polder/far/heap"
	"polder/far/index"
)

const (
	// A look takes in so many buckets of the index, and reads so many
	// headers of far entries. If more than a quarter of the entries with an
	// expiry have expired, the next look follows at once.
	sweepBuckets = 1024
	sweepHeads   = 64
)

// sweeper walks over the index, a little at a time, in search of entries
// whose time has come.
type sweeper struct {
	m, shard, bucket int
	klen             int // length of the keys that are read with the headers
}

// sweep looks at the next stretch of the index and reports whether it paid.
func (sw *sweeper) sweep(h *Maps) bool {
	seen, expired := 0, 0
	maps := *h.maps.Load()
	if len(maps) == 0 {
		return false
	}
	if sw.m >= len(maps) {
		sw.m, sw.shard, sw.bucket = 0, 0, 0
	}
	for range maps {
		if len(maps[sw.m].shards()) > 0 {
			break
		}
		sw.m, sw.shard, sw.bucket = (sw.m+1)%len(maps), 0, 0
	}
	m := maps[sw.m]
	b := h.core.NewBatch(sweepHeads)
	defer b.End()
	for n := 0; len(m.shards()) > 0 && n < sweepBuckets && b.Len() < sweepHeads; {
		sh := m.at(sw.shard)
		sh.mu.Lock()
		for ; sw.bucket < len(sh.t.Buckets) && n < sweepBuckets && b.Len() < sweepHeads; sw.bucket++ {
			n++
			for i := range index.BucketEntries {
				p := index.Place(sw.bucket*index.BucketEntries + i)
				w := *sh.t.Word(p)
				if w&index.TTL == 0 || w.IsLost() {
					continue
				}
				if w.Far() {
					if h.core.Far.Seg(w.Addr()).Gone() {
						continue
					}
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
			// It shrinks another time if the kernel has no memory for both tables.
			_ = sh.shrink(h)
		}
		sh.mu.Unlock()
		if end {
			n++ // an empty shard is a look, too
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
			if entryOf(f).Expired() && m.expireFar(f) {
				expired++
			}
		}
	})
	return seen > 0 && 4*expired > seen
}

// expireFar removes the entry that f found expired, if it is still there.
func (m *Map) expireFar(f *heap.Flight) bool {
	sh, tag := m.placeOf(&f.Want)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	p := sh.farPlace(tag, &f.Want)
	if p == index.None {
		return false
	}
	sh.expire(m.h, p, entryOf(f))
	return true
}
