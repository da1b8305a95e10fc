package far

import (
	"fmt"
	"sync"

	"github.com/zeebo/xxh3"

	"polder/far/heap"
)

// shard is one part of a map: an index, and the lock under which the entries
// that it refers to are read, written and moved. An entry is copied under the
// lock, at most one at a time; no lock is held while the store works.
//
// Processors take turns at a shard, so the fewer cache lines a call writes to, the
// better: what a hit needs is in the first one.
type shard struct {
	mu       sync.Mutex
	t        table
	missed   uint64 // bytes that were fetched, see admits
	count    shardCounters
	entries  int // without pieces and without the lost
	lost     int
	muts     uint64 // changes of contents, as opposed to moves
	closed   bool
	nextHead uint8 // the one of heads to forget next
	id       int   // its number in the map; immutable

	heads []head     // what FetchHeads has read of late
	cold  *leafIndex // nil while there is room for all words in t
	// Whole lines: see memory_unsafe.go.
}

// shardCounters are guarded by the shard's lock, since counting with atomics
// that all shards share costs more than the rest of a hit.
type shardCounters struct {
	hits, misses, absent, sets, deletes, expired, coalesced, prefetched uint64
}

func (m *ByteMap) hash(key []byte) hash { return hash(xxh3.HashSeed(key, m.h.seed) >> (64 - hashBits)) }

// shard is the shard of the keys with that hash. Where there are more shards than the
// bits above the tag can tell apart, the lowest bits of the tag are used, too: those
// least matter to where in its table an entry lies.
func (m *ByteMap) shard(h hash) *shard {
	return m.at(int(h>>32|h<<(hashBits-32)) & (m.h.shards - 1))
}

// at is shard i.
func (m *ByteMap) at(i int) *shard {
	first := m.first.Load()
	if first == nil {
		first = m.open()
	}
	return shardAt(first, i)
}

// shards returns the shards of m, none before its first use.
func (m *ByteMap) shards() []shard {
	if first := m.first.Load(); first != nil {
		return shardsAt(first, m.h.shards)
	}
	return nil
}

// open makes the shards of m, and returns the first.
//
//go:noinline
func (m *ByteMap) open() *shard {
	h := m.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if first := m.first.Load(); first != nil {
		return first
	}
	shards := newShards(h.shards, h.core.Shut.Load())
	m.first.Store(&shards[0])
	return &shards[0]
}

func newShards(n int, closed bool) []shard {
	shards := make([]shard, n)
	for i := range shards {
		shards[i].id = i
		shards[i].closed = closed
	}
	return shards
}

// gone is why a shard of m is closed.
func (m *ByteMap) gone() error {
	if m.freed.Load() {
		return fmt.Errorf("cannot use map %q: %w", m.name, ErrFreed)
	}
	return heap.ErrClosed
}

// openLog is where sh appends.
func (h *Heap) openLog(sh *shard) *heap.OpenLog {
	return &h.core.Logs.Open[sh.id&(len(h.core.Logs.Open)-1)]
}

// status is what the index knows of a key.
type status uint8

// waits reports whether the store has to be read to know more.
func (st status) waits() bool { return st == remote || st >= unread }

const (
	absent  status = iota
	present        // here are its bytes
	remote         // there is a far entry that may be the key's
	lost           // there was one
	corrupt        // there is one, but its bytes are damaged
	unread         // its leaf has to be read to know
	crowded        // the same, and then there would be no place for what it says
)

// find looks key up among the entries of a kind. Far entries count as present if hd holds their bytes:
// the whole of them if whole is set, otherwise their header and key.
// sh.mu must be held, and is what keeps the bytes in place.
func (sh *shard) find(h *Heap, hs hash, key []byte, kind word, hd *holding, whole bool) (place, entry, status) {
	t := &sh.t
	tag := hs.tag()
	known := kind == kindPiece || !sh.hasLeaves()
again:
	if len(t.buckets) == 0 && known {
		return none, nil, absent
	}
	candidate, st := none, absent
	b := t.home(tag)
	for range t.buckets {
		bk := &t.buckets[b]
		for i, g := range &bk.tags {
			w := bk.words[i]
			if g != tag || !w.is(kind) {
				known = known || g == tag && w.tells()
				continue
			}
			known = true
			if !w.far() {
				if e := h.entryAt(w.addr()); string(e.Key()) == string(key) {
					return place(b*bucketEntries + i), e, present
				}
				continue
			}
			// The slow path: a far entry with the same tag.
			s := remote
			var e entry
			if f := hd.of(w.addr(), whole); f != nil {
				e, s = entryOf(f), corrupt
			} else if w.isLost() || h.core.Far.Seg(w.addr()).Gone() {
				s = lost
			} else if !whole {
				e = sh.head(h, w.addr())
			}
			if e != nil {
				if string(e.Key()) == string(key) {
					return place(b*bucketEntries + i), e, present
				}
				continue
			}
			// A lost or corrupt entry is taken for the key's only when no other
			// can be it.
			if st == absent || s == remote && st != remote {
				candidate, st = place(b*bucketEntries+i), s
			}
		}
		if bk.over == 0 {
			break
		}
		b = t.after(b)
	}
	if !known {
		if st = sh.consult(h, tag, hd); st == present {
			known = true
			goto again
		}
	}
	return candidate, nil, st
}

