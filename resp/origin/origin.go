package origin

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"polder/internal/accept"
	"polder/internal/ratelog"
	"polder/resp/clientmem"
	"polder/soft"
)

// refusalTimeout is how long it may take to tell a client that there are too many.
const refusalTimeout = time.Second

// Config says what to cache, and where. Heap and URL are required.
type Config struct {
	Heap *soft.Heap
	URL  URL

	// TLS, if URL asks for TLS, returns how to verify the origin. It is called for each connection, and the server's
	// name is added to what it returns. By default, the system's authorities are used.
	TLS func() (*tls.Config, error)

	// Lag bounds the age of what is answered from the cache: the origin is asked four times in each Lag whether it is
	// still there. Default 1 s.
	Lag time.Duration
	// Timeout is how long the origin may be silent on the cache's own
	// connection before everything is forgotten, and how long connecting may
	// take. Default 2 s.
	Timeout time.Duration
	// MaxValue is the length in bytes of the longest value that is cached, and of the longest argument that is passed
	// on. Longer replies are passed on and not cached. Default 1 MiB.
	MaxValue int

	// MaxClients bounds connections. Default 10000.
	MaxClients int
	// OutputLimit is how many bytes are kept that a client has not read yet. Beyond that, its commands wait. Default
	// 8 MiB.
	OutputLimit int
	// WriteTimeout is how long a client may read nothing of what it is sent, or the origin nothing of what is passed
	// on. Default 30 s.
	WriteTimeout time.Duration
	// IdleTimeout disconnects clients that have sent nothing for that long and wait for nothing. Zero means never.
	IdleTimeout time.Duration
	// ClientMemory bounds what all clients together make the server hold. Servers may share a budget. Default: 128
	// MiB, or four times MaxValue if that is more, for this server alone.
	ClientMemory *clientmem.Budget

	Logger *slog.Logger // default: slog.Default

	dial func(context.Context) (net.Conn, error) // for tests
}

// withDefaults fills in defaults for fields that are zero, and refuses fields that are wrong.
func (c Config) withDefaults() (Config, error) {
	if c.Heap == nil {
		return c, errors.New("no heap is given")
	}
	if c.URL.Address == "" && c.dial == nil {
		return c, errors.New("no origin is given")
	}
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&c.Lag, time.Second}, {&c.Timeout, 2 * time.Second}, {&c.WriteTimeout, 30 * time.Second}, {&c.IdleTimeout, 0}} {
		if *d.v == 0 {
			*d.v = d.def
		}
		if *d.v < 0 || d.def > 0 && *d.v < time.Millisecond {
			return c, fmt.Errorf("a time is %v, want at least 1ms", *d.v)
		}
	}
	for _, n := range []struct {
		v   *int
		def int
	}{{&c.MaxValue, 1 << 20}, {&c.MaxClients, 10000}, {&c.OutputLimit, 8 << 20}} {
		if *n.v == 0 {
			*n.v = n.def
		}
		if *n.v < 1 || *n.v > 1<<30 {
			return c, fmt.Errorf("a limit is %d, want 1 to %d", *n.v, 1<<30)
		}
	}
	if c.Timeout < c.Lag {
		return c, fmt.Errorf("the time-out is %v, want at least the lag of %v, in which the origin is asked four times", c.Timeout, c.Lag)
	}
	if c.ClientMemory == nil {
		c.ClientMemory = clientmem.New(max(128<<20, 4*int64(c.MaxValue)))
	}
	if most := c.ClientMemory.Max(); most < 2*int64(c.MaxValue) {
		return c, fmt.Errorf("clients may hold %d bytes, want at least %d, twice the longest value", most, 2*c.MaxValue)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = ratelog.Bound(c.Logger)
	return c, nil
}

// Server serves Redis clients from the cache and the origin. Make one with New.
type Server struct {
	cfg      Config
	tracker  *tracker
	items    *soft.ByteMap
	refusals *accept.Gate
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	done     sync.WaitGroup // the link and the clients

	mu      sync.Mutex
	closed  bool                  // guarded by mu
	lis     map[net.Listener]bool // guarded by mu
	clients map[*client]struct{}  // guarded by mu
}

// New makes a server and begins to connect to the origin. It does not fail if the origin does not answer. The caller
// closes the heap, after the server.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("cannot cache an origin: %w", err)
	}
	m, err := soft.NewByteMap(cfg.Heap, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot cache an origin: %w", err)
	}
	s := &Server{
		cfg: cfg, items: m, refusals: accept.NewGate(cfg.Logger, refusalTimeout),
		lis: map[net.Listener]bool{}, clients: map[*client]struct{}{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if s.cfg.dial == nil {
		s.cfg.dial = s.connect
	}
	s.tracker = newTracker(&s.cfg, m, s.cfg.dial)
	s.done.Go(func() { s.tracker.run(s.ctx) })
	return s, nil
}

// keepAlive makes a connection end within 30 s of the origin's machine having gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// connect makes a connection to the origin.
func (s *Server) connect(ctx context.Context) (net.Conn, error) {
	u := &s.cfg.URL
	conn, err := (&net.Dialer{KeepAliveConfig: keepAlive}).DialContext(ctx, u.Network, u.Address)
	if err != nil || !u.TLS {
		return conn, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.cfg.TLS != nil {
		if config, err = s.cfg.TLS(); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		config = config.Clone()
	}
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(u.Address)
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot shake hands: %w", err), conn.Close())
	}
	return secure, nil
}

// Serve accepts clients from lis until lis or the server is closed, and then returns nil. If lis gives TLS
// connections, only those whose handshake has succeeded become clients.
func (s *Server) Serve(lis net.Listener) error {
	lis = accept.Listen(lis, s.cfg.Logger)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return lis.Close()
	}
	s.lis[lis] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.lis, lis)
		s.mu.Unlock()
		_ = lis.Close() // mostly it is closed already
	}()
	for {
		conn, err := lis.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot accept: %w", err)
		}
		s.accept(conn)
	}
}

func (s *Server) accept(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		_ = conn.Close()
	case len(s.clients) >= s.cfg.MaxClients:
		s.refusals.Go(conn, func(*accept.Visitor) error {
			_, err := conn.Write([]byte("-ERR max number of clients reached\r\n"))
			return errors.Join(fmt.Errorf("there are %d clients, as many as may be", s.cfg.MaxClients), err)
		})
	default:
		c := newClient(s, conn)
		s.clients[c] = struct{}{}
		s.tracker.stats.connections.Add(1)
		s.done.Go(func() {
			if err := c.run(); err != nil {
				s.cfg.Logger.Debug("a client has gone", "remote", conn.RemoteAddr(), "error", err)
			}
			s.mu.Lock()
			delete(s.clients, c)
			s.mu.Unlock()
		})
	}
}

// SetPassword changes the password with which the cache's own connection authenticates at an origin whose URL has a
// password or a user. The change is for later connections; the present one stays as it is.
func (s *Server) SetPassword(password string) { s.tracker.password.Store(&password) }

// Health is nil while the origin is cached, and otherwise says why it is not.
func (s *Server) Health() error { return s.tracker.state() }

// Close ends all connections and forgets everything. It leaves the heap open. It is idempotent.
func (s *Server) Close() error {
	s.mu.Lock()
	var errs []error
	if !s.closed {
		s.closed = true
		for l := range s.lis {
			errs = append(errs, l.Close())
		}
		for c := range s.clients {
			c.hangUp()
		}
	}
	s.mu.Unlock()
	s.cancel()
	s.refusals.Close()
	s.done.Wait()
	s.items.Close()
	return errors.Join(errs...)
}
