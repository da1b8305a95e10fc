package pool

import (
	"sync"

	"polder/internal/arena"
	"polder/internal/invariants"
)

// Blocks of the slab are powers of two from minBlock to maxBlock bytes. An
// operation of more than maxBlock bytes goes out in pieces.
const (
	minBlockShift = 8
	maxBlockShift = 16
	minBlock      = 1 << minBlockShift
	maxBlock      = 1 << maxBlockShift
	numOrders     = maxBlockShift - minBlockShift + 1
)

// A block is a piece of the slab: its offset and its order. The zero block is no block.
type block struct {
	off   uint32
	order uint8 // 1 is minBlock
}

// slab is the memory that data passes through, registered for each fabric. It is a buddy allocator that keeps small
// blocks apart for the next caller instead of merging them, with a queue of callers that found no block.
type slab struct {
	mem *arena.Mapping

	mu      sync.Mutex
	free    [numOrders]int32 // head of the list of free blocks, as an index of minBlocks; -1: none
	next    []int32          // per minBlock, links of the lists
	prev    []int32
	state   []int8 // per minBlock: order+1 of the free block that begins here, or 0
	kept    [keptOrders][]uint32
	waiters []*roomWaiter
	used    int // bytes of blocks that are given out
}

// Small orders of which free blocks are kept unmerged, and how many blocks of each.
const (
	keptOrders = 5
	keptBlocks = 64
)

// roomWaiter is a caller in the queue for a block.
type roomWaiter struct {
	order uint8
	ready chan block // capacity 1
}

func newSlab(size int) (*slab, error) {
	size = (size + maxBlock - 1) &^ (maxBlock - 1)
	mem, err := arena.Anonymous(size, false)
	if err != nil {
		return nil, err
	}
	n := size >> minBlockShift
	s := &slab{
		mem:  mem,
		next: make([]int32, n), prev: make([]int32, n), state: make([]int8, n),
	}
	for o := range s.free {
		s.free[o] = -1
	}
	for o := range s.kept {
		s.kept[o] = make([]uint32, 0, keptBlocks)
	}
	for i := n - maxBlock/minBlock; i >= 0; i -= maxBlock / minBlock {
		s.push(i, numOrders-1)
	}
	return s, nil
}

// orderOf returns the order, counted from 0, of the smallest block that holds n bytes.
func orderOf(n int) int {
	o := 0
	for minBlock<<o < n {
		o++
	}
	return o
}

// bytes returns the first n bytes of b.
func (s *slab) bytes(b block, n int) []byte { return s.mem.Bytes()[b.off : int(b.off)+n] }

// try returns a block of at least n bytes, unless there is none or other callers are waiting.
//
// Preconditions: 0 < n <= maxBlock.
func (s *slab) try(n int) (block, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiters) > 0 {
		return block{}, false
	}
	return s.take(orderOf(n))
}

// enqueue asks for a block of at least n bytes, to be sent to ready.
func (s *slab) enqueue(w *roomWaiter, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.order = uint8(orderOf(n))
	s.waiters = append(s.waiters, w)
	s.serve()
}

// cancel takes w out of the queue, and releases the block that it may have been sent already.
func (s *slab) cancel(w *roomWaiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, other := range s.waiters {
		if other == w {
			s.waiters = append(s.waiters[:i], s.waiters[i+1:]...)
			s.serve()
			return
		}
	}
	s.put(<-w.ready)
	s.serve()
}

// release gives b back.
func (s *slab) release(b block) {
	s.mu.Lock()
	s.put(b)
	if len(s.waiters) > 0 {
		s.serve()
	}
	s.mu.Unlock()
}

// serve sends blocks to waiters, first come first served.
//
// Preconditions: s.mu is held.
func (s *slab) serve() {
	n := 0
	for _, w := range s.waiters {
		b, ok := s.take(int(w.order))
		if !ok {
			break
		}
		w.ready <- b
		n++
	}
	if n > 0 {
		s.waiters = append(s.waiters[:0], s.waiters[n:]...)
	}
}

// take returns a block of the given order.
//
// Preconditions: s.mu is held.
func (s *slab) take(order int) (block, bool) {
	if order < keptOrders && len(s.kept[order]) > 0 { // fast path
		k := s.kept[order]
		off := k[len(k)-1]
		s.kept[order] = k[:len(k)-1]
		s.used += minBlock << order
		return block{off: off, order: uint8(order + 1)}, true
	}
	from := s.find(order)
	if from < 0 {
		s.mergeKept()
		if from = s.find(order); from < 0 {
			return block{}, false
		}
	}
	i := int(s.free[from])
	s.remove(i, from)
	for from > order {
		from--
		s.push(i+1<<from, from)
	}
	s.used += minBlock << order
	return block{off: uint32(i) << minBlockShift, order: uint8(order + 1)}, true
}

// find returns the smallest order, at least order, that has a free block, or -1.
func (s *slab) find(order int) int {
	for o := order; o < numOrders; o++ {
		if s.free[o] >= 0 {
			return o
		}
	}
	return -1
}

// put gives b back.
//
// Preconditions: s.mu is held.
func (s *slab) put(b block) {
	order := int(b.order) - 1
	if invariants.Enabled && (order < 0 || s.state[b.off>>minBlockShift] != 0) {
		panic("BUG: a block of the slab is released twice")
	}
	s.used -= minBlock << order
	if order < keptOrders && len(s.kept[order]) < keptBlocks {
		s.kept[order] = append(s.kept[order], b.off)
		return
	}
	s.merge(int(b.off>>minBlockShift), order)
}

// merge adds block i to the free lists, joined with its free buddies.
func (s *slab) merge(i, order int) {
	for order < numOrders-1 {
		buddy := i ^ 1<<order
		if int(s.state[buddy]) != order+1 {
			break
		}
		s.remove(buddy, order)
		i &= buddy
		order++
	}
	s.push(i, order)
}

func (s *slab) mergeKept() {
	for order := range s.kept {
		for _, off := range s.kept[order] {
			s.merge(int(off>>minBlockShift), order)
		}
		s.kept[order] = s.kept[order][:0]
	}
}

func (s *slab) push(i, order int) {
	head := s.free[order]
	s.next[i], s.prev[i] = head, -1
	if head >= 0 {
		s.prev[head] = int32(i)
	}
	s.free[order] = int32(i)
	s.state[i] = int8(order + 1)
}

func (s *slab) remove(i, order int) {
	next, prev := s.next[i], s.prev[i]
	if next >= 0 {
		s.prev[next] = prev
	}
	if prev >= 0 {
		s.next[prev] = next
	} else {
		s.free[order] = next
	}
	s.state[i] = 0
}

// size returns how many bytes there are in all, and how many are given out. It may be called after close.
func (s *slab) size() (total, used int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.next) * minBlock, s.used
}

// close gives the memory back. No fabric may have it registered any more.
func (s *slab) close() error { return s.mem.Close() }
