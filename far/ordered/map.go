package ordered

import (
	"cmp"
	"context"
	"fmt"
	"iter"

	"polder/codec"
	"polder/far"
	"polder/far/heap"
)

// Limits of what a Map takes, in bytes. A numeric key is as long as its type; package codec says how long a value is.
// A larger value belongs into a far.Bytes, whose far.BytesRef the Map can hold.
const (
	MaxKey   = maxKey    // the longest key
	MaxEntry = maxRecord // the longest key and value together
)

// Config configures a Map. The zero value is good for values that need no codec.
type Config[V any] struct {
	// Name appears in statistics.
	Name string
	// Values encodes values that cannot be stored without a codec: see the package codec.
	Values codec.Codec[V]
}

// Map is an ordered map from K to V in far memory. Keys are in the order of cmp.Compare. V may be
// a number, a string, a struct or an array of such, a slice, or anything with a codec: see the
// package codec. Values are copied in and out; methods take no scope, wait within their
// context, and must not be called in a scope.
//
// A call takes time in proportion to the logarithm of the number of keys, and one read of the store for each page on
// the way that is far: usually that is one page, the leaf.
type Map[K cmp.Ordered, V any] struct {
	t     *tree
	name  string
	key   keyCoder[K]
	value codec.Coder[V]
}

// NewMap makes an empty map. If V cannot be far it fails, and names the field that is the reason.
func NewMap[K cmp.Ordered, V any](h *far.Heap, cfg Config[V]) (*Map[K, V], error) {
	if cfg.Name == "" {
		cfg.Name = "ordered map"
	}
	key, err := newKeyCoder[K]()
	if err != nil {
		return nil, fmt.Errorf("cannot make ordered map %q: keys: %w", cfg.Name, err)
	}
	value, err := codec.For(cfg.Values)
	if err != nil {
		return nil, fmt.Errorf("cannot make ordered map %q: values: %w", cfg.Name, err)
	}
	if n := key.size + value.Size(); n > MaxEntry {
		return nil, fmt.Errorf("cannot make ordered map %q: a key and a value are %d bytes, at most %d are possible; a far.BytesRef can be a value: %w",
			cfg.Name, n, MaxEntry, far.ErrTooLarge)
	}
	pages, err := far.NewClass[page](h, far.ClassConfig{Name: cfg.Name})
	if err != nil {
		return nil, fmt.Errorf("cannot make ordered map %q: %w", cfg.Name, err)
	}
	return &Map[K, V]{t: &tree{h: h, pages: pages, room: bodySize}, name: cfg.Name, key: key, value: value}, nil
}

// Len is the number of keys.
func (m *Map[K, V]) Len() int {
	m.t.mu.RLock()
	defer m.t.mu.RUnlock()
	return m.t.n
}

// Get returns the value of k, and whether there is one.
func (m *Map[K, V]) Get(ctx context.Context, k K) (v V, ok bool, err error) {
	o := m.t.begin()
	defer o.end()
	key := m.key.view(&k, &o.num)
	err = o.try(ctx, false, func() {
		ok = o.get(key)
	})
	if err != nil || !ok {
		return v, false, err
	}
	if err := m.value.Decode(o.value, &v); err != nil {
		return v, false, m.errStored(err)
	}
	return v, true, nil
}

// errStored is the error of a call that has found stored bytes that are no key, or no value.
func (m *Map[K, V]) errStored(err error) error {
	return &far.CorruptError{Segment: "ordered map " + m.name, Err: err}
}

// Set makes v the value of k.
func (m *Map[K, V]) Set(ctx context.Context, k K, v V) error {
	o := m.t.begin()
	defer o.end()
	key, value := m.key.view(&k, &o.num), m.value.View(&v, o.value[:0])
	if len(key) > MaxKey || len(key)+len(value) > MaxEntry {
		return fmt.Errorf("cannot set a key of %d bytes to a value of %d in ordered map %q: a key is at most %d, both together %d; a far.BytesRef can be a value: %w",
			len(key), len(value), m.name, MaxKey, MaxEntry, far.ErrTooLarge)
	}
	o.sets = true
	for {
		need := 0
		if err := o.try(ctx, true, func() { need = o.set(key, value) }); err != nil || need == 0 {
			return err
		}
		if err := o.make(ctx, need); err != nil {
			return err
		}
	}
}

// Delete removes k and reports whether it was there.
func (m *Map[K, V]) Delete(ctx context.Context, k K) (ok bool, err error) {
	o := m.t.begin()
	defer o.end()
	key, thin := m.key.view(&k, &o.num), false
	err = o.try(ctx, true, func() {
		ok, thin = o.remove(key)
	})
	if err == nil && thin {
		// k is gone, whatever becomes of this.
		_ = o.try(ctx, true, func() {
			o.tidy(key)
		})
	}
	return ok, err
}

// Rank returns how many keys are less than k, which need not be there.
func (m *Map[K, V]) Rank(ctx context.Context, k K) (n int, err error) {
	o := m.t.begin()
	defer o.end()
	key := m.key.view(&k, &o.num)
	err = o.try(ctx, false, func() {
		n = o.rank(key)
	})
	return n, err
}

// At returns the key of rank i and its value, and whether there are more than i keys.
func (m *Map[K, V]) At(ctx context.Context, i int) (k K, v V, ok bool, err error) {
	return m.at(ctx, func(int) int { return i })
}

