package far

import (
	"context"
	"errors"
	"sync"

	"polder/far/heap"
)

// locked calls fn with mu held, in a scope of the pool. What fn lacks, locked waits for without mu, and then calls fn
// again: for room, if fn's scope was full; for a fetch, if fn returned the word of an object that is far. So nobody
// waits for mu while its holder waits for the store; unless objects go far again as soon as they have been fetched:
// after lockedTries, fn waits for the store with mu held.
func (tr *tracker) locked(ctx context.Context, mu *sync.Mutex, fn func(s *heap.Scope) *uint64) error {
	h := tr.h
	s := h.core.Acquire(ctx)
	defer h.core.Release(s)
	h.core.HeldIn(s).Last = true
	for try := 0; ; try++ {
		if s.SetContext(NoWait); try >= lockedTries {
			s.SetContext(ctx)
		}
		p, err := tr.hold(s, mu, fn)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, heap.ErrScopeFull):
			if err := h.core.AwaitRoomIn(ctx, s, try); err != nil {
				return err
			}
		case p != nil && try < lockedTries && errors.Is(err, ErrWouldBlock):
			if err := h.objects.Prefetch(ctx, []uint64{h.objects.Number(p)}); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

const lockedTries = 3

// hold calls fn with mu held and s open, and returns the word that fn returned and the scope's error. If the
// structure was freed, it returns ErrFreed instead.
func (tr *tracker) hold(s *heap.Scope, mu *sync.Mutex, fn func(s *heap.Scope) *uint64) (*uint64, error) {
	mu.Lock()
	defer mu.Unlock()
	if tr.freed() {
		return nil, ErrFreed
	}
	tr.h.core.EnterAtOnce(s)
	defer s.Leave()
	p := fn(s)
	return p, s.Err()
}

// in calls fn with mu held, in s, which must be open. If fn returns a word, in returns the scope's error.
func (tr *tracker) in(s *heap.Scope, mu *sync.Mutex, fn func(s *heap.Scope) *uint64) error {
	mu.Lock()
	defer mu.Unlock()
	if tr.freed() {
		return ErrFreed
	}
	if fn(s) != nil {
		return s.Err()
	}
	return nil
}

// freed reports whether the structure was freed. A caller that holds the structure's lock knows that it stays as it
// is meanwhile.
func (tr *tracker) freed() bool { return tr.Class.Ended() }
