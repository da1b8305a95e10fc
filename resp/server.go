package resp

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"polder/far"
	"polder/internal/accept"
	"polder/resp/feed"
	"polder/resp/forward"
	"polder/resp/keyspace"
	"polder/resp/latency"
	"polder/resp/topology"
	"polder/soft"
)

// ErrServerClosed is what Serve returns after Shutdown or Close.
var ErrServerClosed = errors.New("server is closed")

// Server serves Redis clients. Make one with NewServer.
type Server struct {
	cfg    Config
	secret atomic.Pointer[string] // the password; cfg has the first one
	table  *commandSet

	data  *part                  // the data of a server without partitions; never opened otherwise
	parts []atomic.Pointer[part] // by number, the partitions of a heap; nil if not served here: see partitions.go
	news  bulletin               // tells of partitions that have been added, and of new maps

	master atomic.Pointer[topology.Master] // the server that has the heap Config.Heap; nil before SetMaster

	since time.Time
	runID string

	channels   feed.Channels
	herald     *forward.Herald              // tells other servers what is published here; nil without a Cluster
	monitors   atomic.Pointer[[]*feed.Feed] // changed under mu; nil if nobody monitors
	slow       *latency.SlowLog
	latency    *latency.Monitor
	pause      pause
	loops      []*loop
	nextLoop   atomic.Uint32
	nextID     atomic.Int64
	snapshots  atomic.Int32 // snapshots that clients are reading, of all partitions
	clients    atomic.Int64
	maxClients atomic.Int64 // CONFIG SET changes it, and timeout
	timeout    atomic.Int64 // a time.Duration
	port       atomic.Int32
	stats      *counters

	door *accept.Gate   // connections of peers that have yet to give the password, or are turned away
	wg   sync.WaitGroup // every goroutine of the server, but for those of its parts
	live sync.WaitGroup // connections

	mu        sync.Mutex
	stopping  bool                  // guarded by mu
	listeners map[net.Listener]bool // guarded by mu
	streams   map[*stream]struct{}  // guarded by mu
	sessions  map[*session]struct{} // guarded by mu
	stopped   chan struct{}         // closed when Shutdown is done
}

// NewServer makes a server that keeps its data in maps of its own on heap. The
// caller closes the heap, after the server. It fails if the configuration is
// wrong or the system refuses an event loop.
func NewServer(heap *far.Heap, cfg Config) (*Server, error) {
	srv, err := NewLoading(cfg)
	if err != nil {
		return nil, err
	}
	if err := srv.Open(context.Background(), heap); err != nil {
		srv.Close()
		return nil, err
	}
	return srv, nil
}

// NewLoading makes a server that has no heap until Open is called. Until then it serves clients, but answers commands
// that concern data with LOADING, as Redis does while it reads its files. It fails as NewServer does.
func NewLoading(cfg Config) (*Server, error) {
	return newServer(cfg, func(c keyspace.Config) (*keyspace.Space, error) { return keyspace.New(c), nil })
}

// NewCache makes a server that is a cache: it keeps its data in a map of its own on heap. When memory is taken from
// the heap, keys go with it. The caller closes the heap, after the server. It fails as NewServer does.
func NewCache(heap *soft.Heap, cfg Config) (*Server, error) {
	return newServer(cfg, func(c keyspace.Config) (*keyspace.Space, error) { return keyspace.NewCache(heap, c) })
}

// Open gives a server that NewLoading made its heap. It is called once. The server keeps its data in maps of its own
// on the heap; if the heap was kept, these are the maps of the server that had the heap before. Then Open replays the
// journal, if there is one. The caller closes the heap, after the server. Ctx is for Open itself.
func (srv *Server) Open(ctx context.Context, heap *far.Heap) error { return srv.data.Open(ctx, heap) }

