package far

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"

	"polder/far/heap"
)

// MapConfig configures a Map. The zero value is good.
type MapConfig struct {
	// Name appears in statistics.
	Name string
	// Exclusive makes local memory an exclusive cache of far memory (the paper's
	// section 6): the far copy of an entry that is read back is given up, so that
	// far memory holds nothing twice, but the entry has to be written
	// again when it is evacuated. Without it the cache is inclusive: an entry that
	// has not changed is dropped, not written.
	Exclusive bool
}

// Map is a hash table from K to V. K is a string type, or a comparable type without
// Go pointers and floating-point numbers; V is a string type, a byte slice type, or a type without Go pointers. Its
// index is local and takes about 16 bytes an entry; entries are local or far,
// each by itself, with 36 bytes of header. It is a ByteMap underneath, and all
// that is said of that holds.
//
// All methods may be called by any number of goroutines, and each call is atomic.
// They copy values, and take no scope: an entry is read and written in
// place under the lock of its shard, one of many. Every call takes
// constant time, and one read of the store if the entry is far: an absent key
// hardly ever, since the index is local. What is stored replaces an entry
// that is far only when its key has been read, which is one read of the store,
// too.
type Map[K comparable, V any] struct {
	b         *ByteMap
	key       codec
	value     codec
	exclusive bool
}

// codec says how the values of a type are byte strings.
type codec struct {
	kind  codecKind
	size  int        // of a fixed one, encoded
	parts []codePart // of a padded one: the bytes that are not padding
}

type codecKind uint8

const (
	codecFixed  codecKind = iota // its bytes
	codecPadded                  // its bytes without padding
	codecString
	codecBytes
)

// codePart is a range of the bytes of a value.
type codePart struct{ off, size int }

// NewMap makes an empty map. It fails if K or V cannot be far, and names the
// field that is why.
func NewMap[K comparable, V any](h *Heap, cfg MapConfig) (*Map[K, V], error) {
	if cfg.Name == "" {
		cfg.Name = "map"
	}
	key, err := keyCodec(reflect.TypeFor[K]())
	if err != nil {
		return nil, fmt.Errorf("cannot make map %q: keys: %w", cfg.Name, err)
	}
	value, err := valueCodec(reflect.TypeFor[V]())
	if err != nil {
		return nil, fmt.Errorf("cannot make map %q: values: %w", cfg.Name, err)
	}
	if key.size > MaxKeySize || value.size > h.maxValue {
		return nil, fmt.Errorf("cannot make map %q: a key is %d bytes and a value %d, at most %d and %d are possible: %w",
			cfg.Name, key.size, value.size, MaxKeySize, h.maxValue, ErrTooLarge)
	}
	return &Map[K, V]{b: h.NewByteMap(cfg.Name), key: key, value: value, exclusive: cfg.Exclusive}, nil
}

// keyCodec returns the codec of keys of type t: equal keys have equal bytes.
func keyCodec(t reflect.Type) (codec, error) {
	if t.Kind() == reflect.String {
		return codec{kind: codecString}, nil
	}
	if err := pointerless(t); err != nil {
		return codec{}, err
	}
	var parts []codePart
	if err := keyParts(t, t.String(), 0, &parts); err != nil {
		return codec{}, err
	}
	if len(parts) == 1 && parts[0].size == int(t.Size()) {
		return codec{size: int(t.Size())}, nil
	}
	c := codec{kind: codecPadded, parts: parts}
	for _, p := range parts {
		c.size += p.size
	}
	return c, nil
}

// keyParts appends the bytes of a t at off that count when keys are compared.
func keyParts(t reflect.Type, path string, off int, parts *[]codePart) error {
	switch t.Kind() {
	case reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		return fmt.Errorf("%s is a %v, which is no key: NaN is not equal to itself, and 0 equals -0; convert it to an integer by math.Float64bits", path, t)
	case reflect.Array:
		for i := range t.Len() {
			if err := keyParts(t.Elem(), path+"[]", off+i*int(t.Elem().Size()), parts); err != nil {
				return err
			}
		}
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if f.Name == "_" {
				continue
			}
			if err := keyParts(f.Type, path+"."+f.Name, off+int(f.Offset), parts); err != nil {
				return err
			}
		}
	default:
		if n := len(*parts); n > 0 && (*parts)[n-1].off+(*parts)[n-1].size == off {
			(*parts)[n-1].size += int(t.Size())
		} else {
			*parts = append(*parts, codePart{off, int(t.Size())})
		}
	}
	return nil
}

