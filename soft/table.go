package soft

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"polder/internal/failpoint"
	"polder/soft/internal/order"
)

// table finds objects by key: the index of a Map and of a Pool. The index
// lies in ordinary memory, 8 bytes an entry; keys and values lie in soft
// memory.
//
// Readers take no lock: they load a word out of a bucket, copy what it names,
// and prove the copy. Writers and the evacuator change a shard's words under
// its lock.
//
// A key has two buckets of eight words each, chosen by its hash; when both
// are full, the shard's buckets are doubled, and words of objects that are
// gone fall out.
type table struct {
	h      *Heap
	id     uint16
	shards []shard
	shift  uint8 // of a 48-bit hash, for the shard's number
	clock  func() time.Time
}

type shard struct {
	mu      sync.Mutex
	buckets atomic.Pointer[[]bucket]
	count   int // words that are set, dead ones included
	_       [40]byte
}

// bucket is one cache line.
type bucket [8]atomic.Uint64

// A hash has refBits bits, as many as an object's header keeps:
//
//	shard (high bits) | … | tag (8) | bucket (low 32)
const hashTagShift = 32

func hashTag(hash uint64) uint8 { return uint8(hash >> hashTagShift) }

// bucketsOf returns the two places of a hash in an index of n buckets, a power
// of two.
func bucketsOf(hash uint64, n int) (uint32, uint32) {
	mask := uint32(n - 1)
	b := uint32(hash)
	return b & mask, (b>>16 ^ b*0x9e3779b1>>7 ^ uint32(hashTag(hash))*0x5bd1e995) & mask
}

func newTable(h *Heap, p Priority) (*table, error) {
	const shardBits = 6
	t := &table{h: h, shards: make([]shard, 1<<shardBits), shift: refBits - shardBits, clock: time.Now}
	for i := range t.shards {
		b := make([]bucket, 2)
		t.shards[i].buckets.Store(&b)
	}
	id, ok := h.owners.add(t, p)
	if !ok {
		return nil, errOwners
	}
	t.id = id
	return t, nil
}

func (t *table) shard(hash uint64) *shard { return &t.shards[hash>>t.shift] }

// found says what a lookup has found.
type found uint8

const (
	missing found = iota
	present
	absent  // known to have no value
	expired // there, but too old
)

// get appends the value of a key to dst.
//
//polder:hot
func (t *table) get(hash uint64, key, dst []byte) (val []byte, hd header, expiry int64, f found) {
	return t.getPart(hash, key, dst, 0, SegmentSize)
}

// getPart is get for the n bytes of the value from the offset from on, or as many of them as there are. Of a large
// value it appends all bytes or, if n is 0, the identity.
//
//polder:hot
func (t *table) getPart(hash uint64, key, dst []byte, from, n uint32) (val []byte, hd header, expiry int64, f found) {
	h := t.h
	sh := t.shard(hash)
	tag := hashTag(hash)
	mark := len(dst)
	stale := 0
again:
	index := sh.buckets.Load()
	bs := *index
	i, j := bucketsOf(hash, len(bs))
	for {
		b := &bs[i]
		for k := range b {
			w := word(b[k].Load())
			if w.tag() != tag || w == 0 {
				continue
			}
			seg, off := w.segment(), w.offset()
			gen := h.ctl.Generation(seg)
			if !w.alive(gen) {
				failpoint.Hit("soft.gone")
				if word(b[k].Load()) != w { // moved meanwhile
					goto again
				}
				stale++
				continue
			}
			hd = h.base.header(seg, off)
			if hd.fits(off) && int(hd.klen) == len(key) {
				at := off + headerSize
				if hd.flags&flagExpiry != 0 {
					expiry = int64(h.base.load64(seg, at))
					at += 8
				} else {
					expiry = 0
				}
				// Lengths are the key's and not the header's, so that the
				// processor can fetch the rest before the header is there.
				if string(h.base.bytes(seg, at, uint32(len(key)))) == string(key) {
					at += uint32(len(key))
					end := off + headerSize + hd.size
					if hd.flags&flagLarge == 0 {
						at = min(at+from, end)
						end = min(at+n, end)
					}
					dst = append(dst[:mark], h.base.bytes(seg, at, end-at)...)
					order.LoadFence()
					if h.ctl.Generation(seg) != gen {
						goto again
					}
					h.touch(w)
					if expiry != 0 && expiry <= t.clock().UnixNano() {
						return dst[:mark], hd, expiry, expired
					}
					if hd.flags&flagLarge == 0 {
						h.curve.access(t.id, hash, hd.size, hd.cost)
					}
					if hd.flags&flagAbsent != 0 {
						return dst[:mark], hd, expiry, absent
					}
					if hd.flags&flagLarge != 0 && n != 0 {
						v, ok := h.larges.append(dst[:mark], idOf(dst[mark:]))
						if !ok {
							return dst[:mark], hd, expiry, missing
						}
						h.curve.access(t.id, hash, uint32(len(v)-mark), hd.cost)
						return v, hd, expiry, present
					}
					return dst, hd, expiry, present
				}
			}
			order.LoadFence()
			if h.ctl.Generation(seg) != gen {
				goto again
			}
		}
		if i == j {
			break
		}
		i = j
	}
	if sh.buckets.Load() != index { // grown meanwhile: what moved since is not in ours
		goto again
	}
	if stale > 0 {
		t.clean(hash)
	}
	return dst[:mark], header{}, 0, missing
}

