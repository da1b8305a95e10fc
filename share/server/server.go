package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"polder/internal/accept"
	"polder/internal/dirlock"
	"polder/internal/fdpass"
	"polder/internal/ratelog"
	"polder/internal/systemd"
	"polder/internal/wal"
	"polder/share/internal/wire"
	"polder/share/meta"
	"polder/share/resource"
)

// Options tune a Server. Zero values stand for the defaults.
type Options struct {
	// Dir holds the log, the checkpoints and the secret. It is required.
	Dir string
	// Socket is where local clients connect. It is required.
	Socket string
	// SocketMode is the permission of the socket. The default is 0600.
	SocketMode os.FileMode
	// AllowUIDs are the users that may connect, beside root and the daemon's
	// own. SocketMode must admit them too.
	AllowUIDs []int
	// Pools are the memory, in the order in which they are used.
	Pools []resource.Spec
	// Store keeps memfd regions over a restart, if not nil.
	Store *systemd.Store
	// HandedOver, if not nil, is called when the process that kept the memory for Store had died, and all memory was
	// handed to a new process: the daemon is then to be closed, because the new process starts another daemon.
	HandedOver func()
	// Sysfs is where sysfs is mounted. The default is "/sys".
	Sysfs string
	// Quotas limit the bytes of a tenant's regions; "*" is for all others. The
	// tenant of a local client is "uid:N", that of a remote one "cn:NAME".
	Quotas map[string]int64
	// LRU evicts unpinned keys when the pool is full. It is off by default.
	LRU bool
	// Sync makes every record about keys be synced, whatever memory they lie in.
	Sync bool
	// CheckpointBytes is the least log that is worth a checkpoint; besides,
	// more of the log must be dead than alive, or the disk be full. The default
	// is 16 MiB.
	CheckpointBytes int64
	// SegmentSize is the size of a log segment. The default is 4 MiB.
	SegmentSize int64
	// MaxConns bounds the connections. The default is 16384.
	MaxConns int
	// MaxSessions bounds the clients. The default is 8192.
	MaxSessions int
	// Remote, if not nil, is where remote metadata clients connect.
	Remote net.Listener
	// TLS is required with Remote, unless Insecure.
	TLS *tls.Config
	// Insecure admits remote clients without TLS.
	Insecure bool
	// Grace is how long a remote session lives without a connection. The
	// default is 30 s.
	Grace time.Duration
	// MaruDir is the directory, on tmpfs, of the regions of memfd pools that
	// Maru's clients open by their names. If it is empty, there are none.
	MaruDir string
	// Late is how long a request of Maru's clients to register, pin or allocate
	// may have waited until it is refused, as its sender may have given up. It
	// must be less than the clients' own timeout. The default is 1 s.
	Late time.Duration
	// Settle is how long, after a restart, the daemon waits for clients from before the restart that are alive and do
	// not come back. No page is used again meanwhile. Then they are fenced. The default is 30 s.
	Settle time.Duration
	// Tick is how often the daemon looks after what no event tells of: keys that expire, and pages that wait for
	// their views to close. The default is 100 ms.
	Tick time.Duration
	// Poll is how long the daemon looks, in memory shared with it, for the next request of a client that is busy,
	// before it lets the client wake it. That makes a request several times faster, and costs up to as much of one
	// processor after each. The default is 300 µs, so that a client counts as busy that puts blobs of 1 MiB one after
	// the other: filling a blob takes some 50 µs. A negative value turns it off.
	Poll time.Duration
	// Now is the clock. The default is time.Now.
	Now func() time.Time
	// Log is where the daemon reports. The default is slog.Default().
	Log *slog.Logger
}

