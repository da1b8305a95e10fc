package memnode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"polder/memnode/component"
	"polder/memnode/inplace"
	"polder/memnode/wire"
	"polder/verbs"
)

// A Node lends memory. See the package comment.
type Node struct {
	cfg Config
	log *slog.Logger
	dev verbs.Device
	mpd verbs.PD // management queue pairs and their buffers
	pd  verbs.PD // the lent memory and access queue pairs
	mem *memory
	one bool // one session at a time: the device would let a second one reach the first one's memory
	// components is nil if there are none.
	components *component.Server

	stop context.CancelCauseFunc
	ctx  context.Context // done when the node closes

	requests chan verbs.ConnRequest
	calls    chan func() // to be run by the control goroutine
	ready    *readyList
	counters counters
	wg       sync.WaitGroup // watchers of connections, and the control goroutine

	// Owned by the control goroutine.
	manager  manager
	sessions map[uint64]*session
	clients  map[verbs.Conn]*client
	grace    *time.Timer
	looking  []*client
	// lastOwner is the owner number of the session that was made last.
	lastOwner uint64
	leaving   *drain // nil while the node stays
	pressed   bool   // more is lent than the host can spare

	mu        sync.Mutex // guards what follows
	closed    bool
	listeners map[verbs.Listener]*inplace.Door // with a nil Door if clients there are passed no memory
	closeErr  error
	done      chan struct{} // closed when Close has finished
}

var errOne = errors.New("this node lends to one client at a time, because its device does not check the bounds of windows, " +
	"and another client has memory or may come back for it")

// New returns a node that lends memory through dev. The caller keeps dev, which must outlive the node.
func New(dev verbs.Device, cfg Config) (*Node, error) {
	if cfg.Manager == "" && !dev.Attr().Alloc {
		cfg.Manager = OtherManager
	}
	cfg, err := cfg.withDefaults()
	if err == nil {
		attr := dev.Attr()
		if err = cfg.checkClients(attr); err == nil {
			err = cfg.checkWindows(attr)
		}
		if err == nil {
			err = cfg.checkIdle(attr)
		}
		if err == nil {
			err = cfg.checkInPlace(attr)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot lend memory: %w", err)
	}
	n := &Node{
		cfg: cfg, log: cfg.Logger, dev: dev,
		requests:  make(chan verbs.ConnRequest),
		calls:     make(chan func()),
		ready:     newReadyList(),
		sessions:  make(map[uint64]*session),
		clients:   make(map[verbs.Conn]*client),
		listeners: make(map[verbs.Listener]*inplace.Door),
		done:      make(chan struct{}),
	}
	if n.mpd, err = dev.AllocPD(); err != nil {
		return nil, fmt.Errorf("cannot lend memory: %w", err)
	}
	if n.pd, err = dev.AllocPD(); err != nil {
		n.mpd.Close()
		return nil, fmt.Errorf("cannot lend memory: %w", err)
	}
	if n.mem, err = newMemory(dev, n.pd, &n.cfg); err != nil {
		n.pd.Close()
		n.mpd.Close()
		return nil, fmt.Errorf("cannot lend memory: %w", err)
	}
	if n.manager, err = managers[cfg.Manager](n); err != nil {
		n.mem.close()
		n.pd.Close()
		n.mpd.Close()
		return nil, fmt.Errorf("cannot lend memory by %s: %w", cfg.Manager, err)
	}
	attr := dev.Attr()
	if entry, _ := wire.ManagerNamed(cfg.Manager); !attr.BoundsMW && !entry.Registers {
		n.one = !cfg.TrustClients
		n.log.Warn("the device does not check the bounds of windows: clients are kept apart by window and not by range, "+
			"so whoever borrows anything reaches everything", "device", attr.Name, "one client at a time", n.one)
	}
	if cfg.Components.Memory > 0 {
		n.components = component.NewServer(dev, n.mpd, cfg.Components, n.event, cfg.Logger)
	}
	n.ctx, n.stop = context.WithCancelCause(context.Background())
	n.grace = time.NewTimer(time.Hour)
	n.grace.Stop()
	n.counters.most.Store(int64(n.cfg.chunks()))
	n.restore()
	n.wg.Go(n.control)
	return n, nil
}

// ChunkSize returns the size of every chunk in bytes.
func (n *Node) ChunkSize() int { return n.cfg.ChunkSize }

// Serve takes connections from l until the node is closed (then it returns nil) or l fails. If the node is closed
// already, Serve only closes l. It may be called for several listeners; the node closes each of them when it is
// closed itself.
func (n *Node) Serve(l verbs.Listener) error {
	door := n.openDoor(l)
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		l.Close()
		door.Close()
		return nil
	}
	n.listeners[l] = door
	n.mu.Unlock()
	defer func() {
		l.Close()
		door.Close() // before the delete: Close closes only the doors that it finds, and then gives the memory up
		n.mu.Lock()
		delete(n.listeners, l)
		n.mu.Unlock()
	}()
	for {
		req, err := l.Accept(n.ctx)
		if err != nil {
			if n.ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("cannot accept at %s: %w", l.Addr(), err)
		}
		select {
		case n.requests <- req:
		case <-n.ctx.Done():
			req.Reject("the memory node is closing")
			return nil
		}
	}
}

