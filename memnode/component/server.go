package component

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"polder/internal/arena"
	"polder/verbs"
)

// A Server runs the components of a memory node. All of its methods may be
// called by any number of goroutines.
type Server struct {
	cfg     Config
	dev     verbs.Device
	pd      verbs.PD
	onEvent func(verbs.AsyncEvent)
	log     warning
	counts  counts
	number  atomic.Uint32 // of the worker started last
	wg      sync.WaitGroup

	mu       sync.Mutex
	reserved int64 // bytes that clients' objects may use
	closed   bool
	tenants  map[*Tenant]struct{}
}

type counts struct {
	workers, objects, requests, refused, panics, deaths, killed atomic.Int64
}

// NewServer returns a server of clients that connect to dev. Their queue pairs
// are made in pd, which stays the caller's, and their events go to onEvent.
//
// Preconditions: cfg is what WithDefaults returned, with Memory.
func NewServer(dev verbs.Device, pd verbs.PD, cfg Config, onEvent func(verbs.AsyncEvent), log *slog.Logger) *Server {
	return &Server{
		cfg: cfg, dev: dev, pd: pd, onEvent: onEvent, log: warnings(log), tenants: make(map[*Tenant]struct{}),
	}
}

// Tenant returns the place for the objects of one client, who has been lent chunks, which may
// be nil.
func (s *Server) Tenant(chunks Chunks) *Tenant {
	t := &Tenant{server: s, chunks: chunks}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tenants[t] = struct{}{}
	return t
}

// Stats returns the server's counters. They are not read at one instant.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	reserved := s.reserved
	s.mu.Unlock()
	return Stats{
		Workers: s.counts.workers.Load(), Objects: s.counts.objects.Load(), Reserved: reserved,
		Requests: s.counts.requests.Load(), Refused: s.counts.refused.Load(), Panics: s.counts.panics.Load(),
		Deaths: s.counts.deaths.Load(), Killed: s.counts.killed.Load(),
	}
}

var (
	errClosed      = errors.New("the node is closing")
	errAllReserved = errors.New("all of the node's memory for components is reserved for other clients")
)

// reserve reserves ClientMemory for a client that gets its first place for objects.
func (s *Server) reserve() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return errClosed
	case s.reserved+s.cfg.ClientMemory > s.cfg.Memory:
		return errAllReserved
	}
	s.reserved += s.cfg.ClientMemory
	return nil
}

// workerConfig returns the configuration of a new worker.
func (s *Server) workerConfig() workerConfig {
	return workerConfig{Number: s.number.Add(1), Memory: s.memory(), Objects: s.cfg.Objects}
}

// memory is how much of a client's memory its objects may use.
func (s *Server) memory() int64 {
	return (s.cfg.ClientMemory - laneSize) / int64(arena.PageSize) * int64(arena.PageSize)
}

func (s *Server) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserved -= s.cfg.ClientMemory
}

// Close ends every worker. It returns when everything that the server started has ended and no object in this process
// is called any more, since objects look at the lent memory. The tenants must have been disconnected.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	tenants := make([]*Tenant, 0, len(s.tenants))
	for t := range s.tenants {
		tenants = append(tenants, t)
	}
	s.mu.Unlock()
	for _, t := range tenants {
		t.Close()
	}
	s.wg.Wait()
}

// program is this program's file, even if it has been replaced.
const program = "/proc/self/exe"