// Server is a running daemon.
type Server struct {
	opt     Options
	log     *wal.Log
	lock    *os.File // held on Dir
	secret  *resource.Secret
	watcher *fdpass.Watcher
	local   *net.UnixListener
	gate    *accept.Gate // connections that have not said who they are
	started time.Time
	stats   counters
	pending atomic.Bool // there is something for finish to do

	ctx    context.Context // ends when the server closes
	cancel context.CancelFunc
	wg     sync.WaitGroup
	kick   chan struct{} // asks for maintenance at once
	poller *poller

	saver saver

	orphan bool // the process that kept the memory is gone; maintain's

	mu        sync.Mutex // guards everything below, but for the keys of a listing, which stay as they are
	res       *resource.Manager
	idx       *meta.Index
	pages     *meta.Pages
	sessions  map[uint64]*session
	tokens    map[token]*session
	conns     map[closer]struct{}
	settling  map[uint64]*session // recovered and not yet back
	fenced    map[uint64]*session // ended although their processes may be alive
	lostSight bool                // a client was fenced whose death nothing will tell of
	first     uint64              // number of the first region that sessions in settling cannot know
	recalls   map[uint64]bool     // regions whose owners are asked to return them
	favored   uint64              // the session for which a region was recalled
	favor     time.Time           // until when favored comes before others
	removals  []removal           // freed regions whose memory waits for the log
	rec       wire.Writer         // scratch for records
	listings  []*listing          // at most maxListings, the one made last at the end
	bootID    string
	// pidNamespace is what the pids of sessions refer to.
	pidNamespace string
	replayed     int
	serving      bool // start has succeeded
	closed       bool
}

type closer interface{ Close() error }

// removal is a freed region whose memory is given back when the record lsn is
// committed.
type removal struct {
	lsn    uint64
	sync   bool
	region *resource.Region
}

type counters struct {
	puts, existed, lookups, hits, deletes, evictions, expired atomic.Uint64
	allocs, frees, reaped, denied, records, posted            atomic.Uint64
	checkpoints, failedCheckpoints                            atomic.Uint64
	late, overwritten                                         atomic.Uint64
	requests                                                  [wire.LastOp + 1]atomic.Uint64
}

func (o *Options) setDefaults() error {
	switch {
	case o.Dir == "":
		return errors.New("cannot start: no state directory is given")
	case o.Socket == "":
		return errors.New("cannot start: no socket is given")
	case len(o.Pools) == 0:
		return errors.New("cannot start: no pool is given")
	case o.Remote != nil && o.TLS == nil && !o.Insecure:
		return errors.New("cannot start: remote clients need TLS")
	}
	o.SocketMode = cmp.Or(o.SocketMode, 0o600)
	o.CheckpointBytes = cmp.Or(o.CheckpointBytes, 16<<20)
	o.MaxConns = cmp.Or(o.MaxConns, 16384)
	o.MaxSessions = cmp.Or(o.MaxSessions, 8192)
	o.Grace = cmp.Or(o.Grace, 30*time.Second)
	o.Late = cmp.Or(o.Late, time.Second)
	o.Settle = cmp.Or(o.Settle, 30*time.Second)
	o.Tick = cmp.Or(o.Tick, 100*time.Millisecond)
	o.Poll = cmp.Or(o.Poll, 300*time.Microsecond)
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Log = ratelog.Bound(o.Log)
	return nil
}

