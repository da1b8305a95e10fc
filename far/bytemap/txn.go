package bytemap

import (
	"context"
	"errors"
	"polder/far/entry"
	"polder/far/index"
	"slices"
)

// Txn makes several changes to maps of one heap that count together or not at all: after Rollback everything is as it
// was, and neither Commit nor Rollback can fail or wait. A single change can; if it fails, it has changed nothing.
//
// Until the Txn ends, nobody else may change a key that it changes, and whoever reads the key sees the change:
// callers have locks for that. Scan, All and Random of the map go by what was there before; Len by what is there now.
// A Txn may be used again after its end. It is for one goroutine at a time.
//
// An entry that a change replaces stays in the index, hidden, and an entry that it stores is marked there (see
// index.Word), so the evacuator and the cleaner treat both like all other entries. Commit and Rollback go through the
// index words of the keys: Commit removes hidden entries and clears the marks of the new ones; Rollback removes the new
// entries and shows the hidden ones again. A Txn remembers only shards and tags, which do not change when entries move.
type Txn struct {
	h       *Maps
	changed []changed // the same one may be there several times
	cleared []*Map
	// index is the set of what is in changed. Most transactions do not need it, and making it takes as long as the
	// changes.
	index map[changed]struct{}
}

// changed says where a key is that a transaction has changed: its upper 16 bits are the number of the map, the next
// 16 that of the shard, and the rest is the key's tag.
type changed uint64

func changedIn(sh *shard, m *Map, tag uint32) changed {
	return changed(m.id)<<48 | changed(sh.id)<<32 | changed(tag)
}

func (c changed) tag() uint32 { return uint32(c) }

func (c changed) shard(maps []*Map) *shard { return maps[c>>48].at(int(c >> 32 & 0xffff)) }

// ErrConflict: another transaction that has not ended has changed the key, or one with the same hash.
var ErrConflict = errors.New("another transaction changes an entry of the same hash")

// manyChanged is how long the list of changes may be to be kept for the next use of the Txn.
const manyChanged = 1 << 10

// NewTxn makes a transaction without changes.
func (h *Maps) NewTxn() *Txn { return &Txn{h: h} }

// Set is Map.Set as a part of t.
func (t *Txn) Set(ctx context.Context, m *Map, key []byte, e Entry) error {
	r := newEntry{txn: t}
	r.of(key, e)
	return m.set(ctx, &r)
}

// Delete is Map.Delete as a part of t.
func (t *Txn) Delete(ctx context.Context, m *Map, key []byte) (bool, error) {
	return m.delete(ctx, key, t)
}

// DeleteMany is Delete of keys. It sets in gone, which is as long as keys, which of them were there; of equal keys
// only the first was. If it fails, t may have deleted some.
func (t *Txn) DeleteMany(ctx context.Context, m *Map, keys [][]byte, gone []bool) error {
	t.changed = slices.Grow(t.changed, len(keys))
	for len(keys) > 0 {
		n := t.deleteLocal(m, keys, gone)
		if n == 0 {
			var err error
			if gone[0], err = t.Delete(ctx, m, keys[0]); err != nil {
				return err
			}
			n = 1
		}
		keys, gone = keys[n:], gone[n:]
	}
	return nil
}

// deleteLocal is DeleteMany of the first n of keys, and returns n. It stops before a key for which it would have to
// wait, or that cannot be deleted.
func (t *Txn) deleteLocal(m *Map, keys [][]byte, gone []bool) (n int) {
	keys = keys[:min(len(keys), maxLocked)]
	var where [maxLocked]changed
	for i, key := range keys {
		hs := m.hash(key)
		where[i] = changedIn(m.shard(hs), m, hs.Tag())
	}
	maps := *m.h.maps.Load()
	if maps[m.id] != m {
		return 0 // it was freed, and another map has its number
	}
	l := lockShards(maps, where[:len(keys)])
	defer l.unlock()
	for i, sh := range l.held() {
		found, s := m.tryDelete(sh, entry.Hash(where[i].tag()), keys[i], nil, t)
		if s.need != ready || s.err != nil {
			return i
		}
		gone[i] = found
	}
	return l.n
}

// Clear is Map.Clear as a part of t. Nobody else may use the map until t ends.
func (t *Txn) Clear(m *Map) {
	if !slices.Contains(t.cleared, m) {
		t.cleared = append(t.cleared, m)
	}
	m.eachShard(func(sh *shard) {
		if sh.entries+sh.lost == 0 {
			return // nothing has been stored since it was cleared last
		}
		if d := sh.detach(); d != nil {
			sh.cold.shelf = d
		}
		for p := range sh.t.All() {
			if w := *sh.t.Word(p); w.Is(index.Entries) {
				sh.drop(t.h, p, sh.bytesAt(t.h, p), t)
			}
		}
	})
}

// Scan is Map.Scan of what the map is with the changes of t.
func (t *Txn) Scan(ctx context.Context, m *Map, cursor uint64, yield func(key []byte, e Entry)) (uint64, error) {
	return m.step(ctx, cursor, index.Word.Visible, yield)
}

// Random is Map.Random, likewise.
func (t *Txn) Random(ctx context.Context, m *Map, dst []byte) ([]byte, error) {
	return m.random(ctx, index.Word.Visible, dst)
}

// Commit makes the changes count.
func (t *Txn) Commit() {
	t.end((*shard).commit, func(_ *shard, d *corpse) { t.h.settler.bury(d) })
}

// Rollback undoes the changes.
func (t *Txn) Rollback() { t.end((*shard).rollback, (*shard).attach) }

