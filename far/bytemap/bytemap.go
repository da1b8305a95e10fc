package bytemap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"polder/far/entry"
	"polder/far/heap"
	"polder/far/index"
)

// Map is a hash map from byte strings to byte strings on a heap. Its entries are local or far. Its index (16 bytes an
// entry) is local until it takes much of the budget; from then on, parts of it are far.
//
// An entry whose Expire has passed is as good as absent: no call returns it.
type Map struct {
	h    *Maps
	id   uint16
	name string

	types string // of keys and values, for a typed map; immutable
	kept  bool   // it is from a checkpoint, and nobody has asked New for it yet; under h.mu

	exclusive bool // an entry that is read back gives up its far copy; immutable once New has returned the map

	// first is the first of the map's h.shards shards, which lie side by side. The first use of the map makes them,
	// since each takes 192 bytes.
	first atomic.Pointer[shard]
	freed atomic.Bool // changes under h.mu

	computed atomic.Uint64 // entries that the store has looked through

	clearing sync.Mutex
	clears   atomic.Uint64 // odd while Clear is at work
}

// Entry is a value in a map, with what the map keeps beside it.
type Entry struct {
	Value  []byte
	Expire time.Time // zero: never; kept to the millisecond
	Tag    uint8     // the caller's own, for instance a type
}

// metaOf is the Entry of e without its value.
func metaOf(e entry.Local) (ent Entry) {
	ent.describe(e)
	return ent
}

// describe sets all of ent, which must be zero, but the value. Returning an Entry copies it, and right after it was
// written that is slow: functions that are hot have one of their own that they describe.
func (ent *Entry) describe(e entry.Local) {
	ent.Tag = e.Tag()
	if x := e.Expire(); x != 0 {
		ent.Expire = time.UnixMilli(x)
	}
}

// newEntry is an entry about to be written.
type newEntry struct {
	entry.New
	txn *Txn // the transaction that stores it, or nil
}

// of sets r, which must be zero, to the entry e under key.
func (r *newEntry) of(key []byte, e Entry) {
	r.Key, r.Value, r.Tag = key, e.Value, e.Tag
	if !e.Expire.IsZero() {
		r.Expire = max(e.Expire.UnixMilli(), 1)
	}
}

// UpdateFunc decides what becomes of an entry. See Map.Update.
type UpdateFunc func(old Entry, found bool) (Entry, Verdict, error)

// Verdict is what an UpdateFunc wants done.
type Verdict uint8

const (
	Keep   Verdict = iota // leave it as it is
	Put                   // store the returned Entry
	Remove                // delete it
)

// MaxKeySize is the longest key, in bytes.
const MaxKeySize = 1<<16 - 1

// ErrNotFound: the map has no such key.
var ErrNotFound = errors.New("not found")

// Get appends the value of key to dst and returns it as Entry.Value. It fails with ErrNotFound, *LostError,
// *CorruptError, or the error of the wait.
func (m *Map) Get(ctx context.Context, key, dst []byte) (ent Entry, err error) {
	hs := m.hash(key)
	sh := m.shard(hs)
	sh.mu.Lock()
	p, e, st := sh.find(m.h, hs, key, index.Entries, nil, true)
	if st == present && !e.Big() && !e.Expired() { // the fast path: the entry is local
		m.hit(sh, p, e)
		ent.describe(e)
		ent.Value = append(dst, e.Value()...)
		sh.mu.Unlock()
		return ent, nil
	}
	ent, _, err = m.get(ctx, sh, hs, key, p, st, dst, true)
	return ent, err
}

// GetInto is Get for callers that have memory of their own for large values. If a value is too large to be a single
// entry, and does not fit into the spare capacity of dst, GetInto returns no value, and the value's length as size;
// otherwise it returns the value, and 0 as size.
func (m *Map) GetInto(ctx context.Context, key, dst []byte) (ent Entry, size int, err error) {
	hs := m.hash(key)
	sh := m.shard(hs)
	sh.mu.Lock()
	p, e, st := sh.find(m.h, hs, key, index.Entries, nil, true)
	if st == present && !e.Big() && !e.Expired() { // the fast path, as in Get
		m.hit(sh, p, e)
		ent.describe(e)
		ent.Value = append(dst, e.Value()...)
		sh.mu.Unlock()
		return ent, 0, nil
	}
	return m.get(ctx, sh, hs, key, p, st, dst, false)
}

// get goes on for Get if grow is set, so that it may grow dst for a large value, and for GetInto otherwise, when find
// has found no local value that can be read at once.
//
// Preconditions: sh.mu has been held since find. get unlocks it.
func (m *Map) get(ctx context.Context, sh *shard, hs entry.Hash, key []byte, p index.Place, st status, dst []byte, grow bool) (Entry, int, error) {
	var r Reading
	switch err := r.readFar(ctx, m, sh, hs, key, p, st); err {
	case nil:
		ent := metaOf(r.e)
		ent.Value = append(dst, r.e.Value()...)
		r.End()
		return ent, 0, nil
	case ErrLong:
	default:
		return Entry{}, 0, err
	}
	ent, big, err := m.getSlow(ctx, sh, hs, key, dst, grow)
	if err == nil && m.exclusive {
		m.disown(sh, hs, key)
	}
	if grow || big.Size <= cap(dst)-len(dst) {
		big.Size = 0
	}
	return ent, big.Size, err
}

