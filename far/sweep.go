package far

import (
	"context"

	"polder/far/heap"
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
func (sw *sweeper) sweep(h *Heap) bool {
	seen, expired := 0, 0
	var far []*flight
	maps := *h.maps.Load()
	if len(maps) == 0 {
		return false
	}
	if sw.m >= len(maps) {
		sw.m, sw.shard, sw.bucket = 0, 0, 0
	}
	m := maps[sw.m]
	for n := 0; n < sweepBuckets && len(far) < sweepHeads; {
		sh := &m.shards[sw.shard]
		sh.mu.Lock()
		for ; sw.bucket < len(sh.t.buckets) && n < sweepBuckets && len(far) < sweepHeads; sw.bucket++ {
			n++
			for i := range bucketEntries {
				p := place(sw.bucket*bucketEntries + i)
				w := *sh.t.word(p)
				if w&wordTTL == 0 || w.isLost() {
					continue
				}
				if w.far() {
					if h.core.Far.Seg(w.addr()).Gone() {
						continue
					}
					switch f, leader, _ := h.board(sh, sh.t.tag(p), p, wantsHead, sw.klen, nil); {
					case leader:
						far = append(far, f)
					case f != nil:
						f.release(h) // somebody is looking at it anyway
					}
					continue
				}
				seen++
				if e := h.core.Logs.At(w.addr()); e.Expired() {
					sh.expire(h, p, e)
					expired++
				}
			}
		}
		end := sw.bucket >= len(sh.t.buckets)
		if end {
			// It shrinks another time if there is no room for both tables.
			_ = m.shrink(sh)
		}
		sh.mu.Unlock()
		if end {
			n++ // an empty shard is a look, too
			sw.shard, sw.bucket = sw.shard+1, 0
			if sw.shard == len(m.shards) {
				sw.m, sw.shard = sw.m+1, 0
				break
			}
		}
	}
	ctx, cancel := context.WithTimeout(h.core.Ctx, heap.StoreTimeout)
	h.leadAll(ctx, m, far)
	cancel()
	for _, f := range far {
		if f.e != nil {
			seen++
			if f.e.Expired() && f.sh.expireFar(h, f) {
				expired++
			}
		} else if f.short {
			sw.klen = MaxKeySize
		}
		f.release(h)
	}
	return seen > 0 && 4*expired > seen
}

// expireFar removes the entry that f found expired, if it is still there.
func (sh *shard) expireFar(h *Heap, f *flight) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	p := sh.t.find(f.tag, wordFar|word(f.addr))
	if p == none || sh.t.word(p).isLost() {
		return false
	}
	sh.expire(h, p, f.e)
	return true
}