// remove deletes the entry at p. e is its bytes, nil if they are not at hand.
// sh.mu must be held.
func (sh *shard) remove(h *Heap, p place, e entry) {
	w := *sh.t.word(p)
	h.bury(w, e)
	sh.takeOut(p)
	sh.uncount(w)
}

// uncount takes an entry that is to go out of the counts.
func (sh *shard) uncount(w word) {
	switch {
	case !w.visible():
		return
	case w.isLost():
		sh.lost--
	default:
		sh.entries--
	}
	sh.muts++
}

// bury accounts for the death of the entry w, whose bytes are e, nil if they
// are not at hand. The lock of its shard must be held.
func (h *Heap) bury(w word, e entry) {
	switch {
	case w.far() && w.addr() == 0: // only its tag was known
	case w.far():
		h.core.BuryFar(w.addr(), w.size())
	default:
		h.buryLocal(e, w.addr())
		if e.Clean() {
			h.core.BuryFar(e.Far(), w.size())
		}
	}
	switch {
	case e != nil && e.Big():
		h.orphan(e)
	case e == nil && w&wordBig != 0 && !w.isLost():
		h.strays.Store(true) // only its head knew its pieces
	}
	h.core.Logs.Stir()
}

// insert stores r in place of what is at p, whose bytes are old; p is none if
// the key is new. It fails with errNoRoom or errNoShrink if it has to wait, having
// changed nothing. sh.mu must be held.
func (m *ByteMap) insert(sh *shard, hs hash, p place, old entry, r *newEntry) error {
	if err := r.txn.claim(m, sh, hs.tag(), p); err != nil {
		return err
	}
	// What a transaction replaces stays, and so what it stores takes a place.
	hide := r.txn != nil && p != none && *sh.t.word(p)&wordTxn == 0
	if (p == none || hide) && !sh.roomy() {
		var was word
		if hide {
			was = *sh.t.word(p)
		}
		// A transaction gives back the place that it takes.
		if err := sh.more(m.h, hs.tag()); err != nil && (sh.full() && !hide || sh.t.filled()) {
			return err
		}
		if hide {
			p = sh.t.find(hs.tag(), was) // the table may be another one
		}
	}
	h := m.h
	n, far := r.size(), r.farSize()
	if p != none && !hide && m.overwrite(sh, hs, p, old, r) {
		return nil
	}
	ol := h.openLog(sh)
	ol.Mu.Lock()
	o, addr, ok := h.core.Logs.Place(ol, n, heap.ForMutator)
	if !ok && p != none && far <= sh.t.word(p).size() {
		ol.Mu.Unlock()
		ol = &h.core.Logs.Shrunk
		ol.Mu.Lock()
		if o, addr, ok = h.core.Logs.Place(ol, n, heap.ForShrink); !ok {
			ol.Mu.Unlock()
			return heap.ErrNoShrink
		}
	}
	if !ok {
		ol.Mu.Unlock()
		return heap.ErrNoRoom
	}
	e := entry(o)
	r.put(e, hs, m.id)
	ol.Mu.Unlock()

	w := newWord(addr, far, wordFlagsOf(e))
	if r.txn != nil && w.visible() {
		w |= wordTxn
	}
	switch {
	case hide:
		sh.hide(sh.t.word(p))
		sh.t.insert(hs.tag(), w.touched())
	case p == none:
		sh.t.insert(hs.tag(), w)
	default:
		was := sh.t.word(p)
		w |= *was & hotMask
		h.bury(*was, old)
		sh.uncount(*was)
		*was = w.touched()
	}
	if w.visible() {
		sh.entries++
		sh.muts++
	}
	sh.count.sets++
	return nil
}

// overwrite stores r where the local entry old is, if it has the same lengths and
// is neither being written to far memory nor used in place. The evacuator does not mind, since
// it copies under the shard's lock, too; it walks over entries without the lock,
// but by words that are overwritten with what they were.
func (m *ByteMap) overwrite(sh *shard, hs hash, p place, old entry, r *newEntry) bool {
	w := sh.t.word(p)
	if w.far() || old.Staged() || old.Big() || r.flags != 0 || old.end() != entryHeader+r.body() || old.Klen() != len(r.key) || m.h.core.Logs.Viewed(w.addr()) {
		return false
	}
	h := m.h
	h.unclean(old, w.addr())
	r.put(old[:r.size()], hs, m.id)
	*w = (newWord(w.addr(), r.farSize(), wordFlagsOf(old)) | *w&(hotMask|wordTxn)).touched()
	sh.muts++
	sh.count.sets++
	return true
}

// grow gives sh a larger table. sh.mu must be held.
func (sh *shard) grow(h *Heap) error { return sh.resize(h, sh.t.grownBytes()) }

// shrink gives sh a smaller table if that it has is much too large. sh.mu must
// be held.
func (sh *shard) shrink(h *Heap) error {
	if size := sh.t.shrunkBytes(); size != sh.t.bytes() {
		return sh.resize(h, size)
	}
	return nil
}

func (sh *shard) resize(h *Heap, size int64) error {
	l := &h.core.Logs
	old := sh.t.bytes()
	if err := l.GrowIndex(heap.Tables, size, heap.ForMutator); err != nil {
		return err
	}
	if err := sh.t.resize(size); err != nil {
		l.ShrinkIndex(heap.Tables, size)
		return err
	}
	l.ShrinkIndex(heap.Tables, old)
	return nil
}
