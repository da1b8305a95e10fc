package resp

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"

	"polder/far"
	"polder/resp/hashes"
	"polder/resp/reply"
)

// A command that changes fields of a hash plans that first. A hash that stays
// small is one entry, and so one write. Of a large one each block with a field
// to change is read, changed and written once. One that may become more than
// twice as large is written anew, in as many blocks as it needs; the old ones are
// freed when its key leads to the new ones. So n fields cost no more than
// n log n.

// pairs are fields and values by turns, as in the arguments of HSET.
type pairs [][]byte

func (p pairs) len() int           { return len(p) / 2 }
func (p pairs) field(i int) []byte { return p[2*i] }
func (p pairs) value(i int) []byte { return p[2*i+1] }

// size is the most that p adds to a list.
func (p pairs) size() (n int) {
	for _, b := range p {
		n += len(b) + binary.MaxVarintLen32
	}
	return n
}

// isSmall reports whether a hash of so many fields and bytes is one entry.
func isSmall(fields, bytes int) bool {
	return fields <= smallFields && (bytes <= smallBytes || fields == 1)
}

// setFields gives fields of h values, and returns how many of them are new. It
// is the command's last change of h.
func (s *session) setFields(h *hash, p pairs) (added int, err error) {
	if h.large != nil {
		return s.setLarge(h, p)
	}
	before := h.list.Len()
	for _, b := range p {
		if len(b) > listpackValue {
			h.e.Tag = tagTable
		}
	}
	if before+p.len() <= smallFields {
		for i := range p.len() {
			h.list, _ = h.list.Set(p.field(i), p.value(i))
		}
		if isSmall(h.list.Len(), h.list.Size()) {
			return h.list.Len() - before, s.storeList(h)
		}
		p = nil
	}
	t := s.srv.newHashTable(h.list.Size() + p.size())
	t.addList(h.list)
	t.addPairs(p)
	if isSmall(t.h.Count, t.h.Bytes) { // many of the fields are the same
		h.list = nil
		for _, l := range t.lists {
			for f, v := range l.All() {
				h.list, _ = h.list.Set(f, v)
			}
		}
		return t.h.Count - before, s.storeList(h)
	}
	if err := s.storeTable(h, t); err != nil {
		return 0, err
	}
	s.noteTable(h, t)
	return t.h.Count - before, nil
}

// storeList stores a small hash that is not empty.
func (s *session) storeList(h *hash) error {
	if h.list.Len() > listpackFields {
		h.e.Tag = tagTable
	}
	h.e.Value = h.list
	reuse(&s.scratch, h.list)
	return s.put(h.key, h.e)
}

// storeTable stores a hash in new blocks.
func (s *session) storeTable(h *hash, t *hashTable) error {
	if s.srv.cache != nil {
		return reply.ErrHashTooLarge // its blocks would vanish one by one
	}
	if len(h.key) > far.MaxKeySize {
		return reply.ErrKeyTooLong
	}
	t = t.fitted()
	t.h.ID = s.srv.nextHash.Add(1)
	s.begin()
	for b, l := range t.lists {
		if l.Len() > 0 {
			if err := s.putBlock(t.h, uint32(b), l); err != nil {
				return err
			}
		}
	}
	if err := s.store(h.key, far.Entry{Tag: tagLarge, Expire: h.e.Expire}); err != nil {
		return err
	}
	s.lead(h.key, t.h)
	return nil
}

// hashTable is the blocks of a large hash before they are stored.
type hashTable struct {
	srv   *Server
	h     *hashes.Large // without an id
	lists []hashes.List
}

// newHashTable makes a table for fields and values of so many bytes.
func (srv *Server) newHashTable(bytes int) *hashTable {
	n := bytes/blockTarget + 1
	return &hashTable{srv, &hashes.Large{Buckets: uint32(n)}, make([]hashes.List, n)}
}

func (t *hashTable) set(field, value []byte) {
	l := &t.lists[t.h.Bucket(t.srv.fieldHash(field))]
	before := l.Size()
	var added bool
	if *l, added = l.Set(field, value); added {
		t.h.Count++
	}
	t.h.Bytes += l.Size() - before
}

func (t *hashTable) addList(l hashes.List) {
	for f, v := range l.All() {
		t.set(f, v)
	}
}

func (t *hashTable) addPairs(p pairs) {
	for i := range p.len() {
		t.set(p.field(i), p.value(i))
	}
}

// fitted is t, or a table with fewer blocks if those of t are nearly empty,
// because many of its fields were set more than once.
func (t *hashTable) fitted() *hashTable {
	if 2*(t.h.Bytes/blockTarget+1) >= len(t.lists) {
		return t
	}
	fewer := t.srv.newHashTable(t.h.Bytes)
	for _, l := range t.lists {
		fewer.addList(l)
	}
	return fewer
}

