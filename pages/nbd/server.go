package nbd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"polder/internal/accept"
	"polder/internal/brief"
	"polder/internal/ratelog"
	"polder/pages"
	"polder/pages/internal/ahead"
)

const (
	handshakeTime = 10 * time.Second
	// closeTime is how long Close lets requests finish.
	closeTime = 3 * time.Second

	preferred  = pages.Size // best alignment of offsets and lengths
	maxRequest = 32 << 20   // bytes
	piece      = 128 << 10  // largest buffer of a request, in bytes
	atATime    = 16         // requests of a connection that are under way
	atOnce     = 1 << 20    // most bytes that are discarded while the next request waits
	readers    = 4          // windows that are read ahead at a time
	mostAhead  = 128        // most pages of a window
)

// Config says what is served. Volume is required.
type Config struct {
	Volume   *pages.Volume
	Name     string // of the export, at most 255 bytes
	ReadOnly bool
	TLS      *tls.Config   // what every client must use; nil for plain connections
	MaxConns int           // 16 if it is 0
	Timeout  time.Duration // how long a piece of a request may wait for far memory; 10 s if it is 0
	Stall    time.Duration // how long a client may take to send or to receive a piece of 128 KiB; 30 s if it is 0
	Ahead    bool          // a connection gets its buffers when it starts, not when requests need them
	Logger   *slog.Logger  // slog.Default if it is nil
}

// Server serves a volume.
type Server struct {
	cfg  Config
	gate *accept.Gate
	ctx  context.Context // parent of the contexts of requests
	end  context.CancelCauseFunc
	done sync.WaitGroup // connections, and goroutines that read ahead

	aheadMu sync.Mutex
	streams ahead.Streams // of all connections, since a client may use several for one stream; guarded by aheadMu
	reading chan struct{} // capacity: how many may read ahead at a time

	mu     sync.Mutex
	closed bool                      // guarded by mu
	lis    map[net.Listener]struct{} // guarded by mu
	conns  map[*conn]struct{}        // guarded by mu

	stats counters
}

// ErrClosed is why requests end when the server is closed.
var ErrClosed = errors.New("the server is closed")

// New makes a server, which serves nobody yet.
func New(cfg Config) (*Server, error) {
	if cfg.Volume == nil {
		return nil, errors.New("cannot serve a block device: no volume is given")
	}
	if len(cfg.Name) > 255 {
		return nil, fmt.Errorf("cannot serve a block device: its name has %d bytes, want at most 255", len(cfg.Name))
	}
	if cfg.MaxConns == 0 {
		cfg.MaxConns = 16
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	if cfg.Stall == 0 {
		cfg.Stall = 30 * time.Second
	}
	if cfg.MaxConns < 0 || cfg.Timeout < 0 || cfg.Stall < 0 {
		return nil, errors.New("cannot serve a block device: a limit is negative")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	cfg.Logger = ratelog.Bound(cfg.Logger)
	s := &Server{
		cfg: cfg, gate: accept.NewGate(cfg.Logger, handshakeTime),
		lis: make(map[net.Listener]struct{}), conns: make(map[*conn]struct{}), reading: make(chan struct{}, readers),
	}
	s.streams.Most = mostAhead
	s.ctx, s.end = context.WithCancelCause(context.Background())
	return s, nil
}

// flags are those of the export.
func (s *Server) flags() uint16 {
	f := hasFlags | sendFlush | sendFUA | sendDF | canMultiConn | sendCache
	if s.cfg.ReadOnly {
		return uint16(f | readOnly)
	}
	return uint16(f | sendTrim | sendWriteZeroes | sendFastZero)
}

// Serve serves lis, of plain connections, and closes it. It returns nil after Close, which
// may come first.
func (s *Server) Serve(lis net.Listener) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return lis.Close()
	}
	s.lis[lis] = struct{}{}
	s.mu.Unlock()
	err := accept.Each(s.cfg.Logger, s.gate.Accept(lis.Accept), func(nc net.Conn) {
		s.gate.Go(brief.Of(nc), s.enter)
	})
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return errors.Join(fmt.Errorf("cannot accept: %w", err), lis.Close())
}

// enter lets a client choose, and starts a goroutine that serves it.
func (s *Server) enter(v *accept.Visitor) error {
	nc, chosen, err := s.negotiate(v)
	if err == errAbort {
		return v.Close()
	}
	if err != nil {
		return err
	}
	c := newConn(s, nc, chosen)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrClosed
	case len(s.conns) >= s.cfg.MaxConns:
		return fmt.Errorf("there are %d connections: it is one too many", len(s.conns))
	}
	if err := v.Enter(); err != nil {
		return err
	}
	s.conns[c] = struct{}{}
	s.stats.accepted.Add(1)
	s.done.Go(func() {
		if err := c.serve(); err != nil {
			s.cfg.Logger.Warn("a client of the block device was disconnected", "client", v.RemoteAddr().String(), "why", err)
		}
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	})
	return nil
}

// Close stops listening, gives requests that have come a while to finish, and ends all connections. Closing twice is
// a no-op.
func (s *Server) Close() (err error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	for lis := range s.lis {
		if e := lis.Close(); !errors.Is(e, net.ErrClosed) {
			err = errors.Join(err, e)
		}
	}
	for c := range s.conns {
		c.stop()
	}
	s.mu.Unlock()
	s.gate.Close()
	late := time.AfterFunc(closeTime, func() {
		s.end(ErrClosed)
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.conns {
			c.hangUp()
		}
	})
	s.done.Wait()
	late.Stop()
	s.end(ErrClosed)
	return err
}

// counters count since the server was made.
type counters struct {
	accepted          atomic.Int64
	requests          [cmdBlockStatus + 1]atomic.Int64 // by command
	failed, ahead     atomic.Int64
	bytesIn, bytesOut atomic.Int64
}
