package component

import (
	"sync"
	"sync/atomic"

	"polder/internal/arena"
)

// budget is what a worker's objects may use.
type budget struct {
	limit int64
	used  atomic.Int64
}

func (b *budget) take(n int64) bool {
	for {
		used := b.used.Load()
		if n < 0 || n > b.limit-used {
			return false
		}
		if b.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// An Env is where an object gets memory from. It belongs to the object, and what
// has been taken from it is given back when the object is gone. It may be used
// by any number of goroutines.
type Env struct {
	budget *budget

	mu       sync.Mutex
	mappings map[*byte]*arena.Mapping // by first byte
	reserved int64
}

func newEnv(b *budget) *Env { return &Env{budget: b, mappings: make(map[*byte]*arena.Mapping)} }

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
	m, err := arena.Anonymous(size, false)
	if err != nil {
		e.budget.used.Add(-int64(size))
		return nil, ErrNoMemory
	}
	b := m.Bytes()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mappings[&b[0]] = m
	return b[:n:n], nil
}

// Free gives back what Alloc returned, from its first byte on.
func (e *Env) Free(b []byte) {
	e.mu.Lock()
	m := e.mappings[&b[0]]
	delete(e.mappings, &b[0])
	e.mu.Unlock()
	if m == nil {
		panic("BUG: memory is freed that was not allocated")
	}
	e.budget.used.Add(-int64(len(m.Bytes())))
	m.Close()
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
	e.budget.used.Add(-int64(n))
}

// close gives everything back.
func (e *Env) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, m := range e.mappings {
		e.budget.used.Add(-int64(len(m.Bytes())))
		m.Close()
	}
	clear(e.mappings)
	e.budget.used.Add(-e.reserved)
	e.reserved = 0
}

// NewEnv returns an Env of so many bytes, for tests of components. A node makes
// those of its objects.
func NewEnv(limit int64) *Env { return newEnv(&budget{limit: limit}) }

// Used is how many bytes have been taken from e's budget.
func (e *Env) Used() int64 { return e.budget.used.Load() }

// Left is how many bytes there are to be had.
func (e *Env) Left() int64 { return e.budget.limit - e.budget.used.Load() }
