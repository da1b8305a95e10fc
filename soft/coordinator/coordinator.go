package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"polder/internal/accept"
	"polder/internal/fdpass"
	"polder/internal/hostmem"
	"polder/soft/mrc"
	"polder/soft/wire"
)

// Coordinator shares a host's idle memory. Make one with New.
type Coordinator struct {
	cfg     Config
	lis     *net.UnixListener
	watcher *fdpass.Watcher
	begun   time.Time

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	done   sync.WaitGroup
	kick   chan struct{} // something has changed: look at once

	mu           sync.Mutex
	sessions     map[uint64]*session
	conns        map[*fdpass.Conn]int // every connection, registered or not, by user
	nextID       uint64
	idle         hostmem.Idle
	stats        Stats
	divided      time.Time
	dividedTotal int64 // how much there was to divide then
}

// Stats counts what a coordinator has done. Sizes are in bytes.
type Stats struct {
	Clients      int
	Granted      int64 // segments that clients may use
	Resident     int64 // how much of them exists
	Available    int64 // on the host, at the last look
	Target       int64 // what could be granted in all
	Reserve      int64
	MissCost     float64 // seconds: the median of the clients that know what theirs cost
	Refused      uint64  // connections
	Malformed    uint64  // messages
	Cooperative  uint64  // segments that clients gave back
	Direct       uint64  // segments that were taken
	Audits       uint64  // clients found to keep more than they were granted
	Ended        uint64  // clients that were ended for it
	MoreByClient []ClientStats
}

// ClientStats is one client's account.
type ClientStats struct {
	ID       uint64
	Name     string
	PID, UID int
	Granted  int64
	Target   int64
	Resident int64
	Used     int64
	Rebuild  float64 // seconds in all
	Hits     uint64
	Misses   uint64
	MissCost float64 // seconds, in the mean, or Stats.MissCost if the client does not know
	Weight   float64
	Curve    mrc.Curve `json:"-"` // what more memory would save, as the client measures
}

