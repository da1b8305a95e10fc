package bytemap

import (
	"context"
	"errors"

	"polder/far/entry"
	"polder/far/heap"
	"polder/far/index"
)

// Reading is a value where it lies, for callers that need not copy it: in local memory, with the lock of its shard
// held, or in the buffer that it was read into. The caller must call End before it asks anything else of the map, or
// waits for anything.
type Reading struct {
	m  *Map
	e  entry.Local
	sh *shard       // whose lock keeps e in place, or nil
	at index.Place  // of e in sh
	f  *heap.Flight // that has brought e from the store, or nil
	q  *finds       // that have found e, or nil
}

// ErrLong: a value cannot be read where it lies, since it is in pieces, or something else has to be done first. Get
// reads it.
var ErrLong = errors.New("to be read by Get")

// Read finds the value of key in m. It fails with ErrNotFound, with ErrLong, or as Get does; after a failure End must
// not be called.
func (r *Reading) Read(ctx context.Context, m *Map, key []byte) error {
	// The fast path: the entry is local.
	hs := m.hash(key)
	sh := m.shard(hs)
	sh.mu.Lock()
	p, e, st := sh.find(m.h, hs, key, index.Entries, nil, true)
	if st == present && !e.Big() && !e.Expired() {
		m.hit(sh, p, e)
		r.m, r.e, r.sh, r.at = m, e, sh, p
		return nil
	}
	return r.readFar(ctx, m, sh, hs, key, p, st)
}

// hit notes that the local entry at p is read. sh.mu must be held.
func (m *Map) hit(sh *shard, p index.Place, e entry.Local) {
	sh.t.Touch(p)
	sh.count.hits++
	if m.exclusive {
		m.h.unclean(e, sh.t.Word(p).Addr()) // it is local, and to be there alone
	}
}

// readFar goes on for Read when find has found no local value that can be read where it lies.
//
// Preconditions: sh.mu has been held since find. readFar unlocks it.
func (r *Reading) readFar(ctx context.Context, m *Map, sh *shard, hs entry.Hash, key []byte, p index.Place, st status) error {
	switch {
	case sh.closed:
	case st == absent:
		sh.count.absent++
		sh.mu.Unlock()
		return ErrNotFound
	case ctx == heap.NoWait && st.waits():
		sh.mu.Unlock()
		return heap.ErrWouldBlock // as getSlow finds in the end
	case st == remote:
		f, err := m.demand(ctx, sh, p, key)
		if f == nil && err == nil {
			err = ErrLong
		}
		if err != nil {
			return err
		}
		if m.exclusive {
			m.disown(sh, hs, key)
		}
		r.m, r.e, r.f = m, entryOf(f), f
		return nil
	case st == unread:
		if q, e := m.findOne(ctx, sh, hs, key); e != nil {
			r.m, r.e, r.q = m, e, q
			return nil
		}
		return ErrLong
	}
	sh.mu.Unlock()
	return ErrLong
}

// Value is the bytes of the value, which must not be changed. They are good until r ends.
func (r *Reading) Value() []byte { return r.e.Value() }

// View keeps the value in place until the open scope s is left, and reports whether it can.
func (r *Reading) View(s *heap.Scope) bool {
	return r.sh != nil && r.m.h.core.View(s, r.sh.t.Word(r.at).Addr())
}

// End ends the reading.
func (r *Reading) End() {
	if r.sh != nil {
		r.sh.mu.Unlock()
		return
	}
	r.endFar()
}

func (r *Reading) endFar() {
	if r.f != nil {
		r.m.h.done(r.f)
	} else {
		r.m.endFind(r.q)
	}
}

// disown gives up the far copy of the entry of key, if the entry is local.
func (m *Map) disown(sh *shard, hs entry.Hash, key []byte) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	p, e, st := sh.find(m.h, hs, key, index.Entries, nil, true)
	if st == present {
		m.h.unclean(e, sh.t.Word(p).Addr())
	}
}
