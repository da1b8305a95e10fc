package resp

import (
	"encoding/binary"
	"errors"
	"hash/maphash"
	"math/bits"

	"polder/far"
)

const (
	// blockTarget is how large blocks of a large hash are on average.
	blockTarget = 3 << 10
	// splitDebt is how many times blockTarget an average block may have
	// while splitting one would mean to wait.
	splitDebt = 4

	blockKeyLen = 8 + 4
	fetchBlocks = 64 // blocks that a walk over a whole hash asks for at once
)

// largeHash leads to the blocks of a hash: a linear hash table whose buckets
// are field lists under (id, bucket) in Server.blocks. An empty block is
// absent. Guarded by its key's stripe lock.
type largeHash struct {
	id      uint64
	count   int    // fields
	bytes   int    // in field lists, without heads
	buckets uint32 // at least 1; only grows
}

// level is the number of hash bits that all buckets use; those below split use
// one more.
func (h *largeHash) level() (level int, split uint32) {
	level = bits.Len32(h.buckets) - 1
	return level, h.buckets - 1<<level
}

func (h *largeHash) bucket(hash uint32) uint32 {
	level, split := h.level()
	b := hash & (1<<level - 1)
	if b < split {
		b = hash & (2<<level - 1)
	}
	return b
}

func (h *largeHash) key(b uint32) []byte {
	k := make([]byte, blockKeyLen)
	binary.BigEndian.PutUint64(k, h.id)
	binary.BigEndian.PutUint32(k[8:], b)
	return k
}

// interval is the part of the space of bit-reversed hashes that the bucket of
// the hash Reverse32(pos) holds. A split cuts an interval in two; none ever
// moves. So a cursor that goes through that space misses nothing.
func (h *largeHash) interval(pos uint32) (b uint32, end uint64) {
	hash := bits.Reverse32(pos)
	b = h.bucket(hash)
	level, split := h.level()
	if b < split || b >= 1<<level {
		level++
	}
	width := uint64(1) << (32 - level)
	return b, uint64(pos)&^(width-1) + width
}

func (s *Server) fieldHash(field []byte) uint32 { return uint32(maphash.Bytes(s.seed, field)) }

// block reads a block into dst.
func (s *session) block(h *largeHash, b uint32, dst []byte) (fieldList, error) {
	k := h.key(b)
	e, err := s.srv.blocks.Get(s.ctx, k, dst)
	if err != nil && s.mustWait(err) {
		e, err = s.srv.blocks.Get(s.ctx, k, dst)
	}
	switch {
	case errors.Is(err, far.ErrNotFound):
		return fieldList(dst), nil
	case errors.Is(err, far.ErrWouldBlock):
		s.wantBlocks = append(s.wantBlocks, k)
	}
	return e.Value, err
}

// putBlock stores a block.
func (s *session) putBlock(h *largeHash, b uint32, l fieldList) error {
	k := h.key(b)
	put := func() error {
		if l.len() == 0 {
			_, err := s.srv.blocks.Delete(s.ctx, k)
			return err
		}
		return s.srv.blocks.Set(s.ctx, k, far.Entry{Value: l})
	}
	err := put()
	if err != nil && s.mustWait(err) {
		err = put()
	}
	s.mutated = s.mutated || err == nil
	return err
}

// makeLarge turns the fields of a list into a large hash under key.
func (s *session) makeLarge(key []byte, e far.Entry) error {
	l := fieldList(e.Value)
	h := &largeHash{id: s.srv.nextHash.Add(1), count: l.len(), bytes: l.size()}
	h.buckets = uint32(l.size()/blockTarget) + 1
	lists := make([]fieldList, h.buckets)
	for f, v := range l.all() {
		b := h.bucket(s.srv.fieldHash(f))
		lists[b], _ = lists[b].set(f, v)
	}
	for b, list := range lists {
		if err := s.putBlock(h, uint32(b), list); err != nil {
			s.dropBlocks(h)
			return err
		}
	}
	return s.installLarge(key, h, e)
}

// installLarge makes h the value of key.
func (s *session) installLarge(key []byte, h *largeHash, e far.Entry) error {
	if err := s.put(key, far.Entry{Tag: tagLarge, Expire: e.Expire}); err != nil {
		s.dropBlocks(h)
		return err
	}
	st := s.stripe(key)
	s.dropLarge(st, key)
	if st.large == nil {
		st.large = make(map[string]*largeHash)
	}
	st.large[string(key)] = h
	s.srv.largeHashes.Add(1)
	return nil
}

// dropLarge forgets the large hash of key, if there is one, and frees its
// blocks. The stripe must be locked for writing.
func (s *session) dropLarge(st *stripe, key []byte) {
	if h := s.srv.forgetLarge(st, key); h != nil {
		s.dropBlocks(h)
	}
}

