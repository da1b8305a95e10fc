package memnode

import (
	"errors"
	"sync/atomic"

	"polder/internal/arena"
	"polder/memnode/tenancy"
	"polder/memnode/wire"
	"polder/verbs"
)

func init() { managers[MemFD] = newMemfds } // not in the table's literal, since newMemfds refers to the table

// memfds is the manager for clients on this machine: each client has its chunks in a memfd of its own, which it maps.
// Package tenancy says why that is safe. Clients ask for chunks by messages. The manager takes no part in reading and
// writing; nor do its node's device and the memory that the other managers lend.
type memfds struct {
	node    *Node
	tenants map[*session]*tenant
	all     []placed // by chunk
	fresh   int      // all[fresh:] have never been lent
	unlent  []uint32 // the other chunks that nobody has
	dirty   []dirtySlot
	most    int // chunks that may be lent at a time
	grants  []wire.Grant
	ids     []uint32

	lentCount, dirtyCount atomic.Int64 // for stats
}

// placed says where a chunk is. Chunk numbers are the node's; a client finds a chunk by its address, which is an
// offset in the client's memfd.
type placed struct {
	t    *tenant // nil unless lent
	slot uint32  // in t.fd
	pos  int     // in t.chunks
}

// A tenant is a session's memory.
type tenant struct {
	fd     *arena.Memfd
	lease  *tenancy.Lease
	chunks []uint32 // the chunks that the session has
	budget int      // the most chunks, and as many slots
	fresh  int      // slots from here on have never been used
	free   []uint32 // slots that read as zero; a stack
	dirty  int      // how many slots in memfds.dirty are of this memfd
	gone   bool     // the session is forgotten
}

// A dirtySlot held a chunk that came back, and has not been punched yet.
type dirtySlot struct {
	t    *tenant
	slot uint32
}

// A memoryPasser is a connection that passes memory to a client on this machine.
type memoryPasser interface {
	PassMemory(*arena.Memfd) error
}

func newMemfds(n *Node) (manager, error) {
	return &memfds{node: n, tenants: make(map[*session]*tenant), all: make([]placed, n.cfg.chunks()), most: n.cfg.chunks()}, nil
}

func (m *memfds) welcome(*client, *wire.Hello, *wire.Welcome) {}

func (m *memfds) connect(*client, *wire.Hello, verbs.ConnRequest) error {
	return errors.New(MemFD + " has no use for another queue pair")
}

func (m *memfds) look(*client) error { return nil }

// disconnect does nothing: only the client can reach what it has mapped, so everything can wait for the end of the
// grace period.
func (m *memfds) disconnect(*client) {}

// tenant returns the memory of c's session. It makes the memory when the session asks for something the first time,
// and passes it to c's process on c's first request.
func (m *memfds) tenant(c *client) (*tenant, error) {
	t := m.tenants[c.session]
	if t == nil {
		var err error
		if t, err = newTenant(&m.node.cfg); err != nil {
			return nil, err
		}
		m.tenants[c.session] = t
	}
	if c.part == nil {
		passer, ok := c.conn.(memoryPasser)
		if !ok {
			return nil, errors.New("the client is not on this machine, or has not come by a Unix socket")
		}
		if err := passer.PassMemory(t.fd); err != nil {
			return nil, err
		}
		c.part = t
	}
	return t, nil
}

func newTenant(cfg *Config) (t *tenant, err error) {
	budget := cfg.budget()
	t = &tenant{budget: budget}
	if t.fd, err = arena.NewMemfd("polder-chunks", tenancy.Size(budget, cfg.ChunkSize)); err != nil {
		return nil, err
	}
	if err = t.fd.SealForGood(); err == nil {
		t.lease, err = tenancy.MapLease(t.fd)
	}
	if err != nil {
		t.fd.Close()
		return nil, err
	}
	return t, nil
}

func (t *tenant) close() error { return errors.Join(t.lease.Close(), t.fd.Close()) }