// Start recovers the state that the log holds and serves clients until Close.
func Start(opt Options) (*Server, error) {
	if err := opt.setDefaults(); err != nil {
		return nil, err
	}
	s := newServer(opt)
	if err := s.start(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func newServer(opt Options) *Server {
	s := &Server{
		opt:      opt,
		started:  time.Now(),
		kick:     make(chan struct{}, 1),
		idx:      meta.NewIndex(),
		sessions: map[uint64]*session{},
		tokens:   map[token]*session{},
		conns:    map[closer]struct{}{},
		settling: map[uint64]*session{},
		fenced:   map[uint64]*session{},
		recalls:  map[uint64]bool{},
		gate:     accept.NewGate(opt.Log, helloTimeout),
		saver:    saver{kick: make(chan struct{}, 1)},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.poller = newPoller(s, opt.Poll)
	return s
}

// CountKeys recovers the state that the log holds, without serving anybody, and
// returns the number of keys: it tells whether a daemon would start.
func CountKeys(opt Options) (int, error) {
	if err := opt.setDefaults(); err != nil {
		return 0, err
	}
	s := newServer(opt)
	err := s.open()
	n := s.idx.Len()
	return n, errors.Join(err, s.Close())
}

func (s *Server) start() error {
	if err := s.open(); err != nil {
		return err
	}
	var err error
	if s.local, err = fdpass.Listen(s.opt.Socket, s.opt.SocketMode); err != nil {
		return err
	}
	s.serving = true
	s.wg.Go(s.maintain)
	s.wg.Go(s.keepLogShort)
	s.wg.Go(s.poller.run)
	s.wg.Go(s.acceptLocal)
	if s.opt.Remote != nil {
		s.wg.Go(s.acceptRemote)
	}
	return nil
}

// open recovers the state.
func (s *Server) open() error {
	if err := os.MkdirAll(s.opt.Dir, 0o700); err != nil {
		return fmt.Errorf("cannot make the state directory: %w", err)
	}
	var err error
	if s.lock, err = dirlock.Lock(s.opt.Dir, s.opt.Log); err != nil {
		return err
	}
	if s.watcher, err = fdpass.NewWatcher(); err != nil {
		return err
	}
	if s.pages, err = meta.NewPages(); err != nil {
		return err
	}
	if s.res, err = resource.New(resource.Options{
		Specs: s.opt.Pools, Store: s.opt.Store, Sysfs: s.opt.Sysfs, Quotas: s.opt.Quotas, Named: s.opt.MaruDir,
	}); err != nil {
		return err
	}
	return s.recover()
}

// append logs a record before it is applied.
//
// Preconditions: s.mu is held.
func (s *Server) append(rec wire.Writer) (uint64, error) {
	s.rec = rec[:0]
	lsn, err := s.log.Append(rec)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errLog, err)
	}
	s.stats.records.Add(1)
	return lsn, nil
}

// commit waits until the record lsn is as durable as it must be.
func (s *Server) commit(lsn uint64, sync bool) error {
	if err := s.log.Commit(lsn, sync); err != nil {
		return fmt.Errorf("%w: %w", errLog, err)
	}
	return nil
}

// finish does what had to wait for the log: it frees the pages of keys that are gone, and then the regions that this
// has emptied, and gives their memory back. With all, it also tries the pages again that somebody was looking at the
// last time.
func (s *Server) finish(all bool) {
	if !all && !s.pending.Load() { // fast path
		return
	}
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return
		}
		s.pending.Store(false)
		if len(s.settling) == 0 {
			s.pages.Sweep(s.log.Committed(), s.log.Synced(), all, s.pageFreed)
		}
		var ready []*resource.Region
		var wait removal
		later := s.removals[:0]
		for _, r := range s.removals {
			if s.log.Committed() >= r.lsn && (!r.sync || s.log.Synced() >= r.lsn) {
				ready = append(ready, r.region)
			} else {
				later = append(later, r)
				wait = removal{lsn: r.lsn, sync: wait.sync || r.sync}
			}
		}
		s.removals = later
		s.mu.Unlock()
		for _, r := range ready {
			if err := s.res.Remove(r); err != nil {
				s.opt.Log.Error("cannot give memory back", "region", r.ID, "err", err)
			}
		}
		if wait.lsn == 0 {
			return
		}
		if err := s.commit(wait.lsn, wait.sync); err != nil {
			s.opt.Log.Error("cannot log that a region is freed", "err", err)
			return
		}
		all = false
	}
}

// pageFreed tells that a page of region is needed by nobody, and decides whether
// it may be used again.
//
// Preconditions: s.mu is held.
func (s *Server) pageFreed(region uint64) meta.Fate {
	r := s.res.Region(region)
	if r == nil || r.Refs == 0 {
		panic(fmt.Sprintf("BUG: a page of region %d is freed, which has no references", region))
	}
	if r.Retired && r.Shared() {
		return meta.Wait // others would be given the same memory
	}
	r.Refs--
	s.settle(r)
	if r.Retired {
		s.askBack(r)
		return meta.GiveUp
	}
	return meta.Reuse
}

// settle frees the region if its owner has left and nothing refers to it.
//
// Preconditions: s.mu is held.
func (s *Server) settle(r *resource.Region) {
	if r.State == resource.Released && r.Refs > 0 {
		s.must(r.Step(resource.ReferencesHold))
	}
	if (r.State != resource.Released && r.State != resource.Deferred) || r.Refs > 0 {
		return
	}
	lsn, err := s.append(s.rec[:0].U8(recFreed).U64(r.ID))
	if err != nil {
		// The disk is full. The region stays as it is; maintenance tries again.
		if r.State == resource.Released {
			r.State = resource.Deferred
		}
		return
	}
	s.must(r.Step(resource.ReferencesGone))
	s.free(r, lsn)
}

