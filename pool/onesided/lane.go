package onesided

import (
	"context"
	"fmt"

	"polder/pool/manager"
	"polder/verbs"
)

// A lane carries the requests of one kind of a pair, one batch after the other.
type lane struct {
	turn chan struct{} // capacity 1: full while the lane is free
	done chan bool     // capacity 1: gets true when the batch has been answered, false if it failed

	busy      bool
	abandoned bool
	n         int // requests in the batch
}

func (l *lane) init() {
	l.turn, l.done = make(chan struct{}, 1), make(chan bool, 1)
	l.turn <- struct{}{}
}

// finish ends the batch that is under way in one of p's lanes.
//
// Preconditions: s.mu is held.
func (p *pair) finish(l *lane, ok bool) {
	if !l.busy {
		return
	}
	s := p.s
	l.busy = false
	if l == &p.frees {
		p.budget += uint32(l.n)
		s.free += uint32(l.n)
	}
	if !l.abandoned {
		l.done <- ok
		return
	}
	for i := 0; l == &p.allocs && i < l.n; i++ {
		var g manager.Grant
		status, err := verbs.AllocEmpty, error(nil)
		if ok {
			g, status, err = p.answer(i)
		}
		if status != verbs.AllocOK || err != nil {
			p.budget++
			s.free++
			continue
		}
		s.owned[g.Chunk] = p
		s.orphans = append(s.orphans, g.Chunk)
	}
	l.turn <- struct{}{}
}

// run takes the lane's turn, calls post, which posts n requests, and waits for them. If run returns no error, the
// caller has the turn until it calls end. If ctx ends first, left is how many requests are still under way: what they
// are about stays reserved until finish is called for them.
func (s *session) run(ctx context.Context, l *lane, n int, post func() error) (ok bool, left int, err error) {
	select {
	case <-l.turn:
	case <-s.ch.Broken():
		return false, 0, s.ch.Err()
	case <-s.link.Conn.Done():
		return false, 0, s.link.Conn.Err()
	case <-ctx.Done():
		return false, 0, context.Cause(ctx)
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return false, 0, manager.ErrClosed
	}
	s.users.Add(1)
	l.busy, l.abandoned, l.n = true, false, n
	s.mu.Unlock()
	err = post()
	s.users.Done()
	if err != nil {
		s.ch.Fail(fmt.Errorf("cannot send a request: %w", err))
		return false, 0, s.ch.Err()
	}
	select {
	case ok = <-l.done:
		return ok, 0, nil
	case <-s.ch.Broken():
		return false, 0, s.ch.Err()
	case <-s.link.Conn.Done():
		return false, 0, s.link.Conn.Err()
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.busy {
		l.abandoned = true
		return false, n, context.Cause(ctx)
	}
	return <-l.done, 0, nil
}

func (l *lane) end() { l.turn <- struct{}{} }

// complete is the completion handler.
func (s *session) complete(cq verbs.CQ) {
	s.pollMu.Lock()
	defer s.pollMu.Unlock()
	for {
		n := cq.Poll(s.wcs[:])
		if n == 0 {
			return
		}
		for _, wc := range s.wcs[:n] {
			if err := wc.Err(); err != nil {
				s.ch.Fail(fmt.Errorf("a queue pair to manage memory with failed: %w", err))
				return
			}
			p := s.pairs[wc.ID/idKinds]
			s.mu.Lock()
			if wc.ID%idKinds == idAlloc {
				p.armed = false
				p.finish(&p.allocs, true)
			} else {
				p.finish(&p.frees, true)
			}
			s.mu.Unlock()
		}
	}
}
