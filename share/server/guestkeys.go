package server

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"polder/internal/failpoint"
	"polder/share/internal/wire"
	"polder/share/meta"
	"polder/share/resource"
)

// MaruKey is a key with the place that it is, or is to be, registered for.
type MaruKey struct {
	Key    string
	Region uint64
	Offset int64
	Length int64
}

// Found is what a lookup has found.
type Found struct {
	MaruRegion
	At, Size int64 // of the value, in the region
}

func inside(r *resource.Region, offset, length int64) bool {
	return offset >= 0 && length > 0 && offset <= r.Length-length
}

func (s *Server) newMaruEntry(r *resource.Region, offset, length int64, key string) *meta.Entry {
	return &meta.Entry{Key: key, Region: r.ID, Owner: r.Owner, Offset: offset, Length: length, Durable: s.durable(r)}
}

// maxMaruKeys is how many keys a region of Maru's may hold.
const maxMaruKeys = 1 << 18

// Register registers keys, and tells of each whether it is new, or why it was refused. If it was done too late, it is
// undone.
func (g *Guest) Register(arrived time.Time, keys []MaruKey) (isNew []bool, refused []error) {
	s := g.s
	isNew, refused = make([]bool, len(keys)), make([]error, len(keys))
	all := func(err error) ([]bool, []error) {
		clear(isNew)
		for i := range refused {
			refused[i] = cmp.Or(refused[i], err)
		}
		return isNew, refused
	}
	s.mu.Lock()
	if err := errors.Join(s.fresh(arrived), g.live()); err != nil {
		s.mu.Unlock()
		return all(err)
	}
	failpoint.Hit("daemon.maru-put-checked")
	var put []*meta.Entry
	var n need
	for i, k := range keys {
		e, err := g.register(k)
		refused[i] = err
		if isNew[i] = e != nil; isNew[i] {
			put = append(put, e)
			n.add(e)
		} else if old := s.idx.Get([]byte(k.Key)); err == nil && old != nil {
			n.add(old)
		}
	}
	s.mu.Unlock()
	failpoint.Hit("daemon.maru-put-applied")
	if err := s.commitNeed(n); err != nil {
		return all(err)
	}
	if err := s.fresh(arrived); err != nil {
		return all(errors.Join(err, s.undo(put)))
	}
	return isNew, refused
}

// register registers a key; it returns nil if the key was there already.
//
// Preconditions: s.mu is held.
func (g *Guest) register(k MaruKey) (*meta.Entry, error) {
	s := g.s
	r := s.res.Region(k.Region)
	switch old := s.idx.Get([]byte(k.Key)); {
	case k.Key == "" || len(k.Key) > wire.MaxKey:
		return nil, fmt.Errorf("%w: a key of %d bytes, want 1 to %d", errInvalid, len(k.Key), wire.MaxKey)
	case r == nil || !r.Maru:
		return nil, fmt.Errorf("region %d: %w", k.Region, ErrNoRegion)
	case r.Owner == 0:
		return nil, fmt.Errorf("%w: region %d has been returned, or its owner was taken for dead", errDenied, k.Region)
	case !g.owns(r):
		s.stats.denied.Add(1)
		return nil, fmt.Errorf("%w: region %d belongs to another client", errDenied, k.Region)
	case !inside(r, k.Offset, k.Length):
		return nil, fmt.Errorf("%w: %d bytes at %d of region %d, which has %d", errInvalid, k.Length, k.Offset, r.ID, r.Length)
	case old != nil && !old.Maru():
		return nil, fmt.Errorf("%w: the key is that of a client that is not Maru's", errInvalid)
	case old != nil:
		s.stats.existed.Add(1)
		return nil, nil
	case len(s.idx.Spans(r.ID)) >= maxMaruKeys:
		return nil, fmt.Errorf("%w: region %d has %d keys already", errInvalid, r.ID, maxMaruKeys)
	}
	// An owner that has filled a place anew had freed it. A key that is still registered there shows other bytes now
	// than it was registered with, whatever has become of its deletion: so it goes.
	for e := s.idx.Overlap(r.ID, k.Offset, k.Length); e != nil; e = s.idx.Overlap(r.ID, k.Offset, k.Length) {
		if _, err := s.remove(e); err != nil {
			return nil, err
		}
		s.stats.overwritten.Add(1)
	}
	lsn, err := s.append(encodeMaruPut(s.rec[:0], r.ID, k.Offset, k.Length, k.Key))
	if err != nil {
		return nil, err
	}
	e := s.newMaruEntry(r, k.Offset, k.Length, strings.Clone(k.Key)) // it may be part of a message
	e.LSN = lsn
	s.idx.Put(e)
	r.Refs++
	s.stats.puts.Add(1)
	return e, nil
}

// undo takes entries away again, and waits until that is committed: the client, which is told that they were refused,
// fills their places anew.
func (s *Server) undo(put []*meta.Entry) error {
	var n need
	var err error
	s.mu.Lock()
	for _, e := range put {
		if s.idx.Get([]byte(e.Key)) != e {
			continue
		}
		var gone need
		if gone, err = s.remove(e); err != nil {
			break
		}
		n.lsn, n.sync = gone.lsn, n.sync || gone.sync
	}
	s.mu.Unlock()
	return errors.Join(err, s.commitNeed(n))
}

