package resp

import (
	"encoding/binary"
	"errors"
	"math/bits"

	"github.com/zeebo/xxh3"

	"polder/far"
	"polder/resp/hashes"
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
	buckets uint32 // at least 1, but see isSmall; only grows
	leads   int    // keys that lead to it: 1, or 0 while or after a command takes it away
	struck  hashes.Strikes
}

// isSmall reports whether h is a small hash. There is a largeHash of one only while
// something is struck out of it.
func (h *largeHash) isSmall() bool { return h.buckets == 0 }

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

func (s *Server) fieldHash(field []byte) uint32 { return uint32(xxh3.HashSeed(field, s.fieldSeed)) }

// block reads a block into dst.
func (s *session) block(h *largeHash, b uint32, dst []byte) (hashes.List, error) {
	k := h.key(b)
	e, err := s.srv.blocks.Get(s.ctx, k, dst)
	switch {
	case errors.Is(err, far.ErrNotFound):
		return hashes.List(dst), nil
	case errors.Is(err, far.ErrWouldBlock):
		s.wantBlocks = append(s.wantBlocks, k)
	case err == nil && len(h.struck) > 0:
		return h.struck.Rest(b, e.Value), nil
	}
	return e.Value, err
}

// putBlock stores a block.
func (s *session) putBlock(h *largeHash, b uint32, l hashes.List) error {
	s.changing()
	k := h.key(b)
	var err error
	switch e := (far.Entry{Value: l}); {
	case l.Len() == 0 && s.together:
		_, err = s.txn.Delete(s.ctx, s.srv.blocks, k)
	case l.Len() == 0:
		_, err = s.srv.blocks.Delete(s.ctx, k)
	case s.together:
		err = s.txn.Set(s.ctx, s.srv.blocks, k, e)
	default:
		err = s.srv.blocks.Set(s.ctx, k, e)
	}
	if err == nil {
		s.made = true
		if len(h.struck) > 0 {
			h.struck = h.struck.Add([]uint64{hashes.Stored(b)})
		}
	}
	return err
}

// largeOf returns the large hash that is the value of key, or nil. The stripe
// must be locked.
func (s *session) largeOf(key []byte) *largeHash {
	if h := s.stripe(key).large[string(key)]; h != nil && !h.isSmall() {
		return h
	}
	return nil
}

// lead makes h, which may be nil, the large hash that key leads to. The blocks
// of the one before are freed, unless another key leads to it by then. The stripe
// must be locked for writing.
func (s *session) lead(key []byte, h *largeHash) {
	if h == nil && s.srv.largeHashes.Load() == 0 {
		return // none can be the key's, which is locked
	}
	st := s.stripe(key)
	was := st.large[string(key)]
	if was == h {
		return
	}
	s.undo = append(s.undo, undo{st: st, key: string(key), h: was})
	s.srv.lead(st, string(key), h)
	if was != nil {
		s.dropped = append(s.dropped, was)
	}
}

func (srv *Server) lead(st *stripe, key string, h *largeHash) {
	was, there := st.large[key]
	if there {
		was.leads--
	}
	if h != nil {
		h.leads++
	}
	switch {
	case h == nil && there:
		delete(st.large, key)
		srv.largeHashes.Add(-1)
		if len(st.large) == 0 {
			st.large = nil
		}
	case h != nil:
		if st.large == nil {
			st.large = make(map[string]*largeHash)
		}
		st.large[key] = h
		if !there {
			srv.largeHashes.Add(1)
		}
	}
}

// move makes h the value of dst, with the entry e, and no more that of src.
func (s *session) move(src, dst []byte, h *largeHash, e far.Entry) error {
	if _, err := s.remove(src); err != nil {
		return err
	}
	if err := s.store(dst, e); err != nil {
		return err
	}
	s.lead(dst, h)
	s.note(opMove, e, src, dst)
	return nil
}

// copyLarge makes a copy of h, the large hash under from, whose entry is e, the value of key.
func (s *session) copyLarge(h *largeHash, from, key []byte, e far.Entry) error {
	s.begin()
	c := &largeHash{id: s.srv.nextHash.Add(1), count: h.count, bytes: h.bytes, buckets: h.buckets}
	b := uint32(0)
	err := s.walk(h, func(l hashes.List) error {
		b++
		return s.putBlock(c, b-1, l)
	})
	if err == nil {
		err = s.store(key, e)
	}
	if err == nil {
		s.lead(key, c)
		s.note(opCopy, e, from, key)
	}
	return err
}

// walk calls yield with every block of a large hash.
func (s *session) walk(h *largeHash, yield func(hashes.List) error) error {
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
