package bytemap

import (
	"context"
	"math/rand/v2"
	"slices"

	"polder/far/entry"
	"polder/far/heap"
	"polder/far/index"
)

// A cursor is the number of a shard, from bit 32 on, and a tag: what lies before it has been yielded. Tables grow and
// entries move without changing either.

// scanStep is about the number of entries of one step of an iteration.
const scanStep = 32

// scanned is an entry that a step has found.
type scanned struct {
	key []byte
	e   Entry
}

// Scan calls yield for the keys of one step of an iteration, starting from cursor 0, and returns the next cursor, 0 at
// the end. Every key that is there throughout the iteration is yielded at least once, however the map changes
// meanwhile. Key is valid during the call only, and e is without its value, as that of Stat. Keys that are far are
// read, but not kept. If Scan fails, nothing has been yielded.
func (m *Map) Scan(ctx context.Context, cursor uint64, yield func(key []byte, e Entry)) (uint64, error) {
	return m.step(ctx, cursor, index.Word.Committed, yield)
}

// step is Scan of the entries for whose words of reports true.
func (m *Map) step(ctx context.Context, cursor uint64, of func(index.Word) bool, yield func(key []byte, e Entry)) (uint64, error) {
	found, next, err := m.found(ctx, cursor, of)
	if err != nil {
		return cursor, err
	}
	for _, f := range found {
		yield(f.key, f.e)
	}
	return next, nil
}

// found is scan as a call of its own.
func (m *Map) found(ctx context.Context, cursor uint64, of func(index.Word) bool) ([]scanned, uint64, error) {
	if err := m.h.core.Begin(); err != nil {
		return nil, cursor, err
	}
	defer m.h.core.End()
	if m.freed.Load() {
		return nil, cursor, m.gone()
	}
	return m.scan(ctx, cursor, of, nil)
}

// scan returns the entries of the step from cursor, and the next cursor. If look is not nil, it gets the entries
// instead.
func (m *Map) scan(ctx context.Context, cursor uint64, of func(index.Word) bool, look *window) ([]scanned, uint64, error) {
	klen := 64 // read that much of a far key at once
	var read []entry.Head
	var leaf scannedLeaf
	for {
		s := scanner{m: m, b: m.h.core.NewBatch(scanStep), of: of, look: look, read: read, leaf: leaf}
		if look != nil {
			look.rewind()
		}
		next := s.collect(cursor, klen)
		err := s.fetch(ctx)
		s.b.End()
		if err != nil {
			return nil, cursor, err
		}
		read, leaf = s.read, s.leaf
		switch {
		case s.busy != nil:
			select {
			case <-s.busy:
			case <-ctx.Done():
				return nil, cursor, context.Cause(ctx)
			}
		case s.again:
		case s.short:
			klen = MaxKeySize
		default:
			return s.found, next, nil
		}
	}
}

// scanner is the work of one step of an iteration.
type scanner struct {
	m     *Map
	b     *heap.Batch
	of    func(index.Word) bool
	look  *window // what is given the entries, or nil
	found []scanned
	read  []entry.Head    // far keys that were read by earlier tries; E is nil if corrupt
	busy  <-chan struct{} // there was no buffer; closed when there is
	short bool            // a key was longer than what was read of it
	leaf  scannedLeaf     // the last leaf that was read
	again bool            // another leaf has to be read first
	stop  bool            // the next leaf is for the next step
}

// scannedLeaf is a copy of the leaf at addr. It holds good as long as addr is in the segment seg.
type scannedLeaf struct {
	addr uint64
	seg  *heap.FarSegment
	leaf index.Leaf
}

// full reports whether the step has entries enough.
func (s *scanner) full() bool {
	if s.look != nil {
		return s.look.seen >= lookEntries
	}
	return len(s.found)+s.b.Len() >= scanStep
}

// collect gathers the entries from cursor on.
func (s *scanner) collect(cursor uint64, klen int) (next uint64) {
	m := s.m
	at, tag := cursor>>32, cursor&(1<<32-1)
	if at >= uint64(len(m.shards())) {
		return 0
	}
	sh := m.at(int(at))
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if s.look != nil {
		defer func() {
			if sh.lost > 0 { // this includes leaves whose loss may have been noticed just now
				s.look.lose()
			}
		}()
	}
	t := &sh.t
	if sh.hasLeaves() {
		first := sh.cold.Of(uint32(tag))
		for i := first; i < sh.cold.Len(); i++ {
			lo, hi := sh.cold.Range(i)
			if s.full() {
				return at<<32 | lo
			}
			s.collectRange(sh, i, max(lo, tag), hi, klen, i == first)
			switch {
			case s.again:
				return cursor
			case s.stop:
				return at<<32 | max(lo, tag)
			}
		}
	} else if len(t.Buckets) > 0 {
		for home := t.Home(uint32(tag)); home < len(t.Buckets); home++ {
			if s.full() {
				return at<<32 | t.FirstTag(home)
			}
			for b, left := home, len(t.Buckets); left > 0; b, left = t.After(b), left-1 {
				for i := range index.BucketEntries {
					p := index.Place(b*index.BucketEntries + i)
					if s.of(*t.Word(p)) && t.Home(t.Tag(p)) == home && uint64(t.Tag(p)) >= tag {
						s.visit(sh, t.Tag(p), *t.Word(p), klen)
					}
				}
				if t.Buckets[b].Over == 0 {
					break
				}
			}
		}
	}
	if at++; at == uint64(m.h.shards) {
		return 0
	}
	return at << 32
}

