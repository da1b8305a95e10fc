package malloc

import (
	"context"
	"errors"
	"math"
	"math/bits"
	"slices"

	"polder/pool"
)

// A slab is a chunk of the pool that pages are cut from, so that one request to a node brings several pages. The room
// of a page without blocks is cut again, for pages of any class, without asking a node.
type slab struct {
	chunk *pool.Chunk
	units int
	free  uint64 // a bit for every unit that no page has; guarded by Heap.mu
}

// A slab has at most a slabShare'th of what the heap has taken, and at most slabMax bytes, unless a page needs more.
// So the part of a slab that no page has is small compared with what is in use.
const (
	slabShare = 8
	slabMax   = 128 << 10
)

// slabLook is the number of slabs that are searched for room for a page before memory is borrowed.
const slabLook = 64

// place finds room for a page of n bytes: the room is in s, from base on.
func (h *Heap) place(ctx context.Context, n int64) (s *slab, base int64, err error) {
	if h.cfg.Static > 0 {
		return h.placeStatic(ctx, n)
	}
	units := int(n / h.unit)
	if s, base := h.cut(units, slabLook); s != nil {
		return s, base, nil
	}
	size := max(units, slabUnits(h.taken.Load(), h.unit))
	c, err := h.borrow(ctx, int64(size)*h.unit)
	if errors.Is(err, pool.ErrNoMemory) { // slow path
		if s, base := h.cut(units, math.MaxInt); s != nil {
			return s, base, nil
		}
		if size > units {
			size = units
			c, err = h.borrow(ctx, n)
		}
	}
	if err != nil {
		return nil, 0, err
	}
	s = &slab{chunk: c, units: size, free: 1<<size - 1<<units}
	if s.free != 0 {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.slabs = append(h.slabs, s)
	}
	return s, 0, nil
}

// slabUnits is how many units a new slab gets: a power of two, since a manager lends that by one request.
func slabUnits(taken, unit int64) int {
	return 1 << bits.Len64(uint64(min(taken/slabShare, slabMax)/unit)) >> 1
}

// cut takes units that lie in a row out of a slab. It looks at the first slabs with pages, look of them, and takes
// the one with the least room, so that the other slabs lose their last pages and go back. If none has room, it takes
// a slab without pages.
func (h *Heap) cut(units, look int) (s *slab, base int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	best := -1
	for i := 0; i < min(look, len(h.slabs)); i++ {
		s := h.slabs[i]
		if lost(s.chunk) {
			h.slabs = slices.Delete(h.slabs, i, i+1)
			i--
			continue
		}
		if s.room(units) != 0 && (best < 0 || bits.OnesCount64(s.free) < bits.OnesCount64(h.slabs[best].free)) {
			best = i
		}
	}
	if best >= 0 {
		s := h.slabs[best]
		at := s.take(units)
		if s.free == 0 {
			h.slabs = slices.Delete(h.slabs, best, best+1)
		}
		return s, int64(at) * h.unit
	}
	for i := len(h.spare) - 1; i >= 0; i-- {
		if s := h.spare[i]; s.units >= units && !lost(s.chunk) {
			h.spare = slices.Delete(h.spare, i, i+1)
			h.spared -= s.chunk.Size()
			s.take(units)
			if s.free != 0 {
				h.slabs = append(h.slabs, s)
			}
			return s, 0
		}
	}
	return nil, 0
}

// room has a bit set for every unit at which a row of that many free units begins.
func (s *slab) room(units int) uint64 {
	runs := s.free
	for k := 1; k < units; k++ {
		runs &= s.free >> k
	}
	return runs
}

// take takes a row of units, and returns the first of them.
//
// Preconditions: Heap.mu is held, and there is room.
func (s *slab) take(units int) int {
	at := bits.TrailingZeros64(s.room(units))
	s.free &^= (1<<units - 1) << at
	return at
}

// uncut takes back the room of a page without blocks.
func (h *Heap) uncut(ctx context.Context, p *page) error {
	s, gone := p.slab, lost(p.chunk)
	h.mu.Lock()
	if s.free == 0 && !gone {
		h.slabs = append(h.slabs, s)
	}
	s.free |= (1<<(h.pageSize(p.class)/h.unit) - 1) << (p.base / h.unit)
	if bits.OnesCount64(s.free) < s.units {
		h.mu.Unlock()
		return nil
	}
	if i := slices.Index(h.slabs, s); i >= 0 {
		h.slabs = slices.Delete(h.slabs, i, i+1)
	}
	h.spare, h.spared = append(h.spare, s), h.spared+s.chunk.Size()
	h.mu.Unlock()
	_, err := h.trim(ctx, gone)
	return err
}

// trim gives slabs without pages back, the oldest first, and returns how many. It gives back all of them or, without
// all, as many as it takes until they are at most half of what the heap has taken, or no more than a large slab.
func (h *Heap) trim(ctx context.Context, all bool) (n int, err error) {
	for ; ; n++ {
		h.mu.Lock()
		if len(h.spare) == 0 || !all && h.spared <= max(h.taken.Load()/2, slabMax, h.unit) {
			h.mu.Unlock()
			return n, err
		}
		s := h.spare[0]
		h.spare, h.spared = slices.Delete(h.spare, 0, 1), h.spared-s.chunk.Size()
		h.mu.Unlock()
		err = errors.Join(err, h.giveBack(ctx, s.chunk))
	}
}

// placeStatic is place with Config.Static: the room that it has cut stays in use until the heap is closed.
func (h *Heap) placeStatic(ctx context.Context, n int64) (s *slab, base int64, err error) {
	h.mu.Lock()
	for len(h.slabs) == 0 || h.end+n > h.cfg.Static {
		h.mu.Unlock()
		c, err := h.borrow(ctx, h.cfg.Static)
		if err != nil {
			return nil, 0, err
		}
		h.mu.Lock()
		h.slabs, h.end = append(h.slabs, &slab{chunk: c}), 0
	}
	defer h.mu.Unlock()
	h.end += n
	return h.slabs[len(h.slabs)-1], h.end - n, nil
}

// lost reports whether a chunk is lost.
func lost(c *pool.Chunk) bool {
	select {
	case <-c.Lost():
		return true
	default:
		return false
	}
}
