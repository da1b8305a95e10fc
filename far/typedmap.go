package far

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"time"

	"polder/codec"
	"polder/far/bytemap"
	"polder/far/heap"
)

// MapConfig configures a Map. The zero value is good for types that need no codec.
type MapConfig[K comparable, V any] struct {
	// Name appears in statistics. On a heap made by Open it also says which map of the last checkpoint to give back.
	Name string
	// Keys and Values encode keys and values of types that have no other encoding: see package codec. Equal keys must
	// have equal encodings.
	Keys   codec.Codec[K]
	Values codec.Codec[V]
	// Exclusive makes local memory an exclusive cache of far memory (the paper's section 6): when an entry is read
	// back, its far copy is given up. So far memory holds nothing that is also local, but the entry has to be written
	// again when it is evacuated. Without Exclusive the cache is inclusive: an entry that has not changed is dropped,
	// not written.
	Exclusive bool
}

// Map is a hash table from K to V. K and V may be a number, a string, or a struct or an array of these; V may be a
// slice; and either may be any type with a codec: see package codec. Values without Go pointers, strings and byte
// slices are read and written as they are; others are encoded. The index takes about 16 bytes an entry, and goes far
// once it takes much of the budget. Entries are local or far, each by itself, and have 36 bytes of header. A Map is a
// ByteMap underneath, and all that is said of a ByteMap holds.
//
// All methods may be called by any number of goroutines, and each call is atomic. Methods copy values and need no
// open scope: they read and write an entry in place under the lock of its shard, one of many. Deref is the exception:
// it needs an open scope, and copies no local value if it can avoid it.
//
// Every call takes constant time. A key whose entry is far takes one read of the store; an absent key hardly ever
// takes a read, as long as the index is local. Where the index is far, either takes one read more. To replace a far
// entry, Set has to read the entry's key first, which is one read of the store, too.
type Map[K comparable, V any] struct {
	h     *Heap
	b     *ByteMap
	name  string
	key   codec.Coder[K]
	value codec.Coder[V]
}

// NewMap makes an empty map, or gives back a map that was kept: see Open. It fails if K or V cannot be far, and names
// the field that is the reason.
func NewMap[K comparable, V any](h *Heap, cfg MapConfig[K, V]) (*Map[K, V], error) {
	if cfg.Name == "" {
		cfg.Name = "map"
	}
	key, err := codec.ForKey(cfg.Keys)
	if err != nil {
		return nil, fmt.Errorf("cannot make map %q: keys: %w", cfg.Name, err)
	}
	value, err := codec.For(cfg.Values)
	if err != nil {
		return nil, fmt.Errorf("cannot make map %q: values: %w", cfg.Name, err)
	}
	if key.Size() > MaxKeySize || value.Size() > h.maps.MaxValue() {
		return nil, fmt.Errorf("cannot make map %q: a key is %d bytes and a value %d, at most %d and %d are possible: %w",
			cfg.Name, key.Size(), value.Size(), MaxKeySize, h.maps.MaxValue(), ErrTooLarge)
	}
	b, err := h.maps.New(cfg.Name, fmt.Sprintf("%T to %T", *new(K), *new(V)), cfg.Exclusive)
	if err != nil {
		return nil, fmt.Errorf("cannot make a map: %w", err)
	}
	return &Map[K, V]{h, b, cfg.Name, key, value}, nil
}

// smallKey is up to how many bytes a padded key is made on the stack, without garbage.
const smallKey = 128

// errMapped is the error for stored bytes that are no key or value of m; err says why.
func (m *Map[K, V]) errMapped(err error) error {
	return &heap.CorruptError{Segment: "map " + m.name, Err: err}
}

// Get returns the value of k, and whether there is one. It fails with *LostError, *CorruptError, or the error of the
// wait. If it need not wait, it makes no garbage unless V is a string or a byte slice: see Append.
func (m *Map[K, V]) Get(ctx context.Context, k K) (v V, ok bool, err error) {
	var small [smallKey]byte
	key := m.key.View(&k, small[:0])
	var r bytemap.Reading
	if err := r.Read(ctx, m.b, key); err != nil {
		return m.getLong(ctx, key, err)
	}
	if !m.value.Plain() {
		return m.adoptRead(&r)
	}
	err = m.value.Decode(r.Value(), &v)
	r.End()
	if err != nil {
		err = m.errMapped(err)
	}
	return v, err == nil, err
}

