package soft

import (
	"math/bits"
	"math/rand/v2"

	"polder/internal/failpoint"
	"polder/soft/internal/order"
)

// This is how a table is read beside get: entries as they are, all entries of a shard, and
// walks in steps.

// peek returns a key's value and the word that names it, without counting the
// access.
func (t *table) peek(hash uint64, key []byte) (word, []byte, bool) {
	for {
		sh := t.shard(hash)
		sh.mu.Lock()
		m, ok := t.find(sh, hash, key)
		sh.mu.Unlock()
		if !ok {
			return 0, nil, false
		}
		e, ok := t.entryOf(m)
		if !ok {
			continue // gone since: look again
		}
		if e.flags&flagAbsent != 0 || e.expiry != 0 && e.expiry <= t.clock().UnixNano() {
			return 0, nil, false
		}
		if e.flags&flagLarge != 0 {
			v, ok := t.h.larges.append(nil, idOf(e.val))
			return m.w, v, ok
		}
		return m.w, e.val, true
	}
}

// entryOf copies what an object holds, after its key.
func (t *table) entryOf(m match) (e entry, ok bool) {
	b, ok := t.objectOf(m)
	if !ok {
		return e, false
	}
	e = entry{cost: m.hd.cost, flags: m.hd.flags}
	if m.hd.flags&flagExpiry != 0 {
		e.expiry = int64(idOf(b))
	}
	e.val = b[m.hd.prefix()+uint32(m.hd.klen):]
	return e, true
}

// objectOf copies an object's payload.
func (t *table) objectOf(m match) ([]byte, bool) {
	h := t.h
	seg, off := m.w.segment(), m.w.offset()
	if !m.hd.fits(off) {
		return nil, false
	}
	b := append([]byte(nil), h.base.bytes(seg, off+headerSize, m.hd.size)...)
	order.LoadFence()
	return b, m.w.alive(h.ctl.Generation(seg))
}

type keyValue struct{ key, val []byte }

// snapshot copies the entries of one shard that are there and have not
// expired.
func (t *table) snapshot(s int) (list []keyValue) {
	var found []match
	sh := &t.shards[s]
	sh.mu.Lock()
	bs := *sh.buckets.Load()
	for i := range bs {
		for k := range bs[i] {
			w := word(bs[i][k].Load())
			if hd, ok := t.h.headerOf(w); ok {
				found = append(found, match{&bs[i][k], w, hd})
			}
		}
	}
	sh.mu.Unlock()
	now := t.clock().UnixNano()
	for _, m := range found {
		b, ok := t.objectOf(m)
		if !ok || m.hd.flags&flagAbsent != 0 || m.hd.flags&flagExpiry != 0 && int64(idOf(b)) <= now {
			continue
		}
		p := m.hd.prefix()
		kv := keyValue{key: b[p : p+uint32(m.hd.klen)], val: b[p+uint32(m.hd.klen):]}
		if m.hd.flags&flagLarge != 0 {
			if kv.val, ok = t.h.larges.append(nil, idOf(kv.val)); !ok {
				continue
			}
		}
		list = append(list, kv)
	}
	return list
}

// A cursor says where a walk over a table has got to. Words stay where they
// are while their keys are there, until the shard's buckets are doubled; then
// the walk over that shard begins again.
//
//	shard (16) | log2 of the shard's buckets (16) | bucket (32)
//
// A shard has at least two buckets, so a logarithm of 0 says that the shard's walk has yet to begin.
type cursor uint64

func makeCursor(shard, buckets, bucket int) cursor {
	return cursor(uint64(shard)<<48 | uint64(bits.Len(uint(buckets))-1)<<32 | uint64(bucket))
}

func (c cursor) shard() int   { return int(c >> 48) }
func (c cursor) buckets() int { return 1 << (c >> 32 & 63) }
func (c cursor) bucket() int  { return int(uint32(c)) }

// emptyBuckets bounds a step of a walk in which nothing is found.
const emptyBuckets = 64

// scan visits the entries of the first bucket from a cursor on that has any, or of none if the next emptyBuckets
// buckets have none. It returns the cursor to go on with; 0 is the end. What it passes to yield is proved, and valid
// until yield returns.
func (t *table) scan(from uint64, yield func(key []byte, hd header, expiry int64)) uint64 {
	c := cursor(from)
	s, b := c.shard(), c.bucket()
	for range emptyBuckets {
		if s >= len(t.shards) {
			return 0
		}
		sh := &t.shards[s]
		index := sh.buckets.Load()
		bs := *index
		if c.buckets() != len(bs) {
			b = 0
		}
		n := 0
		if b < len(bs) {
			n = t.visit(&bs[b], yield)
			b++
			if sh.buckets.Load() != index {
				b = 0 // doubled meanwhile: what moved since may have been missed
			}
		}
		if c = makeCursor(s, len(bs), b); b >= len(bs) {
			s, b = s+1, 0
			c = cursor(uint64(s) << 48)
		}
		if n > 0 {
			break
		}
	}
	if c.shard() >= len(t.shards) {
		return 0
	}
	return uint64(c)
}

// visit passes the entries of a bucket to yield and returns how many there
// were.
func (t *table) visit(b *bucket, yield func(key []byte, hd header, expiry int64)) (n int) {
	now := t.clock().UnixNano()
	var space [256]byte
	key := space[:0]
	for k := range b {
		for {
			w := word(b[k].Load())
			if w == 0 {
				break
			}
			expiry := int64(0)
			hd, ok := t.h.headerOf(w)
			if ok = ok && hd.fits(w.offset()) && hd.owner == t.id; ok {
				at := w.offset() + headerSize
				if hd.flags&flagExpiry != 0 {
					expiry = int64(t.h.base.load64(w.segment(), at))
				}
				key = append(key[:0], t.h.base.bytes(w.segment(), at+hd.prefix(), uint32(hd.klen))...)
				order.LoadFence()
				ok = w.alive(t.h.ctl.Generation(w.segment()))
			}
			if !ok {
				failpoint.Hit("soft.gone")
				if word(b[k].Load()) != w { // moved meanwhile
					continue
				}
				break
			}
			if expiry == 0 || expiry > now {
				yield(key, hd, expiry)
				n++
			}
			break
		}
	}
	return n
}

// random appends a key to dst: of a bucket chosen by chance, or of the next
// that is not empty.
func (t *table) random(dst []byte) ([]byte, bool) {
	mark := len(dst)
	first := rand.IntN(len(t.shards))
	for s := range t.shards {
		sh := &t.shards[(first+s)%len(t.shards)]
		bs := *sh.buckets.Load()
		start := rand.IntN(len(bs))
		for b := range bs {
			seen := 0
			t.visit(&bs[(start+b)%len(bs)], func(key []byte, _ header, _ int64) {
				if seen++; rand.IntN(seen) == 0 {
					dst = append(dst[:mark], key...)
				}
			})
			if seen > 0 {
				return dst, true
			}
		}
	}
	return dst, false
}
