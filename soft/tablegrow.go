package soft

import "sync/atomic"

// insert puts a word of a new key into one of its buckets.
//
// Preconditions: sh.mu is held.
func (t *table) insert(sh *shard, hash uint64, w word) {
	for {
		bs := *sh.buckets.Load()
		i, j := bucketsOf(hash, len(bs))
		if slot := choose(bs, i, j); slot != nil {
			slot.Store(uint64(w))
			sh.count++
			return
		}
		before := sh.count
		t.cleanBucket(sh, &bs[i])
		t.cleanBucket(sh, &bs[j])
		if sh.count == before {
			t.grow(sh)
		}
	}
}

// choose returns an empty slot for a key of two buckets, if there is any: in the
// first while it is less than three quarters full, so that most readers find what
// they look for without a second cache miss; then in the emptier one.
func choose(bs []bucket, i, j uint32) *atomic.Uint64 {
	slot, n := emptyIn(&bs[i])
	if n > 2 {
		return slot
	}
	if slot2, n2 := emptyIn(&bs[j]); n2 > n {
		return slot2
	}
	return slot
}

func emptyIn(b *bucket) (slot *atomic.Uint64, n int) {
	for k := range b {
		if b[k].Load() == 0 {
			slot = &b[k]
			n++
		}
	}
	return slot, n
}

// grow doubles a shard's buckets. The hashes are in the objects' headers;
// words whose objects are gone are left behind.
//
// Preconditions: sh.mu is held.
func (t *table) grow(sh *shard) {
	old := *sh.buckets.Load()
	for n := len(old) * 2; ; n *= 2 {
		bs, count, ok := t.rehash(old, n)
		if ok {
			sh.count = count
			sh.buckets.Store(&bs)
			return
		}
	}
}

func (t *table) rehash(old []bucket, n int) (bs []bucket, count int, ok bool) {
	h := t.h
	bs = make([]bucket, n)
	for b := range old {
		for k := range old[b] {
			w := word(old[b][k].Load())
			if w == 0 {
				continue
			}
			hd, alive := h.headerOf(w)
			if !alive {
				continue
			}
			i, j := bucketsOf(hd.ref, n)
			slot := choose(bs, i, j)
			if slot == nil {
				return nil, 0, false
			}
			slot.Store(uint64(w))
			count++
		}
	}
	return bs, count, true
}
