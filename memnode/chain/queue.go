package chain

import (
	"math/bits"
	"slices"
	"sync/atomic"
)

// Offsets in a queue's memory, which begins with words that are not elements.
const (
	headOff  = 0
	tailOff  = 8
	freedOff = 16 // tail of the ring of freed chunks
	ringsOff = 64
)

// A Queue is the free MW queue, together with the ring of freed chunks that wait to be zeroed. See the package
// comment.
type Queue struct {
	Addr uint64 // of the memory
	mem  []byte
	size uint64 // of a ring in bytes, a power of two
	free uint64 // address of the first element
	next uint64 // address of the first freed element

	freed     atomic.Uint64 // address of the freed element to be taken next
	owed      []owed
	owedCount atomic.Int64

	between func() // for tests: called between two accesses of one action
}

// owed is a queue element that a chain found empty, and that is yet to be filled.
type owed struct {
	slot uint64   // the element's address
	by   *Account // account of the chain's client, or nil if the client is gone
}

// ringSize is the size in bytes of a ring. It is at least twice what a ring can hold, so that distances are less than
// half of it.
func ringSize(chunks, chains int) uint64 {
	return 16 << bits.Len(uint(chunks+4*chains+64-1))
}

// QueueSize is how many bytes a queue needs.
func QueueSize(chunks, chains int) int { return ringsOff + 3*int(ringSize(chunks, chains)) }

// NewQueue lays out a queue in mem, which has QueueSize bytes and is registered at addr.
func NewQueue(mem []byte, addr uint64, chunks, chains int) *Queue {
	q := &Queue{Addr: addr, mem: mem, size: ringSize(chunks, chains)}
	q.free = (addr + ringsOff + q.size - 1) &^ (q.size - 1)
	q.next = q.free + q.size
	Store(mem[headOff:], q.free)
	Store(mem[tailOff:], q.free)
	Store(mem[freedOff:], q.next)
	q.freed.Store(q.next)
	return q
}

// Size, Ring and FreedRing are the size and the addresses of the rings; Head, Tail and FreedTail are the addresses of
// the words.
func (q *Queue) Size() uint64      { return q.size }
func (q *Queue) Ring() uint64      { return q.free }
func (q *Queue) FreedRing() uint64 { return q.next }
func (q *Queue) Head() uint64      { return q.Addr + headOff }
func (q *Queue) Tail() uint64      { return q.Addr + tailOff }
func (q *Queue) FreedTail() uint64 { return q.Addr + freedOff }

// Wrap is the mask of a FETCH_ADD on Head or a tail.
func (q *Queue) Wrap() uint64 { return q.size >> 1 }

func (q *Queue) element(addr uint64) *uint64 { return word(q.mem[addr-q.Addr:]) }

// distance is how many bytes the ring position b is ahead of a. It is less than half a ring, and negative if b is
// behind.
func (q *Queue) distance(a, b uint64) int64 {
	d := int64((b - a) & (q.size - 1))
	if d > int64(q.size/2) {
		d -= int64(q.size)
	}
	return d
}

// Free is how many chunks can be taken.
func (q *Queue) Free() int {
	d := q.distance(Load(q.mem[headOff:]), Load(q.mem[tailOff:]))/8 + q.owedCount.Load()
	return max(0, int(d))
}

// Freed is how many chunks wait to be zeroed.
func (q *Queue) Freed() int {
	return max(0, int(q.distance(q.freed.Load(), Load(q.mem[freedOff:])))/8)
}

// Push puts an entry at the tail.
func (q *Queue) Push(entry uint64) {
	tail := word(q.mem[tailOff:])
	for {
		old := atomic.LoadUint64(tail)
		if atomic.CompareAndSwapUint64(tail, old, q.free|(old+8)&(q.size-1)) {
			q.pause()
			atomic.StoreUint64(q.element(old), entry)
			return
		}
	}
}

func (q *Queue) pause() {
	if q.between != nil {
		q.between()
	}
}

// TakeFree takes the entry at the head. It requires that every other taker claims an element before it moves the head
// on, as the allocation verb does and chains do not.
func (q *Queue) TakeFree() (entry uint64, ok bool) {
	head := word(q.mem[headOff:])
	at := atomic.LoadUint64(head)
	if entry = atomic.SwapUint64(q.element(at), 0); entry == 0 {
		return 0, false // there is no entry, or another taker has just claimed it
	}
	q.pause()
	atomic.StoreUint64(head, q.free|(at+8)&(q.size-1)) // nobody else moves the head past an empty element
	return entry, true
}

// TakeFreed takes the entry that has waited longest to be zeroed.
func (q *Queue) TakeFreed() (entry uint64, ok bool) {
	at := q.freed.Load()
	entry = atomic.SwapUint64(q.element(at), 0)
	if entry == 0 {
		return 0, false
	}
	q.freed.Store(q.next | (at+8)&(q.size-1))
	return entry, true
}

// owe notes that by's chain stopped at the element at slot, which was empty.
func (q *Queue) owe(slot uint64, by *Account) {
	q.owed = append(q.owed, owed{slot: slot, by: by})
	q.owedCount.Add(1)
}

// forget makes the elements that are owed because of by owed because of nobody.
func (q *Queue) forget(by *Account) {
	for i := range q.owed {
		if q.owed[i].by == by {
			q.owed[i].by = nil
		}
	}
}

// Owing reports whether elements are owed.
func (q *Queue) Owing() bool { return len(q.owed) > 0 }

// retreat moves the head back over elements that are owed because of nobody. Otherwise clients that come and go while
// the queue is empty would move the head on and on, until it had overtaken the tail. Only the element before the head
// can be given back. If that one is owed because of a client that is still there, it is exchanged for an element of a
// client that is gone: one owed element is as good as another.
func (q *Queue) retreat() {
	head := word(q.mem[headOff:])
	for {
		at := atomic.LoadUint64(head)
		last := q.free | (at-8)&(q.size-1)
		of := slices.IndexFunc(q.owed, func(o owed) bool { return o.slot == last })
		gone := slices.IndexFunc(q.owed, func(o owed) bool { return o.by == nil })
		if of < 0 || gone < 0 {
			return // if of < 0, a chain is at work on the element: if it finds it empty, the element will be owed
		}
		q.pause()
		if atomic.CompareAndSwapUint64(head, at, last) {
			q.owed[of].by, q.owed[gone].by = nil, q.owed[of].by
			q.owed = slices.Delete(q.owed, of, of+1)
			q.owedCount.Add(-1)
		}
	}
}

// Settle moves entries that have arrived in owed elements to the tail, and resumes the chains that stopped at these
// elements. Afterwards either nothing is owed or nothing is free.
func (q *Queue) Settle() {
	for again := true; again; {
		again = false
		kept := q.owed[:0]
		for _, o := range q.owed {
			entry := atomic.SwapUint64(q.element(o.slot), 0)
			if entry == 0 {
				kept = append(kept, o)
				continue
			}
			q.pause()
			q.Push(entry)
			q.owedCount.Add(-1)
			if o.by != nil {
				o.by.settled()
			}
			again = true
		}
		clear(q.owed[len(kept):])
		q.owed = kept
	}
	q.retreat()
}
