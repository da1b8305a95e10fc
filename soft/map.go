package soft

import (
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"time"

	"polder/codec"
)

// A Codec turns values that cannot be stored as they are into byte strings and back: see the package codec.
type Codec[T any] = codec.Codec[T]

// Map is a hash table in soft memory: entries may vanish at any time, and
// then are simply not there any more. Keys and values are strings, byte
// slices, types without pointers, or anything with a Codec. Its methods may
// be called by any number of goroutines; each is atomic for its key.
type Map[K comparable, V any] struct {
	t    *table
	key  codec.Coder[K]
	val  codec.Coder[V]
	seed maphash.Seed
}

// MapConfig is what a map may be told. The zero value is fine for types that
// need no codec.
type MapConfig[K comparable, V any] struct {
	Keys     Codec[K]
	Values   Codec[V]
	Priority Priority
}

var (
	// ErrKeyTooLarge is what keys of more than 65535 bytes are answered with.
	ErrKeyTooLarge = fmt.Errorf("the key is larger than %d bytes", maxKey)
	errNoExpiry    = errors.New("the time to live is not positive")
)

const maxKey = 1<<16 - 1

// NewMap makes a map.
func NewMap[K comparable, V any](h *Heap, cfg MapConfig[K, V]) (*Map[K, V], error) {
	key, err := codec.ForKey(cfg.Keys)
	if err != nil {
		return nil, fmt.Errorf("cannot make a soft map: %w", err)
	}
	val, err := codec.For(cfg.Values)
	if err != nil {
		return nil, fmt.Errorf("cannot make a soft map: %w", err)
	}
	t, err := newTable(h, cfg.Priority)
	if err != nil {
		return nil, err
	}
	return &Map[K, V]{t: t, key: key, val: val, seed: maphash.MakeSeed()}, nil
}

func (m *Map[K, V]) hash(key []byte) uint64 {
	return maphash.Bytes(m.seed, key) >> (64 - refBits)
}

// Get returns the value of a key and whether it is there.
func (m *Map[K, V]) Get(key K) (v V, ok bool) {
	k := m.key.View(&key, nil)
	hash := m.hash(k)
	if m.val.Plain() {
		return m.getPlain(hash, k)
	}
	b, _, _, f := m.t.get(hash, k, nil)
	if f != present {
		m.t.h.count.misses.add()
		return v, false
	}
	m.t.h.count.hits.add()
	ok = m.val.Adopt(b, &v) == nil
	return v, ok
}

// getPlain is Get for values without pointers: they are copied once.
//
//polder:hot
func (m *Map[K, V]) getPlain(hash uint64, k []byte) (v V, ok bool) {
	b, _, _, f := m.t.get(hash, k, codec.Bytes(&v)[:0])
	if f != present || len(b) != m.val.Size() {
		m.t.h.count.misses.add()
		var zero V
		return zero, false
	}
	m.t.h.count.hits.add()
	return v, true
}

// Append appends the bytes of a key's value to dst, without allocating if
// dst has room.
func (m *Map[K, V]) Append(dst []byte, key K) ([]byte, bool) {
	return m.AppendPart(dst, key, 0, SegmentSize)
}

// AppendPart is Append for n bytes of the value from an offset, as far as there are any. A
// value that is larger than 256 KiB comes whole.
func (m *Map[K, V]) AppendPart(dst []byte, key K, from, n int) ([]byte, bool) {
	b, ok := m.AppendAgain(dst, key, from, n)
	if ok {
		m.t.h.count.hits.add()
	} else {
		m.t.h.count.misses.add()
	}
	return b, ok
}

// AppendAgain is AppendPart for a caller that has just missed the key and looks again, because the key may have been
// stored since. It counts neither a hit nor a miss: the miss has been counted.
func (m *Map[K, V]) AppendAgain(dst []byte, key K, from, n int) ([]byte, bool) {
	k := m.key.View(&key, nil)
	b, _, _, f := m.t.getPart(m.hash(k), k, dst, uint32(from), uint32(n))
	if f != present {
		return dst, false
	}
	return b, true
}

// Set stores a value. The value is taken to cost the mean of what the heap's rebuilt values took to make or, if
// nothing was rebuilt, a millisecond.
func (m *Map[K, V]) Set(key K, v V) error { return m.store(key, &v, entry{}, nil) }

// SetCost is Set for a value that took d to build: the coordinator weighs
// memory by what it saves.
func (m *Map[K, V]) SetCost(key K, v V, d time.Duration) error {
	return m.store(key, &v, entry{cost: costClass(d)}, nil)
}

// SetTTL stores a value that is no longer there after ttl.
func (m *Map[K, V]) SetTTL(key K, v V, ttl time.Duration) error {
	if ttl <= 0 {
		return errNoExpiry
	}
	return m.store(key, &v, entry{expiry: m.t.clock().Add(ttl).UnixNano()}, nil)
}

func (m *Map[K, V]) store(key K, v *V, e entry, cond condition) error {
	k := m.key.View(&key, nil)
	e.val = m.val.View(v, nil)
	_, err := m.t.set(m.hash(k), k, e, cond)
	return err
}

// CompareAndSwap replaces the value of a key by new if its bytes are those of
// old, and reports whether it did. A value that has vanished equals nothing.
func (m *Map[K, V]) CompareAndSwap(key K, old, new V) (bool, error) {
	k := m.key.View(&key, nil)
	hash := m.hash(k)
	want := m.val.View(&old, nil)
	for {
		w, got, ok := m.t.peek(hash, k)
		if !ok || string(got) != string(want) {
			return false, nil
		}
		gone := false
		ok, err := m.t.set(hash, k, entry{val: m.val.View(&new, nil)}, func(now match, ok bool) bool {
			gone = !ok
			return ok && now.w == w
		})
		if ok || gone || err != nil {
			return ok, err
		}
		// Replaced or moved meanwhile: compare again.
	}
}

// Delete removes a key and reports whether it was there.
func (m *Map[K, V]) Delete(key K) bool {
	k := m.key.View(&key, nil)
	return m.t.delete(m.hash(k), k)
}

// Clear removes every key.
func (m *Map[K, V]) Clear() { m.t.clear() }

// Len counts the keys that are there.
func (m *Map[K, V]) Len() (n int) {
	m.t.each(func(*shard, match) { n++ })
	return n
}

// All visits keys and values. What is stored, removed or moved during the
// visit may or may not be seen.
func (m *Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for s := range m.t.shards {
			for _, kv := range m.t.snapshot(s) {
				var k K
				var v V
				if m.key.Adopt(kv.key, &k) == nil && m.val.Adopt(kv.val, &v) == nil && !yield(k, v) {
					return
				}
			}
		}
	}
}

// Close removes every key. The map must not be used afterwards.
func (m *Map[K, V]) Close() { m.t.close() }