// clean clears the words of a key's buckets whose objects are gone.
func (t *table) clean(hash uint64) {
	sh := t.shard(hash)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	bs := *sh.buckets.Load()
	i, j := bucketsOf(hash, len(bs))
	for _, i := range [2]uint32{i, j} {
		t.cleanBucket(sh, &bs[i])
	}
}

func (t *table) cleanBucket(sh *shard, b *bucket) {
	for k := range b {
		if w := word(b[k].Load()); w != 0 && !w.alive(t.h.ctl.Generation(w.segment())) {
			b[k].Store(0)
			sh.count--
		}
	}
}

// match is a word found under the shard's lock.
type match struct {
	slot *atomic.Uint64
	w    word
	hd   header
}

// find looks a key up. What it returns was alive when it was compared.
//
// Preconditions: sh.mu is held.
func (t *table) find(sh *shard, hash uint64, key []byte) (m match, ok bool) {
	h := t.h
	bs := *sh.buckets.Load()
	i, j := bucketsOf(hash, len(bs))
	for _, i := range [2]uint32{i, j} {
		for k := range bs[i] {
			w := word(bs[i][k].Load())
			if w == 0 || w.tag() != hashTag(hash) {
				continue
			}
			seg, off := w.segment(), w.offset()
			gen := h.ctl.Generation(seg)
			if !w.alive(gen) {
				continue
			}
			hd := h.base.header(seg, off)
			same := hd.fits(off) && int(hd.klen) == len(key) && hd.ref == hash &&
				string(h.base.bytes(seg, off+headerSize+hd.prefix(), uint32(hd.klen))) == string(key)
			order.LoadFence()
			if same && h.ctl.Generation(seg) == gen {
				return match{&bs[i][k], w, hd}, true
			}
		}
	}
	return match{}, false
}

// replace makes a slot name something else and returns the old object's
// memory.
//
// Preconditions: the shard's lock is held.
func (t *table) replace(m match, to word) {
	t.h.markDead(m.w)
	m.slot.Store(uint64(to))
	t.h.release(m.w, granulesFor(int(m.hd.size)))
}

// entry is what is to be stored under a key.
type entry struct {
	val    []byte
	expiry int64 // Unix nanoseconds, or 0
	cost   uint8
	flags  uint8
}

// condition decides, under the shard's lock, whether to store: current is
// the value that is there, if any.
type condition func(current match, ok bool) bool

// set stores a value under a key. It reports whether the condition held.
func (t *table) set(hash uint64, key []byte, e entry, cond condition) (bool, error) {
	h := t.h
	if len(key) > maxKey {
		return false, ErrKeyTooLarge
	}
	hd := header{klen: uint16(len(key)), cost: e.cost, flags: e.flags, owner: t.id, ref: hash}
	whole := uint32(len(key) + len(e.val)) // of which hd.size is only a part if it is large
	var large largeID
	var largeName [8]byte
	if headerSize+8+len(key)+len(e.val) > maxInline {
		var err error
		if large, err = h.larges.create(t.id, hash, e.val); err != nil {
			return false, err
		}
		hd.flags |= flagLarge
		binary.LittleEndian.PutUint64(largeName[:], uint64(large))
		e.val = largeName[:]
	}
	var exp [8]byte
	prefix := exp[:0]
	if e.expiry != 0 {
		hd.flags |= flagExpiry
		binary.LittleEndian.PutUint64(exp[:], uint64(e.expiry))
		prefix = exp[:]
	}
	hd.size = uint32(len(prefix) + len(key) + len(e.val))
	w, err := h.place(hd, prefix, key, e.val)
	if err != nil {
		h.curve.access(t.id, hash, whole, e.cost) // it was missed, and would have been kept
		h.larges.drop(large)
		return false, err
	}
	w |= word(hashTag(hash))

	sh := t.shard(hash)
	sh.mu.Lock()
	m, ok := t.find(sh, hash, key)
	if cond != nil && !cond(m, ok) {
		sh.mu.Unlock()
		h.markDead(w)
		h.release(w, granulesFor(int(hd.size)))
		h.larges.drop(large)
		return false, nil
	}
	var old largeID
	if ok {
		old = t.largeOf(m)
		t.replace(m, w)
	} else {
		t.insert(sh, hash, w)
	}
	sh.mu.Unlock()
	if !ok { // a miss has been made good: only now are size and cost known
		if h.returned(t.id, hash, whole) {
			h.setHot(w, 1)
		}
		h.curve.access(t.id, hash, whole, e.cost)
	}
	h.larges.adopt(large)
	h.larges.drop(old)
	return true, nil
}

