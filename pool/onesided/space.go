package onesided

import (
	"context"

	"polder/memnode/wire"
)

// Leaving implements manager.Session.
func (s *session) Leaving() bool { return s.ch.Leaving() }

// Space implements manager.Session.
func (s *session) Space() wire.Space {
	s.mu.Lock()
	defer s.mu.Unlock()
	space := wire.Space{Free: s.free}
	for _, p := range s.pairs {
		space.Budget += p.budget
	}
	return space
}

// setSpace notes how many chunks the node has.
func (s *session) setSpace(v wire.Space) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = v.Free
}

// Returned implements manager.Waiter.
func (s *session) Returned() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.returned
}

// ask asks the node whether it has memory. A notice that comes meanwhile may be younger than the answer. Then ask
// does not note an answer that there is none: otherwise callers that wait for memory could miss that there is some
// again.
func (s *session) ask(ctx context.Context) (wire.Status, error) {
	s.mu.Lock()
	notices := s.notices
	s.mu.Unlock()
	var r wire.Reply
	release, err := s.ch.Exchange(ctx, &r, func(b []byte, id uint32) []byte {
		return wire.AppendRequest(b, wire.OpSpace, id, 1, 0)
	})
	if err != nil {
		return 0, err
	}
	defer release()
	s.mu.Lock()
	defer s.mu.Unlock()
	if dry := r.Status == wire.StatusNoMemory; !dry || s.notices == notices {
		s.setDry(dry)
	}
	return r.Status, nil
}

// setDry notes whether the node has memory.
//
// Preconditions: s.mu is held.
func (s *session) setDry(dry bool) {
	switch {
	case dry && !s.dry:
		select {
		case <-s.returned:
			s.returned = make(chan struct{})
		default:
		}
	case !dry:
		select {
		case <-s.returned:
		default:
			close(s.returned)
		}
	}
	s.dry = dry
}

// noticed handles a notice of the node.
func (s *session) noticed(r *wire.Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notices++
	s.setDry(r.Status == wire.StatusNoMemory)
	for i, p := range s.pairs {
		if i >= wire.MaxPairs {
			break // a pair of the verb, which reports failures itself
		}
		if failures := uint8(r.ID >> (8 * i)); failures != p.failures {
			p.failures = failures
			p.finish(&p.allocs, false)
		}
	}
}
