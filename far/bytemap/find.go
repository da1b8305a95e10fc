package bytemap

import (
	"context"

	"polder/far/entry"
	"polder/far/farlog"
	"polder/far/heap"
	"polder/far/record"
	"polder/far/store"
	"polder/internal/sizeclass"
)

// To get an entry whose leaf is far takes two reads, one after the other: of the leaf, and of the entry. A store that
// is a store.Finder does both in one round trip, where the data is. Its answer leaves nothing behind in the index, so
// a key that is looked up again soon is read, and its leaf's words are kept.

// soughtAgain is how many keys that were found are remembered, to be read when they are looked up again.
const soughtAgain = 4096

// finds is what a multiget or a Get asks the store to look up.
type finds struct {
	lookups store.Lookups
	pins    *farlog.Pins
	asked   []asked // the key of each lookup
	before  uint64  // position of the far log when the first one was asked for
}

// asked is a key whose entry is looked up.
type asked struct {
	number int // of the key
	sh     *shard
	leaf   uint64
}

// ask adds the key with this number, whose leaf has to be read, as find has said, to what the store looks up. It
// reports false if the leaf had better be read.
//
// Preconditions: sh.mu has been held since find.
func (q *finds) ask(m *Map, sh *shard, hs entry.Hash, number int) bool {
	h := m.h
	if h.finder == nil {
		return false
	}
	leaf := sh.cold.At(sh.cold.Of(hs.Tag()))
	if !h.finder.Finds(h.core.Far.Seg(leaf.Addr()).Seg) {
		return false
	}
	if used := uint64(hs) | 1<<entry.HashBits; h.sought[hs%soughtAgain].Swap(used) == used {
		return false
	}
	if q.pins == nil {
		q.pins = h.core.Far.NewPins()
	}
	if len(q.asked) == 0 {
		q.before = h.core.Far.Position()
	}
	seg := q.pins.Hold(leaf.Addr(), func() bool { return true }) // the lock keeps it referred to
	if seg == nil {
		return false
	}
	off := h.core.Far.Offset(leaf.Addr())
	q.asked = append(q.asked, asked{number, sh, leaf.Addr()})
	q.lookups.Finds = append(q.lookups.Finds, store.Lookup{
		Seg: seg.Seg, Seed: seg.Seed, Off: off, N: min(sizeclass.Size(leaf.Class()), h.core.Far.SegSize-off), Hash: uint64(hs),
	})
	return true
}

// look has the store look up what was asked for, and waits for it.
func (q *finds) look(ctx context.Context, m *Map) {
	h := m.h
	q.lookups.Owner, q.lookups.Units, q.lookups.Segment = m.id, h.core.Far.Units, func(addr uint64) (store.Segment, uint32) {
		if s := h.core.Far.SegOf(addr); s != nil {
			return s.Seg, s.Seed
		}
		return nil, 0
	}
	limited, cancel := context.WithTimeout(ctx, heap.StoreTimeout)
	defer cancel()
	h.finder.Find(limited, &q.lookups)
}

// each calls fn for each lookup, with the number of its key and what answer says.
func (q *finds) each(m *Map, keys func(i int) []byte, fn func(number int, e entry.Local)) {
	for i := range q.asked {
		fn(q.asked[i].number, q.answer(m, i, keys(q.asked[i].number)))
	}
}

// answer returns the entry that lookup i has found, if it is that of key, and nil otherwise. If the store has sent
// the leaf instead, answer has the shard learn from it what it says of key.
func (q *finds) answer(m *Map, i int, key []byte) entry.Local {
	l, a := &q.lookups.Finds[i], &q.asked[i]
	e := q.check(m, l, key)
	if e != nil {
		m.h.found.Add(1)
		a.sh.mu.Lock()
		a.sh.count.misses++
		a.sh.mu.Unlock()
	} else if f := q.checkLeaf(m, l, a.leaf); f != nil {
		m.tell(f, key)
	}
	return e
}

// end lets go of everything.
func (q *finds) end() {
	if q.pins != nil {
		q.pins.Release()
	}
	clear(q.lookups.Finds)
	clear(q.asked)
	q.lookups.Finds, q.lookups.Segment, q.asked = q.lookups.Finds[:0], nil, q.asked[:0]
}

// check returns the entry that l has found, or nil if it may not be the entry that the leaf knew when the store was
// asked. The number of the entry's segment may belong to a younger segment by now, so check takes only a segment that
// was there when the store was asked: in such a segment every place is written once.
func (q *finds) check(m *Map, l *store.Lookup, key []byte) entry.Local {
	far := &m.h.core.Far
	if l.Entry == nil || l.At == 0 {
		return nil
	}
	s := far.SegOf(l.At)
	if s == nil || s.Position() > q.before {
		return nil
	}
	r, err := s.Decode(l.Entry, far.Offset(l.At))
	if err != nil || r.Kind() != record.Entry || r.Owner() != m.id || r.Number() != l.Hash ||
		r.Flags()&(record.Large|record.Expires) != 0 || string(r.Key()) != string(key) {
		return nil
	}
	return entry.Localize(r, l.At)
}

// checkLeaf returns the leaf of a lookup as if it had been read, or nil if it is not the one at addr.
func (q *finds) checkLeaf(m *Map, l *store.Lookup, addr uint64) *heap.Flight {
	if l.Leaf == nil {
		return nil
	}
	f := &heap.Flight{Want: heap.Want{Owner: (*owner)(m), Number: wantLeaf, Addr: addr}}
	r, err := m.h.core.Far.Seg(addr).Decode(l.Leaf, l.Off)
	if err != nil || f.Owner.Check(r, &f.Want) != nil {
		return nil
	}
	f.Rec = r
	return f
}

// findOne has the store look up one key, whose leaf has to be read, as find has said. It returns the entry, which is
// good until endFind is called, or nil if the caller has to read.
//
// Preconditions: sh.mu has been held since find. findOne unlocks it.
func (m *Map) findOne(ctx context.Context, sh *shard, hs entry.Hash, key []byte) (*finds, entry.Local) {
	h := m.h
	if ctx == nil || ctx.Err() != nil || h.finder == nil || h.core.Begin() != nil {
		sh.mu.Unlock()
		return nil, nil
	}
	q, _ := h.lookups.Get().(*finds)
	if q == nil {
		q = new(finds)
	}
	asked := q.ask(m, sh, hs, 0)
	sh.mu.Unlock()
	if asked {
		q.look(ctx, m)
		if e := q.answer(m, 0, key); e != nil {
			return q, e
		}
	}
	m.endFind(q)
	return nil, nil
}

// endFind ends a call of findOne.
func (m *Map) endFind(q *finds) {
	q.end()
	m.h.lookups.Put(q)
	m.h.core.End()
}
