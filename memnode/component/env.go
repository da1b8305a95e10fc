package component

import (
	"sync"
	"sync/atomic"

	"polder/internal/arena"
)

// budget is the memory that a client's objects may use: those in the node's process and those in the worker together.
type budget struct {
	limit int64
	all   *atomic.Int64 // bytes used by both processes; it lies in the lane
	own   *atomic.Int64 // bytes used by this process
}

func (b *budget) take(n int64) bool {
	for {
		all := b.all.Load()
		// The node checks its own count, too: a worker might have written anything into all.
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

	mu       sync.Mutex
	blocks   map[*byte]*arena.Mapping // that Alloc has made, by first byte
	reserved int64
}

func newEnv(b *budget) *Env { return &Env{budget: b, blocks: make(map[*byte]*arena.Mapping)} }

// Alloc returns n bytes of zeros outside of the Go heap, at the beginning of a page. Of the budget it takes n rounded
// up to whole pages. It fails with ErrNoMemory.
func (e *Env) Alloc(n int) ([]byte, error) {
	if n <= 0 || int64(n) > e.budget.limit {
		return nil, ErrNoMemory
	}
	size := (n + arena.PageSize - 1) / arena.PageSize * arena.PageSize
	if !e.budget.take(int64(size)) {
		return nil, ErrNoMemory
	}
	m, err := arena.Anonymous(size, false)
	if err != nil {
		e.budget.give(int64(size))
		return nil, ErrNoMemory
	}
	b := m.Bytes()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.blocks[&b[0]] = m
	return b[:n:n], nil
}

// give gives back the memory m that Alloc got.
func (e *Env) give(m *arena.Mapping) {
	n := len(m.Bytes())
	m.Close()
	e.budget.give(int64(n))
}

// Free gives back memory that Alloc returned. b begins with the first byte of it.
func (e *Env) Free(b []byte) {
	e.mu.Lock()
	m, ok := e.blocks[&b[0]]
	delete(e.blocks, &b[0])
	e.mu.Unlock()
	if !ok {
		panic("BUG: memory is freed that was not allocated")
	}
	e.give(m)
}

// Reserve takes n bytes, which the object is about to use on the Go heap, from the budget. It fails with ErrNoMemory.
func (e *Env) Reserve(n int) error {
	if !e.budget.take(int64(n)) {
		return ErrNoMemory
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reserved += int64(n)
	return nil
}

// Release gives back n of the bytes that were reserved.
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
	for _, m := range e.blocks {
		e.give(m)
	}
	clear(e.blocks)
	e.budget.give(e.reserved)
	e.reserved = 0
}
