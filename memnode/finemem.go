package memnode

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"polder/internal/arena"
	"polder/internal/failpoint"
	"polder/memnode/rebind"
	"polder/memnode/twolayer"
	"polder/memnode/wire"
	"polder/verbs"
)

// finemem is the node's half of FineMem. Clients allocate and free by one-sided compare-and-swap on the metadata
// (package twolayer), and read there the keys of what they have allocated. The control goroutine has three tasks
// left: to open the metadata to a client's queue pair when the client connects, to give freed memory new keys, and to
// take back what clients leave behind.
//
// # Isolation
//
// Clients are services that are trusted with the metadata: one for every compute node, which hands addresses and keys
// to applications. The metadata has a protection domain of its own. In it every client has exactly one queue pair,
// which it has connected for the metadata; applications have none. Closing that queue pair fences a client that is
// gone.
//
// Memory is opened by windows of type 1, as in the paper, since windows are bound before anybody knows for whom: any
// queue pair may use such a window if it knows the key. Keys are therefore drawn at random. A grain has two windows.
// When the grain has been freed, the window that was in use goes to a pool, from which any grain may get it as its
// next backup, under a new key of 8 random bits. So a former borrower of a chunk knows neither the index nor the key
// that open the chunk to the next one, provided that the device takes the key that a bind asks for
// (verbs.DeviceAttr.Type1Keys), or draws a random one itself. And a wrong guess costs the queue pair: a host whose
// clients have had more than Config.MaxViolations protection errors recently cannot connect another.
type finemem struct {
	node    *Node
	table   *twolayer.Table
	mem     *arena.Mapping // the metadata
	pd      verbs.PD       // of the metadata
	mr      verbs.MR
	atomics *atomics // nil if the processor's atomics do (verbs.DeviceAttr.HostAtomics)
	worker  *rebind.Worker
	users   map[*session]uint16
	counted map[*session]int // chunks that the session had when they were last counted
	taken   map[uint16]*session
	last    uint16
	clients map[*client]*tenure
	strikes map[string]*strikes
	grants  []wire.Grant
	settles map[*session]settling

	bells  verbs.CQ            // receives the doorbells
	ringer map[uint32]verbs.QP // by queue pair number: where a doorbell came from
	wake   chan time.Time      // capacity 1: it is time for a turn of the worker's
	timer  *time.Timer         // sends to wake
	looked time.Time           // when the worker last looked at what was freed
	felt   time.Time           // when heartbeats were last checked

	lent, rebound, lag atomic.Int64
}

// tenure is what finemem keeps for one connection.
type tenure struct {
	meta    verbs.QP
	trouble atomic.Int32 // protection errors since the last look

	beats   uint64    // the user's heartbeat counter when it last changed
	beatAt  time.Time // when that change was seen
	beating bool      // the counter has changed since the client connected
}

// strikes counts a host's recent protection errors. One is forgotten every strikeLife.
type strikes struct {
	n     int
	since time.Time
}

const strikeLife = 10 * time.Second

