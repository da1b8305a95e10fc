package keyspace

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"

	"polder/far"
	"polder/resp/hashes"
	"polder/resp/reply"
)

// A command that changes fields of a hash plans all its changes first. A hash that stays small is one entry, and so
// one write. Of a large hash, each block that has a field to change is read, changed and written once. A large hash
// that may become more than twice as large is written anew, in as many blocks as it needs; the old blocks are freed
// when its key leads to the new ones. So to add n fields takes no more than n log n.

// Pairs are alternating fields and values, as in the arguments of HSET.
type Pairs [][]byte

func (p Pairs) len() int           { return len(p) / 2 }
func (p Pairs) field(i int) []byte { return p[2*i] }
func (p Pairs) value(i int) []byte { return p[2*i+1] }

// size is the most bytes that p adds to a list.
func (p Pairs) size() (n int) {
	for _, b := range p {
		n += len(b) + binary.MaxVarintLen32
	}
	return n
}

// isSmall reports whether a hash of so many fields and bytes is stored as one entry.
func isSmall(fields, bytes int) bool {
	return fields <= SmallFields && (bytes <= smallBytes || fields == 1)
}

// SetFields sets fields of h to values, and returns how many of the fields are new. The command must not change h
// after that.
func (a *Access) SetFields(h *Hash, p Pairs) (added int, err error) {
	if h.Large != nil {
		return a.setLarge(h, p)
	}
	before := h.List.Len()
	for _, b := range p {
		if len(b) > ListpackValue {
			h.e.Tag = TagTable
		}
	}
	if before+p.len() <= SmallFields {
		for i := range p.len() {
			h.List, _ = h.List.Set(p.field(i), p.value(i))
		}
		if isSmall(h.List.Len(), h.List.Size()) {
			return h.List.Len() - before, a.storeList(h)
		}
		p = nil
	}
	t := a.Space.newHashTable(h.List.Size() + p.size())
	t.addList(h.List)
	t.addPairs(p)
	if isSmall(t.h.Count, t.h.Bytes) { // p has many fields more than once
		h.List = nil
		for _, l := range t.lists {
			for f, v := range l.All() {
				h.List, _ = h.List.Set(f, v)
			}
		}
		return t.h.Count - before, a.storeList(h)
	}
	if err := a.storeTable(h, t); err != nil {
		return 0, err
	}
	a.noteTable(h, t)
	return t.h.Count - before, nil
}

// storeList stores a small hash that is not empty.
func (a *Access) storeList(h *Hash) error {
	if h.List.Len() > ListpackFields {
		h.e.Tag = TagTable
	}
	h.e.Value = h.List
	Reuse(&a.Scratch, h.List)
	return a.Put(h.key, h.e)
}

// storeTable stores a hash in new blocks.
func (a *Access) storeTable(h *Hash, t *hashTable) error {
	if a.Space.cache != nil {
		return reply.ErrHashTooLarge // its blocks would vanish one by one
	}
	if len(h.key) > far.MaxKeySize {
		return reply.ErrKeyTooLong
	}
	t = t.fitted()
	t.h.ID = a.Space.nextHash.Add(1)
	a.Begin()
	for b, l := range t.lists {
		if l.Len() > 0 {
			if err := a.putBlock(t.h, uint32(b), l); err != nil {
				return err
			}
		}
	}
	if err := a.store(h.key, far.Entry{Tag: TagLarge, Expire: h.e.Expire}); err != nil {
		return err
	}
	a.lead(h.key, t.h)
	return nil
}

// hashTable holds the blocks of a large hash before they are stored.
type hashTable struct {
	space *Space
	h     *hashes.Large // without an id
	lists []hashes.List
}

// newHashTable makes a table with room for fields and values of so many bytes.
func (sp *Space) newHashTable(bytes int) *hashTable {
	n := bytes/blockTarget + 1
	return &hashTable{sp, &hashes.Large{Buckets: uint32(n)}, make([]hashes.List, n)}
}

