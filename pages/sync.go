package pages

import (
	"context"
	"fmt"
	"sync"

	"polder/far"
)

// syncs makes calls of Sync share checkpoints.
type syncs struct {
	heap *far.Heap     // nil if nothing outlives it
	turn chan struct{} // capacity 1: full while a checkpoint is taken

	mu   sync.Mutex
	next *round // the checkpoint that calls may still join, nil if there is none; guarded by mu
}

// round is a checkpoint for all callers that wait for it.
type round struct {
	done  chan struct{} // closed when the rest is set
	err   error
	again bool // the caller that was to take it gave up for a reason of its own: another one must take it
}

// end makes r a round that no other caller can join.
func (s *syncs) end(r *round) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == r {
		s.next = nil
	}
}

// Kept reports whether the volumes outlive their process.
func (vs *Volumes) Kept() bool { return vs.syncs.heap != nil }

// Kept reports whether the volume outlives its process, so that Sync has something to do.
func (v *Volume) Kept() bool { return v.of.Kept() }

// Sync takes a checkpoint of the heap, and returns when what was written before the call will be there when the heap
// is opened again. Calls that come while a checkpoint is taken share the next one. If the heap is not kept, Sync does
// nothing.
func (v *Volume) Sync(ctx context.Context) error { return v.of.Sync(ctx) }

// Sync is Volume.Sync, for all volumes.
func (vs *Volumes) Sync(ctx context.Context) error {
	s := &vs.syncs
	if s.heap == nil {
		return nil
	}
	for {
		s.mu.Lock()
		r, first := s.next, s.next == nil
		if first {
			r = &round{done: make(chan struct{})}
			s.next = r
		}
		s.mu.Unlock()
		if first {
			return s.take(ctx, r)
		}
		select {
		case <-r.done:
			if !r.again {
				return r.err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// take takes the checkpoint r.
func (s *syncs) take(ctx context.Context, r *round) (err error) {
	defer close(r.done)
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		s.end(r)
		r.again = true
		return context.Cause(ctx)
	}
	s.end(r) // later callers may have written what this checkpoint does not have
	if err := s.heap.Checkpoint(ctx); err != nil {
		r.err = fmt.Errorf("cannot keep what was written: %w", err)
		r.again = ctx.Err() != nil
	}
	return r.err
}