func newFineMem(n *Node) (manager, error) {
	l, err := twolayer.NewLayout(uint64(n.cfg.chunks())*uint64(n.cfg.ChunkSize), uint64(n.cfg.ChunkSize))
	if err != nil {
		return nil, err
	}
	m := &finemem{
		node: n, users: make(map[*session]uint16), counted: make(map[*session]int), taken: make(map[uint16]*session),
		clients: make(map[*client]*tenure), strikes: make(map[string]*strikes),
		settles: make(map[*session]settling), ringer: make(map[uint32]verbs.QP), wake: make(chan time.Time, 1),
		looked: time.Now(),
	}
	m.timer = time.AfterFunc(0, m.ring)
	size := (int(l.Bytes()) + arena.PageSize - 1) &^ (arena.PageSize - 1)
	if m.mem, err = arena.Anonymous(size, false); err != nil {
		return nil, err
	}
	if m.table, err = twolayer.NewTable(m.mem.Bytes(), l); err == nil {
		m.pd, err = n.dev.AllocPD()
	}
	if err == nil {
		m.mr, err = m.pd.RegMR(m.mem.Bytes(), verbs.AccessLocalWrite|windowAccess)
	}
	if err == nil {
		m.worker, err = rebind.New(n.dev, rebind.Memory{PD: n.mem.pd, MR: n.mem.mr, Map: n.mem.mem, Pinned: n.mem.pinned}, m.table)
	}
	if err == nil {
		// At most Doorbells completions are here for every open queue pair, and none for one that was closed.
		m.bells, err = n.dev.CreateCQ(verbs.CQInit{
			Depth: rebind.Doorbells * (n.cfg.MaxClients + 1), Handler: func(verbs.CQ) { m.ring() },
		})
	}
	if err == nil && !n.dev.Attr().HostAtomics {
		if m.atomics, err = newAtomics(n.dev, m.pd, m.mr); err == nil {
			m.table.Swap = m.atomics.swap
		}
	}
	if err != nil {
		m.close()
		return nil, err
	}
	if attr := n.dev.Attr(); !attr.Type1Keys {
		n.log.Warn("the device chooses the keys of windows, and may count them up: who has had memory could guess the key "+
			"of its next owner, so let nobody borrow who is not trusted", "device", attr.Name)
	}
	return m, nil
}

// broken returns why the metadata must not be used any more, or nil.
func (m *finemem) broken() error {
	if m.atomics == nil {
		return nil
	}
	return m.atomics.broken
}

// welcome decides how many access queue pairs c may have. Windows of type 1 serve all of them.
func (m *finemem) welcome(c *client, h *wire.Hello, w *wire.Welcome) {
	m.node.welcomeGroups(c, h, w)
}

// user returns s's user id in the metadata, and assigns one if s has none.
func (m *finemem) user(s *session) (uint16, error) {
	if u := m.users[s]; u != 0 {
		return u, nil
	}
	for range twolayer.MaxUser {
		m.last = m.last%twolayer.MaxUser + 1
		if m.taken[m.last] == nil {
			m.users[s], m.taken[m.last] = m.last, s
			return m.last, nil
		}
	}
	return 0, fmt.Errorf("no more than %d clients can allocate", twolayer.MaxUser)
}

func (m *finemem) tenure(c *client) *tenure {
	t := m.clients[c]
	if t == nil {
		t = &tenure{}
		m.clients[c] = t
	}
	return t
}

func (m *finemem) connect(c *client, h *wire.Hello, req verbs.ConnRequest) error {
	if err := m.broken(); err != nil {
		return err
	}
	t := m.tenure(c)
	switch {
	case m.struckOut(host(c)):
		return fmt.Errorf("this host has violated protection more than %d times of late", m.node.cfg.MaxViolations)
	case h.Kind == wire.KindAccess:
		if err := c.mayAccess(h.Index); err != nil {
			return err
		}
		return m.node.connectAccess(c, req, func(e verbs.AsyncEvent) {
			m.node.event(e)
			if e.Type == verbs.EventQPAccessErr {
				t.trouble.Add(1)
				m.node.ready.add(c)
			}
		})
	case h.Kind == wire.KindAlloc && !m.serves(h.Session.Secret):
		return errors.New("the metadata is for services that know the secret")
	case h.Kind == wire.KindAlloc && t.meta == nil:
		return m.connectMetadata(c, t, req)
	}
	return fmt.Errorf("no use for a queue pair of kind %d now", h.Kind)
}

// serves reports whether a client that shows secret may have the metadata.
func (m *finemem) serves(secret [wire.SecretSize]byte) bool {
	want := m.node.cfg.ServiceSecret
	return want == [wire.SecretSize]byte{} || subtle.ConstantTimeCompare(want[:], secret[:]) == 1
}

