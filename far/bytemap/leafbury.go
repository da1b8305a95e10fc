package bytemap

import (
	"errors"
	"slices"

	"polder/far/heap"
	"polder/far/index"
	"polder/far/pagelog"
	"polder/internal/sizeclass"
)

// corpse is the leaves of a shard that was cleared. Their words are yet to be buried.
type corpse struct {
	dir   index.Dir
	lost  int      // see leafIndex
	known []uint32 // tags that were known, so that what leaves have of them is void; ascending
}

// bury has the settler account for everything that the leaves of d refer to as dead.
func (s *settler) bury(d *corpse) {
	s.mu.Lock()
	s.dead = append(s.dead, d)
	s.mu.Unlock()
	s.wake()
}

// buryDead accounts for what was cleared. Leaves that cannot be read just now are tried again when the settler is
// woken.
func (s *settler) buryDead() {
	s.mu.Lock()
	dead := s.dead
	s.mu.Unlock()
	if len(dead) == 0 {
		return
	}
	var left []*corpse
	for _, d := range dead {
		n := d.dir.Bytes()
		if !s.buryLeaves(d) {
			left = append(left, d)
			continue
		}
		if err := d.dir.Close(); err != nil {
			panic("BUG: " + err.Error())
		}
		s.h.core.Logs.ShrinkIndex(heap.Leaves, n)
	}
	s.mu.Lock()
	s.dead = append(left, s.dead[len(dead):]...)
	s.mu.Unlock()
}

// burying reports whether there is something to be buried.
func (s *settler) burying() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.dead) > 0
}

// buryLeaves buries what the leaves of d refer to, and reports whether it could.
func (s *settler) buryLeaves(d *corpse) bool {
	all := true
	var reads pagelog.Reads
	for i := 0; i < d.dir.Len() && s.h.core.Ctx.Err() == nil; {
		reads.Begin(s.visits[0].bodies)
		var at []int
		for full := false; i < d.dir.Len() && !full; {
			first, n := d.dir.Group(i)
			ref := d.dir.At(first)
			switch {
			case ref.Addr() == 0:
			case s.h.core.Far.Seg(ref.Addr()).Gone():
				s.buried(d, first)
			case reads.Add(s.h.core, ref.Addr(), sizeclass.Size(ref.Class())):
				at = append(at, first)
			default:
				full = true
				continue
			}
			i = first + n
		}
		if len(at) == 0 {
			continue
		}
		leaves, errs := s.h.readLeaves(s.h.core.Ctx, reads.Pages)
		for k, first := range at {
			var bad *heap.CorruptError
			if errors.As(errs[k], &bad) {
				s.h.leavesLost.Store(true)
				s.buried(d, first)
				continue
			}
			if errs[k] != nil {
				all = false
				continue
			}
			for j := range leaves[k].Len() {
				sl := leaves[k].At(j)
				if _, known := slices.BinarySearch(d.known, sl.Tag); !known {
					s.h.bury(sl.Word, nil)
				}
			}
			s.buried(d, first)
		}
	}
	return all && s.h.core.Ctx.Err() == nil
}

// buried accounts for the leaf of range i of d as dead. Its words have been accounted for.
func (s *settler) buried(d *corpse, i int) {
	first, n := d.dir.Group(i)
	ref := d.dir.At(first)
	s.h.core.BuryFar(ref.Addr(), sizeclass.Size(ref.Class()))
	for k := first; k < first+n; k++ {
		d.dir.Set(k, 0)
	}
}

// detach takes the leaves from sh, and returns nil if there are none. sh.mu must be held.
func (sh *shard) detach() *corpse {
	if !sh.hasLeaves() {
		return nil
	}
	d := &corpse{dir: sh.cold.Dir, lost: sh.cold.lost}
	for p := range sh.t.All() {
		if sh.t.Word(p).Tells() {
			d.known = append(d.known, sh.t.Tag(p))
		}
	}
	slices.Sort(d.known)
	sh.entries -= sh.cold.Count()
	sh.lost -= d.lost
	sh.cold.Dir, sh.cold.lost = index.Dir{}, 0
	sh.cold.gen++
	return d
}

// attach undoes detach. sh.mu must be held.
func (sh *shard) attach(d *corpse) {
	if d == nil {
		return
	}
	sh.cold.Dir, sh.cold.lost = d.dir, d.lost
	sh.cold.gen++
	sh.entries += sh.cold.Count()
	sh.lost += d.lost
}