// adoptRead copies what r has read, ends r, and decodes the copy. The codec may be the program's, and so is not
// called under the lock that r holds.
func (m *Map[K, V]) adoptRead(r *bytemap.Reading) (v V, ok bool, err error) {
	value := append([]byte(nil), r.Value()...)
	r.End()
	return m.adopt(value)
}

// adopt decodes a value from b, which nobody else uses, so that the value may keep b.
func (m *Map[K, V]) adopt(b []byte) (v V, ok bool, err error) {
	if err := m.value.Adopt(b, &v); err != nil {
		return v, false, m.errMapped(err)
	}
	return v, true, nil
}

// getLong finishes Get for a key whose Reading failed with err.
func (m *Map[K, V]) getLong(ctx context.Context, key []byte, err error) (v V, ok bool, _ error) {
	var ent Entry
	if err == bytemap.ErrLong {
		ent, err = m.b.Get(ctx, key, nil)
	}
	switch {
	case err == nil:
		return m.adopt(ent.Value)
	case errors.Is(err, ErrNotFound):
		err = nil
	}
	return v, false, err
}

// Append appends the value of k to dst, in its stored form, and reports whether there is one. It serves to read
// strings and byte slices without garbage.
func (m *Map[K, V]) Append(ctx context.Context, k K, dst []byte) (b []byte, ok bool, err error) {
	var small [smallKey]byte
	ent, err := m.b.Get(ctx, m.key.View(&k, small[:0]), dst)
	switch {
	case err == nil:
		return ent.Value, true, nil
	case errors.Is(err, ErrNotFound):
		err = nil
	}
	return dst, false, err
}

// Deref returns the value of k. If there is none, it returns nil; if the value cannot be read, it returns nil, and
// s.Err says why. The value is valid until s is left and must not be changed. It remains the value that k had during
// the call: others who set k meanwhile write elsewhere.
//
// The value lies in the memory of the entry itself if the entry is local, its value is neither encoded nor kept in
// pieces, and the value is aligned as V requires. Strings and byte slices always are; types that need 8-byte
// alignment are if keys have 4, 12, 20 bytes and so on. The evacuator leaves the segments of such values alone until
// s is left. So a scope may keep values in place in a few segments only, and all scopes together in as many segments
// as fill an eighth of the budget. Other values are copies. Keeping a value in place takes some hundred nanoseconds,
// a time in which Get copies a small value.
//
// Deref waits for what is far within the context of s.
func (m *Map[K, V]) Deref(s *heap.Scope, k K) *V {
	h := &m.h.core
	if s.H != h {
		panic("BUG: a far structure is used in a scope of another heap")
	}
	h.MustBeOpen(s)
	var small [smallKey]byte
	key := m.key.View(&k, small[:0])
	ctx := h.HeldIn(s).Ctx
	var r bytemap.Reading
	err := r.Read(ctx, m.b, key)
	if err == nil {
		if v, ok := m.value.InPlace(r.Value()); ok && r.View(s) {
			r.End()
			return v
		}
	}
	return m.copied(ctx, s, &r, key, err)
}

// copied returns a copy of the value that r has read or, if r has failed with err, of the value of key.
func (m *Map[K, V]) copied(ctx context.Context, s *heap.Scope, r *bytemap.Reading, key []byte, err error) *V {
	var v V
	var ok bool
	if err == nil {
		v, ok, err = m.adoptRead(r)
	} else {
		v, ok, err = m.getLong(ctx, key, err)
	}
	if err != nil {
		s.H.Fail(s, err)
	}
	if !ok {
		return nil
	}
	return &v
}