// connectMetadata opens the metadata to a new queue pair of c's, and tells c where the metadata is.
func (m *finemem) connectMetadata(c *client, t *tenure, req verbs.ConnRequest) error {
	n := m.node
	user, err := m.user(c.session)
	if err != nil {
		return err
	}
	if t.meta, err = m.pd.CreateQP(verbs.QPInit{
		SendCQ: c.cq, RecvCQ: m.bells, SendDepth: 1, RecvDepth: rebind.Doorbells, OnEvent: n.event,
	}); err != nil {
		return fmt.Errorf("cannot create a queue pair for the metadata: %w", err)
	}
	m.ringer[t.meta.Num()] = t.meta
	if err := t.meta.PostRecv(make([]verbs.RecvWR, rebind.Doorbells)...); err != nil {
		m.fence(t)
		return fmt.Errorf("cannot wait for doorbells: %w", err)
	}
	answer := wire.Metadata{
		Addr: m.mr.Addr(), Key: m.mr.RKey(), User: user,
		Bytes: uint64(m.table.Chunks) * m.table.Unit, Least: m.table.Size(m.table.Least),
	}
	t.beats = m.table.Beats(user)
	if req.Accept(t.meta, answer.Append(nil)) != nil {
		m.fence(t)
	}
	return nil
}

// fence makes the metadata inaccessible to a connection.
func (m *finemem) fence(t *tenure) {
	if t.meta != nil {
		m.answerBells()
		t.meta.Close()
		delete(m.ringer, t.meta.Num())
		t.meta = nil
		m.answerBells() // takes meta's last doorbells from the completion queue
	}
}

// host returns the host that c's protection errors are counted for.
func host(c *client) string {
	addr := c.conn.RemoteAddr()
	if h, _, err := net.SplitHostPort(addr); err == nil {
		return h
	}
	return addr
}

// struckOut reports whether a host has violated protection too often of late.
func (m *finemem) struckOut(host string) bool {
	m.forgive(host, time.Now())
	s := m.strikes[host]
	return s != nil && s.n > m.node.cfg.MaxViolations
}

// strike notes a host's protection errors.
func (m *finemem) strike(host string, n int, now time.Time) {
	s := m.strikes[host]
	if s == nil {
		for h := range m.strikes { // so that hosts with nothing left to forgive do not pile up
			m.forgive(h, now)
		}
		s = &strikes{since: now}
		m.strikes[host] = s
	}
	s.n += n
}

// forgive forgets a host's protection errors whose time is over.
func (m *finemem) forgive(host string, now time.Time) {
	s := m.strikes[host]
	if s == nil {
		return
	}
	lives := int(now.Sub(s.since) / strikeLife)
	s.n -= min(s.n, lives)
	s.since = s.since.Add(time.Duration(lives) * strikeLife)
	if s.n == 0 {
		delete(m.strikes, host)
	}
}

func (m *finemem) answer(c *client, req *wire.Request, reply *wire.Reply) []wire.Grant {
	m.grants = m.grants[:0]
	t := m.tenure(c)
	switch {
	case t.meta == nil || len(c.access) == 0:
		reply.Status = wire.StatusNoAccess
	case req.Op == wire.OpSpace:
		ready := m.settle(c.session)
		if m.broken() != nil {
			reply.Status = wire.StatusFailed
		} else if !ready {
			reply.Status = wire.StatusAgain
		} else if sp := m.space(c.session); sp.Free == 0 {
			m.node.counters.noMemory.Add(1)
			reply.Status = wire.StatusNoMemory
		} else if sp.Budget == 0 {
			m.node.counters.noMemory.Add(1)
			reply.Status = wire.StatusBudget
		}
	case req.Op == wire.OpOwned:
		reply.Status = m.owned(c.session, int(req.Skip), req.N)
	default:
		reply.Status = wire.StatusBad
	}
	return m.grants
}

