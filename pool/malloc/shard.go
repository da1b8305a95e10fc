package malloc

import (
	"context"
	"errors"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"polder/internal/sizeclass"
	"polder/pool"
)

// classes is the number of size classes up to that of MaxPaged.
const classes = 73

// A shard allocates from pages of its own.
type shard struct {
	heap *Heap
	list atomic.Pointer[freed] // blocks that were freed while the shard was in use

	mu    sync.Mutex
	pages [classes][]*page // by class, pages with a free block; guarded by mu
	all   map[*page]bool   // guarded by mu
	empty []*page          // pages whose room unlock gives back; guarded by mu

	_ [64]byte // keeps the next shard's lock in another cache line
}

// freed is an entry of a shard's list.
type freed struct {
	page *page
	slot int
	next *freed
}

// A page has blocks of one size, in a part of a slab.
type page struct {
	shard *shard        // nil if the page is a block of more than MaxPaged bytes
	id    atomic.Uint32 // its number in the heap's refs, or 0
	slab  *slab         // nil if shard is nil
	chunk *pool.Chunk
	base  int64 // where in chunk the page begins
	class uint8
	size  int             // size of a block
	slots int             // number of blocks
	used  []atomic.Uint64 // a bit for every block that its owner has and has not freed

	free  []uint64 // a bit for every block that can be taken; guarded by shard.mu
	nFree int      // number of blocks that can be taken; guarded by shard.mu
}

func newPage(s *shard, slab *slab, base, bytes int64, c uint8) *page {
	size := sizeclass.Size(c)
	n := int(bytes) / size
	p := &page{shard: s, slab: slab, chunk: slab.chunk, base: base, class: c, size: size, slots: n, nFree: n}
	p.used = make([]atomic.Uint64, (n+63)/64)
	p.free = make([]uint64, (n+63)/64)
	for i := range n {
		p.free[i/64] |= 1 << (i % 64)
	}
	return p
}

// clear notes that a block is not allocated, and reports whether it was.
func (p *page) clear(slot int) bool {
	bit := uint64(1) << (slot % 64)
	return p.used[slot/64].And(^bit)&bit != 0
}

// add adds a page of which all blocks are free.
//
// Preconditions: s.mu is held, as it is for the methods below except free.
func (s *shard) add(p *page) {
	if s.all == nil {
		s.all = make(map[*page]bool)
	}
	s.all[p] = true
	s.pages[p.class] = append(s.pages[p.class], p)
}

// take takes a block of class c, if the shard has a free one that is not lost.
func (s *shard) take(c uint8, size int) (b Block, ok bool) {
	s.drain()
	for len(s.pages[c]) > 0 {
		last := len(s.pages[c]) - 1
		p := s.pages[c][last]
		if lost(p.chunk) {
			s.pages[c] = s.pages[c][:last]
			if p.nFree == p.slots {
				s.drop(p)
			}
			continue
		}
		i := 0
		for p.free[i] == 0 {
			i++
		}
		bit := p.free[i] & -p.free[i]
		p.free[i] &^= bit
		p.used[i].Or(bit)
		if p.nFree--; p.nFree == 0 {
			s.pages[c] = s.pages[c][:last]
		}
		slot := 64*i + bits.TrailingZeros64(bit)
		return Block{Chunk: p.chunk, Off: p.base + int64(slot)*int64(p.size), Size: size, page: p}, true
	}
	return Block{}, false
}

// put makes a block of p free. If p has no other blocks, put gives up the room of p.
func (s *shard) put(p *page, slot int) {
	p.free[slot/64] |= 1 << (slot % 64)
	if p.nFree++; p.nFree == 1 {
		s.pages[p.class] = append(s.pages[p.class], p)
	}
	if p.nFree < p.slots || s.heap.cfg.Static > 0 {
		return
	}
	if i := slices.Index(s.pages[p.class], p); i >= 0 {
		s.pages[p.class] = slices.Delete(s.pages[p.class], i, i+1)
	}
	s.drop(p)
}

// drop has unlock give back the room of a page, unless the heap keeps it until it is closed.
func (s *shard) drop(p *page) {
	delete(s.all, p)
	s.heap.refs.remove(p)
	if s.heap.cfg.Static == 0 {
		s.empty = append(s.empty, p)
	}
}

// drain frees the blocks in the list.
func (s *shard) drain() {
	for f := s.list.Swap(nil); f != nil; f = f.next {
		s.put(f.page, f.slot)
	}
}

// free frees a block: at once if nobody uses the shard, and otherwise through the list.
func (s *shard) free(ctx context.Context, p *page, slot int) error {
	if s.mu.TryLock() {
		s.put(p, slot)
		return s.unlock(ctx)
	}
	f := &freed{page: p, slot: slot}
	for {
		f.next = s.list.Load()
		if s.list.CompareAndSwap(f.next, f) {
			break
		}
	}
	// Whoever holds the lock looks at the list after unlocking. If nobody holds it now, that look may have been
	// before the block was put into the list.
	if s.mu.TryLock() {
		return s.unlock(ctx)
	}
	return nil
}

// unlock unlocks the shard, and gives back the room of empty pages.
func (s *shard) unlock(ctx context.Context) error {
	var errs []error
	for {
		s.drain()
		empty := s.empty
		s.empty = nil
		s.mu.Unlock()
		for _, p := range empty {
			if err := s.heap.uncut(ctx, p); err != nil {
				errs = append(errs, err)
			}
		}
		if s.list.Load() == nil || !s.mu.TryLock() {
			return errors.Join(errs...)
		}
	}
}

// close gives all pages back.
func (s *shard) close(ctx context.Context) error {
	s.mu.Lock()
	s.drain()
	for p := range s.all {
		s.drop(p)
	}
	s.pages = [classes][]*page{}
	return s.unlock(ctx)
}