func (t *hashTable) set(field, value []byte) {
	l := &t.lists[t.h.Bucket(t.space.FieldHash(field))]
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

func (t *hashTable) addPairs(p Pairs) {
	for i := range p.len() {
		t.set(p.field(i), p.value(i))
	}
}

// fitted returns t; or a table with fewer blocks if those of t are nearly empty, because many of its fields were set
// more than once.
func (t *hashTable) fitted() *hashTable {
	if 2*(t.h.Bytes/blockTarget+1) >= len(t.lists) {
		return t
	}
	fewer := t.space.newHashTable(t.h.Bytes)
	for _, l := range t.lists {
		fewer.addList(l)
	}
	return fewer
}

// setLarge is SetFields for a large hash.
func (a *Access) setLarge(h *Hash, p Pairs) (added int, err error) {
	lh := h.Large
	before := lh.Count
	grown := lh.Bytes + p.size()
	if grown/blockTarget+1 > 2*int(lh.Buckets) {
		t := a.Space.newHashTable(grown)
		err := a.walk(lh, func(l hashes.List) error { t.addList(l); return nil })
		if err != nil {
			return 0, err
		}
		t.addPairs(p)
		if err := a.storeTable(h, t); err != nil {
			return 0, err
		}
		a.note(opFields, h.e, h.key, p...)
		return t.h.Count - before, nil
	}
	if grown >= int(lh.Buckets)*blockTarget {
		a.Begin() // blocks may be split
	}
	err = a.editBlocks(h, p.len(), p.field, func(l hashes.List, i int) (hashes.List, bool) {
		l, _ = l.Set(p.field(i), p.value(i))
		return l, true
	})
	if err == nil {
		err = a.split(lh, 2+p.len())
	}
	if err == nil {
		a.note(opFields, h.e, h.key, p...)
	}
	return lh.Count - before, err
}

// RemoveFields removes fields from h, and deletes the key if no field is left. It returns how many of the fields were
// there. The command must not change h after that.
func (a *Access) RemoveFields(h *Hash, fields [][]byte) (removed int, err error) {
	before := h.Len()
	if before == 0 {
		return 0, nil
	}
	if h.Large == nil {
		for _, f := range fields {
			h.List, _ = h.List.Remove(f)
		}
		if removed = before - h.List.Len(); removed > 0 && h.List.Len() > 0 {
			return removed, a.storeLess(h)
		}
	} else {
		if len(fields) >= before {
			a.Begin() // perhaps no field is left: then the key is deleted, too
		}
		err = a.editBlocks(h, len(fields), func(i int) []byte { return fields[i] }, func(l hashes.List, i int) (hashes.List, bool) {
			return l.Remove(fields[i])
		})
		if err != nil {
			return 0, err
		}
		removed = before - h.Large.Count
		if removed > 0 && h.Len() > 0 {
			a.note(opRemove, far.Entry{}, h.key, fields...)
		}
	}
	if h.Len() == 0 {
		_, err = a.Del(h.key)
	}
	return removed, err
}

// editBlocks calls edit for each of n fields, with the block that the field is in, one block after the other. It
// stores each block that edit reports to have changed.
func (a *Access) editBlocks(h *Hash, n int, field func(i int) []byte, edit func(l hashes.List, i int) (hashes.List, bool)) error {
	type place struct {
		block uint32
		field int
	}
	lh := h.Large
	var struck []uint64
	places := make([]place, n)
	for i := range places {
		places[i] = place{lh.Bucket(a.Space.FieldHash(field(i))), i}
	}
	slices.SortFunc(places, func(x, y place) int {
		return cmp.Or(cmp.Compare(x.block, y.block), cmp.Compare(x.field, y.field))
	})
	if places[0].block != places[n-1].block {
		a.Begin()
	}
	a.save(lh)
	changed := false
	for at := 0; at < n; {
		b := places[at].block
		l, err := a.Block(lh, b, a.Scratch2[:0])
		if errors.Is(err, far.ErrWouldBlock) {
			for _, p := range places[at+1:] {
				if len(a.wantBlocks) < fetchBlocks && p.block != b {
					b = p.block
					a.wantBlocks = append(a.wantBlocks, lh.Key(b))
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
		Reuse(&a.Scratch2, l)
		if !edited {
			continue
		}
		var out []uint64
		if l.Len() < count {
			out, err = a.putLess(lh, b, l)
			struck = append(struck, out...)
		} else {
			err = a.putBlock(lh, b, l)
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
		a.struck = append(a.struck, h.key)
	}
	if changed {
		a.changedKey(h.key)
	}
	return nil
}

// split adds up to n buckets to a large hash while its blocks are too large on average. If the block to be split
// cannot be read now, split leaves it to a later command: the fields are stored already, and whoever reads the block
// finds out what is wrong with it. But if the blocks exceed splitDebt, the command waits for the block.
func (a *Access) split(h *hashes.Large, n int) error {
	for range n {
		if h.Bytes < int(h.Buckets)*blockTarget {
			return nil
		}
		level, from := h.Level()
		e, err := a.Space.blocks.Get(far.NoWait, h.Key(from), nil)
		if errors.Is(err, far.ErrWouldBlock) && h.Bytes > int(h.Buckets)*blockTarget*splitDebt {
			e.Value, err = a.Block(h, from, nil)
			if a.Blocked(err) {
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
			i := a.Space.FieldHash(f) >> level & 1
			lists[i], _ = lists[i].Set(f, v)
		}
		if err := a.putBlock(h, h.Buckets, lists[1]); err != nil {
			return err
		}
		if err := a.putBlock(h, from, lists[0]); err != nil {
			return err
		}
		h.Buckets++
	}
	return nil
}
