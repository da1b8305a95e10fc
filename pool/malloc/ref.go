package malloc

import (
	"errors"
	"sync"
	"sync/atomic"
)

// A Ref names an allocated block of a heap in RefBits bits, for a holder that has no room for a [Block], such as the
// word of an index in far memory. It is never 0.
type Ref uint64

// RefBits is the length of a Ref: the number of the page, and below it the number of
// the block in the page.
const (
	RefBits  = 46
	slotBits = 20
)

var (
	errPages = errors.New("all the heap's 64 Mi pages that references can name are in use")
	errSlots = errors.New("references name only the first 1 Mi blocks of a page: the nodes should lend smaller chunks")
)

// Ref returns the reference to a block. It is valid until the block is freed. Ref fails if 64 Mi pages have blocks
// that are referred to, or if the block is beyond the first 1 Mi blocks of its page, which is possible in chunks of
// more than 16 MiB.
func (h *Heap) Ref(b Block) (Ref, error) {
	if b.slot() >= 1<<slotBits {
		return 0, errSlots
	}
	if b.page.id.Load() == 0 { // slow path
		if err := h.refs.add(b.page); err != nil {
			return 0, err
		}
	}
	return Ref(b.page.id.Load())<<slotBits | Ref(b.slot()), nil
}

// At returns the block of a reference. size is the size that the block was allocated with, which the reference does
// not hold. It is ignored if the block has more than MaxPaged bytes: then the heap knows the size.
//
// Preconditions: the block has not been freed, and size is what Alloc was given.
func (h *Heap) At(r Ref, size int) Block {
	p := h.refs.at(r >> slotBits)
	if p.shard == nil {
		size = p.size
	}
	slot := int64(r & (1<<slotBits - 1))
	return Block{Chunk: p.chunk, Off: p.base + slot*int64(p.size), Size: size, page: p}
}

// refs numbers, from 1 on, the pages with blocks that are referred to. Looking up a page takes no lock.
type refs struct {
	table atomic.Pointer[[]atomic.Pointer[page]] // with mu held, replaced by a table twice as long

	mu   sync.Mutex
	last uint32   // the largest number that was given out; guarded by mu
	free []uint32 // numbers that were given out and are not in use any more; guarded by mu
}

func (r *refs) at(id Ref) *page { return (*r.table.Load())[id].Load() }

// add gives p a number, unless it has one.
func (r *refs) add(p *page) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.id.Load() != 0 {
		return nil
	}
	var id uint32
	if n := len(r.free); n > 0 {
		id, r.free = r.free[n-1], r.free[:n-1]
	} else if r.last+1 < 1<<(RefBits-slotBits) {
		r.last++
		id = r.last
	} else {
		return errPages
	}
	table := r.table.Load()
	if table == nil || int(id) >= len(*table) {
		grown := make([]atomic.Pointer[page], max(64, 2*int(id)))
		if table != nil {
			for i := range *table {
				grown[i].Store((*table)[i].Load())
			}
		}
		table = &grown
		r.table.Store(table)
	}
	(*table)[id].Store(p)
	p.id.Store(id)
	return nil
}

// remove takes p's number away, if it has one.
//
// Preconditions: none of its blocks is referred to.
func (r *refs) remove(p *page) {
	id := p.id.Load()
	if id == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	(*r.table.Load())[id].Store(nil)
	p.id.Store(0)
	r.free = append(r.free, id)
}

// takeAll takes the numbers of all pages away, and returns the pages.
func (r *refs) takeAll() (pages []*page) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if table := r.table.Swap(nil); table != nil {
		for i := range *table {
			if p := (*table)[i].Load(); p != nil {
				p.id.Store(0)
				pages = append(pages, p)
			}
		}
	}
	r.last, r.free = 0, nil
	return pages
}
