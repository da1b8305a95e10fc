package endpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"polder/verbs"
)

var (
	errBacklog = errors.New("too many connection requests wait to be accepted")
	errEnded   = errors.New("the listener is closed")
)

// A Request is a connection request that waits to be accepted.
type Request interface {
	verbs.ConnRequest
	// Void reports whether its connection has ended: nobody waits for the
	// answer.
	Void() bool
}

// Requests is a listener's queue of connection requests.
type Requests struct {
	queue chan Request
	done  chan struct{}

	mu     sync.Mutex
	closed bool // guarded by mu: nothing is offered any more
}

// NewRequests returns a queue for up to backlog requests.
func NewRequests(backlog int) *Requests {
	return &Requests{queue: make(chan Request, backlog), done: make(chan struct{})}
}

// Offer queues a request, or says why it is refused.
func (q *Requests) Offer(r Request) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return errEnded
	}
	select {
	case q.queue <- r:
		return nil
	default:
		return errBacklog
	}
}

// Accept implements verbs.Listener.
func (q *Requests) Accept(ctx context.Context) (verbs.ConnRequest, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("cannot accept: %w", err)
		}
		select {
		case <-q.done:
			return nil, fmt.Errorf("cannot accept: %w", verbs.ErrClosed)
		default:
		}
		select {
		case <-ctx.Done():
		case <-q.done:
		case r := <-q.queue:
			if !r.Void() {
				return r, nil
			}
		}
	}
}

// Close ends Accept and rejects what waits. It reports whether it was the
// first call.
func (q *Requests) Close() bool {
	q.mu.Lock()
	first := !q.closed
	q.closed = true
	q.mu.Unlock()
	if !first {
		return false
	}
	close(q.done)
	for {
		select {
		case r := <-q.queue:
			_ = r.Reject(errEnded.Error())
		default:
			return true
		}
	}
}
