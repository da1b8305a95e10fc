package resp

import (
	"sync"
	"sync/atomic"
	"time"
)

// watchTable knows which sessions watch which keys. While nobody watches, a
// change costs one atomic load.
type watchTable struct {
	keys atomic.Int64 // number of watched keys

	mu sync.Mutex
	by map[string]map[*session]struct{} // guarded by mu
}

// watched is a key that a session watches.
type watched struct {
	key    string
	there  bool      // whether there was such a key as WATCH ran
	expire time.Time // when it was to expire then
}

// watchCost is about what watching a key takes beside the key, in bytes: in the
// session's list, and in the table a map's slot and a map.
const watchCost = 400

// watch makes s watch a key. The key's stripe must be locked.
func (t *watchTable) watch(s *session, w watched) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.by[w.key]
	if _, already := m[s]; already {
		return
	}
	s.watching = append(s.watching, w)
	s.watchLen += watchCost + 2*len(w.key)
	if m == nil {
		m = make(map[*session]struct{}, 1)
		if t.by == nil {
			t.by = make(map[string]map[*session]struct{})
		}
		t.by[w.key] = m
		t.keys.Add(1)
	}
	m[s] = struct{}{}
}

// unwatch makes s watch nothing.
func (t *watchTable) unwatch(s *session) {
	if len(s.watching) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	// Nobody can set it again once the lock is free and the keys are gone.
	s.dirty.Store(false)
	for _, w := range s.watching {
		m := t.by[w.key]
		delete(m, s)
		if len(m) == 0 {
			delete(t.by, w.key)
			t.keys.Add(-1)
		}
	}
	s.watching, s.watchLen = nil, 0
}

// touch tells who watches key that it has changed. The key's stripe must be
// locked for writing.
func (t *watchTable) touch(key []byte) {
	if !t.any() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for s := range t.by[string(key)] {
		s.dirty.Store(true)
	}
}

// any reports whether a key is watched.
func (t *watchTable) any() bool { return t.keys.Load() != 0 }

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

// watchedChanged reports whether a key that s watches has changed, expired or,
// in a cache, vanished. The keys' stripes must be locked.
func (s *session) watchedChanged() bool {
	if s.dirty.Load() {
		return true
	}
	for _, w := range s.watching {
		if !w.expire.IsZero() && !time.Now().Before(w.expire) {
			return true
		}
		if s.srv.cache != nil && w.there {
			if _, _, ok := s.srv.cache.m.Stat([]byte(w.key)); !ok {
				return true
			}
		}
	}
	return false
}
