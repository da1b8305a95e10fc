package resp

import (
	"errors"

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

	fetchBlocks = 64 // blocks that a walk over a whole hash asks for at once
)

func (s *Server) fieldHash(field []byte) uint32 { return uint32(xxh3.HashSeed(field, s.fieldSeed)) }

// block reads a block into dst.
func (s *session) block(h *hashes.Large, b uint32, dst []byte) (hashes.List, error) {
	k := h.Key(b)
	e, err := s.srv.blocks.Get(s.ctx, k, dst)
	switch {
	case errors.Is(err, far.ErrNotFound):
		return hashes.List(dst), nil
	case errors.Is(err, far.ErrWouldBlock):
		s.wantBlocks = append(s.wantBlocks, k)
	case err == nil && len(h.Struck) > 0:
		return h.Struck.Rest(b, e.Value), nil
	}
	return e.Value, err
}

// putBlock stores a block.
func (s *session) putBlock(h *hashes.Large, b uint32, l hashes.List) error {
	s.changing()
	k := h.Key(b)
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
		if len(h.Struck) > 0 {
			h.Struck = h.Struck.Add([]uint64{hashes.Stored(b)})
		}
	}
	return err
}

// largeOf returns the large hash that is the value of key, or nil. The stripe
// must be locked.
func (s *session) largeOf(key []byte) *hashes.Large {
	if h := s.stripe(key).large[string(key)]; h != nil && !h.IsSmall() {
		return h
	}
	return nil
}

// lead makes h, which may be nil, the large hash that key leads to. The blocks
// of the one before are freed, unless another key leads to it by then. The stripe
// must be locked for writing.
func (s *session) lead(key []byte, h *hashes.Large) {
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

func (srv *Server) lead(st *stripe, key string, h *hashes.Large) {
	was, there := st.large[key]
	if there {
		was.Leads--
	}
	if h != nil {
		h.Leads++
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
			st.large = make(map[string]*hashes.Large)
		}
		st.large[key] = h
		if !there {
			srv.largeHashes.Add(1)
		}
	}
}

// move makes h the value of dst, with the entry e, and no more that of src.
func (s *session) move(src, dst []byte, h *hashes.Large, e far.Entry) error {
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
func (s *session) copyLarge(h *hashes.Large, from, key []byte, e far.Entry) error {
	s.begin()
	c := &hashes.Large{ID: s.srv.nextHash.Add(1), Count: h.Count, Bytes: h.Bytes, Buckets: h.Buckets}
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
func (s *session) walk(h *hashes.Large, yield func(hashes.List) error) error {
	for b := range h.Buckets {
		l, err := s.block(h, b, s.scratch2[:0])
		if errors.Is(err, far.ErrWouldBlock) {
			for next := b + 1; next < min(h.Buckets, b+fetchBlocks); next++ {
				s.wantBlocks = append(s.wantBlocks, h.Key(next))
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