// Close takes all memory back and disconnects every client. It is idempotent
// and returns when everything that the node started has ended.
func (n *Node) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		<-n.done
		return n.closeErr
	}
	n.closed = true
	listeners := maps.Clone(n.listeners)
	n.mu.Unlock()
	n.stop(verbs.ErrClosed)
	for l, door := range listeners {
		l.Close()
		door.Close()
	}
	n.wg.Wait()
	if n.components != nil {
		n.components.Close()
	}
	n.closeErr = errors.Join(n.manager.close(), n.mem.close(), n.pd.Close(), n.mpd.Close())
	close(n.done)
	return n.closeErr
}

// control is the control goroutine.
func (n *Node) control() {
	always := make(chan struct{})
	close(always)
	more := false
	var ticks <-chan time.Time
	ticking, _ := n.manager.(ticker)
	if ticking != nil {
		ticks = ticking.ticks()
	}
	var woke time.Time
	for {
		var idle <-chan struct{}
		if more {
			idle = always
		}
		select {
		case <-n.ctx.Done():
			for _, c := range n.clients {
				n.disconnect(c)
			}
			n.grace.Stop()
			return
		case req := <-n.requests:
			woke = time.Now()
			n.counters.wakeups.Add(1)
			n.connect(req)
		case <-n.ready.wake:
			woke = time.Now()
			n.counters.wakeups.Add(1)
			n.looking = n.ready.take(n.looking)
			for _, c := range n.looking {
				n.look(c)
			}
		case woke = <-n.grace.C:
			n.expire(time.Now())
		case at := <-ticks:
			woke = time.Now()
			ticking.tick(at)
		case f := <-n.calls:
			woke = time.Now()
			f()
		case woke = <-n.leaving.ticks():
			n.drained()
		case <-idle:
			woke = time.Now()
		}
		more = n.manager.work()
		n.counters.busy.Add(int64(time.Since(woke)))
		n.counters.sessions.Store(int64(len(n.sessions)))
	}
}

// connect answers a request to connect a queue pair.
func (n *Node) connect(req verbs.ConnRequest) {
	refuse := func(format string, args ...any) {
		reason := fmt.Sprintf(format, args...)
		n.counters.refused.Add(1)
		n.log.Warn("connection refused", "peer", req.Conn().RemoteAddr(), "reason", reason)
		req.Reject(reason)
	}
	var h wire.Hello
	if err := h.Decode(req.Private()); err != nil {
		refuse("%v", err)
		return
	}
	if h.Manager != n.cfg.Manager {
		refuse("this node manages memory by %s, not %s", n.cfg.Manager, h.Manager)
		return
	}
	c := n.clients[req.Conn()]
	switch {
	case h.Kind == wire.KindManagement && c != nil:
		refuse("a connection has one management queue pair")
	case h.Kind == wire.KindManagement:
		if err := n.attach(req, &h); err != nil {
			refuse("%v", err)
		}
	case c == nil:
		refuse("a connection's first queue pair is for management")
	case h.Kind == wire.KindComponent:
		if err := n.connectComponents(c.session, req); err != nil {
			refuse("%v", err)
		}
	default:
		if err := n.manager.connect(c, &h, req); err != nil {
			refuse("%v", err)
		}
	}
}

