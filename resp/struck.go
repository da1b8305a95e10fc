package resp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"polder/far"
)

// Deleting fields works on a full server, however many they are. What is left of a
// list is stored before the list is freed, and what is kept for that in full far
// memory is bounded. When there is no room, the fields are struck out instead: where
// they are in the stored list is remembered in local memory, and who reads the list
// skips them. When the command's changes count, the lists are stored without these
// fields, one after the other, each in the place of what is stored. That takes no more
// room than there is; if it fails all the same, the sweeper tries again.

// strikes are the fields of a hash that are struck out. In the upper 32 bits there is
// a block, 0 of a small hash, and in the lower ones the number of a field in the list
// that is stored, from 1. A number of 0 says that the block has been stored since: what older
// runs say of it is void. Runs are sorted, and each is much shorter than the one before, so
// that n changes take n log n. Neither a run nor the list of them is ever changed,
// for undo remembers them.
type strikes [][]uint64

// stored is the strike that makes older ones of block b void.
func stored(b uint32) uint64 { return uint64(b) << 32 }

// maxUnsettled is how many fields may have been struck out by commands that have
// ended: while the sweeper cannot store the lists without them, and this is exceeded,
// no more are.
const maxUnsettled = 1 << 16

// add is s with one more run, which must be sorted.
func (s strikes) add(run []uint64) strikes {
	n := len(s)
	for ; n > 0 && len(s[n-1]) <= 2*len(run); n-- {
		both := slices.DeleteFunc(slices.Clone(s[n-1]), func(older uint64) bool {
			_, void := slices.BinarySearch(run, stored(uint32(older>>32)))
			return void
		})
		both = append(both, run...)
		slices.Sort(both)
		run = slices.Compact(both)
	}
	return append(s[:n:n], run)
}

// of returns the strikes of block b, ascending.
func (s strikes) of(b uint32) (list []uint64) {
	for _, run := range s {
		from, void := slices.BinarySearch(run, stored(b))
		if void {
			list = list[:0]
			from++
		}
		to, _ := slices.BinarySearch(run, stored(b+1))
		list = append(list, run[from:to]...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// before is s without the strikes of block b and those that follow.
func (s strikes) before(b uint32) (left strikes) {
	for _, run := range s {
		if n, _ := slices.BinarySearch(run, stored(b)); n > 0 {
			left = append(left, run[:n:n])
		}
	}
	return left
}

// last is the last block of which there are strikes.
func (s strikes) last() (b uint32) {
	for _, run := range s {
		b = max(b, uint32(run[len(run)-1]>>32))
	}
	return b
}

func (s strikes) len() (n int) {
	for _, run := range s {
		n += len(run)
	}
	return n
}

// rest takes what is struck out of l, which is stored in block b and is changed.
func (s strikes) rest(b uint32, l fieldList) fieldList {
	gone := s.of(b)
	if len(gone) == 0 {
		return l
	}
	n, end := stored(b), fieldListHead
	for at := fieldListHead; at < len(l); {
		n++
		_, val := l.bytesAt(at)
		_, next := l.bytesAt(val)
		if len(gone) > 0 && gone[0] == n {
			gone = gone[1:]
			binary.LittleEndian.PutUint32(l, uint32(l.len()-1))
		} else {
			end += copy(l[end:], l[at:next])
		}
		at = next
	}
	return l[:end]
}

// strikesOf returns the strikes that leave left of list, which is stored in block b. Both
// have their fields in the same order.
func strikesOf(b uint32, list, left fieldList) (run []uint64) {
	n, at := stored(b), fieldListHead
	for f := range list.all() {
		n++
		if at < len(left) {
			if g, val := left.bytesAt(at); bytes.Equal(f, g) {
				_, at = left.bytesAt(val)
				continue
			}
		}
		run = append(run, n)
	}
	return run
}

// struckOut returns what is struck out of the small hash under key, whose stripe is
// locked.
func (s *session) struckOut(key []byte) strikes {
	if s.srv.largeHashes.Load() == 0 {
		return nil
	}
	if h := s.stripe(key).large[string(key)]; h != nil && h.isSmall() {
		return h.struck
	}
	return nil
}

// noRoom reports whether err is that there is no room for a list that has become
// shorter. Then the command does not look for it again.
func (s *session) noRoom(err error) bool {
	if !errors.Is(err, far.ErrFull) || s.srv.unsettled.Load() > maxUnsettled {
		return false
	}
	s.full = true
	return true
}

// storeLess is storeList for a list that has become shorter.
func (s *session) storeLess(h *hash) error {
	if !s.full {
		if err := s.storeList(h); !s.noRoom(err) {
			return err
		}
	}
	s.changing()
	e, err := s.srv.keys.Get(s.ctx, h.key, s.scratch2[:0])
	if err != nil {
		return err
	}
	reuse(&s.scratch2, e.Value)
	s.lead(h.key, &largeHash{struck: s.struckOut(h.key).add(strikesOf(0, e.Value, h.list))})
	s.changedKey(h.key)
	s.struck = append(s.struck, h.key)
	s.note(opPut, h.e, h.key, h.list)
	return nil
}

// putLess is putBlock for a list that has become shorter. If there is no room, it
// returns what is to be struck out.
func (s *session) putLess(h *largeHash, b uint32, l fieldList) ([]uint64, error) {
	if !s.full || l.len() == 0 {
		if err := s.putBlock(h, b, l); !s.noRoom(err) {
			return nil, err
		}
	}
	k := h.key(b)
	e, err := s.srv.blocks.Get(s.ctx, k, s.scratch[:0])
	if errors.Is(err, far.ErrWouldBlock) {
		s.wantBlocks = append(s.wantBlocks, k)
	}
	if err != nil {
		return nil, err
	}
	reuse(&s.scratch, e.Value)
	return strikesOf(b, e.Value, l), nil
}

// settleStruck stores the lists of the hash h under key without what is struck out.
// What is lost is not read any more, with strikes or without. The stripe must be
// locked for writing, and no command may have changes that it may undo.
func (srv *Server) settleStruck(ctx context.Context, st *stripe, key string, h *largeHash) error {
	for len(h.struck) > 0 {
		b := h.struck.last()
		m, k := store(srv.blocks), h.key(b)
		if h.isSmall() {
			m, k = srv.keys, []byte(key)
		}
		e, err := m.Get(ctx, k, nil)
		if err == nil {
			e.Value = h.struck.rest(b, e.Value)
			err = m.Set(ctx, k, e)
		}
		if err != nil && !errors.Is(err, far.ErrNotFound) && !errors.As(err, new(*far.LostError)) {
			return err
		}
		h.struck = h.struck.before(b)
	}
	if h.isSmall() {
		srv.lead(st, key, nil)
	}
	return nil
}
