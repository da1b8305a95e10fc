package far

import (
	"polder/far/heap"
)

// keepSpare has so many segments kept for leaves that, when the store is full, they can be cleaned, and what is
// in tables can be settled.
func (s *settler) keepSpare() {
	n := 0
	s.h.core.Far.All(func(f *heap.FarSegment) {
		if f.HasPages() {
			n++
		}
	})
	s.pages.Keep(2 + n/8 + int(s.h.core.Logs.Of(heap.Tables))/s.h.core.Far.SegSize)
}

const (
	// cleanPagesAbove is the part of the far memory of leaves that may be dead, provided there
	// are at least cleanPagesFrom segments of it; and cleanPagesFull when the store is full.
	cleanPagesAbove = 1.0 / 3
	cleanPagesFull  = 0.1
	cleanPagesFrom  = 3
)

// clean writes the leaves anew that are in segments of which little lives, until far memory is clean
// enough.
func (s *settler) clean(full bool) {
	above, least := cleanPagesAbove, cleanPagesFrom
	if full {
		above, least = cleanPagesFull, 1
	}
	for s.h.core.Ctx.Err() == nil {
		var live, filled int64
		var worst *heap.FarSegment
		n := 0
		s.h.core.Far.All(func(f *heap.FarSegment) {
			if !f.HasPages() || !f.Sealed() || f.Gone() {
				return
			}
			n++
			live += f.Live.Load()
			filled += f.Filled()
			if f.Live.Load() > 0 && (worst == nil || f.Live.Load() < worst.Live.Load()) {
				worst = f
			}
		})
		if worst == nil || n < least || float64(filled-live) < above*float64(filled) || !s.empty(worst) {
			return
		}
	}
}

// empty writes the leaves in f anew, and reports whether nothing lives in it any more.
func (s *settler) empty(f *heap.FarSegment) bool {
	s.forced = true
	defer func() { s.forced = false }()
	s.h.cleanedPages.Add(1)
	for _, m := range *s.h.maps.Load() {
		shards := m.shards() // they may be others when the map is freed
		for i := range shards {
			sh := &shards[i]
			sh.mu.Lock()
			if !sh.hasLeaves() || sh.cold.shelf != nil {
				sh.mu.Unlock()
				continue
			}
			due, any := make([]bool, sh.cold.Len()), false
			for k := range due {
				a := sh.cold.At(k).Addr()
				due[k] = a != 0 && a/s.h.core.Far.Units == f.ID
				any = any || due[k]
			}
			gen := sh.cold.gen
			sh.mu.Unlock()
			if any && s.visitAll(m, sh, gen, due) != nil {
				return false
			}
		}
	}
	return f.Live.Load() == 0
}