// free gives a freed region's extent back, and its memory when lsn is durable.
//
// Preconditions: s.mu is held.
func (s *Server) free(r *resource.Region, lsn uint64) {
	s.stats.frees.Add(1)
	for _, ss := range s.sessions {
		delete(ss.issued, r.ID)
		if ss.maps[r.ID] {
			s.notify(ss, r.ID, wire.Freed)
		}
		if !r.Shared() {
			delete(ss.maps, r.ID) // the mapping is the client's own affair now
		}
	}
	for i := range uint32(r.Pages()) {
		s.pages.Forget(r.Base + i)
	}
	s.res.Free(r)
	s.removals = append(s.removals, removal{lsn, s.durable(r), r})
	s.pending.Store(true)
}

// finishPages frees the pages of keys that are gone, and leaves the rest of what
// finish does, which can block, to maintenance.
func (s *Server) finishPages() {
	if !s.pending.Load() { // fast path
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending.Store(false)
	if len(s.settling) == 0 {
		s.pages.Sweep(s.log.Committed(), s.log.Synced(), false, s.pageFreed)
	}
	if len(s.removals) > 0 {
		s.maintainNow()
	}
}

// maintainNow asks for maintenance at once.
func (s *Server) maintainNow() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

func (s *Server) must(err error) {
	if err != nil {
		panic("BUG: " + err.Error())
	}
}

// Rescan looks again at what the pool specifications name.
func (s *Server) Rescan() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.res.Rescan()
}

// Settle does at once what maintenance would do in time: it frees what nothing
// needs any more.
func (s *Server) Settle() { s.finish(true) }

// maintain looks after what no request and no event tells of.
func (s *Server) maintain() {
	tick := time.NewTicker(s.opt.Tick)
	defer tick.Stop()
	var polled time.Time
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.kick:
		case <-tick.C:
		}
		s.expire()
		if time.Since(polled) >= time.Second {
			polled = time.Now()
			s.poll()
			s.awaitNoLonger()
			s.tendStore()
			s.drainTouches()
			s.retryFrees()
			s.shrinkRegions()
			s.dropListings()
		}
		if err := s.flushLog(); err != nil {
			s.opt.Log.Error("cannot commit the log", "err", err)
		}
		s.finish(true)
	}
}

// tendStore checks whether a process still keeps the daemon's memory. While none does, keys can be read and put, but
// regions cannot be allocated: what was acknowledged so far survives the daemon only if a new keeper comes. tendStore
// hands all memory to a new keeper.
func (s *Server) tendStore() {
	if s.opt.Store == nil {
		return
	}
	renewed, err := s.opt.Store.Check()
	if renewed {
		s.mu.Lock()
		err = s.res.KeepAll()
		s.mu.Unlock()
	}
	switch {
	case err != nil && !s.orphan:
		s.opt.Log.Error("nothing keeps the daemon's memory: if the daemon dies, so do the keys; no region can be allocated", "err", err)
	case renewed && err == nil:
		s.opt.Log.Info("a new keeper has got all memory: it starts another daemon, and this one ends")
		if s.opt.HandedOver != nil {
			s.opt.HandedOver()
		}
	}
	s.orphan = err != nil
}

// retryFrees frees regions that a full disk has kept.
func (s *Server) retryFrees() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.settling) > 0 {
		return
	}
	for r := range s.res.Regions() {
		s.settle(r)
	}
}

// Close ends all connections, saves a checkpoint, and closes. Memory that
// survives the daemon stays. Closing twice is a no-op.
func (s *Server) Close() error {
	s.cancel()
	if s.local != nil {
		s.local.Close()
	}
	if s.opt.Remote != nil {
		s.opt.Remote.Close()
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.gate.Close()
	s.wg.Wait()
	if s.watcher != nil {
		s.watcher.Close()
	}
	var errs []error
	if s.serving {
		errs = append(errs, s.Checkpoint())
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	if s.log != nil {
		errs = append(errs, s.log.Close())
	}
	if s.res != nil {
		errs = append(errs, s.res.Close())
	}
	for _, ss := range s.sessions {
		ss.setMailbox(nil)
	}
	if s.pages != nil {
		errs = append(errs, s.pages.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

func logDir(dir string) string { return filepath.Join(dir, "log") }
