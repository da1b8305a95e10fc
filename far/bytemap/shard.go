package bytemap

import (
	"fmt"
	"sync"

	"github.com/zeebo/xxh3"

	"polder/far/entry"
	"polder/far/heap"
	"polder/far/index"
)

// shard is one part of a map: an index, and the lock under which the entries that it refers to are read, written and
// moved. An entry is copied under the lock, at most one at a time; no lock is held while the store works.
//
// Processors take turns at a shard, so the fewer cache lines a call writes to, the
// better: what a hit needs is in the first one.
type shard struct {
	mu      sync.Mutex
	t       index.Table
	missed  uint64 // bytes that were fetched, see admits
	count   shardCounters
	entries int // without pieces and without the lost
	lost    int
	muts    uint64 // changes of contents, as opposed to moves
	closed  bool
	id      int // its number in the map; immutable

	heads *entry.Heads // what FetchHeads has read of late; nil if it never has
	cold  *leafIndex   // nil while there is room for all words in t
	_     [16]byte     // to whole lines: see memory_unsafe.go
}

// shardCounters are guarded by the shard's lock, since counting with atomics
// that all shards share costs more than the rest of a hit.
type shardCounters struct {
	hits, misses, absent, sets, deletes, expired, coalesced, prefetched uint64
}

func (m *Map) hash(key []byte) entry.Hash {
	return entry.Hash(xxh3.HashSeed(key, m.h.seed) >> (64 - entry.HashBits))
}

// shard returns the shard of the keys with the hash h. If there are more shards than the bits above the tag can tell
// apart, the lowest bits of the tag are used, too: they matter least to where in its table an entry lies.
func (m *Map) shard(h entry.Hash) *shard {
	return m.at(int(h>>32|h<<(entry.HashBits-32)) & (m.h.shards - 1))
}

// at is shard i.
func (m *Map) at(i int) *shard {
	first := m.first.Load()
	if first == nil {
		first = m.open()
	}
	return shardAt(first, i)
}

// shards returns the shards of m, none before its first use.
func (m *Map) shards() []shard {
	if first := m.first.Load(); first != nil {
		return shardsAt(first, m.h.shards)
	}
	return nil
}

