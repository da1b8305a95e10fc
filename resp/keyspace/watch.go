package keyspace

import (
	"sync"
	"sync/atomic"
	"time"
)

// watchTable knows which accesses watch which keys. While nobody watches, a change costs one atomic load.
type watchTable struct {
	keys atomic.Int64 // number of watched keys

	mu sync.Mutex
	by map[string]map[*Access]struct{} // guarded by mu
}

// watched is a key that an access watches.
type watched struct {
	key    string
	there  bool      // whether the key was there when WATCH ran
	expire time.Time // when it was to expire, as WATCH found it
}

// watchCost is about how many bytes it takes to watch a key, beside the key: for an element of Access.watching and,
// in the table, for a slot of a map and a map.
const watchCost = 400

// watch notes that the access a watches a key. The key's stripe must be locked.
func (t *watchTable) watch(a *Access, w watched) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.by[w.key]
	if _, already := m[a]; already {
		return
	}
	a.watching = append(a.watching, w)
	a.watchLen += watchCost + 2*len(w.key)
	if m == nil {
		m = make(map[*Access]struct{}, 1)
		if t.by == nil {
			t.by = make(map[string]map[*Access]struct{})
		}
		t.by[w.key] = m
		t.keys.Add(1)
	}
	m[a] = struct{}{}
}

// unwatch ends all watching of the access a.
func (t *watchTable) unwatch(a *Access) {
	if len(a.watching) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	// Once t.mu is free, the table has no key for a, so nobody sets Dirty again.
	a.Dirty.Store(false)
	for _, w := range a.watching {
		m := t.by[w.key]
		delete(m, a)
		if len(m) == 0 {
			delete(t.by, w.key)
			t.keys.Add(-1)
		}
	}
	a.watching, a.watchLen = nil, 0
}

// touch tells the accesses that watch key that it has changed. The key's stripe must be locked for writing.
func (t *watchTable) touch(key []byte) {
	if !t.any() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for a := range t.by[string(key)] {
		a.Dirty.Store(true)
	}
}

// any reports whether any key is watched.
func (t *watchTable) any() bool { return t.keys.Load() != 0 }

// WatchedKeys is how many keys are watched.
func (sp *Space) WatchedKeys() int { return int(sp.watches.keys.Load()) }

// all returns the watched keys.
func (t *watchTable) all() [][]byte {
	if !t.any() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	keys := make([][]byte, 0, len(t.by))
	for k := range t.by {
		keys = append(keys, []byte(k))
	}
	return keys
}

// Watch makes the access a watch all of keys, or none if it fails. The keys' stripes must be locked.
func (a *Access) Watch(keys [][]byte) error {
	list := make([]watched, 0, len(keys))
	for _, key := range keys {
		e, _, found, err := a.Stat(key)
		if err != nil {
			return err
		}
		list = append(list, watched{string(key), found, e.Expire})
	}
	for _, w := range list {
		a.Space.watches.watch(a, w)
	}
	return nil
}

// Unwatch ends all watching of the access a. The keys that a watches must all be in this space.
func (sp *Space) Unwatch(a *Access) { sp.watches.unwatch(a) }

// Watches reports whether the access a watches any key.
func (a *Access) Watches() bool { return len(a.watching) > 0 }

// WatchedKey returns one of the keys that the access a watches. It must watch some.
func (a *Access) WatchedKey() []byte { return []byte(a.watching[0].key) }

// WantWatched adds the stripes of the keys that the access a watches to those that LockWanted takes.
func (a *Access) WantWatched() {
	for _, w := range a.watching {
		a.Want([]byte(w.key))
	}
}

// WatchHeld is about how many bytes the watching of the access a takes.
func (a *Access) WatchHeld() int { return a.watchLen }

// WatchedChanged reports whether a key that the access a watches has changed, expired or, in a cache, vanished. The
// keys' stripes must be locked.
func (a *Access) WatchedChanged() bool {
	if a.Dirty.Load() {
		return true
	}
	for _, w := range a.watching {
		if !w.expire.IsZero() && !time.Now().Before(w.expire) {
			return true
		}
		if a.Space.cache != nil && w.there {
			if _, _, ok := a.Space.cache.m.Stat([]byte(w.key)); !ok {
				return true
			}
		}
	}
	return false
}
