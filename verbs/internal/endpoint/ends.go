package endpoint

import (
	"fmt"
	"io"
	"sync"

	"polder/verbs"
)

// Ends are a device's listeners and connections. The zero value is ready.
type Ends struct {
	mu      sync.Mutex
	closed  bool                   // guarded by mu
	open    map[io.Closer]struct{} // guarded by mu
	running sync.WaitGroup         // their goroutines; Add under mu, while not closed
}

// Add registers e, so that Close closes it. Call the returned function when the goroutines of e have ended.
func (s *Ends) Add(e io.Closer) (remove func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("the device is closed: %w", verbs.ErrClosed)
	}
	if s.open == nil {
		s.open = make(map[io.Closer]struct{})
	}
	s.open[e] = struct{}{}
	s.running.Add(1)
	return func() {
		s.mu.Lock()
		delete(s.open, e)
		s.mu.Unlock()
		s.running.Done()
	}, nil
}

// Close closes all and waits until their goroutines have ended.
func (s *Ends) Close() {
	s.mu.Lock()
	s.closed = true
	open := make([]io.Closer, 0, len(s.open))
	for e := range s.open {
		open = append(open, e)
	}
	s.mu.Unlock()
	for _, e := range open {
		e.Close()
	}
	s.running.Wait()
}