// Has reports whether k has a value.
func (m *Map[K, V]) Has(ctx context.Context, k K) (bool, error) {
	var small [smallKey]byte
	_, _, err := m.b.Stat(ctx, m.key.View(&k, small[:0]))
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Set makes v the value of k, until it is changed or removed. For a value that expires, see SetTTL.
func (m *Map[K, V]) Set(ctx context.Context, k K, v V) error {
	var small [smallKey]byte
	return bytemap.Set(ctx, m.b, m.key.View(&k, small[:0]), m.value.View(&v, nil), 0)
}

// Delete removes k and reports whether it was there.
func (m *Map[K, V]) Delete(ctx context.Context, k K) (bool, error) {
	var small [smallKey]byte
	return m.b.Delete(ctx, m.key.View(&k, small[:0]))
}

// Update calls fn with the value of k and true, or with zero and false if there is none. It stores the value that fn
// returns, or removes k if fn returns false. This is one step: if others change k meanwhile, fn is called again with
// the new value. The time when the entry expires does not change. No lock is held while fn runs. See ByteMap.Update.
func (m *Map[K, V]) Update(ctx context.Context, k K, fn func(old V, ok bool) (V, bool)) error {
	var small [smallKey]byte
	key := m.key.View(&k, small[:0])
	return m.b.Update(ctx, append([]byte(nil), key...), func(old Entry, found bool) (Entry, Verdict, error) {
		var v V
		if found {
			if err := m.value.Decode(old.Value, &v); err != nil {
				return Entry{}, Keep, m.errMapped(err)
			}
		}
		v, keep := fn(v, found)
		if !keep {
			return Entry{}, Remove, nil
		}
		return Entry{Value: m.value.View(&v, nil), Expire: old.Expire}, Put, nil
	})
}

// GetMany reads keys, in as few reads of the store as it has buffers for. For each key it sets the element of ok to
// whether there is a value, and the element of vs to the value, or to zero if there is none, as Get does; vs and ok
// must be as long as keys. If a key cannot be read, GetMany goes on with the others, and returns the errors of all
// such keys. With NoWait, the error of a far key is ErrWouldBlock.
func (m *Map[K, V]) GetMany(ctx context.Context, keys []K, vs []V, ok []bool) error {
	if len(vs) != len(keys) || len(ok) != len(keys) {
		return fmt.Errorf("cannot read %d keys of map %q: there is room for %d values and %d answers, want as many", len(keys), m.name, len(vs), len(ok))
	}
	var errs []error
	var small [smallKey]byte
	key := func(i int) []byte { return m.key.View(&keys[i], small[:0]) }
	bytemap.ReadMany(ctx, m.b, len(keys), key, func(i int, e Entry, err error) {
		clear(vs[i : i+1])
		switch ok[i] = false; {
		case errors.Is(err, ErrNotFound):
		case err != nil:
			errs = append(errs, err)
		default:
			if err := m.value.Decode(e.Value, &vs[i]); err != nil {
				errs = append(errs, m.errMapped(err))
			} else {
				ok[i] = true
			}
		}
	})
	return errors.Join(errs...)
}

// Prefetch brings those entries of keys that are far into local memory, as ByteMap.Prefetch does.
func (m *Map[K, V]) Prefetch(ctx context.Context, keys ...K) error {
	bs := make([][]byte, len(keys))
	for i := range keys {
		bs[i] = m.key.View(&keys[i], nil)
	}
	return m.b.Prefetch(ctx, bs...)
}

// All iterates over the map, in no order. It yields every key that is there throughout. A key that is set or deleted
// meanwhile may be yielded or not, and a key may come twice if the map grows. All takes two reads of the store for
// some 32 entries that are far, and does not displace entries that are in use. As in all structures, it waits within
// the context of s; if something cannot be read, it ends early, and s.Err says why. It yields copies: s is not open
// during a step, and must not be open when the iteration begins.
func (m *Map[K, V]) All(s *heap.Scope) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		m.scan(s, func(ctx context.Context, keys [][]byte) (bool, error) {
			read := m.values(ctx, keys)
			for i, key := range keys {
				r := &read[i]
				if r.late {
					var e Entry
					e, r.err = m.b.Get(ctx, key, nil)
					r.value = e.Value
				}
				if errors.Is(r.err, ErrNotFound) {
					continue // removed meanwhile
				}
				if r.err != nil {
					return false, r.err
				}
				var k K
				if err := m.key.Decode(key, &k); err != nil {
					return false, m.errMapped(err)
				}
				v, _, err := m.adopt(r.value)
				if err != nil {
					return false, err
				}
				if !yield(k, v) {
					return false, nil
				}
			}
			return true, nil
		})
	}
}

// Keys is All without the values, which are not fetched.
func (m *Map[K, V]) Keys(s *heap.Scope) iter.Seq[K] {
	return func(yield func(K) bool) {
		m.scan(s, func(_ context.Context, keys [][]byte) (bool, error) {
			for _, key := range keys {
				var k K
				if err := m.key.Decode(key, &k); err != nil {
					return false, m.errMapped(err)
				}
				if !yield(k) {
					return false, nil
				}
			}
			return true, nil
		})
	}
}