// attach connects a management queue pair for the session that h names, or for a new one if the node does not know
// that session.
func (n *Node) attach(req verbs.ConnRequest, h *wire.Hello) error {
	if h.Cluster != wire.ClusterOf(n.cfg.Cluster) {
		return n.foreign(h)
	}
	s, err := n.resume(h)
	if err != nil {
		return err
	}
	resumed := s != nil
	if !resumed {
		if n.leaving != nil {
			return errors.New("this node is being drained: it lends nothing more")
		}
		if len(n.sessions) >= n.cfg.MaxClients {
			return fmt.Errorf("this node serves no more than %d clients", n.cfg.MaxClients)
		}
		if n.one && len(n.sessions) > 0 {
			return errOne
		}
		if h.Keep.Kept() {
			if err := n.mayKeep(); err != nil {
				return err
			}
		}
		if l := n.mem.ledger; l != nil && l.Full() {
			return fmt.Errorf("this node's memory, which an earlier one has made, has room for %d clients", l.Form().Sessions)
		}
		n.lastOwner++
		s = newSession(h.Keep, n.lastOwner)
	}
	conn := req.Conn()
	c, err := newClient(n.dev, n.mpd, conn, s, n.ready, n.event)
	if err != nil {
		return err
	}
	if old := s.client; old != nil {
		// Either the client has noticed before us that its connection is gone, or another client takes over. In both
		// cases nothing that was sent over the old queue pairs lands any more from here on.
		n.disconnect(old)
	}
	s.keep = h.Keep
	w := wire.Welcome{
		Version: h.Version, Resumed: resumed, Session: s.wire,
		Base: n.mem.mr.Addr(), ChunkSize: uint64(n.cfg.ChunkSize), Chunks: uint32(n.cfg.chunks()),
		Space: n.manager.space(s), Grace: n.cfg.Grace, Credits: credits, Batch: wire.MaxBatch,
		Leaving: n.goes(), Zone: n.cfg.Zone, Idle: n.cfg.Idle,
	}
	c.told = w.Leaving
	n.manager.welcome(c, h, &w)
	if l := n.mem.ledger; l != nil && resumed {
		l.Keep(s.record, &s.keep)
	} else if l != nil {
		s.record = l.Add(s.owner, &s.wire, &s.keep)
	}
	n.sessions[s.wire.ID] = s
	n.clients[conn] = c
	s.client = c
	n.counters.connected.Store(int64(len(n.clients)))
	n.wg.Go(func() {
		select {
		case <-conn.Done():
			c.gone.Store(true)
			n.ready.add(c)
		case <-n.ctx.Done():
		}
	})
	n.countKept()
	n.log.Info("client connected", "peer", conn.RemoteAddr(), "session", s.wire.ID, "resumed", resumed, "heap", s.keep.Heap, "epoch", s.keep.Epoch)
	if err := req.Accept(c.mgmt, w.Append(nil)); err != nil {
		n.log.Warn("client lost while it connected", "peer", conn.RemoteAddr(), "error", err)
		n.disconnect(c)
	}
	return nil
}

// connectComponents connects the queue pair over which s calls components.
func (n *Node) connectComponents(s *session, req verbs.ConnRequest) error {
	if n.components == nil {
		return errors.New("this node runs no components")
	}
	if s.components == nil {
		var chunks component.Chunks
		if m, ok := n.manager.(teller); ok {
			chunks = m.chunksOf(s)
		}
		s.components = n.components.Tenant(chunks)
	}
	return s.components.Connect(req)
}