// collectRange gathers the entries of range i with tags from lo up to hi, if the range has no leaf or its leaf has
// been read. Otherwise it begins to read the leaf if i is the first range of the step, and ends the step if not.
// sh.mu must be held.
func (s *scanner) collectRange(sh *shard, i int, lo, hi uint64, klen int, first bool) {
	h := s.m.h
	ref := sh.cold.At(i)
	if ref.Addr() != 0 && h.core.Far.Seg(ref.Addr()).Gone() {
		sh.loseLeaf(h, i)
		ref = sh.cold.At(i)
	}
	if a := ref.Addr(); a != 0 && (a != s.leaf.addr || h.core.Far.Seg(a) != s.leaf.seg) {
		if s.stop = !first; s.stop {
			return // a step has one leaf
		}
		s.again = true
		if _, _, busy := s.m.boardLeaf(s.b, 0, sh, uint32(lo)); busy != nil {
			s.busy = busy
		}
		return
	}
	for p := range sh.t.Within(lo, hi) {
		if w := *sh.t.Word(p); s.of(w) {
			s.visit(sh, sh.t.Tag(p), w, klen)
		}
	}
	if ref.Addr() == 0 {
		return
	}
	l := s.leaf.leaf
	for k := l.Find(uint32(lo)); k < l.Len() && uint64(l.At(k).Tag) < hi; k++ {
		if sl := l.At(k); !sh.known(sl.Tag) {
			s.visit(sh, sl.Tag, sl.Word, klen)
		}
	}
}

// visit takes note of an entry. sh.mu must be held.
func (s *scanner) visit(sh *shard, tag uint32, w index.Word, klen int) {
	h := s.m.h
	if s.look != nil {
		s.look.visit(tag, w)
		return
	}
	if !w.Far() {
		s.add(h.entryAt(w.Addr()))
		return
	}
	if w.IsLost() || h.core.Far.Seg(w.Addr()).Gone() {
		return
	}
	for _, d := range s.read {
		if d.Is(w.Addr(), h.core.Far.Seg(w.Addr())) {
			s.add(d.E)
			return
		}
	}
	if _, _, busy := s.m.boardWord(s.b, 0, sh, tag, &w, heap.UseHead, klen); busy != nil {
		s.busy = busy
	}
}

func (s *scanner) add(e entry.Local) {
	if e != nil && !e.Expired() {
		s.found = append(s.found, scanned{append([]byte(nil), e.Key()...), metaOf(e)})
	}
}

// fetch reads the keys that are far.
func (s *scanner) fetch(ctx context.Context) (err error) {
	if s.b.Len() == 0 && s.busy == nil {
		return nil
	}
	if ctx == nil || ctx.Err() != nil {
		s.b.Abandon() // before Cause, which panics for nil
		return context.Cause(ctx)
	}
	s.b.Flush(ctx, func(f *heap.Flight, _ int, late error) {
		switch {
		case late != nil:
			err = late
		case isLeaf(&f.Want):
			if _, lost := f.Err.(*heap.LostError); !lost {
				err = f.Err
			}
			if f.Rec != nil {
				s.leaf = scannedLeaf{f.Addr, f.Segment(), index.Leaf(slices.Clone(f.Rec.Body()))}
			}
		case f.Rec != nil, f.Corrupt():
			d := entry.Head{Addr: f.Addr, Seg: f.Segment()}
			if f.Rec != nil {
				d.E = entry.AppendHead(nil, entryOf(f))
			}
			s.read = append(s.read, d)
			s.add(d.E)
		case f.Failure() != nil:
			err = f.Err
		case f.Told() == nil:
			s.short = true // or it has moved meanwhile: look again
		}
	})
	return err
}

// Random returns a key chosen roughly at random, appended to dst, or ErrNotFound if the map is empty.
func (m *Map) Random(ctx context.Context, dst []byte) ([]byte, error) {
	return m.random(ctx, index.Word.Committed, dst)
}

func (m *Map) random(ctx context.Context, of func(index.Word) bool, dst []byte) ([]byte, error) {
	// The first step, from a random place on, that finds a key.
	cursor := rand.Uint64N(uint64(m.h.shards))<<32 | uint64(rand.Uint32())
	for wrapped := 0; wrapped < 2; {
		found, next, err := m.found(ctx, cursor, of)
		if err != nil {
			return dst, err
		}
		if len(found) > 0 {
			return append(dst, found[rand.IntN(len(found))].key...), nil
		}
		if cursor = next; next == 0 {
			wrapped++
		}
	}
	return dst, ErrNotFound
}