// largeOf returns the large value that an object names, if any.
func (t *table) largeOf(m match) largeID {
	if m.hd.flags&flagLarge == 0 {
		return 0
	}
	return t.h.largeNamed(m.w, m.hd)
}

// delete removes a key and reports whether it was there.
func (t *table) delete(hash uint64, key []byte) bool {
	sh := t.shard(hash)
	sh.mu.Lock()
	m, ok := t.find(sh, hash, key)
	var large largeID
	if ok {
		large = t.largeOf(m)
		t.replace(m, 0)
		sh.count--
	}
	sh.mu.Unlock()
	t.h.larges.drop(large)
	return ok
}

// expire removes a key if its time has come.
func (t *table) expire(hash uint64, key []byte) {
	sh := t.shard(hash)
	sh.mu.Lock()
	m, ok := t.find(sh, hash, key)
	if ok && m.hd.flags&flagExpiry != 0 {
		expiry := int64(t.h.base.load64(m.w.segment(), m.w.offset()+headerSize))
		order.LoadFence()
		ok = m.w.alive(t.h.ctl.Generation(m.w.segment())) && expiry <= t.clock().UnixNano()
	} else {
		ok = false
	}
	var large largeID
	if ok {
		large = t.largeOf(m)
		t.replace(m, 0)
		sh.count--
	}
	sh.mu.Unlock()
	t.h.larges.drop(large)
}

// len returns the number of words that are set.
func (t *table) len() (n int) {
	for s := range t.shards {
		sh := &t.shards[s]
		sh.mu.Lock()
		n += sh.count
		sh.mu.Unlock()
	}
	return n
}

// swing is owner.swing: the evacuator moves or evicts an object.
func (t *table) swing(ref uint64, from, to word) bool {
	sh := t.shard(ref)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	bs := *sh.buckets.Load()
	i, j := bucketsOf(ref, len(bs))
	from |= word(hashTag(ref))
	for _, i := range [2]uint32{i, j} {
		for k := range bs[i] {
			if word(bs[i][k].Load()) != from {
				continue
			}
			if to == 0 {
				bs[i][k].Store(0)
				sh.count--
			} else {
				bs[i][k].Store(uint64(to | word(hashTag(ref))))
			}
			return true
		}
	}
	return false
}

// sweep is owner.sweep.
func (t *table) sweep() {
	for s := range t.shards {
		sh := &t.shards[s]
		sh.mu.Lock()
		bs := *sh.buckets.Load()
		for i := range bs {
			t.cleanBucket(sh, &bs[i])
		}
		sh.mu.Unlock()
	}
}

// holdsLarge is owner.holdsLarge.
func (t *table) holdsLarge(ref uint64, id largeID) bool {
	h := t.h
	sh := t.shard(ref)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	bs := *sh.buckets.Load()
	i, j := bucketsOf(ref, len(bs))
	for _, i := range [2]uint32{i, j} {
		for k := range bs[i] {
			w := word(bs[i][k].Load())
			if w == 0 || w.tag() != hashTag(ref) {
				continue
			}
			if hd, ok := h.headerOf(w); ok && hd.ref == ref && hd.flags&flagLarge != 0 && h.largeNamed(w, hd) == id {
				return true
			}
		}
	}
	return false
}

// each visits the words that name something, for counting and closing.
func (t *table) each(f func(sh *shard, m match)) {
	h := t.h
	for s := range t.shards {
		sh := &t.shards[s]
		sh.mu.Lock()
		bs := *sh.buckets.Load()
		for i := range bs {
			for k := range bs[i] {
				w := word(bs[i][k].Load())
				if w == 0 {
					continue
				}
				if hd, ok := h.headerOf(w); ok {
					f(sh, match{&bs[i][k], w, hd})
				}
			}
		}
		sh.mu.Unlock()
	}
}

// clear removes every key.
func (t *table) clear() {
	var dropped []largeID
	t.each(func(sh *shard, m match) {
		if l := t.largeOf(m); l != 0 {
			dropped = append(dropped, l)
		}
		t.replace(m, 0)
		sh.count--
	})
	for _, l := range dropped {
		t.h.larges.drop(l)
	}
}

// close removes every key and gives the owner's number back.
func (t *table) close() {
	t.clear()
	t.h.owners.remove(t.id)
}