func (m *memfds) answer(c *client, req *wire.Request, reply *wire.Reply) []wire.Grant {
	m.grants = m.grants[:0]
	t, err := m.tenant(c)
	switch {
	case err != nil:
		m.node.log.Warn("cannot pass memory", "peer", c.conn.RemoteAddr(), "error", err)
		reply.Status = wire.StatusFailed
	case req.Op == wire.OpSpace:
		reply.Status = m.lack(t)
	case req.Op == wire.OpAlloc:
		reply.Status = m.alloc(t, req.N)
	case req.Op == wire.OpFree:
		reply.Status, reply.N = m.free(c, t, req)
	case req.Op == wire.OpOwned:
		reply.Status = m.owned(t, int(req.Skip), req.N)
	default:
		reply.Status = wire.StatusBad
	}
	m.count() // before the client can know
	return m.grants
}

// lent is how many chunks clients have.
func (m *memfds) lent() int { return m.fresh - len(m.unlent) }

// lack returns why t can allocate nothing now, or StatusOK.
func (m *memfds) lack(t *tenant) wire.Status {
	switch {
	case len(t.chunks) == t.budget && t.budget < len(m.all):
		return wire.StatusBudget
	case m.lent() >= m.most:
		return wire.StatusNoMemory
	}
	return wire.StatusOK
}

func (m *memfds) alloc(t *tenant, want int) wire.Status {
	status := m.lack(t)
	for len(m.grants) < want && m.lack(t) == wire.StatusOK {
		slot, err := m.take(t)
		if err != nil {
			m.node.log.Warn("cannot take chunks back", "error", err)
			status = wire.StatusFailed
			break
		}
		m.grants = append(m.grants, m.grant(m.lend(t, slot)))
	}
	if len(m.grants) == 0 {
		m.node.counters.noMemory.Add(1)
		return status
	}
	m.node.counters.allocs.Add(int64(len(m.grants)))
	return wire.StatusOK
}

func (m *memfds) grant(i uint32) wire.Grant {
	return wire.Grant{Chunk: i, Addr: uint64(m.all[i].slot) * uint64(m.node.cfg.ChunkSize)}
}

// take returns a slot of t's that reads as zero.
//
// Preconditions: lack(t) is StatusOK.
func (m *memfds) take(t *tenant) (uint32, error) {
	// Dirty slots still take up memory, and at no time may more memory exist than is to be lent.
	for m.lent()+len(m.dirty) >= len(m.all) || len(t.free) == 0 && t.fresh == t.budget {
		if err := m.scrub(); err != nil {
			return 0, err
		}
	}
	if n := len(t.free); n > 0 {
		slot := t.free[n-1]
		t.free = t.free[:n-1]
		return slot, nil
	}
	t.fresh++
	return uint32(t.fresh - 1), nil
}

// lend gives t a chunk that lies at slot.
//
// Preconditions: not all chunks are lent.
func (m *memfds) lend(t *tenant, slot uint32) uint32 {
	i := uint32(m.fresh)
	if n := len(m.unlent); n > 0 {
		i = m.unlent[n-1]
		m.unlent = m.unlent[:n-1]
	} else {
		m.fresh++
	}
	m.all[i] = placed{t: t, slot: slot, pos: len(t.chunks)}
	t.chunks = append(t.chunks, i)
	return i
}

// release takes chunk i away from whoever has it.
func (m *memfds) release(i uint32) {
	c := &m.all[i]
	t, last := c.t, len(c.t.chunks)-1
	moved := t.chunks[last]
	t.chunks[c.pos] = moved
	m.all[moved].pos = c.pos
	t.chunks = t.chunks[:last]
	t.dirty++
	m.dirty = append(m.dirty, dirtySlot{t, c.slot})
	*c = placed{}
	m.unlent = append(m.unlent, i)
}