func valueCodec(t reflect.Type) (codec, error) {
	switch {
	case t.Kind() == reflect.String:
		return codec{kind: codecString}, nil
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return codec{kind: codecBytes}, nil
	}
	if err := pointerless(t); err != nil {
		return codec{}, fmt.Errorf("%w; a string or a []byte may be a value by itself", err)
	}
	return codec{size: int(t.Size())}, nil
}

// smallKey is the room for a padded key that takes no garbage.
const smallKey = 128

// encode returns k as bytes, in buf if it has to be put together.
func encode[T any](c *codec, k *T, buf []byte) []byte {
	switch c.kind {
	case codecFixed:
		return bytesOf(k)
	case codecPadded:
		b := bytesOf(k)
		for _, p := range c.parts {
			buf = append(buf, b[p.off:p.off+p.size]...)
		}
		return buf
	}
	return bytesIn(k, c.kind)
}

// decode makes *v what b says, and reports whether b can be one.
func decode[T any](c *codec, v *T, b []byte) bool {
	switch c.kind {
	case codecFixed:
		return len(b) == c.size && copy(bytesOf(v), b) == c.size
	case codecPadded:
		if len(b) != c.size {
			return false
		}
		to := bytesOf(v)
		for _, p := range c.parts {
			b = b[copy(to[p.off:p.off+p.size], b):]
		}
		return true
	}
	setBytes(v, c.kind, append([]byte(nil), b...))
	return true
}

// errMapped is what is wrong with a value that is none.
func (m *Map[K, V]) errMapped(n int) error {
	return &heap.CorruptError{Segment: "map " + m.b.name, Err: fmt.Errorf("a value is %d bytes, want %d", n, m.value.size)}
}

// Get returns the value of k, and whether there is one. It fails with
// *LostError, *CorruptError, or the error of the wait. Without waiting, it
// makes no garbage unless V is a string or a byte slice: see Append.
func (m *Map[K, V]) Get(ctx context.Context, k K) (v V, ok bool, err error) {
	var small [smallKey]byte
	key := encode(&m.key, &k, small[:0])
	// The fast path: the entry is local.
	b := m.b
	hs := b.hash(key)
	sh := b.shard(hs)
	sh.mu.Lock()
	p, e, st := sh.find(b.h, hs, key, kindEntry, nil, true)
	if st == present && !e.Big() && !e.Expired() {
		m.hit(sh, p, e)
		ok = decode(&m.value, &v, e.Value())
		n := e.Vlen()
		sh.mu.Unlock()
		if !ok {
			err = m.errMapped(n)
		}
		return v, ok, err
	}
	if st == absent && !sh.closed {
		sh.count.absent++
		sh.mu.Unlock()
		return v, false, nil
	}
	if st != remote || sh.closed {
		sh.mu.Unlock()
		return m.getSlow(ctx, append([]byte(nil), key...))
	}
	if ctx == NoWait {
		sh.mu.Unlock()
		return v, false, ErrWouldBlock // as getSlow finds in the end
	}
	f, err := b.demand(ctx, sh, p, key)
	if f == nil {
		if err != nil {
			return v, false, err
		}
		return m.getSlow(ctx, append([]byte(nil), key...))
	}
	ok = decode(&m.value, &v, entryOf(f).Value())
	n := entryOf(f).Vlen()
	b.h.done(f)
	if !ok {
		return v, false, m.errMapped(n)
	}
	m.settle(key)
	return v, true, nil
}

// hit notes the use of a local entry. sh.mu must be held.
func (m *Map[K, V]) hit(sh *shard, p place, e entry) {
	w := sh.t.word(p)
	*w = w.touched()
	sh.count.hits++
	if m.exclusive && e.Clean() {
		m.b.h.unclean(e, w.addr())
	}
}

