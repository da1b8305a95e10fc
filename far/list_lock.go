package far

import (
	"context"
	"errors"
	"sync"

	"polder/far/heap"
)

// locked calls fn with mu held, in a scope of the pool. What fn needs is got
// with mu let go: fn is called again when its scope is full and there is room,
// and when the object of the word that it returns was far and has been fetched.
// So nobody waits for mu while its holder waits for the store, unless an object
// goes far again as soon as it is here.
func (h *Heap) locked(ctx context.Context, mu *sync.Mutex, fn func(s *heap.Scope) *uint64) error {
	s := h.core.Acquire(ctx)
	defer h.core.Release(s)
	h.core.HeldIn(s).Last = true
	for try := 0; ; try++ {
		if s.SetContext(NoWait); try >= lockedTries {
			s.SetContext(ctx)
		}
		p, err := h.hold(s, mu, fn)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, heap.ErrScopeFull):
			if err := h.core.AwaitRoomIn(ctx, s, try); err != nil {
				return err
			}
		case p != nil && try < lockedTries && errors.Is(err, ErrWouldBlock):
			if err := h.Prefetch(ctx, AnyRef{h.words.number(p)}); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

const lockedTries = 3

// hold calls fn with mu held and s open, and returns the word that fn returns,
// and the scope's error.
func (h *Heap) hold(s *heap.Scope, mu *sync.Mutex, fn func(s *heap.Scope) *uint64) (*uint64, error) {
	mu.Lock()
	defer mu.Unlock()
	h.core.EnterAtOnce(s)
	defer s.Leave()
	p := fn(s)
	return p, s.Err()
}

// in calls fn with mu held, in s, which is open.
func in(s *heap.Scope, mu *sync.Mutex, fn func(s *heap.Scope) *uint64) error {
	mu.Lock()
	defer mu.Unlock()
	fn(s)
	return s.Err()
}
