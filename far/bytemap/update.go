package bytemap

import (
	"bytes"
	"context"
	"errors"
	"polder/far/entry"
	"polder/far/index"
)

// Update calls fn with the present entry of key (found false and a zero Entry if there is none; old.Value is a copy
// that is fn's during the call) and does what fn returns: Keep, Put or Remove. If others have changed the key while
// fn ran, Update calls fn again with what is there then, until ctx ends. So what fn returns is done, in one step, to
// the very entry that fn was given. An error from fn is returned as it is, and nothing is changed.
//
// No lock is held while fn runs: it may take its time, wait, panic, and use the heap and this map, but it must not
// change key itself, which would make it run again for ever.
func (m *Map) Update(ctx context.Context, key []byte, fn UpdateFunc) error {
	if err := m.check(key, 0); err != nil {
		return err
	}
	hs := m.hash(key)
	sh := m.shard(hs)
	was, _ := m.h.snapshots.Get().(*snapshot)
	if was == nil {
		was = new(snapshot)
	}
	for {
		if err := m.look(ctx, sh, hs, key, was); err != nil {
			return err
		}
		old := was.Entry
		old.Value = was.lent
		put, verdict, err := fn(old, was.found)
		if err == nil {
			err = m.apply(ctx, sh, hs, key, was, put, verdict)
		}
		if err == errChanged && ctx.Err() == nil {
			continue
		}
		if err == errChanged {
			err = context.Cause(ctx)
		}
		if cap(was.lent) <= maxPiece {
			m.h.snapshots.Put(was)
		}
		return err
	}
}

// errChanged: the entry is not the one that an update was computed from.
var errChanged = errors.New("changed")

// snapshot is an entry as an update has seen it. By the time the update is done, the map may have another entry. The
// nil snapshot allows any entry.
type snapshot struct {
	Entry          // its Value is nil if it is large
	found   bool   // there was one
	version uint64 // of a large value, which stands for it
	lent    []byte // the value, for the update's function, which may change it
}

// look makes s what the map has of key.
func (m *Map) look(ctx context.Context, sh *shard, hs entry.Hash, key []byte, s *snapshot) error {
	// The fast path: the entry is local, or there is none.
	sh.mu.Lock()
	p, e, st := sh.find(m.h, hs, key, index.Entries, nil, true)
	switch {
	case sh.closed:
	case st == present && !e.Big() && !e.Expired():
		sh.t.Touch(p)
		s.take(metaOf(e), 0, append(s.lent[:0], e.Value()...))
		sh.mu.Unlock()
		return nil
	case st == absent:
		*s = snapshot{Entry: Entry{Value: s.Value[:0]}, lent: s.lent[:0]}
		sh.mu.Unlock()
		return nil
	}
	sh.mu.Unlock()
	return m.lookSlow(ctx, sh, hs, key, s)
}

func (m *Map) lookSlow(ctx context.Context, sh *shard, hs entry.Hash, key []byte, s *snapshot) error {
	e, big, err := m.getSlow(ctx, sh, hs, key, s.lent[:0], true)
	switch {
	case err == nil:
		s.take(e, big.Version, e.Value)
	case errors.Is(err, ErrNotFound):
		*s = snapshot{}
	default:
		return err
	}
	return nil
}

// take makes s a snapshot of the entry e with this value, a copy that s may keep.
func (s *snapshot) take(e Entry, version uint64, value []byte) {
	own := s.Value[:0]
	if version == 0 {
		own = append(own, value...)
	}
	*s = snapshot{Entry: Entry{Value: own, Expire: e.Expire, Tag: e.Tag}, found: true, version: version, lent: value}
}

// whole reports whether the value of an entry is needed to tell whether that is the entry that s has seen.
func (s *snapshot) whole() bool { return s != nil && s.found && s.version == 0 }

func (s *snapshot) need() need {
	if s.whole() {
		return needWhole
	}
	return needHead
}

// is reports whether e, nil if there is no entry, is the entry that s has seen.
func (s *snapshot) is(e entry.Local) bool {
	switch {
	case e == nil || e.Expired():
		return !s.found
	case !s.found:
		return false
	case e.Big():
		return entry.LargeOf(e).Version == s.version
	}
	m := metaOf(e)
	return s.version == 0 && m.Tag == s.Tag && m.Expire.Equal(s.Expire) && bytes.Equal(e.Value(), s.Value)
}

// apply does what an update wants, unless the entry is not was any more: then it fails with errChanged.
func (m *Map) apply(ctx context.Context, sh *shard, hs entry.Hash, key []byte, was *snapshot, put Entry, verdict Verdict) error {
	switch {
	case verdict == Put:
		if err := m.check(key, len(put.Value)); err != nil {
			return err
		}
		if len(put.Value) > len(was.lent) || !was.found {
			if err := m.h.core.MayStore(ctx); err != nil {
				return err
			}
		}
		var r newEntry
		r.of(key, put)
		return m.put(ctx, sh, hs, &r, was)
	case verdict == Remove && was.found:
		return m.do(ctx, sh, hs, key, func(hd *holding) step {
			p, e, st := sh.find(m.h, hs, key, index.Entries, hd, was.whole())
			switch {
			case st.waits():
				return sh.miss(m.h, p, st, was.need())
			case !was.is(e):
				return step{err: errChanged}
			}
			if err := (*Txn)(nil).claim(m, sh, hs.Tag(), p); err != nil {
				return step{err: err}
			}
			sh.remove(m.h, p, e)
			sh.t.Tighten(p)
			sh.count.deletes++
			return step{}
		})
	}
	return nil
}