// getSlow is get for a call that may have to wait. It also returns the head of a large value. If grow is not set and
// the value does not fit into dst, it returns the head without the value.
func (m *Map) getSlow(ctx context.Context, sh *shard, hs entry.Hash, key, dst []byte, grow bool) (ent Entry, big entry.Large, err error) {
	var last, lastClears uint64
	for {
		big = entry.Large{}
		clears := m.clears.Load()
		err = m.slow(ctx, sh, hs, key, func(hd *holding) step {
			p, e, st := sh.find(m.h, hs, key, index.Entries, hd, true)
			switch {
			case st != present:
				return sh.miss(m.h, p, st, needWhole)
			case e.Expired():
				return sh.expireNow(m.h, p, e)
			}
			sh.t.Touch(p)
			ent = metaOf(e)
			if e.Big() {
				big = entry.LargeOf(e)
				return step{}
			}
			ent.Value = append(dst, e.Value()...)
			return step{}
		})
		if err != nil {
			return Entry{}, entry.Large{}, err
		}
		if big.Version == 0 || !grow && big.Size > cap(dst)-len(dst) {
			return ent, big, nil
		}
		var ok bool
		if ent.Value, ok, err = m.getPieces(ctx, big, slices.Grow(dst, big.Size)); ok || err != nil {
			return ent, big, err
		}
		// A piece was gone, so the value has been replaced or removed meanwhile, or is just about to be by Clear.
		if big.Version == last && clears == lastClears && clears%2 == 0 {
			if name := m.h.core.LastLost.Load(); name != nil {
				return Entry{}, entry.Large{}, &heap.LostError{Segment: *name}
			}
			return Entry{}, entry.Large{}, errLarge(big, errors.New("it lacks a piece")) // its head is made up
		}
		last, lastClears = big.Version, clears
	}
}

// Stat is Get without the value: Entry.Value is nil; size is its length.
func (m *Map) Stat(ctx context.Context, key []byte) (ent Entry, size int, err error) {
	hs := m.hash(key)
	sh := m.shard(hs)
	err = m.do(ctx, sh, hs, key, func(hd *holding) (s step) {
		ent, size, s = m.tryStat(sh, hs, key, hd)
		return s
	})
	return ent, size, err
}

func (m *Map) tryStat(sh *shard, hs entry.Hash, key []byte, hd *holding) (Entry, int, step) {
	p, e, st := sh.find(m.h, hs, key, index.Entries, hd, false)
	switch {
	case st != present:
		return Entry{}, 0, sh.miss(m.h, p, st, needHead)
	case e.Expired():
		return Entry{}, 0, sh.expireNow(m.h, p, e)
	case e.Big():
		return metaOf(e), entry.LargeOf(e).Size, step{}
	}
	return metaOf(e), e.Vlen(), step{}
}

// Set stores e under key and replaces what was there. If the old entry is at least as large, there is room for e even
// in a full heap.
func (m *Map) Set(ctx context.Context, key []byte, e Entry) error {
	var r newEntry
	r.of(key, e)
	return m.set(ctx, &r)
}

// Set is Map.Set of a value that expires at the time expire, in milliseconds since 1970, or never if expire is 0.
func Set(ctx context.Context, m *Map, key, value []byte, expire int64) error {
	var r newEntry
	r.Key, r.Value, r.Expire = key, value, expire
	return m.set(ctx, &r)
}

func (m *Map) set(ctx context.Context, r *newEntry) error {
	if err := m.check(r.Key, len(r.Value)); err != nil {
		return err
	}
	if m.h.core.Limited() {
		if err := m.h.core.MayStore(ctx); err != nil {
			return err
		}
	}
	hs := m.hash(r.Key)
	return m.put(ctx, m.shard(hs), hs, r, nil)
}

// put stores r if the entry of its key is still was. A nil was allows any entry.
func (m *Map) put(ctx context.Context, sh *shard, hs entry.Hash, r *newEntry, was *snapshot) error {
	if len(r.Value) > m.h.pieces {
		return m.setBig(ctx, sh, hs, r, was)
	}
	// The fast path: what it replaces is local, and there is room.
	sh.mu.Lock()
	if p, old, st := sh.find(m.h, hs, r.Key, index.Entries, nil, was.whole()); !st.waits() && !sh.closed {
		err := errChanged
		if was == nil || was.is(old) {
			err = m.insert(sh, hs, p, old, r)
		}
		if !lacksRoom(err) {
			sh.mu.Unlock()
			return err
		}
	}
	sh.mu.Unlock()
	return m.setSlow(ctx, sh, hs, r, was, nil)
}

