package memnode

import (
	"fmt"
	"sync/atomic"

	"polder/memnode/component"
	"polder/memnode/wire"
	"polder/verbs"
)

// rpc manages memory by messages: the control goroutine allocates, frees, and
// opens every chunk to its borrower.
type rpc struct {
	node   *Node
	chunks *chunks
	opener opener
	grants []wire.Grant
	ids    []uint32

	lent, dirty atomic.Int64 // for stats
}

func newRPC(n *Node) (manager, error) {
	t := &chunks{memory: n.mem, all: make([]chunk, n.cfg.chunks())}
	m := &rpc{node: n, chunks: t}
	if l := n.mem.ledger; l != nil {
		for i := len(t.all) - 1; i >= 0; i-- {
			if l.Owner(i) == 0 { // the ledger has zeroed the chunks that nobody has
				t.free = append(t.free, uint32(i))
			}
		}
		t.fresh = len(t.all)
	}
	switch n.cfg.Manager {
	case RPCMW:
		m.opener = windows2{node: n, chunks: t}
	case RPCMW1:
		m.opener = newWindows1(windows2{node: n, chunks: t})
	case FineMR, StaticMR:
		m.opener = newRegistrations(n, t, n.cfg.Manager == StaticMR)
	default:
		panic("BUG: " + n.cfg.Manager + " does not work by messages")
	}
	return m, nil
}

// chunksOf implements teller.
func (m *rpc) chunksOf(s *session) component.Chunks {
	return &lent{m.node.mem, m.node.cfg.chunks(), func(i uint32) bool { return m.chunks.ownedBy(i, s) }}
}

// welcome decides how many groups c may have. With the baseline managers, or in version wire.Before of the protocol,
// it has one.
func (m *rpc) welcome(c *client, h *wire.Hello, w *wire.Welcome) {
	if m.node.cfg.Manager == RPCMW && h.Version != wire.Before {
		m.node.welcomeGroups(c, h, w)
	}
}

func (m *rpc) connect(c *client, h *wire.Hello, req verbs.ConnRequest) error {
	if h.Kind != wire.KindAccess {
		return fmt.Errorf("%s has no use for a queue pair of kind %d", m.node.cfg.Manager, h.Kind)
	}
	if err := c.mayAccess(h.Index); err != nil {
		return err
	}
	return m.opener.connect(c, req)
}

func (m *rpc) answer(c *client, req *wire.Request, reply *wire.Reply) []wire.Grant {
	m.grants = m.grants[:0]
	switch {
	case len(c.access) == 0:
		reply.Status = wire.StatusNoAccess
	case req.Op == wire.OpAlloc:
		reply.Status = m.alloc(c, req.N)
	case req.Op == wire.OpFree:
		reply.Status, reply.N = m.free(c, req)
	case req.Op == wire.OpOwned:
		reply.Status = m.owned(c, int(req.Skip), req.N)
	default:
		reply.Status = wire.StatusBad
	}
	m.count() // before the client can know
	return m.grants
}

func (m *rpc) look(*client) error { return nil }

func (m *rpc) disconnect(c *client) {
	m.opener.leave(c)
}

func (m *rpc) reclaim(s *session) int {
	k := len(s.chunks)
	for len(s.chunks) > 0 {
		m.chunks.reclaim(s.chunks[len(s.chunks)-1])
	}
	m.count()
	return k
}

// restore implements restorer.
func (m *rpc) restore(s *session, chunks []uint32) {
	for _, i := range chunks {
		m.chunks.lend(i, s)
	}
	m.count()
}

func (m *rpc) forget(*session) {}

func (m *rpc) held(s *session) int { return len(s.chunks) }

func (m *rpc) work() bool {
	more := m.opener.work()
	m.count()
	return more
}

func (m *rpc) count() {
	m.lent.Store(int64(m.chunks.lent()))
	m.dirty.Store(int64(len(m.chunks.dirty)))
}

func (m *rpc) stats(s *Stats) { s.Lent, s.Dirty = m.lent.Load(), m.dirty.Load() }

func (m *rpc) close() error {
	m.opener.close()
	return nil
}

func (m *rpc) space(s *session) wire.Space {
	return wire.Space{
		Free:   uint32(m.chunks.available()),
		Budget: uint32(m.node.cfg.budget() - len(s.chunks)),
	}
}

// alloc lends c up to want chunks, and puts their grants into m.grants.
func (m *rpc) alloc(c *client, want int) wire.Status {
	s := c.session
	left := m.node.cfg.budget() - len(s.chunks)
	if left == 0 {
		m.node.counters.noMemory.Add(1)
		return wire.StatusBudget
	}
	m.ids = m.ids[:0]
	for range min(want, left) {
		i, ok := m.opener.take(c)
		if !ok {
			break
		}
		m.ids = append(m.ids, i)
	}
	if len(m.ids) == 0 {
		m.node.counters.noMemory.Add(1)
		return wire.StatusNoMemory
	}
	done, err := m.opener.open(c, m.ids)
	for _, i := range m.ids[done:] {
		m.chunks.untake(i)
	}
	if done == 0 {
		m.node.log.Warn("cannot open chunks", "peer", c.conn.RemoteAddr(), "error", err)
		return wire.StatusFailed
	}
	for _, i := range m.ids[:done] {
		m.chunks.lend(i, s)
		m.grant(i)
	}
	m.node.counters.allocs.Add(int64(done))
	return wire.StatusOK
}

func (m *rpc) grant(i uint32) {
	m.grants = append(m.grants, m.opener.grant(i))
}

// free takes back the chunks of r's list if all of them are c's, and otherwise none.
func (m *rpc) free(c *client, r *wire.Request) (wire.Status, int) {
	m.ids = m.ids[:0]
	for k := range r.N {
		i := r.Chunk(k)
		if !m.chunks.ownedBy(i, c.session) {
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
	m.opener.shut(m.ids)
	for _, i := range m.ids {
		m.chunks.reclaim(i)
	}
	m.node.counters.frees.Add(int64(len(m.ids)))
	return wire.StatusOK, len(m.ids)
}

// duplicates reports whether a number occurs twice in ids, which has at most wire.MaxBatch.
func duplicates(ids []uint32) bool {
	for k, i := range ids {
		for _, j := range ids[:k] {
			if i == j {
				return true
			}
		}
	}
	return false
}

// owned lists up to max of c's chunks after the first skip in m.grants. It opens those that are not open to c yet.
func (m *rpc) owned(c *client, skip, max int) wire.Status {
	all := c.session.chunks
	if skip > len(all) {
		return wire.StatusBad
	}
	page := all[skip:min(len(all), skip+max)]
	m.ids = m.ids[:0]
	for _, i := range page {
		if !m.chunks.all[i].bound {
			m.ids = append(m.ids, i)
		}
	}
	if done, err := m.opener.open(c, m.ids); done < len(m.ids) {
		m.node.log.Warn("cannot open chunks", "peer", c.conn.RemoteAddr(), "error", err)
		return wire.StatusFailed
	}
	for _, i := range page {
		m.grant(i)
	}
	return wire.StatusOK
}