// end calls fn for the index words of all keys that t has changed, and perhaps for other words. Then it calls the
// function leaves for each shard that t has cleared, with the leaves that t has taken from the shard.
func (t *Txn) end(fn func(sh *shard, h *Maps, p index.Place), leaves func(sh *shard, d *corpse)) {
	t.h.ending.RLock()
	defer t.h.ending.RUnlock()
	maps := *t.h.maps.Load()
	for left := t.changed; len(left) > 0; {
		l := lockShards(maps, left)
		for i, sh := range l.held() {
			for p := range sh.t.Matches(left[i].tag()) {
				fn(sh, t.h, p)
			}
		}
		l.unlock()
		left = left[l.n:]
	}
	for _, m := range t.cleared {
		m.eachShard(func(sh *shard) {
			for p := range sh.t.All() {
				fn(sh, t.h, p)
			}
			if sh.cold != nil && sh.cold.shelf != nil {
				d := sh.cold.shelf
				sh.cold.shelf = nil
				leaves(sh, d)
			}
		})
	}
	t.cleared, t.index = nil, nil
	if t.changed = t.changed[:0]; cap(t.changed) > manyChanged {
		t.changed = nil
	}
}

// owns reports whether t has changed a key with the map, shard and tag of c.
func (t *Txn) owns(c changed) bool {
	if t.index == nil {
		t.index = make(map[changed]struct{}, len(t.changed))
		for _, c := range t.changed {
			t.index[c] = struct{}{}
		}
	}
	_, ok := t.index[c]
	return ok
}

// claim makes t the transaction that changes keys with this tag in m. It fails with ErrConflict if another
// transaction has changed one. A nil t claims nothing, and claim fails if a transaction has changed the entry at p,
// which may be None. sh.mu must be held.
func (t *Txn) claim(m *Map, sh *shard, tag uint32, p index.Place) error {
	if t == nil {
		if p != index.None && *sh.t.Word(p)&index.Txn != 0 {
			return ErrConflict
		}
		return nil
	}
	c := changedIn(sh, m, tag)
	for p := range sh.t.Matches(tag) {
		if *sh.t.Word(p)&index.Txn == 0 {
			continue
		}
		if slices.Contains(t.cleared, m) || t.owns(c) {
			return nil
		}
		return ErrConflict
	}
	t.changed = append(t.changed, c)
	if t.index != nil {
		t.index[c] = struct{}{}
	}
	return nil
}

// commit ends a transaction for the word at p, if that is a part of one. sh.mu must be held.
func (sh *shard) commit(h *Maps, p index.Place) {
	switch w := sh.t.Word(p); {
	case w.Hidden():
		sh.remove(h, p, sh.bytesAt(h, p))
	case *w&index.Txn != 0:
		*w &^= index.Txn
		if p := sh.t.Gone(sh.t.Tag(p)); p != index.None {
			sh.t.Remove(p)
		}
	}
}

// rollback undoes a transaction for the word at p, if that is a part of one. sh.mu must be held.
func (sh *shard) rollback(h *Maps, p index.Place) {
	switch w := sh.t.Word(p); {
	case w.Hidden():
		*w &^= index.Hidden
		if w.IsLost() {
			sh.lost++
		} else {
			sh.entries++
		}
		sh.muts++
	case *w&index.Txn != 0:
		sh.remove(h, p, sh.bytesAt(h, p))
	}
}

// drop removes the entry at p, whose bytes are e, nil if they are not at hand;
// as a part of t, which may be nil. sh.mu must be held.
func (sh *shard) drop(h *Maps, p index.Place, e entry.Local, t *Txn) {
	if w := sh.t.Word(p); t == nil || *w&index.Txn != 0 {
		sh.remove(h, p, e)
	} else {
		sh.hide(w)
	}
}

// hide makes the entry of w one that nobody sees. Its shard's lock must be held.
func (sh *shard) hide(w *index.Word) {
	sh.uncount(*w)
	*w |= index.Hidden
}

// bytesAt returns the bytes of the entry at p, nil if it is far. sh.mu must be held.
func (sh *shard) bytesAt(h *Maps, p index.Place) entry.Local {
	if w := *sh.t.Word(p); !w.Far() {
		return h.entryAt(w.Addr())
	}
	return nil
}

// maxLocked is how many entries' shards are locked together.
const maxLocked = 32

// lockedShards are the shards of entries that follow one another in a list, all locked.
type lockedShards struct {
	list [maxLocked]*shard
	n    int
	over uint32 // a use of what lockShards reads ahead, so that the compiler keeps these reads where they are
}

// lockShards locks the shards of the first of entries. It waits for the first lock, and takes further ones, in any
// order, as long as it can without waiting and all shards are different.
//
// It exists because many changes spend most of their time waiting for the index's memory, one entry after the other.
// In the second loop no read depends on another, and no lock keeps the processor from reading on, so the cache lines
// arrive side by side.
func lockShards(maps []*Map, entries []changed) (l lockedShards) {
	for l.n < min(len(entries), maxLocked) {
		sh := entries[l.n].shard(maps)
		if l.n == 0 {
			sh.mu.Lock()
		} else if !sh.mu.TryLock() {
			break
		}
		l.list[l.n] = sh
		l.n++
	}
	for i, sh := range l.held() {
		if len(sh.t.Buckets) > 0 {
			l.over += sh.t.Buckets[sh.t.Home(entries[i].tag())].Over
		}
	}
	return l
}

func (l *lockedShards) held() []*shard { return l.list[:l.n] }

func (l *lockedShards) unlock() {
	for _, sh := range l.held() {
		sh.mu.Unlock()
	}
}

// eachShard calls fn for every shard, under its lock.
func (m *Map) eachShard(fn func(sh *shard)) {
	for i := range m.shards() {
		sh := m.at(i)
		sh.mu.Lock()
		fn(sh)
		sh.mu.Unlock()
	}
}