// New starts a coordinator.
func New(cfg Config) (*Coordinator, error) {
	if err := cfg.complete(); err != nil {
		return nil, startError(err)
	}
	perm := os.FileMode(0o600)
	if cfg.Open {
		perm = 0o666
	}
	lis, err := fdpass.Listen(cfg.Socket, perm)
	if err != nil {
		return nil, startError(err)
	}
	w, err := fdpass.NewWatcher()
	if err != nil {
		return nil, errors.Join(startError(err), lis.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &Coordinator{
		cfg: cfg, idle: hostmem.Idle{Reserve: cfg.Reserve}, lis: lis, watcher: w, begun: time.Now(), ctx: ctx, cancel: cancel,
		kick:     make(chan struct{}, 1),
		sessions: make(map[uint64]*session),
		conns:    make(map[*fdpass.Conn]int),
	}
	c.done.Go(c.accept)
	c.done.Go(c.run)
	return c, nil
}

// Close stops. Clients keep what they have, and look for another coordinator.
// Closing twice is a no-op.
func (c *Coordinator) Close() error {
	c.cancel()
	err := c.lis.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	c.mu.Lock()
	for conn := range c.conns {
		conn.Close()
	}
	c.mu.Unlock()
	c.done.Wait()
	c.watcher.Close()
	return err
}

func (c *Coordinator) accept() {
	err := accept.Each(c.cfg.Logger, c.lis.AcceptUnix, c.take)
	if !errors.Is(err, net.ErrClosed) {
		c.cfg.Logger.Error("no client can connect any more", "err", err)
	}
}

// take serves a connection, or turns it away. The kernel says whose it is.
func (c *Coordinator) take(sock *net.UnixConn) {
	conn, err := fdpass.New(sock)
	if err != nil {
		sock.Close()
		return
	}
	peer, err := conn.Peer()
	if err != nil {
		conn.Close()
		return
	}
	if reason := c.admit(conn, peer); reason != "" {
		c.cfg.Logger.Warn("connection refused", "pid", peer.PID, "uid", peer.UID, "err", reason)
		_ = conn.TrySend(wire.Encode(wire.KindRefused, wire.Refused{Reason: reason}))
		conn.Close()
		return
	}
	c.done.Go(func() { c.serve(conn, peer) })
}

// admit counts a connection, or says why it is refused.
func (c *Coordinator) admit(conn *fdpass.Conn, peer fdpass.Peer) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	users := 0
	for _, uid := range c.conns {
		if uid == peer.UID {
			users++
		}
	}
	switch {
	case len(c.conns) >= c.cfg.MaxClients:
		c.stats.Refused++
		return fmt.Sprintf("there are %d clients already", len(c.conns))
	case users >= c.cfg.MaxClientsPerUser:
		c.stats.Refused++
		return fmt.Sprintf("user %d has %d clients already", peer.UID, users)
	}
	c.conns[conn] = peer.UID
	return ""
}

// serve is one connection's goroutine.
func (c *Coordinator) serve(conn *fdpass.Conn, peer fdpass.Peer) {
	defer func() {
		conn.Close()
		c.mu.Lock()
		delete(c.conns, conn)
		c.mu.Unlock()
	}()
	s, err := c.register(conn, peer)
	if err != nil {
		c.malformed(peer, err)
		_ = conn.TrySend(wire.Encode(wire.KindRefused, wire.Refused{Reason: err.Error()}))
		return
	}
	if pidfd, err := conn.PeerPidFD(); err == nil {
		// A death ends the connection, even if a child of the dead process
		// has inherited it.
		if stop, err := c.watcher.Watch(pidfd, func() { conn.Close() }); err == nil {
			defer stop()
		}
	}
	c.mu.Lock()
	c.enter(s, time.Now())
	count := s.count
	c.mu.Unlock()
	c.cfg.Logger.Info("a client has come", "client", s.id, "name", s.hello.Name, "pid", peer.PID, "segments", count)
	s.send(wire.KindWelcome, wire.Welcome{Version: wire.Version})
	c.look()

	err = c.receive(s)
	closing := c.ctx.Err() != nil
	if !closing {
		c.malformed(peer, err)
	}
	c.mu.Lock()
	delete(c.sessions, s.id)
	s.gone = true
	if !closing {
		s.end(false)
	}
	err = s.close()
	c.mu.Unlock()
	c.cfg.Logger.Info("a client has gone", "client", s.id, "name", s.hello.Name, "pid", peer.PID, "err", err)
	c.look()
}

// enter makes a session one of the clients.
//
// Preconditions: c.mu is held.
func (c *Coordinator) enter(s *session, now time.Time) {
	c.nextID++
	s.id, s.came = c.nextID, now
	c.sessions[s.id] = s
	c.weigh(s)
	c.limitArrival(s)
}

func (c *Coordinator) malformed(peer fdpass.Peer, err error) {
	if !errors.Is(err, wire.ErrMalformed) && !errors.Is(err, errMemory) {
		return
	}
	c.cfg.Logger.Warn("a client does not speak our language", "pid", peer.PID, "uid", peer.UID, "err", err)
	c.mu.Lock()
	c.stats.Malformed++
	c.mu.Unlock()
}

// receive takes a client's messages until it is gone.
func (c *Coordinator) receive(s *session) error {
	began := time.Now()
	for n := 1; ; n++ {
		msg, err := s.conn.Recv()
		if err != nil {
			return err
		}
		if n == c.cfg.MaxMessages {
			if time.Since(began) < time.Second {
				s.conn.Done()
				return fmt.Errorf("%w: %d of them in a second", wire.ErrMalformed, n)
			}
			began, n = time.Now(), 0
		}
		err = c.handle(s, msg)
		s.conn.Done()
		if err != nil {
			return err
		}
	}
}

func (c *Coordinator) handle(s *session, msg []byte) error {
	kind, body, err := wire.Split(msg)
	if err != nil {
		return err
	}
	switch kind {
	case wire.KindReport:
		r, err := wire.DecodeReport(body)
		if err != nil {
			return err
		}
		c.mu.Lock()
		if s.first {
			s.before, s.first = r, false
		}
		s.report, s.told = r, time.Now()
		c.mu.Unlock()
	case wire.KindReleased:
		r, err := wire.DecodeReleased(body)
		if err != nil {
			return err
		}
		c.mu.Lock()
		before := s.count
		s.released(r.Segments)
		c.stats.Cooperative += uint64(before - s.count)
		c.mu.Unlock()
	default:
		return fmt.Errorf("%w: kind %q", wire.ErrMalformed, byte(kind))
	}
	return nil
}

// look makes run look at once.
func (c *Coordinator) look() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// Stats returns what the coordinator has done and who has what.
func (c *Coordinator) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.stats
	st.Clients, st.Available, st.Reserve, st.MissCost = len(c.sessions), c.idle.Memory.Available, c.cfg.Reserve, medianCost(c.list())
	for _, s := range c.sessions {
		granted := int64(s.count) * segmentSize
		st.Granted += granted
		st.Resident += s.resident
		st.MoreByClient = append(st.MoreByClient, ClientStats{
			ID: s.id, Name: s.hello.Name, PID: s.peer.PID, UID: s.peer.UID,
			Granted: granted, Target: int64(s.target) * segmentSize, Resident: s.resident,
			Used: max(granted-s.report.Free, 0), Rebuild: s.report.RebuildSeconds,
			Hits: s.report.Hits, Misses: s.report.Misses, MissCost: cmp.Or(s.cost(), st.MissCost), Weight: s.weight, Curve: s.report.Curve,
		})
	}
	slices.SortFunc(st.MoreByClient, func(a, b ClientStats) int { return int(a.ID) - int(b.ID) })
	return st
}

// list returns the clients in a fixed order.
//
// Preconditions: c.mu is held.
func (c *Coordinator) list() []*session {
	l := make([]*session, 0, len(c.sessions))
	for _, s := range c.sessions {
		l = append(l, s)
	}
	slices.SortFunc(l, func(a, b *session) int { return int(a.id) - int(b.id) })
	return l
}
