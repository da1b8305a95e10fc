package resp

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"polder/far"
	"polder/internal/accept"
)

// Server serves Redis clients. Make one with NewServer.
type Server struct {
	cfg    Config
	secret atomic.Pointer[string] // the password; cfg has the first one
	table  *table
	keys   store  // by key
	cache  *cache // keys, in a cache; nil over far memory

	// loading is set until there is memory to keep data in: keys, and the
	// three below, are nil till then, and set before it is cleared.
	loading atomic.Bool

	front *Server                  // whose clients it serves: itself, or the server of which it is a partition
	parts []atomic.Pointer[Server] // by number, those partitions of a heap that are served here; see partitions.go
	part  part                     // what a partition is beside
	news  bulletin                 // of partitions that have come, and maps

	master atomic.Pointer[Master] // that has the heap Config.Heap; nil if it was not said yet

	// These are nil in a cache.
	journal *journal // of a heap that is kept, if its clients are promised more than its checkpoints
	heap    *far.Heap
	entries *far.ByteMap // keys
	blocks  *far.ByteMap // of large hashes, by id and bucket

	seed maphash.Seed

	fieldSeed   uint64 // of the hash of fields, which is kept with the heap, as are the next two
	keptJournal uint64 // name of the journal that its last checkpoint has known; 0 if there was none
	keptBatch   uint64 // number of the last batch that it has
	since       time.Time
	runID       string

	stripes     [numStripes]stripe
	watches     watchTable
	pubsub      pubsub
	herald      herald
	sweeper     sweeper
	monitors    atomic.Pointer[[]*feed] // changed under mu; nil if nobody monitors
	slow        slowLog
	latency     latency
	pause       pause
	fetches     fetcher
	loops       []*loop
	nextLoop    atomic.Uint32
	nextID      atomic.Int64
	nextHash    atomic.Uint64
	largeHashes atomic.Int64
	saving      atomic.Bool  // a checkpoint is taken that a client has asked for
	snapshots   atomic.Int32 // that clients are reading, of all partitions
	unsettled   atomic.Int64 // about how many fields are struck out and left to the sweeper
	clients     atomic.Int64
	maxClients  atomic.Int64 // CONFIG SET changes it, and the next
	timeout     atomic.Int64 // a time.Duration
	resizing    sync.Mutex   // held while a client changes the budget
	port        atomic.Int32
	stats       *counters

	door   *accept.Gate    // connections that are no clients yet, or are not to be
	ctx    context.Context // ends when commands may wait no longer
	cancel context.CancelFunc
	wg     sync.WaitGroup // every goroutine of the server
	live   sync.WaitGroup // connections

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

// NewLoading makes a server without a heap, which has yet to be opened. Until
// then it serves clients, but answers commands that concern data with LOADING,
// as Redis does while it reads its files. It fails as NewServer does.
func NewLoading(cfg Config) (*Server, error) {
	srv := new(Server)
	srv.loading.Store(true)
	return newServer(srv, cfg)
}

// Open gives a server that NewLoading made its heap, once. It keeps its data in
// maps of its own there, which are those of the server that had the heap before, if it was kept; then it replays
// the journal, if there is one. The caller closes the heap, after the server. Ctx is for Open itself.
func (srv *Server) Open(ctx context.Context, heap *far.Heap) error {
	if srv.cfg.Journal.Durable && !heap.Kept() {
		return errors.New("cannot journal what happens to a heap that is not kept: see far.Open")
	}
	if err := srv.loadState(heap.State()); err != nil {
		return err
	}
	srv.heap, srv.entries, srv.blocks = heap, heap.NewByteMap("keys"), heap.NewByteMap("hash blocks")
	srv.keys = srv.entries
	if heap.Kept() {
		if err := srv.openJournal(ctx); err != nil {
			return err
		}
	}
	if srv.cfg.Ready != nil {
		if err := srv.cfg.Ready(ctx); err != nil {
			return err
		}
	}
	srv.loading.Store(false)
	return nil
}

// kept reports whether what the server stores outlives it.
func (srv *Server) kept() bool { return srv.heap != nil && srv.heap.Kept() }

// newServer makes a server of srv, which has its map if it is a cache.
func newServer(srv *Server, cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("cannot make a server: %w", err)
	}
	if srv.cache != nil {
		srv.keys = srv.cache
	}
	srv.cfg, srv.table = cfg, commandTable()
	if cfg.Cluster != nil {
		srv.parts = make([]atomic.Pointer[Server], cfg.Cluster.Map().Partitions)
	}
	if srv.front == nil {
		srv.front, srv.stats = srv, newCounters()
	}
	srv.slow.init()
	srv.maxClients.Store(int64(cfg.MaxClients))
	srv.timeout.Store(int64(cfg.IdleTimeout))
	srv.latency.calls = make([]histogram, srv.table.n)
	srv.pause.srv = srv
	srv.seed, srv.since = maphash.MakeSeed(), time.Now()
	srv.fieldSeed = mathrand.Uint64()
	srv.listeners = make(map[net.Listener]bool)
	srv.streams = make(map[*stream]struct{})
	srv.sessions = make(map[*session]struct{})
	srv.stopped = make(chan struct{})
	srv.door = accept.NewGate(cfg.Logger, loginTimeout)
	srv.SetPassword(cfg.Password)
	id := make([]byte, 20)
	rand.Read(id)
	srv.runID = hex.EncodeToString(id)
	srv.ctx, srv.cancel = context.WithCancel(context.Background())
	srv.sweeper.srv, srv.sweeper.wake = srv, make(chan struct{}, 1)
	srv.fetches.init(srv)
	for range cfg.Loops {
		l, err := newLoop(srv)
		if err != nil {
			srv.cancel()
			for _, l := range srv.loops {
				l.free()
			}
			return nil, fmt.Errorf("cannot make an event loop: %w", err)
		}
		srv.loops = append(srv.loops, l)
	}
	srv.wg.Add(1)
	go srv.sweeper.run()
	srv.fetches.start()
	for _, l := range srv.loops {
		l.start(newWorkspace())
	}
	return srv, nil
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

// clear forgets every entry.
func (srv *Server) clear() {
	srv.keys.Clear()
	if srv.blocks != nil {
		srv.blocks.Clear()
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
			srv.cancel()
			srv.fetches.stop()
			srv.wg.Wait()
			if !srv.loading.Load() && !srv.kept() {
				srv.clear()
			}
			srv.closeJournal()
			for _, l := range srv.loops {
				l.free()
			}
			close(srv.stopped)
		}()
	}
	select {
	case <-srv.stopped:
		return nil
	case <-ctx.Done():
		srv.giveUp()
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