// scrub makes one dirty slot read as zero, by punching it out if it has whole pages, and makes it free.
//
// Preconditions: there is a dirty slot.
func (m *memfds) scrub() error {
	last := len(m.dirty) - 1
	d := m.dirty[last]
	size := m.node.cfg.ChunkSize
	wipe := d.t.fd.Punch
	if size < arena.PageSize {
		wipe = d.t.fd.Zero
	}
	if err := wipe(int(d.slot)*size, size); err != nil {
		return err
	}
	m.dirty = m.dirty[:last]
	d.t.dirty--
	d.t.free = append(d.t.free, d.slot)
	if d.t.gone && d.t.dirty == 0 {
		return d.t.close()
	}
	return nil
}

// free takes back the chunks of r's list if all of them are t's, and otherwise none.
func (m *memfds) free(c *client, t *tenant, r *wire.Request) (wire.Status, int) {
	m.ids = m.ids[:0]
	for k := range r.N {
		i := r.Chunk(k)
		if int(i) >= len(m.all) || m.all[i].t != t {
			m.node.counters.notOwner.Add(1)
			m.node.log.Warn("client freed what is not its own", "peer", c.conn.RemoteAddr(), "chunk", i)
			return wire.StatusNotOwner, 0
		}
		m.ids = append(m.ids, i)
	}
	if duplicates(m.ids) {
		m.node.counters.notOwner.Add(1)
		m.node.log.Warn("client freed a chunk twice at once", "peer", c.conn.RemoteAddr())
		return wire.StatusNotOwner, 0
	}
	for _, i := range m.ids {
		m.release(i)
	}
	m.node.counters.frees.Add(int64(len(m.ids)))
	return wire.StatusOK, len(m.ids)
}

// owned lists up to max of t's chunks after the first skip, in m.grants.
func (m *memfds) owned(t *tenant, skip, max int) wire.Status {
	if skip > len(t.chunks) {
		return wire.StatusBad
	}
	for _, i := range t.chunks[skip:min(len(t.chunks), skip+max)] {
		m.grants = append(m.grants, m.grant(i))
	}
	return wire.StatusOK
}

// reclaim revokes the lease before anything is punched.
func (m *memfds) reclaim(s *session) int {
	t := m.tenants[s]
	if t == nil {
		return 0
	}
	t.lease.Revoke()
	k := len(t.chunks)
	for len(t.chunks) > 0 {
		m.release(t.chunks[len(t.chunks)-1])
	}
	m.count()
	return k
}

func (m *memfds) forget(s *session) {
	t := m.tenants[s]
	if t == nil {
		return
	}
	t.lease.Revoke()
	delete(m.tenants, s)
	t.gone = true
	if t.dirty == 0 {
		if err := t.close(); err != nil {
			m.node.log.Warn("cannot let go of a client's memory", "error", err)
		}
	}
}

func (m *memfds) held(s *session) int {
	if t := m.tenants[s]; t != nil {
		return len(t.chunks)
	}
	return 0
}

func (m *memfds) space(s *session) wire.Space {
	return wire.Space{
		Free:   uint32(max(0, m.most-m.lent())),
		Budget: uint32(m.node.cfg.budget() - m.held(s)),
	}
}

func (m *memfds) work() bool {
	if len(m.dirty) == 0 {
		return false
	}
	err := m.scrub()
	if err != nil {
		m.node.log.Warn("cannot take a chunk back", "error", err)
	}
	m.count()
	return err == nil && len(m.dirty) > 0
}

func (m *memfds) count() {
	m.lentCount.Store(int64(m.lent()))
	m.dirtyCount.Store(int64(len(m.dirty)))
}

func (m *memfds) stats(s *Stats) { s.Lent, s.Dirty = m.lentCount.Load(), m.dirtyCount.Load() }

// close lets go of the clients' memory. What a client has mapped stays with it as long as it lives: it is not lent to
// anybody else.
func (m *memfds) close() error {
	var errs []error
	for _, t := range m.tenants {
		errs = append(errs, t.close())
	}
	for len(m.dirty) > 0 { // dirty slots of forgotten sessions: their memory is still open
		last := len(m.dirty) - 1
		t := m.dirty[last].t
		m.dirty = m.dirty[:last]
		if t.dirty--; t.gone && t.dirty == 0 {
			errs = append(errs, t.close())
		}
	}
	return errors.Join(errs...)
}