// look deals with whatever happened to c.
func (n *Node) look(c *client) {
	if c.closed {
		return
	}
	left := func() {
		n.log.Info("client disconnected", "peer", c.conn.RemoteAddr(),
			"session", c.session.wire.ID, "chunks", n.manager.held(c.session), "error", c.conn.Err())
		n.disconnect(c)
	}
	if c.gone.Load() {
		left()
		return
	}
	err := n.serve(c)
	if err == nil {
		err = n.tellLeaving(c)
	}
	if err == nil {
		err = n.tellVanished(c)
	}
	if err == nil {
		err = n.manager.look(c)
	}
	switch {
	case err == nil:
	case tornDown(err) && !c.offended.Load():
		left() // a client closes its queue pairs before its connection
	default:
		n.log.Warn("client dropped", "peer", c.conn.RemoteAddr(),
			"session", c.session.wire.ID, "chunks", n.manager.held(c.session), "error", err)
		n.disconnect(c)
	}
}

// tornDown reports whether err is the error of a queue pair whose peer has gone.
func tornDown(err error) bool {
	var s *verbs.StatusError
	return errors.As(err, &s) && (s.Status == verbs.StatusWRFlushErr || s.Status == verbs.StatusRetryExcErr)
}

// disconnect ends c. When it returns, nothing can reach the chunks of c's session over this connection any more. It
// forgets a session that has nothing; otherwise the grace period begins, unless the session is kept.
func (n *Node) disconnect(c *client) {
	s := c.session
	c.revoke() // first, so that c believes nothing that it reads once its chunks may be another client's
	n.manager.disconnect(c)
	if s.components != nil {
		s.components.Disconnect()
	}
	delete(n.clients, c.conn)
	c.release()
	c.conn.Close()
	n.counters.connected.Store(int64(len(n.clients)))
	s.client = nil
	defer n.countKept()
	busy := s.components != nil && s.components.Busy()
	if n.manager.held(s) == 0 && !busy {
		n.forget(s)
		return
	}
	n.await(s)
}

// await begins the grace period of s, whose client is away. A kept session has a grace period only if it has objects
// of components.
func (n *Node) await(s *session) {
	if s.expires = time.Now().Add(n.cfg.Grace); s.kept() && (s.components == nil || !s.components.Busy()) {
		s.expires = time.Time{}
	}
	n.armGrace()
}

// armGrace sets the timer to the earliest end of a grace period.
func (n *Node) armGrace() {
	var first time.Time
	for _, s := range n.sessions {
		if s.client == nil && !s.expires.IsZero() && (first.IsZero() || s.expires.Before(first)) {
			first = s.expires
		}
	}
	if !first.IsZero() {
		n.grace.Reset(max(0, time.Until(first)))
	}
}

// expire reclaims the chunks of sessions whose grace period is over. A kept session that has chunks loses only its
// components.
func (n *Node) expire(now time.Time) {
	for _, s := range n.sessions {
		switch {
		case s.client != nil || s.expires.IsZero() || s.expires.After(now):
		case s.kept() && n.manager.held(s) > 0:
			s.expires = time.Time{}
			s.components.Close()
			s.components = nil
		default:
			n.reclaim(s)
		}
	}
	n.armGrace()
}

func (n *Node) forget(s *session) {
	n.manager.forget(s)
	if l := n.mem.ledger; l != nil {
		l.Drop(s.record)
	}
	if s.components != nil {
		s.components.Close()
		s.components = nil
	}
	delete(n.sessions, s.wire.ID)
	n.countKept()
}

// event counts the protection errors that clients provoke. The device has already acted on them.
func (n *Node) event(e verbs.AsyncEvent) {
	if e.Type == verbs.EventQPAccessErr || e.Type == verbs.EventQPReqErr {
		n.counters.violations.Add(1)
	}
}