// Min returns the least key and its value, and whether there is one.
func (m *Map[K, V]) Min(ctx context.Context) (k K, v V, ok bool, err error) {
	return m.at(ctx, func(int) int { return 0 })
}

// Max returns the greatest key and its value, and whether there is one.
func (m *Map[K, V]) Max(ctx context.Context) (k K, v V, ok bool, err error) {
	return m.at(ctx, func(n int) int { return n - 1 })
}

// at returns the key of rank rank(n) and its value, where n is the number of keys, and whether there is one.
func (m *Map[K, V]) at(ctx context.Context, rank func(n int) int) (k K, v V, ok bool, err error) {
	o := m.t.begin()
	defer o.end()
	var key []byte
	err = o.try(ctx, false, func() {
		i := rank(o.t.n)
		if ok = i >= 0 && i < o.t.n; !ok {
			return
		}
		if leaf, i := o.nth(i); leaf != nil {
			a, b := leaf.at(i)
			o.value = append(append(o.value[:0], a...), b...)
			key = o.value[:len(a)]
		}
	})
	if err != nil || !ok {
		return k, v, false, err
	}
	if k, v, err = m.decode(key, o.value[len(key):]); err != nil {
		ok = false
	}
	return k, v, ok, err
}

func (m *Map[K, V]) decode(key, value []byte) (k K, v V, err error) {
	if err = m.key.decode(key, &k); err == nil {
		err = m.value.Decode(value, &v)
	}
	if err != nil {
		err = m.errStored(err)
	}
	return k, v, err
}

// All iterates over the map in the order of keys. It brings some leaves at a time, which do not displace objects that
// are in use. As in all structures it waits within the context of s; if something cannot be read it ends early, and
// s.Err says why. What it yields are copies: s is not open during a step, and must not be when the iteration begins.
func (m *Map[K, V]) All(s *far.Scope) iter.Seq2[K, V] { return m.walk(s, nil, nil, false) }

// Backward is All from the greatest key to the least.
func (m *Map[K, V]) Backward(s *far.Scope) iter.Seq2[K, V] { return m.walk(s, nil, nil, true) }

// From is All from k on, or from the first key behind it if k is not there.
func (m *Map[K, V]) From(s *far.Scope, k K) iter.Seq2[K, V] { return m.walk(s, &k, nil, false) }

// BackwardFrom is Backward from k on, or from the last key before it if k is not there.
func (m *Map[K, V]) BackwardFrom(s *far.Scope, k K) iter.Seq2[K, V] {
	return m.walk(s, &k, nil, true)
}

// Range is All of the keys from lo on that are less than hi.
func (m *Map[K, V]) Range(s *far.Scope, lo, hi K) iter.Seq2[K, V] {
	return m.walk(s, &lo, &hi, false)
}

// Keys is All without the values.
func (m *Map[K, V]) Keys(s *far.Scope) iter.Seq[K] {
	return func(yield func(K) bool) {
		m.each(s, nil, nil, false, func(key, _ []byte) (more bool, err error) {
			var k K
			if err := m.key.decode(key, &k); err != nil {
				return false, m.errStored(err)
			}
			return yield(k), nil
		})
	}
}

func (m *Map[K, V]) walk(s *far.Scope, from, until *K, back bool) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		m.each(s, from, until, back, func(key, value []byte) (more bool, err error) {
			k, v, err := m.decode(key, value)
			return err == nil && yield(k, v), err
		})
	}
}

// each calls fn with the keys from from on or, with back set, from it downwards, where nil means all keys. It ends
// before until, unless that is nil, and when fn returns false. An error becomes the error of s.
func (m *Map[K, V]) each(s *far.Scope, from, until *K, back bool, fn func(key, value []byte) (bool, error)) {
	if heap.IsOpen(s) {
		s.H.Fail(s, fmt.Errorf("cannot iterate over ordered map %q: %w", m.name, far.ErrScopeOpen))
		return
	}
	w := &walk{o: m.t.begin(), back: back}
	defer w.o.end()
	w.o.walk = w
	if from != nil {
		w.from = append([]byte(nil), m.key.view(from, &w.o.num)...)
		if back {
			w.from = append(w.from, 0) // the keys that are less than this are those up to from
		}
	}
	if until != nil {
		w.until = append([]byte{}, m.key.view(until, &w.o.num)...)
	}
	for more := true; more && !w.done; {
		err := w.next(s.H.HeldIn(s).Ctx, s)
		for err == nil && more && w.i < w.j {
			more, err = fn(w.record())
		}
		if err != nil {
			s.H.Fail(s, err)
			return
		}
	}
}

// Clear removes all keys. It reads nothing, and so works if pages are lost. It looks at all
// pointers of the heap, some nanoseconds each.
func (m *Map[K, V]) Clear() {
	m.t.mu.Lock()
	defer m.t.mu.Unlock()
	m.t.root, m.t.n = far.Ptr[page]{}, 0
	m.t.pages.Clear()
}

// Free frees the map, as Clear does. It must not be used afterwards, nor while others use it.
func (m *Map[K, V]) Free() {
	m.Clear()
	if err := m.t.pages.Free(); err != nil {
		panic("BUG: " + err.Error())
	}
}

// Stats returns what the pages of the map have been through.
func (m *Map[K, V]) Stats() far.ClassStats { return m.t.pages.Stats() }