// open makes the shards of m, and returns the first.
//
//go:noinline
func (m *Map) open() *shard {
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
func (m *Map) gone() error {
	if m.freed.Load() {
		return fmt.Errorf("cannot use map %q: %w", m.name, heap.ErrFreed)
	}
	return heap.ErrClosed
}

// openLog is where sh appends.
func (h *Maps) openLog(sh *shard) *heap.OpenLog {
	return &h.core.Logs.Open[sh.id&(len(h.core.Logs.Open)-1)]
}

// status is what the index knows of a key.
type status uint8

// waits reports whether the call has to wait, for the store or for a place in the table, to know more.
func (st status) waits() bool { return st == remote || st >= unread }

const (
	absent  status = iota
	present        // here are its bytes
	remote         // there is a far entry that may be the key's
	lost           // there was such an entry
	corrupt        // there is one, but its bytes are damaged
	unread         // the leaf of its tag has to be read
	crowded        // the table has no place for what the leaf of its tag says
)

// find looks key up among the entries of a kind. A far entry counts as present if hd holds its bytes: the whole entry
// if whole is set, otherwise its header and key, which sh.heads may have, too. sh.mu must be held, and is what keeps
// the bytes in place.
func (sh *shard) find(h *Maps, hs entry.Hash, key []byte, kind index.Word, hd *holding, whole bool) (index.Place, entry.Local, status) {
	t := &sh.t
	tag := hs.Tag()
	known := kind == index.Pieces || !sh.hasLeaves()
again:
	if len(t.Buckets) == 0 && known {
		return index.None, nil, absent
	}
	candidate, st := index.None, absent
	b := t.Home(tag)
	for range t.Buckets {
		bk := &t.Buckets[b]
		for i, g := range &bk.Tags {
			w := bk.Words[i]
			if g != tag || !w.Is(kind) {
				known = known || g == tag && w.Tells()
				continue
			}
			known = true
			if !w.Far() {
				if e := h.entryAt(w.Addr()); string(e.Key()) == string(key) {
					return index.Place(b*index.BucketEntries + i), e, present
				}
				continue
			}
			// The slow path: a far entry with the same tag.
			s := remote
			var e entry.Local
			if f := hd.of(w.Addr(), whole); f != nil {
				e, s = entryOf(f), corrupt
			} else if w.IsLost() || h.core.Far.Seg(w.Addr()).Gone() {
				s = lost
			} else if !whole {
				e = sh.heads.Of(w.Addr(), h.core.Far.Seg(w.Addr()))
			}
			if e != nil {
				if string(e.Key()) == string(key) {
					return index.Place(b*index.BucketEntries + i), e, present
				}
				continue
			}
			// A lost or corrupt entry is taken for the key's only when no other can be it.
			if st == absent || s == remote && st != remote {
				candidate, st = index.Place(b*index.BucketEntries+i), s
			}
		}
		if bk.Over == 0 {
			break
		}
		b = t.After(b)
	}
	if !known {
		if st = sh.consult(h, tag, hd); st == present {
			known = true
			goto again
		}
	}
	return candidate, nil, st
}

// remove deletes the entry at p. e is its bytes, nil if they are not at hand. sh.mu must be held.
func (sh *shard) remove(h *Maps, p index.Place, e entry.Local) {
	w := *sh.t.Word(p)
	h.bury(w, e)
	sh.takeOut(p)
	sh.uncount(w)
}

// uncount takes the entry of w, which is about to be removed or hidden, out of the counts of sh.
func (sh *shard) uncount(w index.Word) {
	switch {
	case !w.Visible():
		return
	case w.IsLost():
		sh.lost--
	default:
		sh.entries--
	}
	sh.muts++
}

// bury accounts for the death of the entry w, whose bytes are e, nil if they
// are not at hand. The lock of its shard must be held.
func (h *Maps) bury(w index.Word, e entry.Local) {
	switch {
	case w.Far() && w.Addr() == 0: // only its tag was known
	case w.Far():
		h.core.BuryFar(w.Addr(), w.Size())
	default:
		h.buryLocal(e, w.Addr())
		if e.Clean() {
			h.core.BuryFar(e.Far(), w.Size())
		}
	}
	switch {
	case e != nil && e.Big():
		h.orphan(e)
	case e == nil && w&index.Big != 0 && !w.IsLost():
		h.strays.Store(true) // only its head knew its pieces
	}
	h.core.Logs.Stir()
}

// insert stores r in place of the entry at p, whose bytes are old; p is None if the key is new. If the caller has to
// wait first, insert changes no entry and fails with heap.ErrNoRoom, heap.ErrNoShrink or errSettling. sh.mu must be
// held.
func (m *Map) insert(sh *shard, hs entry.Hash, p index.Place, old entry.Local, r *newEntry) error {
	if err := r.txn.claim(m, sh, hs.Tag(), p); err != nil {
		return err
	}
	// The entry that a transaction replaces stays in the table, so the new one takes another place.
	hide := r.txn != nil && p != index.None && *sh.t.Word(p)&index.Txn == 0
	gone := index.None // place of the tag's Gone, which r replaces; a transaction leaves it there, for a rollback
	if p == index.None && r.txn == nil && r.Flags&entry.Piece == 0 && sh.hasLeaves() {
		gone = sh.t.Gone(hs.Tag())
	}
	if (p == index.None && gone == index.None || hide) && !sh.roomy() {
		var was index.Word
		if hide {
			was = *sh.t.Word(p)
		}
		// A transaction gives this place back when it ends, so it may take one of the last.
		if err := sh.more(m.h, hs.Tag()); err != nil && (sh.full() && !hide || sh.t.Filled()) {
			return err
		}
		if hide {
			p = sh.t.Find(hs.Tag(), was) // the table may be another one
		}
	}
	h := m.h
	n, far := r.Size(), r.FarSize()
	if p != index.None && !hide && m.overwrite(sh, hs, p, old, r) {
		return nil
	}
	ol := h.openLog(sh)
	ol.Mu.Lock()
	o, addr, ok := h.core.Logs.Place(ol, n, heap.ForMutator)
	if !ok && p != index.None && far <= sh.t.Word(p).Size() {
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
	e := entry.Local(o)
	r.Put(e, hs, m.id)
	ol.Mu.Unlock()

	w := index.NewWord(addr, far, entry.WordFlags(e))
	if r.txn != nil && w.Visible() {
		w |= index.Txn
	}
	switch {
	case hide:
		sh.hide(sh.t.Word(p))
		sh.t.Insert(hs.Tag(), w.Touched())
	case gone != index.None:
		*sh.t.Word(gone) = w
	case p == index.None:
		sh.t.Insert(hs.Tag(), w)
	default:
		was := sh.t.Word(p)
		w |= *was & index.HotMask
		h.bury(*was, old)
		sh.uncount(*was)
		*was = w.Touched()
	}
	if w.Visible() {
		sh.entries++
		sh.muts++
	}
	sh.count.sets++
	return nil
}

// overwrite stores r where the local entry old is, if both have the same lengths and old is neither being written to
// far memory nor used in place. The evacuator does not mind: it copies entries under the shard's lock, too. It walks
// over entries without the lock, but the words by which it walks are overwritten with what they were.
func (m *Map) overwrite(sh *shard, hs entry.Hash, p index.Place, old entry.Local, r *newEntry) bool {
	w := sh.t.Word(p)
	if w.Far() || old.Staged() || old.Big() || r.Flags != 0 || old.End() != entry.Header+r.Body() || old.Klen() != len(r.Key) || m.h.core.Logs.Viewed(w.Addr()) {
		return false
	}
	h := m.h
	h.unclean(old, w.Addr())
	r.Put(old[:r.Size()], hs, m.id)
	*w = (index.NewWord(w.Addr(), r.FarSize(), entry.WordFlags(old)) | *w&(index.HotMask|index.Txn)).Touched()
	sh.muts++
	sh.count.sets++
	return true
}

// grow gives sh a larger table. sh.mu must be held.
func (sh *shard) grow(h *Maps) error { return sh.resize(h, sh.t.GrownBytes()) }

// shrink gives sh a smaller table if its table is much too large. sh.mu must be held.
func (sh *shard) shrink(h *Maps) error {
	if size := sh.t.ShrunkBytes(); size != sh.t.Bytes() {
		return sh.resize(h, size)
	}
	return nil
}

// resize gives sh a table of size bytes. A smaller table needs no room in the budget: while there are both tables,
// only the larger one is counted. sh.mu must be held.
func (sh *shard) resize(h *Maps, size int64) error {
	l := &h.core.Logs
	old := sh.t.Bytes()
	if size <= old {
		err := sh.t.Resize(size)
		l.ShrinkIndex(heap.Tables, old-sh.t.Bytes())
		return err
	}
	if err := l.GrowIndex(heap.Tables, size, heap.ForMutator); err != nil {
		return err
	}
	if err := sh.t.Resize(size); err != nil {
		l.ShrinkIndex(heap.Tables, size)
		return err
	}
	l.ShrinkIndex(heap.Tables, old)
	return nil
}

// entryAt is the entry at a local address.
func (h *Maps) entryAt(addr uint64) entry.Local { return entry.Local(h.core.Logs.At(addr)) }