// getSlow is Get of a key that is not local.
//
//go:noinline
func (m *Map[K, V]) getSlow(ctx context.Context, key []byte) (v V, ok bool, err error) {
	ent, err := m.b.Get(ctx, key, nil)
	if errors.Is(err, ErrNotFound) {
		return v, false, nil
	}
	if err != nil {
		return v, false, err
	}
	m.settle(key)
	if !decode(&m.value, &v, ent.Value) {
		return v, false, m.errMapped(len(ent.Value))
	}
	return v, true, nil
}

// settle gives up the far copy of an entry that was fetched.
func (m *Map[K, V]) settle(key []byte) {
	if !m.exclusive {
		return
	}
	hs := m.b.hash(key)
	sh := m.b.shard(hs)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	p, e, st := sh.find(m.b.h, hs, key, kindEntry, nil, true)
	if st == present && e.Clean() {
		m.b.h.unclean(e, sh.t.word(p).addr())
	}
}

// Append appends the value of k, as bytes, to dst, and reports whether there is
// one: it is how a string or a byte slice is read without garbage.
func (m *Map[K, V]) Append(ctx context.Context, k K, dst []byte) (b []byte, ok bool, err error) {
	var small [smallKey]byte
	key := encode(&m.key, &k, small[:0])
	hs := m.b.hash(key)
	sh := m.b.shard(hs)
	sh.mu.Lock()
	p, e, st := sh.find(m.b.h, hs, key, kindEntry, nil, true)
	if st == present && !e.Big() && !e.Expired() {
		m.hit(sh, p, e)
		dst = append(dst, e.Value()...)
		sh.mu.Unlock()
		return dst, true, nil
	}
	if st == absent && !sh.closed {
		sh.count.absent++
		sh.mu.Unlock()
		return dst, false, nil
	}
	if st != remote || sh.closed {
		sh.mu.Unlock()
		return m.appendSlow(ctx, append([]byte(nil), key...), dst)
	}
	if ctx == NoWait {
		sh.mu.Unlock()
		return dst, false, ErrWouldBlock
	}
	f, err := m.b.demand(ctx, sh, p, key)
	if f == nil {
		if err != nil {
			return dst, false, err
		}
		return m.appendSlow(ctx, append([]byte(nil), key...), dst)
	}
	dst = append(dst, entryOf(f).Value()...)
	m.b.h.done(f)
	m.settle(key)
	return dst, true, nil
}

//go:noinline
func (m *Map[K, V]) appendSlow(ctx context.Context, key, dst []byte) ([]byte, bool, error) {
	ent, err := m.b.Get(ctx, key, dst)
	if errors.Is(err, ErrNotFound) {
		return dst, false, nil
	}
	if err != nil {
		return dst, false, err
	}
	m.settle(key)
	return ent.Value, true, nil
}