// setLarge is setFields for a large hash.
func (s *session) setLarge(h *hash, p pairs) (added int, err error) {
	lh := h.large
	before := lh.Count
	grown := lh.Bytes + p.size()
	if grown/blockTarget+1 > 2*int(lh.Buckets) {
		t := s.srv.newHashTable(grown)
		err := s.walk(lh, func(l hashes.List) error { t.addList(l); return nil })
		if err != nil {
			return 0, err
		}
		t.addPairs(p)
		if err := s.storeTable(h, t); err != nil {
			return 0, err
		}
		s.note(opFields, h.e, h.key, p...)
		return t.h.Count - before, nil
	}
	if grown >= int(lh.Buckets)*blockTarget {
		s.begin() // blocks may be split
	}
	err = s.editBlocks(h, p.len(), p.field, func(l hashes.List, i int) (hashes.List, bool) {
		l, _ = l.Set(p.field(i), p.value(i))
		return l, true
	})
	if err == nil {
		err = s.split(lh, 2+p.len())
	}
	if err == nil {
		s.note(opFields, h.e, h.key, p...)
	}
	return lh.Count - before, err
}

// removeFields takes fields out of h, and h away if none is left. It returns how
// many were there, and is the command's last change of h.
func (s *session) removeFields(h *hash, fields [][]byte) (removed int, err error) {
	before := h.len()
	if before == 0 {
		return 0, nil
	}
	if h.large == nil {
		for _, f := range fields {
			h.list, _ = h.list.Remove(f)
		}
		if removed = before - h.list.Len(); removed > 0 && h.list.Len() > 0 {
			return removed, s.storeLess(h)
		}
	} else {
		if len(fields) >= before {
			s.begin() // none may be left
		}
		err = s.editBlocks(h, len(fields), func(i int) []byte { return fields[i] }, func(l hashes.List, i int) (hashes.List, bool) {
			return l.Remove(fields[i])
		})
		if err != nil {
			return 0, err
		}
		removed = before - h.large.Count
		if removed > 0 && h.len() > 0 {
			s.note(opRemove, far.Entry{}, h.key, fields...)
		}
	}
	if h.len() == 0 {
		_, err = s.del(h.key)
	}
	return removed, err
}

// editBlocks calls edit with the block of each of n fields, one block after the
// other, and stores those of which edit says that it has changed them.
func (s *session) editBlocks(h *hash, n int, field func(i int) []byte, edit func(l hashes.List, i int) (hashes.List, bool)) error {
	type place struct {
		block uint32
		field int
	}
	lh := h.large
	var struck []uint64
	places := make([]place, n)
	for i := range places {
		places[i] = place{lh.Bucket(s.srv.fieldHash(field(i))), i}
	}
	slices.SortFunc(places, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.block, b.block), cmp.Compare(a.field, b.field))
	})
	if places[0].block != places[n-1].block {
		s.begin()
	}
	s.save(lh)
	changed := false
	for at := 0; at < n; {
		b := places[at].block
		l, err := s.block(lh, b, s.scratch2[:0])
		if errors.Is(err, far.ErrWouldBlock) {
			for _, p := range places[at+1:] {
				if len(s.wantBlocks) < fetchBlocks && p.block != b {
					b = p.block
					s.wantBlocks = append(s.wantBlocks, lh.Key(b))
				}
			}
		}
		if err != nil {
			return err
		}
		bytes, count := l.Size(), l.Len()
		edited := false
		for ; at < n && places[at].block == b; at++ {
			var ok bool
			l, ok = edit(l, places[at].field)
			edited = edited || ok
		}
		reuse(&s.scratch2, l)
		if !edited {
			continue
		}
		var out []uint64
		if l.Len() < count {
			out, err = s.putLess(lh, b, l)
			struck = append(struck, out...)
		} else {
			err = s.putBlock(lh, b, l)
		}
		if err != nil {
			return err
		}
		lh.Bytes += l.Size() - bytes
		lh.Count += l.Len() - count
		changed = true
	}
	if len(struck) > 0 {
		lh.Struck = lh.Struck.Add(struck)
		s.struck = append(s.struck, h.key)
	}
	if changed {
		s.changedKey(h.key)
	}
	return nil
}

// split adds up to n buckets to a large hash if its blocks have become large. A
// block that cannot be read now is left for later, within reason: the fields are
// stored, and what is wrong with it shows when it is read.
func (s *session) split(h *hashes.Large, n int) error {
	for range n {
		if h.Bytes < int(h.Buckets)*blockTarget {
			return nil
		}
		level, from := h.Level()
		e, err := s.srv.blocks.Get(far.NoWait, h.Key(from), nil)
		if errors.Is(err, far.ErrWouldBlock) && h.Bytes > int(h.Buckets)*blockTarget*splitDebt {
			e.Value, err = s.block(h, from, nil)
			if s.blocked(err) {
				return err
			}
		}
		switch {
		case errors.Is(err, far.ErrNotFound):
			h.Buckets++
			continue
		case err != nil:
			return nil
		}
		var lists [2]hashes.List
		for f, v := range h.Struck.Rest(from, e.Value).All() {
			i := s.srv.fieldHash(f) >> level & 1
			lists[i], _ = lists[i].Set(f, v)
		}
		if err := s.putBlock(h, h.Buckets, lists[1]); err != nil {
			return err
		}
		if err := s.putBlock(h, from, lists[0]); err != nil {
			return err
		}
		h.Buckets++
	}
	return nil
}
