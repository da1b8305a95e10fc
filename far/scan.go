package far

import (
	"context"
	"math/rand/v2"

	"polder/far/heap"
)

// A cursor is the number of a shard, from bit 32 on, and a tag: what lies
// before it has been yielded. Tables grow and entries move without changing
// either.

// scanStep is about the number of entries of one step of an iteration.
const scanStep = 32

// scanned is an entry that a step has come by.
type scanned struct {
	key []byte
	e   Entry
}

// Scan calls yield for the keys of one step of an iteration, starting
// from cursor 0, and returns the next cursor, 0 at the end. Every key
// that is there throughout the iteration is yielded at least once,
// however the map changes meanwhile. Key is valid during the call
// only, and e is without its value, as that of Stat. Keys that are far are
// read, but not kept. If Scan fails, nothing has been yielded.
func (m *ByteMap) Scan(ctx context.Context, cursor uint64, yield func(key []byte, e Entry)) (uint64, error) {
	return m.step(ctx, cursor, word.committed, yield)
}

// step is Scan of the entries whose words are of a kind.
func (m *ByteMap) step(ctx context.Context, cursor uint64, of func(word) bool, yield func(key []byte, e Entry)) (uint64, error) {
	if err := m.h.core.Begin(); err != nil {
		return cursor, err
	}
	if m.freed.Load() {
		m.h.core.End()
		return cursor, m.gone()
	}
	found, next, err := m.scan(ctx, cursor, of)
	m.h.core.End()
	if err != nil {
		return cursor, err
	}
	for _, f := range found {
		yield(f.key, f.e)
	}
	return next, nil
}

// scan returns the entries of the step from cursor, and the next cursor.
func (m *ByteMap) scan(ctx context.Context, cursor uint64, of func(word) bool) ([]scanned, uint64, error) {
	klen := 64 // read that much of a far key at once
	var read []head
	for {
		s := scanner{m: m, b: m.h.core.NewBatch(scanStep), of: of, read: read}
		next := s.collect(cursor, klen)
		err := s.fetch(ctx)
		s.b.End()
		if err != nil {
			return nil, cursor, err
		}
		read = s.read
		switch {
		case s.busy != nil:
			select {
			case <-s.busy:
			case <-ctx.Done():
				return nil, cursor, context.Cause(ctx)
			}
		case s.short:
			klen = MaxKeySize
		default:
			return s.found, next, nil
		}
	}
}

// scanner is the work of one step of an iteration.
type scanner struct {
	m     *ByteMap
	b     *heap.Batch
	of    func(word) bool
	found []scanned
	read  []head          // far keys, so that trying again reads others; e is nil if corrupt
	busy  <-chan struct{} // there was no buffer; closed when there is
	short bool            // a key was longer than what was read of it
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
	t := &sh.t
	if len(t.buckets) > 0 {
		for home := t.home(uint32(tag)); home < len(t.buckets); home++ {
			if len(s.found)+s.b.Len() >= scanStep {
				return at<<32 | t.firstTag(home)
			}
			for b, left := home, len(t.buckets); left > 0; b, left = t.after(b), left-1 {
				for i := range bucketEntries {
					p := place(b*bucketEntries + i)
					if s.of(*t.word(p)) && t.home(t.tag(p)) == home && uint64(t.tag(p)) >= tag {
						s.visit(sh, p, klen)
					}
				}
				if t.buckets[b].over == 0 {
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

// visit takes note of an entry. sh.mu must be held.
func (s *scanner) visit(sh *shard, p place, klen int) {
	h := s.m.h
	w := *sh.t.word(p)
	if !w.far() {
		s.add(h.entryAt(w.addr()))
		return
	}
	if w.isLost() || h.core.Far.Seg(w.addr()).Gone() {
		return
	}
	for _, d := range s.read {
		if d.of(h, w.addr()) {
			s.add(d.e)
			return
		}
	}
	if _, _, busy := s.m.board(s.b, 0, sh, p, heap.UseHead, klen); busy != nil {
		s.busy = busy
	}
}

func (s *scanner) add(e entry) {
	if e != nil && !e.Expired() {
		s.found = append(s.found, scanned{append([]byte(nil), e.Key()...), metaOf(e)})
	}
}

// fetch reads the keys that are far.
func (s *scanner) fetch(ctx context.Context) (err error) {
	if s.b.Len() == 0 && s.busy == nil {
		return nil
	}
	if ctx.Err() != nil {
		s.b.Abandon()
		return context.Cause(ctx)
	}
	s.b.Flush(ctx, func(f *heap.Flight, _ int, late error) {
		switch {
		case late != nil:
			err = late
		case f.Rec != nil, f.Corrupt():
			d := head{addr: f.Addr, seg: f.Segment()}
			if f.Rec != nil {
				d.e = appendHead(nil, entryOf(f))
			}
			s.read = append(s.read, d)
			s.add(d.e)
		case f.Failure() != nil:
			err = f.Err
		case f.Told() == nil:
			s.short = true // or it has moved meanwhile: look again
		}
	})
	return err
}

// Random returns a key chosen roughly at random, appended to dst, or
// ErrNotFound if the map is empty.
func (m *ByteMap) Random(ctx context.Context, dst []byte) ([]byte, error) {
	return m.random(ctx, word.committed, dst)
}

func (m *ByteMap) random(ctx context.Context, of func(word) bool, dst []byte) ([]byte, error) {
	if err := m.h.core.Begin(); err != nil {
		return dst, err
	}
	defer m.h.core.End()
	if m.freed.Load() {
		return dst, m.gone()
	}
	// From a random place on, the first step that comes by a key.
	cursor := rand.Uint64N(uint64(m.h.shards))<<32 | uint64(rand.Uint32())
	for wrapped := 0; wrapped < 2; {
		found, next, err := m.scan(ctx, cursor, of)
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
