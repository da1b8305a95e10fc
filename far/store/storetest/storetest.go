// Package storetest is a store that can be made to fail, for tests of what stands on one, and keys and values to put there.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"polder/far/store"
)

// ErrInjected is what fails because it was told to.
var ErrInjected = errors.New("injected")

// Store is a MemStore whose memory can be made to fail in every way that
// borrowed memory does.
type Store struct {
	*store.MemStore

	Full      atomic.Bool
	FailAlloc atomic.Bool
	FailRead  atomic.Bool
	FailWrite atomic.Bool
	FailFree  atomic.Bool
	Flaky     atomic.Int64 // of 1000 operations, fail so many

	FlakyWrites atomic.Int64 // of 1000 writes, fail so many, after twice their time

	Corrupt atomic.Int64 // of 1000 reads, damage so many
	Delay   atomic.Int64 // ns that every read and write takes
	Reads   atomic.Int64
	Ops     atomic.Int64

	mu   sync.Mutex
	gate chan struct{} // if not nil, reads wait until it is closed
	segs map[*segment]bool
}

// New makes a store of up to segments segments of size bytes.
func New(size, segments int) *Store {
	return &Store{MemStore: store.NewMemStore(size, segments), segs: map[*segment]bool{}}
}

func chance(perMille *atomic.Int64) bool {
	n := perMille.Load()
	return n > 0 && rand.Int64N(1000) < n
}

func (s *Store) Alloc(ctx context.Context) (store.Segment, error) {
	switch {
	case s.Full.Load():
		return nil, fmt.Errorf("%w: told so", store.ErrStoreFull)
	case s.FailAlloc.Load() || chance(&s.Flaky):
		return nil, ErrInjected
	}
	seg, err := s.MemStore.Alloc(ctx)
	if err != nil {
		return nil, err
	}
	f := &segment{Segment: seg, store: s, lost: make(chan struct{})}
	s.mu.Lock()
	s.segs[f] = true
	s.mu.Unlock()
	return f, nil
}

// Hold makes reads wait until the function that it returns is called.
func (s *Store) Hold() (release func()) {
	gate := make(chan struct{})
	s.mu.Lock()
	s.gate = gate
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		s.gate = nil
		s.mu.Unlock()
		close(gate)
	}
}

// wait takes the time that an operation takes.
func (s *Store) wait(ctx context.Context) error {
	d := time.Duration(s.Delay.Load())
	if d == 0 {
		return nil
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Store) Read(ctx context.Context, ops []store.ReadOp) {
	s.Reads.Add(1)
	s.Ops.Add(int64(len(ops)))
	if err := s.wait(ctx); err != nil {
		for i := range ops {
			ops[i].Err = err
		}
		return
	}
	s.mu.Lock()
	gate := s.gate
	s.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			for i := range ops {
				ops[i].Err = ctx.Err()
			}
			return
		}
	}
	for i := range ops {
		op := &ops[i]
		f := op.Seg.(*segment)
		if f.isLost() || s.FailRead.Load() || chance(&s.Flaky) {
			op.Err = ErrInjected
			continue
		}
		inner := []store.ReadOp{{Seg: f.Segment, Off: op.Off, Buf: op.Buf}}
		s.MemStore.Read(ctx, inner)
		op.Err = inner[0].Err
		if chance(&s.Corrupt) {
			op.Buf[rand.IntN(min(len(op.Buf), 40))] ^= 1 << rand.IntN(8)
		}
	}
}

// Lose takes away every segment that is lent and that pick wants, and returns
// how many that were.
func (s *Store) Lose(pick func(i int, seg store.Segment) bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, n := 0, 0
	for f := range s.segs {
		if pick(i, f) {
			close(f.lost)
			delete(s.segs, f)
			n++
		}
		i++
	}
	return n
}

type segment struct {
	store.Segment
	store *Store
	lost  chan struct{}
}

func (f *segment) isLost() bool {
	select {
	case <-f.lost:
		return true
	default:
		return false
	}
}

func (f *segment) Write(ctx context.Context, p []byte, off int) error {
	if f.isLost() || f.store.FailWrite.Load() || chance(&f.store.Flaky) {
		return ErrInjected
	}
	if err := f.store.wait(ctx); err != nil {
		return err
	}
	if chance(&f.store.FlakyWrites) {
		_ = f.store.wait(ctx) // those behind it come first
		return ErrInjected
	}
	return f.Segment.Write(ctx, p, off)
}

func (f *segment) Free(ctx context.Context) error {
	if f.store.FailFree.Load() {
		return ErrInjected
	}
	f.store.mu.Lock()
	delete(f.store.segs, f)
	f.store.mu.Unlock()
	return f.Segment.Free(ctx)
}

func (f *segment) Lost() <-chan struct{} { return f.lost }