// scan calls fn with the keys of the map, some at a time, until fn returns false. An error becomes the error of s.
func (m *Map[K, V]) scan(s *heap.Scope, fn func(ctx context.Context, keys [][]byte) (bool, error)) {
	if s.H != &m.h.core {
		panic("BUG: a far structure is used in a scope of another heap")
	}
	if heap.IsOpen(s) {
		s.H.Fail(s, fmt.Errorf("cannot iterate over map %q: %w", m.name, ErrScopeOpen))
		return
	}
	var keys [][]byte
	for cursor := uint64(0); ; {
		ctx := s.H.HeldIn(s).Ctx
		keys = keys[:0]
		next, err := m.b.Scan(ctx, cursor, func(key []byte, _ Entry) { keys = append(keys, key) })
		more := false
		if err == nil {
			more, err = fn(ctx, keys)
		}
		if err != nil {
			s.H.Fail(s, err)
		}
		if cursor = next; err != nil || !more || next == 0 {
			return
		}
	}
}

// readValue is a value as All has read it.
type readValue struct {
	value []byte
	err   error
	late  bool // there was no room for the value: it has to be read again
}

// scanBytes is how many bytes of values All holds at a time, beside the one value that it may have to read again. A
// single value may be longer.
const scanBytes = 1 << 20

// values reads the values of keys. It does not give all of them a place in local memory, and so does not displace
// other entries.
func (m *Map[K, V]) values(ctx context.Context, keys [][]byte) []readValue {
	read := make([]readValue, len(keys))
	held := 0
	m.b.GetMany(ctx, keys, func(i int, e Entry, err error) {
		r := &read[i]
		if r.err = err; err != nil {
			return
		}
		if held += len(e.Value); held > scanBytes && held > len(e.Value) {
			held -= len(e.Value)
			r.late = true
			return
		}
		r.value = append([]byte(nil), e.Value...)
	})
	return read
}

// Len is the number of entries, without those lost. Entries that have expired count until they are collected.
func (m *Map[K, V]) Len() int { return m.b.Len() }

// Clear removes all entries. Entries that are set meanwhile may stay.
func (m *Map[K, V]) Clear() { m.b.Clear() }

// Free frees the map and gives its memory back, as ByteMap.Free does.
func (m *Map[K, V]) Free() { m.b.Free() }

// Stats returns the statistics of the map.
func (m *Map[K, V]) Stats() MapStats { return bytemap.StatsOf(m.b) }

// Forever is the time to live of an entry that does not expire.
const Forever time.Duration = math.MaxInt64

// expiryOf returns the time of expiry of an entry that is to live for ttl from now on. It is rounded so that the
// entry does not expire too early. The zero time means never.
func expiryOf(ttl time.Duration) time.Time {
	switch {
	case ttl == Forever:
		return time.Time{}
	case ttl <= 0:
		return time.UnixMilli(1)
	}
	return time.Now().Add(ttl).Add(time.Millisecond - 1) // the sum of both may overflow a Duration
}

// SetTTL makes v the value of k for at least ttl. After that the entry is as good as absent, and its memory, local or
// far, is given back before long. If ttl is not positive, the entry expires at once; if ttl is Forever, SetTTL is
// Set. The time is kept to the millisecond.
func (m *Map[K, V]) SetTTL(ctx context.Context, k K, v V, ttl time.Duration) error {
	var small [smallKey]byte
	return m.b.Set(ctx, m.key.View(&k, small[:0]), Entry{Value: m.value.View(&v, nil), Expire: expiryOf(ttl)})
}

// Expire makes the entry of k expire as if it had been set by SetTTL with ttl now, and reports whether there is an
// entry. Like Update, it is one step. The value stays as it is.
func (m *Map[K, V]) Expire(ctx context.Context, k K, ttl time.Duration) (ok bool, err error) {
	var small [smallKey]byte
	key := m.key.View(&k, small[:0])
	err = m.b.Update(ctx, append([]byte(nil), key...), func(old Entry, found bool) (Entry, Verdict, error) {
		if ok = found; !found {
			return old, Keep, nil
		}
		old.Expire = expiryOf(ttl)
		return old, Put, nil
	})
	return ok && err == nil, err
}

// TTL returns how long the entry of k still lives, Forever if it does not expire, and whether there is an entry. It
// does not fetch the value.
func (m *Map[K, V]) TTL(ctx context.Context, k K) (ttl time.Duration, ok bool, err error) {
	var small [smallKey]byte
	key := m.key.View(&k, small[:0])
	e, _, err := m.b.Stat(ctx, append([]byte(nil), key...))
	switch {
	case errors.Is(err, ErrNotFound):
		return 0, false, nil
	case err != nil:
		return 0, false, err
	case e.Expire.IsZero():
		return Forever, true, nil
	}
	ttl = time.Until(e.Expire)
	return ttl, ttl > 0, nil
}
