package component

import (
	"sync"
	"sync/atomic"

	"polder/internal/arena"
)

// budget is what a client's objects may use: those in the node's process, and
// those in the worker's.
type budget struct {
	limit int64
	all   *atomic.Int64 // used by both; it lies in the lane
	own   *atomic.Int64 // used by this process
}

func newBudget(limit int64) *budget {
	return &budget{limit: limit, all: new(atomic.Int64), own: new(atomic.Int64)}
}

func (b *budget) take(n int64) bool {
	for {
		all := b.all.Load()
		// The node does not rely on what a worker might have written.
		if n < 0 || n > b.limit-all || n > b.limit-b.own.Load() {
			return false
		}
		if b.all.CompareAndSwap(all, all+n) {
			b.own.Add(n)
			return true
		}
	}
}

func (b *budget) give(n int64) {
	b.all.Add(-n)
	b.own.Add(-n)
}

// An Env is where an object gets memory from. It belongs to the object, and what
// has been taken from it is given back when the object is gone. It may be used
// by any number of goroutines.
type Env struct {
	budget *budget

	region *region // where memory comes from; nil: from the kernel

	mu       sync.Mutex
	blocks   map[*byte]block // by first byte
	reserved int64
}

// block is what Alloc has returned.
type block struct {
	size    int            // rounded up
	mapping *arena.Mapping // nil if it is the region's
}

func newEnv(b *budget, r *region) *Env {
	return &Env{budget: b, region: r, blocks: make(map[*byte]block)}
}

// Alloc returns n bytes of zeros outside of the Go heap, at the beginning of a
// page, n rounded up to whole pages of which are counted. It fails with
// ErrNoMemory.
func (e *Env) Alloc(n int) ([]byte, error) {
	if n <= 0 || int64(n) > e.budget.limit {
		return nil, ErrNoMemory
	}
	size := (n + arena.PageSize - 1) / arena.PageSize * arena.PageSize
	if !e.budget.take(int64(size)) {
		return nil, ErrNoMemory
	}
	b, bl := e.take(size)
	if b == nil {
		e.budget.give(int64(size))
		return nil, ErrNoMemory
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.blocks[&b[0]] = bl
	return b[:n:n], nil
}

// take gets whole pages, or nil.
func (e *Env) take(size int) ([]byte, block) {
	if e.region != nil {
		return e.region.take(size), block{size: size}
	}
	m, err := arena.Anonymous(size, false)
	if err != nil {
		return nil, block{}
	}
	return m.Bytes(), block{size, m}
}

// give gives back what take got, which begins with first.
func (e *Env) give(first *byte, b block) {
	if b.mapping != nil {
		b.mapping.Close()
	} else {
		e.region.give(first, b.size)
	}
	e.budget.give(int64(b.size))
}

// Free gives back what Alloc returned, from its first byte on.
func (e *Env) Free(b []byte) {
	e.mu.Lock()
	bl, ok := e.blocks[&b[0]]
	delete(e.blocks, &b[0])
	e.mu.Unlock()
	if !ok {
		panic("BUG: memory is freed that was not allocated")
	}
	e.give(&b[0], bl)
}

// Reserve counts n bytes that the object is about to take from the Go heap. It
// fails with ErrNoMemory.
func (e *Env) Reserve(n int) error {
	if !e.budget.take(int64(n)) {
		return ErrNoMemory
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reserved += int64(n)
	return nil
}

// Release takes back a part of what was reserved.
func (e *Env) Release(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if int64(n) > e.reserved {
		panic("BUG: more is released than was reserved")
	}
	e.reserved -= int64(n)
	e.budget.give(int64(n))
}

// close gives everything back.
func (e *Env) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for first, b := range e.blocks {
		e.give(first, b)
	}
	clear(e.blocks)
	e.budget.give(e.reserved)
	e.reserved = 0
}

// NewEnv returns an Env of so many bytes, for tests of components. A node makes
// those of its objects.
func NewEnv(limit int64) *Env { return newEnv(newBudget(limit), nil) }

// Used is how many bytes have been taken from e's budget.
func (e *Env) Used() int64 { return e.budget.own.Load() }

// Left is how many bytes there are to be had.
func (e *Env) Left() int64 { return e.budget.limit - e.budget.all.Load() }