func (srv *Server) forgetLarge(st *stripe, key []byte) *largeHash {
	h := st.large[string(key)]
	if h == nil {
		return nil
	}
	delete(st.large, string(key))
	if len(st.large) == 0 {
		st.large = nil
	}
	srv.largeHashes.Add(-1)
	return h
}

// dropBlocks frees blocks that nothing leads to any more. The sweeper does it,
// who may wait.
func (s *session) dropBlocks(h *largeHash) { s.srv.sweeper.drop(h) }

// renameLarge moves a large hash, whose entry is e, from src to dst.
func (s *session) renameLarge(src, dst []byte, e far.Entry) error {
	from := s.stripe(src)
	h := from.large[string(src)]
	if h == nil {
		return errNoKey
	}
	if err := s.put(dst, e); err != nil {
		return err
	}
	to := s.stripe(dst)
	s.dropLarge(to, dst)
	if to.large == nil {
		to.large = make(map[string]*largeHash)
	}
	to.large[string(dst)] = h
	delete(from.large, string(src))
	if len(from.large) == 0 {
		from.large = nil
	}
	_, err := s.del(src)
	return err
}

// copyLarge copies a large hash, whose entry is e, from src to dst.
func (s *session) copyLarge(src, dst []byte, e far.Entry) error {
	h := s.stripe(src).large[string(src)]
	if h == nil {
		return errNoKey
	}
	c := &largeHash{id: s.srv.nextHash.Add(1), count: h.count, bytes: h.bytes, buckets: h.buckets}
	var buf fieldList
	for b := range h.buckets {
		var err error
		if buf, err = s.block(h, b, buf[:0]); err == nil {
			err = s.putBlock(c, b, buf)
		}
		if err != nil {
			if s.mutated {
				s.dropBlocks(c)
			}
			return err
		}
	}
	return s.installLarge(dst, c, e)
}

// largeSet is fieldList.set for a large hash.
func (s *session) largeSet(h *largeHash, field, value []byte) (added bool, err error) {
	b := h.bucket(s.srv.fieldHash(field))
	l, err := s.block(h, b, s.scratch2[:0])
	if err != nil {
		return false, err
	}
	before := l.size()
	l, added = l.set(field, value)
	reuse(&s.scratch2, l)
	if err := s.putBlock(h, b, l); err != nil {
		return false, err
	}
	h.bytes += l.size() - before
	if added {
		h.count++
	}
	return added, s.split(h)
}

// split adds a bucket if the blocks have become large. If it would have to
// wait for the block to split, it leaves that to a later call, within reason.
func (s *session) split(h *largeHash) error {
	for range 2 {
		if h.bytes < int(h.buckets)*blockTarget {
			return nil
		}
		level, from := h.level()
		ctx := far.NoWait
		if h.bytes > int(h.buckets)*blockTarget*splitDebt {
			s.wait()
			ctx = s.ctx
		}
		e, err := s.srv.blocks.Get(ctx, h.key(from), nil)
		switch {
		case errors.Is(err, far.ErrNotFound):
			h.buckets++
			continue
		case err != nil:
			return nil // the field is stored; a lost block shows when it is read
		}
		var lists [2]fieldList
		for f, v := range fieldList(e.Value).all() {
			i := s.srv.fieldHash(f) >> level & 1
			lists[i], _ = lists[i].set(f, v)
		}
		// The new block first: should the second write fail, a field is in
		// two blocks, and the old bucket count finds it in the first.
		to := h.buckets
		if err := s.putBlock(h, to, lists[1]); err != nil {
			return nil
		}
		if err := s.putBlock(h, from, lists[0]); err != nil {
			return nil
		}
		h.buckets++
	}
	return nil
}

// largeRemove is fieldList.remove for a large hash.
func (s *session) largeRemove(h *largeHash, field []byte) (bool, error) {
	b := h.bucket(s.srv.fieldHash(field))
	l, err := s.block(h, b, s.scratch2[:0])
	if err != nil {
		return false, err
	}
	before := l.size()
	l, removed := l.remove(field)
	reuse(&s.scratch2, l)
	if !removed {
		return false, nil
	}
	if err := s.putBlock(h, b, l); err != nil {
		return false, err
	}
	h.bytes += l.size() - before
	h.count--
	return true, nil
}

// walk calls yield with every block of a large hash.
func (s *session) walk(h *largeHash, yield func(fieldList) error) error {
	for b := range h.buckets {
		l, err := s.block(h, b, s.scratch2[:0])
		if errors.Is(err, far.ErrWouldBlock) {
			for next := b + 1; next < min(h.buckets, b+fetchBlocks); next++ {
				s.wantBlocks = append(s.wantBlocks, h.key(next))
			}
		}
		if err != nil {
			return err
		}
		reuse(&s.scratch2, l)
		if err := yield(l); err != nil {
			return err
		}
	}
	return nil
}
