package simfinemem

import (
	"encoding/binary"
	"errors"

	"polder/verbs/sim"
)

// arrayScan is the one-sided baseline: an array of words at the memory node, one
// for each chunk, which is 0 while the chunk is free. Who wants chunks reads the
// array piece by piece, from where it found something last, and claims words that
// read as 0 by CMP_SWAP. When one fails it reads the piece again.
type arrayScan struct {
	f      *fabric
	owner  uint64
	words  int
	at     int    // the next word to look at
	view   []bool // the piece that has it, if fresh: what is free
	fresh  bool
	counts *counts
}

// scanPiece is how many words one READ brings, if more are not asked for. It is
// what is fitted: with 128 words the scan's mean is half of what was published for
// 128 threads, and with 512 it is three times that.
const scanPiece = 256

var errFull = errors.New("no memory left")

// scanning are the allocators of an array scan.
func scanning(r *rig, l load, allocators, chunks int, c *counts) ([]allocator, error) {
	array, err := r.node.pd.RegMR(make([]byte, 8*chunks), remote)
	if err != nil {
		return nil, err
	}
	all := make([]allocator, allocators)
	for i := range all {
		f, err := r.reach(r.host(i), array)
		if err != nil {
			return nil, err
		}
		all[i] = &arrayScan{f: f, owner: uint64(i + 1), words: chunks, view: make([]bool, max(scanPiece, 1<<l.class)), counts: c}
	}
	return all, nil
}

// look reads the piece of the array that has the next word to look at.
func (s *arrayScan) look() error {
	b, err := s.f.read(uint64(s.piece()*8), len(s.view)*8)
	if err != nil {
		return err
	}
	for i := range s.view {
		s.view[i] = binary.LittleEndian.Uint64(b[8*i:]) == 0
	}
	s.fresh = true
	return nil
}

// piece is where the piece begins that has the next word to look at.
func (s *arrayScan) piece() int { return s.at / len(s.view) * len(s.view) }

// alloc implements allocator.
func (s *arrayScan) alloc(_ *sim.Proc, class int) (uint64, error) {
	n := 1 << class
	for empty := 0; empty <= s.words/len(s.view); {
		if !s.fresh {
			if err := s.look(); err != nil {
				return 0, err
			}
		}
		at := s.next(n)
		if at < 0 {
			empty++
			s.move(s.piece() + len(s.view))
			continue
		}
		empty = 0
		ok, err := s.claim(at, n)
		if err != nil {
			return 0, err
		}
		if ok {
			s.move(at + n)
			return uint64(at), nil
		}
		s.counts.retries++
		s.fresh = false
	}
	return 0, errFull
}

// move makes a word the next to look at.
func (s *arrayScan) move(to int) {
	was := s.piece()
	s.at = to % s.words
	s.fresh = s.fresh && s.piece() == was
}

// next finds n words in a row that read as free, from s.at on, in the view.
func (s *arrayScan) next(n int) int {
	for i := (s.at%len(s.view) + n - 1) / n * n; i+n <= len(s.view); i += n {
		free := true
		for _, f := range s.view[i : i+n] {
			free = free && f
		}
		if free {
			return s.piece() + i
		}
	}
	return -1
}

// claim claims n words, or none.
func (s *arrayScan) claim(at, n int) (bool, error) {
	for done := 0; done < n; done += depth {
		ok, err := s.exchange(at+done, min(depth, n-done), 0, s.owner)
		if err != nil {
			return false, err
		}
		if !ok {
			return false, s.release(at, done)
		}
	}
	return true, nil
}

// release frees n words.
func (s *arrayScan) release(at, n int) error {
	for done := 0; done < n; done += depth {
		if _, err := s.exchange(at+done, min(depth, n-done), s.owner, 0); err != nil {
			return err
		}
	}
	return nil
}

// exchange replaces n words, up to depth, and takes that back if not all were old.
func (s *arrayScan) exchange(at, n int, old, new uint64) (bool, error) {
	ops := make([]swap, n)
	for i := range ops {
		ops[i] = swap{uint64(8 * (at + i)), old, new}
	}
	was, err := s.f.swaps(ops...)
	if err != nil {
		return false, err
	}
	var back []swap
	for i, w := range was {
		s.view[(at+i)%len(s.view)] = false
		if w == old {
			back = append(back, swap{ops[i].off, new, old})
		}
	}
	if len(back) == n || len(back) == 0 {
		return len(back) == n, nil
	}
	_, err = s.f.swaps(back...)
	return false, err
}

// free implements allocator.
func (s *arrayScan) free(_ *sim.Proc, at uint64, class int) error {
	return s.release(int(at), 1<<class)
}
