package pages

import (
	"context"
	"fmt"
	"sync"

	"polder/far"
)

// syncs lets concurrent calls of Sync share checkpoints.
type syncs struct {
	heap *far.Heap     // nil if nothing outlives it
	turn chan struct{} // capacity 1: full while a checkpoint is taken

	mu   sync.Mutex
	next *round // the next checkpoint, which has not begun, or nil; guarded by mu
}

// round is a checkpoint that several calls of Sync wait for.
type round struct {
	done  chan struct{} // closed when the rest is set
	err   error
	again bool // the caller that was to take it gave up because its own ctx ended: another waiting caller takes one
}

// end lets no further call of Sync join r.
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

// Sync returns when everything that was written before it was called will be there when the heap is opened again. For
// this it takes a checkpoint of the heap; calls that come while one is taken share the next one. If the heap is not
// kept there is nothing to do.
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
	s.end(r) // a caller that comes later may have written what this checkpoint does not have
	if err := s.heap.Checkpoint(ctx); err != nil {
		r.err = fmt.Errorf("cannot keep what was written: %w", err)
		r.again = ctx.Err() != nil
	}
	return r.err
}
