package memnode

import (
	"errors"
	"fmt"

	"polder/memnode/component"
	"polder/memnode/odrp"
	"polder/memnode/wire"
	"polder/verbs"
)

// paged is the manager of ODRP: it lends addresses, by messages, and lets the NIC put pages behind them (package
// odrp).
type paged struct {
	*rpc
	pages *odrp.Pages
	of    map[*session]*odrp.Table
}

// newODRP returns rpc with another opener: the chunks that it lends are addresses, not memory.
func newODRP(n *Node) (manager, error) {
	if n.dev.Attr().Prefetches {
		return nil, fmt.Errorf("%s reads entries before the chains of %s have rewritten them: lend by %s", n.dev.Attr().Name, ODRP, OneSided)
	}
	t := &chunks{memory: n.mem, all: make([]chunk, n.cfg.chunks())}
	m := &paged{rpc: &rpc{node: n, chunks: t}, of: make(map[*session]*odrp.Table)}
	m.pages = odrp.New(odrp.Memory{
		Dev: n.dev, PD: n.pd, MR: n.mem.mr, Map: n.mem.mem, Binder: n.mem.binder,
		Chunks: len(t.all), ChunkSize: t.size, Budget: n.cfg.budget(),
	})
	m.opener = m
	return &pagedManager{m}, nil
}

// pagedManager makes paged a manager. It is a type of its own because manager and opener share some names of methods.
type pagedManager struct{ *paged }

func (m *pagedManager) connect(c *client, h *wire.Hello, req verbs.ConnRequest) error {
	return m.connectPager(c, h, req)
}
func (m *pagedManager) work() bool { return m.rpc.work() }
func (m *pagedManager) close() error {
	m.paged.close()
	return nil
}

// connectPager answers a request for the queue pair of a pager: index 0 is to read pages, index 1 to write them.
func (m *paged) connectPager(c *client, h *wire.Hello, req verbs.ConnRequest) error {
	if h.Kind != wire.KindAccess || int(h.Index) > 1 {
		return fmt.Errorf("%s has no use for queue pair %d of kind %d", ODRP, h.Index, h.Kind)
	}
	t := m.of[c.session]
	if t == nil {
		var err error
		if t, err = m.pages.NewTable(); err != nil {
			return err
		}
		m.of[c.session] = t
	}
	p, ok := c.part.(*odrp.Pagers)
	if !ok {
		p = t.Open(func(e verbs.AsyncEvent) {
			m.node.event(e)
			m.node.ready.add(c)
		}, func() {
			c.access = nil // its queue pairs have been closed
			m.node.ready.add(c)
		})
		c.part = p
	}
	front, err := p.Connect(h.Index == 1, req)
	if front != nil {
		c.access = append(c.access, front)
	}
	return err
}

func (m *paged) look(c *client) error {
	if p, ok := c.part.(*odrp.Pagers); ok && p.Failed() {
		return errors.New("the client asked for a page that it has no right to")
	}
	return nil
}

// connect implements opener. It is never called.
func (m *paged) connect(*client, verbs.ConnRequest) error {
	return errors.New("pages are reached by pagers only")
}

func (m *paged) take(*client) (uint32, bool) {
	m.work() // leaves no dirty chunk, which chunks.take would zero as if it were memory
	return m.chunks.take()
}

func (m *paged) open(c *client, ids []uint32) (int, error) {
	t := m.of[c.session]
	for done, i := range ids {
		if !t.Furnish(i) {
			return done, errors.New("no pages left")
		}
		m.chunks.all[i].bound = true
	}
	return len(ids), nil
}

// grant has no key: the address is one that the client's table translates.
func (m *paged) grant(i uint32) wire.Grant {
	return wire.Grant{Chunk: i, Addr: uint64(i) * uint64(m.chunks.size)}
}

func (m *paged) shut(ids []uint32) {
	for _, i := range ids {
		c := &m.chunks.all[i]
		c.bound = false
		m.of[c.owner.Load()].Withdraw(i)
	}
}

func (m *paged) leave(c *client) {
	if t := m.of[c.session]; t != nil {
		t.Stop()
		for _, i := range c.session.chunks {
			m.chunks.all[i].bound = false
		}
	}
}

// chunksOf returns nil, so that components read no chunks: the pages of a chunk's addresses may lie anywhere.
func (m *paged) chunksOf(*session) component.Chunks { return nil }

// reclaim also takes back the pages of s.
func (m *paged) reclaim(s *session) int {
	if t := m.of[s]; t != nil {
		t.Clear()
	}
	return m.rpc.reclaim(s)
}

func (m *paged) forget(s *session) {
	if t := m.of[s]; t != nil {
		t.Close()
		delete(m.of, s)
	}
}

// work makes the addresses that came back free. Their pages have been zeroed already.
func (m *paged) work() bool {
	m.pages.Settle()
	m.chunks.free = append(m.chunks.free, m.chunks.dirty...)
	m.chunks.dirty = m.chunks.dirty[:0]
	return false
}

func (m *paged) close() {
	for s := range m.of {
		m.forget(s)
	}
}