// Has reports whether there is a value of k.
func (m *Map[K, V]) Has(ctx context.Context, k K) (bool, error) {
	var small [smallKey]byte
	key := encode(&m.key, &k, small[:0])
	hs := m.b.hash(key)
	sh := m.b.shard(hs)
	sh.mu.Lock()
	_, _, st := m.b.tryStat(sh, hs, key, nil)
	sh.mu.Unlock()
	err := st.err
	if st.need != ready {
		_, _, err = m.b.statSlow(ctx, sh, hs, append([]byte(nil), key...))
	}
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Set makes v the value of k.
func (m *Map[K, V]) Set(ctx context.Context, k K, v V) error {
	var small [smallKey]byte
	key := encode(&m.key, &k, small[:0])
	val := encode(&m.value, &v, nil)
	b := m.b
	if err := b.check(key, len(val)); err != nil {
		return err
	}
	// The fast path: what it replaces is local, and there is room.
	if len(val) <= b.h.pieces {
		hs := b.hash(key)
		sh := b.shard(hs)
		r := newEntry{key: key, value: val}
		sh.mu.Lock()
		p, old, st := sh.find(b.h, hs, key, kindEntry, nil, false)
		if st != remote && !sh.closed {
			if err := b.insert(sh, hs, p, old, &r); !heap.LacksRoom(err) {
				sh.mu.Unlock()
				return err
			}
		}
		sh.mu.Unlock()
	}
	return m.setSlow(ctx, append([]byte(nil), key...), append([]byte(nil), val...))
}

//go:noinline
func (m *Map[K, V]) setSlow(ctx context.Context, key, val []byte) error {
	return m.b.Set(ctx, key, Entry{Value: val})
}

// Delete removes k and reports whether it was there.
func (m *Map[K, V]) Delete(ctx context.Context, k K) (bool, error) {
	var small [smallKey]byte
	key := encode(&m.key, &k, small[:0])
	hs := m.b.hash(key)
	sh := m.b.shard(hs)
	sh.mu.Lock()
	found, st := m.b.tryDelete(sh, hs, key, nil, nil)
	sh.mu.Unlock()
	if st.need == ready {
		return found, st.err
	}
	return m.b.deleteSlow(ctx, sh, hs, append([]byte(nil), key...), nil)
}

// Update calls fn with the value of k, zero and false if there is none, and
// stores what fn returns, or removes k if that is false, in one step: if others change
// k meanwhile, fn is called again with what is there then. No lock is held while fn runs.
// See ByteMap.Update.
func (m *Map[K, V]) Update(ctx context.Context, k K, fn func(old V, ok bool) (V, bool)) error {
	var small [smallKey]byte
	key := encode(&m.key, &k, small[:0])
	return m.b.Update(ctx, append([]byte(nil), key...), func(old Entry, found bool) (Entry, Verdict, error) {
		var v V
		if found && !decode(&m.value, &v, old.Value) {
			return Entry{}, Keep, m.errMapped(len(old.Value))
		}
		v, keep := fn(v, found)
		if !keep {
			return Entry{}, Remove, nil
		}
		return Entry{Value: encode(&m.value, &v, nil)}, Put, nil
	})
}

// Prefetch brings the entries of keys that are far into local memory, in as few reads of
// the store as it can, and returns when they are there. A Get of each that follows need
// not wait.
func (m *Map[K, V]) Prefetch(ctx context.Context, keys ...K) error {
	bs := make([][]byte, len(keys))
	for i := range keys {
		bs[i] = encode(&m.key, &keys[i], nil)
	}
	return m.b.Fetch(ctx, bs)
}

// All iterates over the map, in no order. What is there throughout is yielded;
// what changes meanwhile may be or not, and a key may come twice if the map
// grows. It takes one read of the store for some 32 entries that are far. If
// the iteration ends early because something cannot be read, *err says why; it
// is nil otherwise.
func (m *Map[K, V]) All(ctx context.Context, err *error) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		*err = m.each(ctx, yield)
	}
}

// Keys is All without the values, which are not fetched.
func (m *Map[K, V]) Keys(ctx context.Context, err *error) iter.Seq[K] {
	return func(yield func(K) bool) {
		*err = nil
		for b, e := range m.b.All(ctx) {
			var k K
			if *err = e; e != nil {
				return
			}
			if !decode(&m.key, &k, b) {
				*err = m.errMapped(len(b))
				return
			}
			if !yield(k) {
				return
			}
		}
	}
}

func (m *Map[K, V]) each(ctx context.Context, yield func(K, V) bool) error {
	var keys [][]byte
	for cursor := uint64(0); ; {
		keys = keys[:0]
		next, err := m.b.Scan(ctx, cursor, func(key []byte, _ Entry) { keys = append(keys, key) })
		if err != nil {
			return err
		}
		if err := m.b.Fetch(ctx, keys); err != nil {
			return err
		}
		for _, b := range keys {
			var k K
			if !decode(&m.key, &k, b) {
				return m.errMapped(len(b))
			}
			v, ok, err := m.getSlow(ctx, b)
			if err != nil {
				return err
			}
			if ok && !yield(k, v) {
				return nil
			}
		}
		if cursor = next; next == 0 {
			return nil
		}
	}
}

// Len is the number of entries.
func (m *Map[K, V]) Len() int { return m.b.Len() }

// Clear removes all entries. Those that are set meanwhile may stay.
func (m *Map[K, V]) Clear() { m.b.Clear() }

// Stats returns what the map has been through.
func (m *Map[K, V]) Stats() MapStats { return m.b.stats(new(temperature)) }