// newServer makes a server whose data is in the space that makeSpace makes.
func newServer(cfg Config, makeSpace func(keyspace.Config) (*keyspace.Space, error)) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("cannot make a server: %w", err)
	}
	srv := &Server{cfg: cfg, table: commandTable(), stats: newCounters()}
	if cfg.Cluster != nil {
		srv.parts = make([]atomic.Pointer[part], cfg.Cluster.Map().Partitions)
		srv.herald = cfg.Cluster.Links.NewHerald(cfg.OpTimeout, func(n int) { srv.stats.untold.Add(int64(n)) })
	}
	srv.slow, srv.latency = latency.NewSlowLog(), latency.New(srv.table.Len())
	srv.maxClients.Store(int64(cfg.MaxClients))
	srv.timeout.Store(int64(cfg.IdleTimeout))
	srv.pause.srv = srv
	srv.since = time.Now()
	srv.listeners = make(map[net.Listener]bool)
	srv.streams = make(map[*stream]struct{})
	srv.sessions = make(map[*session]struct{})
	srv.stopped = make(chan struct{})
	srv.door = accept.NewGate(cfg.Logger, loginTimeout)
	srv.SetPassword(cfg.Password)
	id := make([]byte, 20)
	rand.Read(id)
	srv.runID = hex.EncodeToString(id)
	for range cfg.Loops {
		l, err := newLoop(srv)
		if err != nil {
			srv.freeLoops()
			return nil, fmt.Errorf("cannot make an event loop: %w", err)
		}
		srv.loops = append(srv.loops, l)
	}
	sp, err := makeSpace(keyspace.Config{OpTimeout: cfg.OpTimeout, Journal: cfg.Journal, Evidence: cfg.Evidence, Ready: cfg.Ready, Logger: cfg.Logger})
	if err != nil {
		srv.freeLoops()
		return nil, fmt.Errorf("cannot make a server: %w", err)
	}
	srv.data = newPart(srv, 0, sp)
	for _, l := range srv.loops {
		l.start(newWorkspace())
	}
	return srv, nil
}

func (srv *Server) freeLoops() {
	for _, l := range srv.loops {
		l.free()
	}
}

// Serve accepts clients from ln until the server is closed, and then returns
// ErrServerClosed. It closes ln. Several listeners may be served at a time. If ln
// gives TLS connections, only those whose handshake has succeeded are clients.
func (srv *Server) Serve(ln net.Listener) error {
	ln = accept.Listen(ln, srv.cfg.Logger)
	srv.mu.Lock()
	if srv.stopping {
		srv.mu.Unlock()
		ln.Close()
		return ErrServerClosed
	}
	srv.listeners[ln] = true
	srv.wg.Add(1)
	srv.mu.Unlock()
	defer srv.wg.Done()
	defer func() {
		ln.Close()
		srv.mu.Lock()
		delete(srv.listeners, ln)
		srv.mu.Unlock()
	}()
	if a, ok := ln.Addr().(*net.TCPAddr); ok {
		srv.port.CompareAndSwap(0, int32(a.Port))
	}
	for {
		nc, err := ln.Accept()
		switch {
		case err == nil:
			srv.accept(nc)
		case srv.isStopping():
			return ErrServerClosed
		default:
			return fmt.Errorf("cannot accept clients: %w", err)
		}
	}
}

func (srv *Server) isStopping() bool {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	return srv.stopping
}

// forget ends a session. Its driver has closed the connection.
func (srv *Server) forget(s *session) {
	s.close()
	srv.mu.Lock()
	delete(srv.sessions, s)
	srv.mu.Unlock()
	srv.clients.Add(-1)
	srv.live.Done()
}

// sessionList returns the sessions, oldest first.
func (srv *Server) sessionList() []*session {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	list := make([]*session, 0, len(srv.sessions))
	for s := range srv.sessions {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *session) int { return int(a.info.id - b.info.id) })
	return list
}

// Shutdown stops accepting clients, lets commands that run come to their end,
// disconnects the clients, and returns when nothing of the server runs any
// more. When ctx ends first, commands that wait for far memory fail at once,
// and Shutdown returns the context's error once all has ended.
func (srv *Server) Shutdown(ctx context.Context) error {
	srv.mu.Lock()
	first := !srv.stopping
	srv.stopping = true
	for ln := range srv.listeners {
		ln.Close()
	}
	for st := range srv.streams {
		st.stop()
	}
	srv.mu.Unlock()
	if first {
		srv.pause.close()
		for _, l := range srv.loops {
			l.stop()
		}
		go func() {
			srv.door.Close()
			srv.live.Wait()
			srv.data.close()
			if srv.herald != nil {
				srv.herald.Close()
			}
			srv.wg.Wait()
			srv.freeLoops()
			close(srv.stopped)
		}()
	}
	select {
	case <-srv.stopped:
		return nil
	case <-ctx.Done():
		srv.data.GiveUp()
		<-srv.stopped
		return ctx.Err()
	}
}

// Close is Shutdown without patience. It is idempotent.
func (srv *Server) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	srv.Shutdown(ctx)
	return nil
}