// owned appends to m.grants the first chunk of each block that s has; the client finds the block's class in the log.
// Before it lists a block it rebinds the block's sections, so that everything that was freed there (by half, or in
// another layer) has new keys.
func (m *finemem) owned(s *session, skip, most int) wire.Status {
	t, least := m.table, m.table.Least
	var all []twolayer.Extent
	runs := 0 // consecutive sections of a run so far, until they make up one chunk
	t.Owned(m.users[s], func(x twolayer.Extent) {
		switch {
		case x.Class >= least:
			all = append(all, x)
		case x.Run: // of sections that are smaller than a chunk
			if x.First&(1<<least-1) == 0 {
				runs = 0
			}
			if runs++; runs == 1<<(least-twolayer.SectionClass) && (x.First+twolayer.SectionChunks)&(1<<least-1) == 0 {
				first := x.First + twolayer.SectionChunks - 1<<least
				all = append(all, twolayer.Extent{First: first, Class: least})
			}
		}
	})
	if skip > len(all) {
		return wire.StatusBad
	}
	section := uint32(0) // the first section that has not been rebound
	for _, x := range all[skip:min(len(all), skip+most)] {
		section = max(section, x.First/twolayer.SectionChunks)
		for ; section <= (x.First+1<<x.Class-1)/twolayer.SectionChunks; section++ {
			n, err := m.worker.Rebind(section)
			m.worked(n, err)
		}
		i, key := x.First>>least, t.Cap(twolayer.LayerOf(x.Class), x.First).Main()
		m.grants = append(m.grants, wire.Grant{Chunk: i, Key: key, Addr: m.node.mem.address(i)})
	}
	return wire.StatusOK
}

func (m *finemem) look(c *client) error {
	if err := m.broken(); err != nil {
		return err
	}
	t := m.clients[c]
	if t == nil {
		return nil
	}
	if n := t.trouble.Swap(0); n > 0 {
		m.strike(host(c), int(n), time.Now())
		if m.struckOut(host(c)) {
			return errors.New("its host has violated protection too often")
		}
	}
	return nil
}

func (m *finemem) disconnect(c *client) {
	if t := m.clients[c]; t != nil {
		c.conn.Close()
		m.fence(t)
		delete(m.clients, c)
	}
}

// reclaim frees what s has, while other clients go on to allocate and free.
func (m *finemem) reclaim(s *session) (n int) {
	user := m.users[s]
	if user == 0 {
		return 0
	}
	m.table.Owned(user, func(x twolayer.Extent) {
		m.table.Release(user, x, failpoint.Hit)
		n += 1 << x.Class
	})
	m.count()
	m.ring()
	return n >> m.table.Least
}

func (m *finemem) forget(s *session) {
	delete(m.taken, m.users[s])
	delete(m.users, s)
	delete(m.counted, s)
	delete(m.settles, s)
}

func (m *finemem) held(s *session) (n int) {
	user := m.users[s]
	if user == 0 {
		return 0
	}
	m.table.Owned(user, func(x twolayer.Extent) { n += 1 << x.Class })
	n = (n + 1<<m.table.Least - 1) >> m.table.Least
	m.counted[s] = n
	return n
}

// space counts what s has only while s is disconnected, that is, when it connects: to count means to read the whole
// log, and clients keep the account of their budgets themselves.
func (m *finemem) space(s *session) wire.Space {
	free := int(m.table.Chunks) - m.table.Allocated()
	has := m.counted[s]
	if s.client == nil {
		has = m.held(s)
	}
	return wire.Space{
		Free:   uint32(free >> m.table.Least),
		Budget: uint32(max(0, m.node.cfg.budget()-has)),
	}
}

func (m *finemem) count() { m.lent.Store(int64(m.table.Allocated() >> m.table.Least)) }

func (m *finemem) stats(s *Stats) {
	m.node.Clients() // has the control goroutine count
	s.Lent, s.Rebound, s.RebindLag = m.lent.Load(), m.rebound.Load(), time.Duration(m.lag.Load())
	// The node sees neither allocations nor frees. These values are right if nothing is being freed just now and
	// everybody allocates chunks of the least size.
	s.Frees = max(0, s.Rebound-s.Reclaimed)
	s.Allocs = s.Lent + s.Rebound
}

func (m *finemem) close() error {
	m.timer.Stop()
	var errs []error
	if m.worker != nil {
		errs = append(errs, m.worker.Close())
	}
	if m.bells != nil {
		errs = append(errs, m.bells.Close())
	}
	if m.atomics != nil {
		m.atomics.close()
	}
	if m.mr != nil {
		errs = append(errs, m.mr.Deregister())
	}
	if m.pd != nil {
		errs = append(errs, m.pd.Close())
	}
	if m.mem != nil {
		errs = append(errs, m.mem.Close())
	}
	return errors.Join(errs...)
}