// get returns the entry of a key of Maru's, or nil.
//
// Preconditions: s.mu is held.
func (g *Guest) get(key string) *meta.Entry {
	e := g.s.idx.Get([]byte(key))
	if e == nil || !e.Maru() {
		return nil
	}
	return e
}

// Lookup says where keys lie. It is the hot path of Maru's clients.
func (g *Guest) Lookup(keys []string, each func(i int, found bool, f Found)) error {
	s := g.s
	var n need
	found := make([]Found, len(keys))
	now := s.opt.Now()
	hits := 0
	s.mu.Lock()
	id := g.ss.id
	for i, key := range keys {
		e := g.get(key)
		if e == nil {
			continue
		}
		hits++
		n.add(e)
		if s.opt.LRU {
			s.idx.Touch(e)
		}
		r := s.res.Region(e.Region)
		r.Used = now
		found[i] = Found{MaruRegion: MaruRegion{ID: r.ID, Length: cmp.Or(r.Short, r.Length)}, At: e.Offset, Size: e.Length}
	}
	s.mu.Unlock()
	s.stats.lookups.Add(1)
	s.stats.hits.Add(uint64(hits))
	if err := s.commitNeed(n); err != nil {
		return err
	}
	var last MaruRegion
	for i, f := range found {
		if f.ID != 0 && f.ID != last.ID {
			last = MaruRegion{f.ID, f.Length, g.token(told{id, f.ID, f.Length})}
		}
		if f.ID != 0 {
			f.MaruRegion = last
		}
		each(i, f.ID != 0, f)
	}
	return nil
}

// Exists tells which of the keys are there. If the log cannot be committed, none is, since nothing says which of them
// survive the daemon.
func (g *Guest) Exists(keys []string) ([]bool, error) {
	s := g.s
	found := make([]bool, len(keys))
	var n need
	s.mu.Lock()
	for i, key := range keys {
		if e := g.get(key); e != nil {
			found[i] = true
			n.add(e)
		}
	}
	s.mu.Unlock()
	return found, s.commitResults(n, found)
}

// commitResults is commitNeed for the results of a batch, which rest on n. If it fails, all of them become false.
func (s *Server) commitResults(n need, results []bool) error {
	err := s.commitNeed(n)
	if err != nil {
		clear(results)
	}
	return err
}

// Delete deletes a key; false if it is not there, or pinned.
func (g *Guest) Delete(key string) (bool, error) {
	s := g.s
	s.mu.Lock()
	e := g.get(key)
	if e == nil || e.Pinned() {
		s.mu.Unlock()
		return false, nil
	}
	n, err := s.remove(e)
	s.mu.Unlock()
	if err == nil {
		err = s.commitNeed(n)
	}
	if err != nil {
		return false, err
	}
	s.stats.deletes.Add(1)
	s.finish(false)
	return true, nil
}

// Pin pins the longest prefix of the keys that exists, for as long as the client
// lives, and returns how many that are: none if the log cannot be committed.
func (g *Guest) Pin(arrived time.Time, keys []string) (int, error) {
	s := g.s
	if err := errors.Join(s.fresh(arrived), g.hold("")); err != nil {
		return 0, err
	}
	var n need
	count := 0
	s.mu.Lock()
	err := g.live()
	for ; err == nil && count < len(keys); count++ {
		e := g.get(keys[count])
		if e == nil {
			break
		}
		var lsn uint64
		if lsn, err = s.append(s.rec[:0].U8(recPin).U64(g.ss.id).String(e.Key)); err != nil {
			break
		}
		n.add(e)
		n.lsn = lsn
		s.idx.Pin(e, g.ss.id, 1)
	}
	s.mu.Unlock()
	if failed := s.commitNeed(n); failed != nil {
		return 0, errors.Join(err, failed)
	}
	return count, err
}

// Unpin takes one pin of each key back, and reports for which keys it did; the other keys are not there, or not
// pinned. In Maru pins belong to nobody: if the client has no pin of a key, Unpin takes one of another client of
// Maru's. It fails if the log does not take a record, and then leaves the remaining keys alone. It also fails if the
// log cannot be committed; then it reports true for no key.
func (g *Guest) Unpin(keys []string) ([]bool, error) {
	s := g.s
	unpinned := make([]bool, len(keys))
	var n need
	var err error
	s.mu.Lock()
	for i, key := range keys {
		e := g.get(key)
		if e == nil {
			continue
		}
		whose := g.pinner(e)
		if whose == 0 {
			continue
		}
		var lsn uint64
		if lsn, err = s.append(s.rec[:0].U8(recUnpin).U64(whose).String(e.Key)); err != nil {
			break
		}
		n.lsn, n.sync = lsn, n.sync || e.Durable
		unpinned[i] = s.idx.Unpin(e, whose)
	}
	s.mu.Unlock()
	return unpinned, errors.Join(err, s.commitResults(n, unpinned))
}

// pinner returns the client whose pin of an entry is taken back, or 0.
//
// Preconditions: s.mu is held.
func (g *Guest) pinner(e *meta.Entry) uint64 {
	if e.PinsOf(g.ss.id) > 0 {
		return g.ss.id
	}
	for id := range e.Pins() {
		if ss := g.s.sessions[id]; ss != nil && ss.door.Maru() {
			return id
		}
	}
	return 0
}
