package far

import (
	"context"
	"iter"
	"sync"
	"time"
)

// Map is a hash map from byte strings to byte strings on a Heap. Its index is
// local (16 bytes an entry, within the budget); entries are local or far.
//
// An entry whose Expire has passed is as good as absent: no call returns it.
type Map struct {
	mu sync.Mutex
	m  map[string]Entry
}

func (m *Map) live(key []byte) (Entry, bool) {
	e, ok := m.m[string(key)]
	if ok && !e.Expire.IsZero() && !time.Now().Before(e.Expire) {
		delete(m.m, string(key))
		return Entry{}, false
	}
	return e, ok
}

// Get appends the value of key to dst and returns it as Entry.Value.
// It fails with ErrNotFound, *LostError, *CorruptError, or the error of
// the wait.
func (m *Map) Get(ctx context.Context, key, dst []byte) (Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.live(key)
	if !ok {
		return Entry{}, ErrNotFound
	}
	e.Value = append(dst, e.Value...)
	return e, nil
}

// Stat is Get without the value: Entry.Value is nil; size is its
// length.
func (m *Map) Stat(ctx context.Context, key []byte) (e Entry, size int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.live(key)
	if !ok {
		return Entry{}, 0, ErrNotFound
	}
	size = len(e.Value)
	e.Value = nil
	return e, size, nil
}

// Set stores e under key, replacing what was there.
func (m *Map) Set(ctx context.Context, key []byte, e Entry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.Value = append([]byte(nil), e.Value...)
	m.m[string(key)] = e
	return nil
}

// Delete removes key and reports whether it was there. A lost entry is
// removed too, and reported as having been there.
func (m *Map) Delete(ctx context.Context, key []byte) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.live(key)
	delete(m.m, string(key))
	return ok, nil
}

// Update calls fn with the present entry of key (found false and a zero
// Entry if there is none; old.Value is valid during the call only) and
// does what fn returns: Keep, Put or Remove. Nothing else changes the
// key meanwhile. fn must not use the map and may be called again if
// the entry moved in between; an error from fn is returned as it is,
// and nothing changed.
func (m *Map) Update(ctx context.Context, key []byte, fn UpdateFunc) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	old, found := m.live(key)
	e, v, err := fn(old, found)
	if err != nil {
		return err
	}
	switch v {
	case Put:
		e.Value = append([]byte(nil), e.Value...)
		m.m[string(key)] = e
	case Remove:
		delete(m.m, string(key))
	}
	return nil
}

// Fetch brings the entries of keys that are far into local memory, in
// one batch, so that calls that follow need not wait. Missing keys are
// no error.
func (m *Map) Fetch(ctx context.Context, keys [][]byte) error {
	return nil
}

// Len is the number of entries, without those lost. Entries that have
// expired count until they are collected, as in Redis.
func (m *Map) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.m)
}

// Scan calls yield for the keys of one step of an iteration, starting
// from cursor 0, and returns the next cursor, 0 at the end. Every key
// that is there throughout the iteration is yielded at least once,
// however the map changes meanwhile. Key is valid during the call
// only. It fetches keys that are far.
func (m *Map) Scan(ctx context.Context, cursor uint64, yield func(key []byte, e Entry)) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.m {
		if e, ok := m.live([]byte(k)); ok {
			yield([]byte(k), e)
		}
	}
	return 0, nil
}

// Random returns a key chosen roughly at random, appended to dst, or
// ErrNotFound if the map is empty.
func (m *Map) Random(ctx context.Context, dst []byte) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.m {
		return append(dst, k...), nil
	}
	return nil, ErrNotFound
}

// All iterates over the keys, like Scan, without duplicates only if the
// map does not change meanwhile.
func (m *Map) All(ctx context.Context) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		m.mu.Lock()
		var keys []string
		for k := range m.m {
			keys = append(keys, k)
		}
		m.mu.Unlock()
		for _, k := range keys {
			if !yield([]byte(k), nil) {
				return
			}
		}
	}
}

// Clear removes every entry.
func (m *Map) Clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.m)
}