// setSlow is put for a call that may have to wait. If ok is not nil, setSlow calls it under the shard's lock, and
// stores r only if ok returns no error.
func (m *Map) setSlow(ctx context.Context, sh *shard, hs entry.Hash, r *newEntry, was *snapshot, ok func() error) error {
	return m.slow(ctx, sh, hs, r.Key, func(hd *holding) step {
		p, old, st := sh.find(m.h, hs, r.Key, index.Entries, hd, was.whole())
		if st.waits() {
			return sh.miss(m.h, p, st, was.need())
		}
		if ok != nil {
			if err := ok(); err != nil {
				return step{err: err}
			}
		}
		if was != nil && !was.is(old) {
			return step{err: errChanged}
		}
		return stepOf(m.insert(sh, hs, p, old, r))
	})
}

// Delete removes key and reports whether it was there. A lost entry is removed, too, and reported as having been
// there. So is any key whose part of the index is lost, since nobody knows any more whether it was there.
func (m *Map) Delete(ctx context.Context, key []byte) (bool, error) {
	return m.delete(ctx, key, nil)
}

func (m *Map) delete(ctx context.Context, key []byte, t *Txn) (found bool, err error) {
	hs := m.hash(key)
	sh := m.shard(hs)
	err = m.do(ctx, sh, hs, key, func(hd *holding) (s step) {
		found, s = m.tryDelete(sh, hs, key, hd, t)
		return s
	})
	return found, err
}

func (m *Map) tryDelete(sh *shard, hs entry.Hash, key []byte, hd *holding, t *Txn) (bool, step) {
	p, e, st := sh.find(m.h, hs, key, index.Entries, hd, false)
	switch {
	case sh.closed:
		return false, step{err: m.gone()}
	case st.waits():
		return false, sh.miss(m.h, p, st, needHead)
	case st == absent:
		return false, step{}
	case e != nil && e.Expired():
		sh.expire(m.h, p, e)
		return false, step{}
	}
	if err := t.claim(m, sh, hs.Tag(), p); err != nil {
		return false, step{err: err}
	}
	sh.drop(m.h, p, e, t)
	sh.count.deletes++
	return true, step{}
}

// Len is the number of entries, without those lost. Entries that have
// expired count until they are collected, as in Redis.
func (m *Map) Len() int {
	n := 0
	for i := range m.shards() {
		sh := m.at(i)
		sh.mu.Lock()
		n += sh.entries
		sh.mu.Unlock()
	}
	return n
}

// Clear removes every entry. Entries that are set meanwhile may stay.
func (m *Map) Clear() { m.clear(false) }

// Free frees the map and gives its memory back, local and far. Later calls, and calls under way, fail with ErrFreed,
// except Len, which is 0 from then on, and Clear. No transaction that has changed the map may be open. Freeing the
// map again does nothing.
func (m *Map) Free() {
	h := m.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if m.freed.Swap(true) {
		return
	}
	if h.none == nil {
		h.none = newShards(h.shards, true)
	}
	if !m.first.CompareAndSwap(nil, &h.none[0]) {
		h.mu.Unlock()
		m.clear(true)
		st := m.stats(new(Totals))
		m.eachShard(func(sh *shard) { h.freedMuts.Add(sh.muts) })
		h.mu.Lock()
		h.past.Add(st.Name, &st, (*Stats).Add)
		m.first.Store(&h.none[0])
	}
	h.freed = append(h.freed, m.id)
}

// clear is Clear, and with last set it gives the tables back and closes the shards.
func (m *Map) clear(last bool) {
	m.clearing.Lock()
	defer m.clearing.Unlock()
	m.h.ending.RLock()
	defer m.h.ending.RUnlock()
	m.clears.Add(1)
	defer m.clears.Add(1)
	for i := range m.shards() {
		sh := m.at(i)
		sh.mu.Lock()
		if sh.closed {
			sh.mu.Unlock()
			return
		}
		for b := range sh.t.Buckets {
			for _, w := range sh.t.Buckets[b].Words {
				switch {
				case w == 0:
				// Pieces go as entries of their own, so the heads need not be remembered as orphans.
				case w.Far():
					m.h.bury(w&^index.Big, nil)
				default:
					e := m.h.entryAt(w.Addr())
					e.Small()
					m.h.bury(w, e)
				}
			}
		}
		if d := sh.detach(); d != nil {
			m.h.settler.bury(d)
		}
		m.h.core.Logs.ShrinkIndex(heap.Tables, sh.t.Clear(last))
		if last {
			sh.closed, sh.heads = true, nil
		}
		sh.entries, sh.lost = 0, 0
		sh.muts++
		sh.mu.Unlock()
	}
}

// check refuses keys and values that are too large.
func (m *Map) check(key []byte, value int) error {
	if len(key) > MaxKeySize {
		return fmt.Errorf("cannot store a key of %d bytes (at most %d): %w", len(key), MaxKeySize, heap.ErrTooLarge)
	}
	if value > m.h.maxValue {
		return fmt.Errorf("cannot store a value of %d bytes (at most %d): %w", value, m.h.maxValue, heap.ErrTooLarge)
	}
	return nil
}
