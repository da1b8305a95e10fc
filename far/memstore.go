package far

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
	return &memSegment{
		store: s,
		name:  fmt.Sprintf("memory/segment %d", s.next),
		mem:   make([]byte, s.size),
		lost:  make(chan struct{}),
	}, nil
}

// Read fills the buffers of all ops.
func (s *MemStore) Read(_ context.Context, ops []ReadOp) {
	for i := range ops {
		op := &ops[i]
		op.Err = op.Seg.(*memSegment).read(op.Buf, op.Off)
	}
}

type memSegment struct {
	store *MemStore
	name  string
	lost  chan struct{} // never closed

	mu  sync.RWMutex
	mem []byte // nil once given back, under mu
}

var errFreed = errors.New("the segment has been given back")

// bytes returns the n bytes at off. s.mu must be held.
func (s *memSegment) bytes(off, n int) ([]byte, error) {
	if s.mem == nil {
		return nil, fmt.Errorf("%s: %w", s.name, errFreed)
	}
	if off < 0 || off > len(s.mem) || n > len(s.mem)-off {
		return nil, fmt.Errorf("%s: [%d, %d+%d) is not within %d bytes", s.name, off, off, n, len(s.mem))
	}
	return s.mem[off : off+n], nil
}

func (s *memSegment) read(p []byte, off int) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	b, err := s.bytes(off, len(p))
	copy(p, b)
	return err
}

func (s *memSegment) Write(_ context.Context, p []byte, off int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.bytes(off, len(p))
	copy(b, p)
	return err
}

func (s *memSegment) Free(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mem == nil {
		return fmt.Errorf("%s: %w", s.name, errFreed)
	}
	s.mem = nil
	s.store.mu.Lock()
	s.store.lent--
	s.store.mu.Unlock()
	return nil
}

func (s *memSegment) Lost() <-chan struct{} { return s.lost }
func (s *memSegment) Name() string          { return s.name }
