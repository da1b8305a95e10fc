package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// MemStore is a Store in this process. It lends up to a number of segments,
// and is for tests, for programs that want the Map without the network, and
// for finding out what a real store costs.
type MemStore struct {
	size, max int

	mu   sync.Mutex
	lent int
	next int
}

// NewMemStore makes a store of up to segments segments of size bytes, a power
// of two.
func NewMemStore(size, segments int) *MemStore {
	return &MemStore{size: size, max: segments}
}

// SegmentSize returns the size of a segment in bytes.
func (s *MemStore) SegmentSize() int { return s.size }

// Lent is the number of segments that are lent.
func (s *MemStore) Lent() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lent
}

// Alloc borrows a segment.
func (s *MemStore) Alloc(context.Context) (Segment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lent >= s.max {
		return nil, fmt.Errorf("%w: all %d segments are lent", ErrStoreFull, s.max)
	}
	s.lent++
	s.next++
	return &MemSegment{
		store: s,
		name:  fmt.Sprintf("memory/segment %d", s.next),
		Mem:   make([]byte, s.size),
		lost:  make(chan struct{}),
	}, nil
}

// Most is how many segments it lends at most.
func (s *MemStore) Most() int { return s.max }

// Adopt lends mem as a segment that existed before, under the name that it had.
func (s *MemStore) Adopt(name string, mem []byte) *MemSegment {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lent++
	var n int
	if _, err := fmt.Sscanf(name, "memory/segment %d", &n); err == nil {
		s.next = max(s.next, n)
	}
	return &MemSegment{store: s, name: name, Mem: mem, lost: make(chan struct{})}
}

// Read fills the buffers of all ops.
func (s *MemStore) Read(_ context.Context, ops []ReadOp) {
	for i := range ops {
		op := &ops[i]
		op.Err = op.Seg.(*MemSegment).read(op.Buf, op.Off)
	}
}

type MemSegment struct {
	store *MemStore
	name  string
	lost  chan struct{} // never closed

	Mu  sync.RWMutex
	Mem []byte // nil once given back, under mu
}

var errFreed = errors.New("the segment has been given back")

// bytes returns the n bytes at off. s.mu must be held.
func (s *MemSegment) bytes(off, n int) ([]byte, error) {
	if s.Mem == nil {
		return nil, fmt.Errorf("%s: %w", s.name, errFreed)
	}
	if off < 0 || off > len(s.Mem) || n > len(s.Mem)-off {
		return nil, fmt.Errorf("%s: [%d, %d+%d) is not within %d bytes", s.name, off, off, n, len(s.Mem))
	}
	return s.Mem[off : off+n], nil
}

func (s *MemSegment) read(p []byte, off int) error {
	s.Mu.RLock()
	defer s.Mu.RUnlock()
	b, err := s.bytes(off, len(p))
	copy(p, b)
	return err
}

func (s *MemSegment) Write(_ context.Context, p []byte, off int) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	b, err := s.bytes(off, len(p))
	copy(b, p)
	return err
}

func (s *MemSegment) Free(context.Context) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Mem == nil {
		return fmt.Errorf("%s: %w", s.name, errFreed)
	}
	s.Mem = nil
	s.store.mu.Lock()
	s.store.lent--
	s.store.mu.Unlock()
	return nil
}

func (s *MemSegment) Lost() <-chan struct{} { return s.lost }
func (s *MemSegment) Name() string          { return s.name }
