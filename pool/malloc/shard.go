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

// classes is one more than the class of MaxPaged.
const classes = 73

// A shard has pages of its own.
type shard struct {
	heap *Heap
	list atomic.Pointer[freed] // of blocks that were freed while the shard was in use

	mu    sync.Mutex
	pages [classes][]*page // with a free block, by class; guarded by mu
	all   map[*page]bool   // guarded by mu
	empty []*page          // whose room unlock takes back; guarded by mu

	_ [64]byte // the next shard's lock is in another cache line
}

// A freed block of a shard's list.
type freed struct {
	page *page
	slot int
	next *freed
}

// A page has blocks of one size, in a part of a slab.
type page struct {
	shard *shard        // nil: a block of more than MaxPaged bytes, and nothing else
	id    atomic.Uint32 // in the heap's refs, if not 0
	slab  *slab         // nil: as shard
	chunk *pool.Chunk
	base  int64 // where in chunk it begins
	class uint8
	size  int             // of a block
	slots int             // blocks
	used  []atomic.Uint64 // a bit for every block that is allocated, to its owner's knowledge

	free  []uint64 // a bit for every block that is free; guarded by shard.mu
	nFree int      // guarded by shard.mu
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

// add adds a page, all of which is free.
//
// Preconditions: s.mu is held, and so for all that follows but free.
func (s *shard) add(p *page) {
	if s.all == nil {
		s.all = make(map[*page]bool)
	}
	s.all[p] = true
	s.pages[p.class] = append(s.pages[p.class], p)
}

// take takes a block of class c, if there is one that is not lost.
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

// put makes a block of p's free. The room of a page without blocks is given up.
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

// drop has the room of a page taken back, unless it is kept until the heap is closed.
func (s *shard) drop(p *page) {
	delete(s.all, p)
	s.heap.refs.remove(p)
	if s.heap.cfg.Static == 0 {
		s.empty = append(s.empty, p)
	}
}

// drain takes what is in the list.
func (s *shard) drain() {
	for f := s.list.Swap(nil); f != nil; f = f.next {
		s.put(f.page, f.slot)
	}
}

// free frees a block: at once if nobody uses the shard, and otherwise by the list.
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
	// Who has the lock looks at the list after giving it back; if nobody has it now,
	// that may have been before.
	if s.mu.TryLock() {
		return s.unlock(ctx)
	}
	return nil
}

// unlock gives the lock back, and empty pages to their nodes.
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
