package soft

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"polder/codec"
)

// Queue is a first-in-first-out queue of values in soft memory, bounded by
// its capacity. Values that vanish while they wait are rebuilt from their
// sequence number or, without a reconstructor, left out. Its methods may be
// called by any number of goroutines.
type Queue[T any] struct {
	h       *Heap
	code    codec.Coder[T]
	rebuild func(ctx context.Context, seq uint64) (T, error)
	ring    *ring

	mu         sync.Mutex // guards head and tail; held while a value is stored or taken, not while it is rebuilt
	head, tail uint64
	lost       atomic.Uint64
	cost       atomic.Uint32 // class of the last rebuilding
}

// NewQueue makes a queue for at most capacity values. T is a string, a byte
// slice or a type without pointers. Rebuild may be nil.
func NewQueue[T any](h *Heap, capacity int, rebuild func(context.Context, uint64) (T, error)) (*Queue[T], error) {
	code, err := codec.For[T](nil)
	if err != nil {
		return nil, fmt.Errorf("cannot make a soft queue: %w", err)
	}
	if capacity <= 0 {
		return nil, fmt.Errorf("cannot make a soft queue for %d values", capacity)
	}
	r := &ring{cells{h: h, list: make([]cell, capacity)}}
	id, ok := h.owners.add(r, 0)
	if !ok {
		return nil, errOwners
	}
	r.id = id
	return &Queue[T]{h: h, code: code, rebuild: rebuild, ring: r}, nil
}

// Push appends a value and returns its sequence number. It reports false if
// the queue is full.
func (q *Queue[T]) Push(v T) (seq uint64, ok bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.tail-q.head == uint64(len(q.ring.list)) {
		return 0, false, nil
	}
	seq = q.tail
	c := &q.ring.list[seq%uint64(len(q.ring.list))]
	b := q.code.View(&v, nil)
	if _, _, err := storeCell(q.h, q.ring.id, seq&refMask, c, b, 0, false, 0); err != nil {
		return 0, false, err
	}
	q.h.curve.inserted(q.ring.id, seq&refMask, len(b))
	q.tail++
	return seq, true, nil
}

// Pop takes the first value. It reports false if there is none.
func (q *Queue[T]) Pop(ctx context.Context) (v T, ok bool, err error) {
	for {
		seq, b, some, there := q.take()
		switch {
		case !some:
			return v, false, nil
		case there:
			err := q.code.Adopt(b, &v)
			return v, err == nil, err
		case q.rebuild == nil:
			q.lost.Add(1)
			continue
		}
		start := time.Now()
		v, err := q.rebuild(ctx, seq)
		took := time.Since(start)
		q.h.rebuilt(took, 1)
		q.cost.Store(uint32(costClass(took)))
		q.h.rebuiltCell(q.ring.id, seq&refMask, max(q.code.Size(), 0), uint8(q.cost.Load()))
		if err != nil {
			return v, false, fmt.Errorf("cannot rebuild value %d of a queue: %w", seq, err)
		}
		return v, true, nil
	}
}

func (q *Queue[T]) take() (seq uint64, b []byte, some, there bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head == q.tail {
		return 0, nil, false, false
	}
	seq = q.head
	c := &q.ring.list[seq%uint64(len(q.ring.list))]
	b, there = appendCell(q.h, c, nil)
	if there { // it is taken to cost what the last rebuilding did
		q.h.rebuiltCell(q.ring.id, seq&refMask, len(b), uint8(q.cost.Load()))
	}
	dropCell(q.h, c)
	q.head++
	return seq, b, true, there
}

// Len returns how many values wait, vanished ones included.
func (q *Queue[T]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return int(q.tail - q.head)
}

// Lost returns how many values vanished and could not be rebuilt.
func (q *Queue[T]) Lost() uint64 { return q.lost.Load() }

// Close forgets every value.
func (q *Queue[T]) Close() { q.ring.close() }

// ring is a row of cells that is used round and round; references are
// sequence numbers.
type ring struct{ cells }

func (r *ring) swing(ref uint64, from, to word) bool {
	return r.list[ref%uint64(len(r.list))].CompareAndSwap(uint64(from), uint64(to))
}

func (r *ring) holdsLarge(ref uint64, id largeID) bool {
	return cellHoldsLarge(r.h, &r.list[ref%uint64(len(r.list))], id)
}
