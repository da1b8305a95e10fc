package far

import (
	"context"
	"errors"
	"sync"
)

// locked calls fn with mu held, in a scope of the pool. What fn needs is got
// with mu let go: fn is called again when its scope is full and there is room,
// and when the object of the word that it returns was far and has been fetched.
// So nobody waits for mu while its holder waits for the store, unless an object
// goes far again as soon as it is here.
func (h *Heap) locked(ctx context.Context, mu *sync.Mutex, fn func(s *Scope) *uint64) error {
	s := h.acquire(ctx)
	defer s.giveBack()
	s.last = true
	for try := 0; ; try++ {
		if s.ctx = NoWait; try >= lockedTries {
			s.ctx = ctx
		}
		p, err := s.hold(mu, fn)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrScopeFull):
			if err := s.awaitRoom(ctx, try); err != nil {
				return err
			}
		case p != nil && try < lockedTries && errors.Is(err, ErrWouldBlock):
			if err := h.Prefetch(ctx, []AnyRef{{h.words.number(p)}}, false); err != nil {
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
func (s *Scope) hold(mu *sync.Mutex, fn func(s *Scope) *uint64) (*uint64, error) {
	mu.Lock()
	defer mu.Unlock()
	s.enterAtOnce()
	defer s.Leave()
	p := fn(s)
	return p, s.Err()
}

// in calls fn with mu held, in s, which is open.
func (s *Scope) in(mu *sync.Mutex, fn func(s *Scope) *uint64) error {
	mu.Lock()
	defer mu.Unlock()
	fn(s)
	return s.Err()
}
