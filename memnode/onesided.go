package memnode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"polder/memnode/chain"
	"polder/memnode/wire"
	"polder/verbs"
)

// onesided manages memory without the CPU: the NIC hands chunks out and takes
// them back, by chains of work requests or by its own allocation verb. What is
// left for the control goroutine is to build that when a client connects, to
// rebind windows when one comes back, to reclaim what is left behind, to zero
// large chunks, to watch budgets, and to deal with an empty queue.
type onesided struct {
	node      *Node
	w         *windows
	allocator verbs.Allocator // nil: chains
	borrowers map[*session]*borrower
	counters  map[*client]*counter
	lastOwner uint64
	timer     *time.Timer
	grants    []wire.Grant

	goneAllocs, goneFrees int64        // of connections that are gone
	allocs, frees         atomic.Int64 // of all, when last counted
}

// A borrower is a session.
type borrower struct {
	owner  uint64
	chunks []uint32 // while it is not connected, and when it last connected
}

// Times between ticks.
const (
	auditEvery = 50 * time.Millisecond // budgets, and freed chunks
	emptyEvery = time.Millisecond      // while clients wait for memory
)

func newOneSided(n *Node) (manager, error) {
	w, err := newWindows(n.mem, n.cfg.chunks(), n.cfg.MaxClients, n.cfg.Group)
	if err != nil {
		return nil, err
	}
	m := &onesided{
		node: n, w: w, borrowers: make(map[*session]*borrower), counters: make(map[*client]*counter),
		timer: time.NewTimer(auditEvery),
	}
	if n.cfg.Manager == OneSided {
		if !n.dev.Attr().WaitEnable {
			m.close()
			return nil, fmt.Errorf("%s cannot run chains of work requests: lend by %s", n.dev.Attr().Name, RPCMW)
		}
		return m, nil
	}
	dev, ok := n.dev.(verbs.AllocDevice)
	if !ok || !n.dev.Attr().Alloc {
		m.close()
		return nil, fmt.Errorf("%s has no allocation verb: lend by %s", n.dev.Attr().Name, RPCMW)
	}
	freed, ring := w.freedTo()
	m.allocator, err = dev.CreateAllocator(verbs.AllocatorInit{
		Table: w.tableMR, Entries: w.table.Addr, Count: uint32(n.cfg.chunks()), Windows: w.count,
		Queue: w.queueMR, Head: w.queue.Head(), Tail: w.queue.Tail(), Ring: w.queue.Ring(), Size: w.queue.Size(),
		Freed: freed, FreedRing: ring, Zero: w.zeroMR != nil,
		Memory: w.mr, ChunkSize: uint64(w.size), Access: windowAccess,
	})
	if err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

func (m *onesided) welcome(w *wire.Welcome) { w.Group = uint8(m.w.count - 1) }

func (m *onesided) borrower(s *session) *borrower {
	b := m.borrowers[s]
	if b == nil {
		m.lastOwner++
		b = &borrower{owner: m.lastOwner}
		m.borrowers[s] = b
	}
	return b
}

func (m *onesided) counter(c *client) *counter {
	k := m.counters[c]
	if k == nil {
		b := m.borrower(c.session)
		k = &counter{client: c, owner: b.owner, group: make([]verbs.QP, m.w.count-1)}
		k.account = chain.Account{Budget: m.node.cfg.budget(), Base: len(b.chunks)}
		k.account.Resume = func(done, failed uint64) {
			if err := k.alloc.resume(m.node.dev, done, failed); err != nil {
				m.node.log.Warn("cannot arm a chain", "error", err)
				c.gone.Store(true)
				m.node.ready.add(c)
			}
		}
		m.counters[c] = k
	}
	return k
}

func (m *onesided) connect(c *client, h *wire.Hello, req verbs.ConnRequest) error {
	k := m.counter(c)
	switch {
	case h.Kind == wire.KindAccess && int(h.Index) >= len(k.group):
		return fmt.Errorf("a group has %d access queue pairs", len(k.group))
	case h.Kind == wire.KindAccess && k.group[h.Index] != nil:
		return fmt.Errorf("access queue pair %d is connected", h.Index)
	case h.Kind == wire.KindAccess:
		return m.connectAccess(k, h.Index, req)
	case k.cut:
		return errors.New("the budget was exceeded")
	case h.Kind == wire.KindAlloc && m.allocator != nil && k.verb == nil:
		return m.connectVerb(k, req)
	case h.Kind == wire.KindFree && m.allocator == nil && k.free == nil:
		return m.connectDesk(k, req, true)
	case h.Kind == wire.KindAlloc && m.allocator == nil && k.alloc == nil && k.free != nil:
		return m.connectDesk(k, req, false)
	}
	return fmt.Errorf("no use for a queue pair of kind %d now", h.Kind)
}

// event returns the handler of the events of a queue pair of k's. That the client
// has closed its end is no trouble.
func (m *onesided) event(k *counter) func(verbs.AsyncEvent) {
	return func(e verbs.AsyncEvent) {
		if e.Type != verbs.EventCommEstablish && e.Type != verbs.EventDisconnected {
			k.trouble.Store(true)
			m.node.ready.add(k.client)
		}
	}
}

func (m *onesided) connectAccess(k *counter, i uint8, req verbs.ConnRequest) error {
	n := m.node
	qp, err := n.pd.CreateQP(verbs.QPInit{SendCQ: k.client.cq, RecvCQ: k.client.cq, SendDepth: 1, RecvDepth: 1, OnEvent: n.event})
	if err != nil {
		return fmt.Errorf("cannot create an access queue pair: %w", err)
	}
	if req.Accept(qp, binary.LittleEndian.AppendUint32(nil, qp.Num())) != nil {
		qp.Close()
		return nil // the connection is gone, and its watcher will say so
	}
	k.group[i] = qp
	return nil
}

// place is the answer to a connection request for allocating or freeing: where
// the table begins.
func (m *onesided) place() []byte {
	return binary.LittleEndian.AppendUint64(nil, m.w.table.Addr)
}

func (m *onesided) connectDesk(k *counter, req verbs.ConnRequest, free bool) error {
	program, cfg := chain.Alloc, chain.Config{ChunkSize: uint64(m.w.size), Access: windowAccess}
	if free {
		program = chain.Free
		cfg.To, _ = m.w.freedTo()
		if z := m.w.zeroMR; z != nil {
			cfg.Zeros = &verbs.SGE{Addr: z.Addr(), Length: uint32(m.w.size), LKey: z.LKey()}
		}
	} else {
		cfg.FreeQP = k.free.front.Num()
		if k.account.Budget < m.node.cfg.chunks() {
			cfg.FreedCQ, cfg.Budget = k.free.cq.Num(), k.account.Spare()
		}
	}
	d, err := newDesk(m.node.dev, m.w, k.owner, program, cfg, m.event(k))
	if err != nil {
		return fmt.Errorf("cannot build a chain: %w", err)
	}
	// The peer cannot send before it has been accepted, and then too soon.
	if err := req.Accept(d.front, m.place()); err != nil {
		d.close()
		return nil
	}
	if err := d.start(m.node.dev); err != nil {
		d.close()
		m.node.log.Warn("cannot start a chain", "error", err)
		k.client.gone.Store(true)
		m.node.ready.add(k.client)
		return nil
	}
	if free {
		k.free = d
	} else {
		k.alloc = d
		k.account.Open(d.program, d.ring())
	}
	return nil
}

func (m *onesided) connectVerb(k *counter, req verbs.ConnRequest) (err error) {
	for i, qp := range k.group {
		if qp == nil {
			return fmt.Errorf("access queue pair %d is not connected", i)
		}
	}
	qp, err := m.node.pd.CreateQP(verbs.QPInit{
		SendCQ: k.client.cq, RecvCQ: k.client.cq, SendDepth: 1, RecvDepth: 1, OnEvent: m.event(k),
	})
	if err != nil {
		return fmt.Errorf("cannot create a queue pair to allocate with: %w", err)
	}
	budget := uint64(k.account.Budget)
	held := min(uint64(k.account.Base), budget)
	if err := m.allocator.Attach(qp, verbs.AllocClient{Owner: k.owner, Budget: budget, Held: held, Group: k.group}); err != nil {
		qp.Close()
		return err
	}
	if req.Accept(qp, m.place()) != nil {
		qp.Close()
		return nil
	}
	k.verb = qp
	return nil
}

// owned lists what k's session had when it connected. The first time, it binds
// that to the new queue pairs; before that the client cannot have freed any of
// it, and afterwards the windows are the NIC's business alone.
func (m *onesided) owned(k *counter, skip, max int) wire.Status {
	if k.complete() != nil {
		return wire.StatusNoAccess
	}
	if !k.bound {
		if err := m.rebind(k); err != nil {
			m.node.log.Warn("cannot bind windows", "peer", k.client.conn.RemoteAddr(), "error", err)
			return wire.StatusFailed
		}
		k.bound = true
	}
	if skip > len(k.listed) {
		return wire.StatusBad
	}
	m.grants = append(m.grants, k.listed[skip:min(len(k.listed), skip+max)]...)
	return wire.StatusOK
}

// rebind gives k's queue pairs the windows of its session's chunks, which have
// been replaced when the last connection ended.
func (m *onesided) rebind(k *counter) error {
	qps := append([]verbs.QP{k.verb}, k.group...)
	if k.verb == nil {
		qps[0] = k.free.front
	}
	k.listed = k.listed[:0]
	for _, i := range m.borrower(k.client.session).chunks {
		if err := m.w.bind(i, qps); err != nil {
			return err
		}
		for j := range k.group {
			k.listed = append(k.listed, wire.Grant{Chunk: i, Addr: m.w.address(i), Key: m.w.table.Key(i, j+1)})
		}
	}
	return nil
}

func (m *onesided) disconnect(c *client) {
	k := m.counters[c]
	if k == nil {
		return
	}
	c.conn.Close()
	if k.alloc != nil || k.free != nil {
		m.quiesce()
		m.retire(k)
	}
	a, f := m.rounds(k)
	m.goneAllocs += a
	m.goneFrees += f
	k.account.Close(m.w.queue)
	delete(m.counters, c)
	m.count()
	for _, d := range []*desk{k.alloc, k.free} {
		if d != nil {
			d.close()
		}
	}
	for _, qp := range append(k.group, k.verb) {
		if qp != nil {
			qp.Close()
		}
	}
	b := m.borrower(c.session)
	b.chunks = m.w.table.Owned(b.owner)
	for _, i := range b.chunks {
		if err := m.w.replace(i); err != nil {
			m.node.log.Warn("cannot replace windows", "chunk", i, "error", err)
		}
	}
}

func (m *onesided) reclaim(s *session) int {
	b := m.borrower(s)
	k := len(b.chunks)
	for _, i := range b.chunks {
		if err := m.w.takeBack(i); err != nil {
			m.node.log.Warn("cannot take a chunk back", "chunk", i, "error", err)
		}
	}
	b.chunks = nil
	m.settle()
	return k
}

func (m *onesided) forget(s *session) { delete(m.borrowers, s) }

// rounds is how many chunks were allocated and freed over k's connection, as
// the NIC has counted.
func (m *onesided) rounds(k *counter) (allocs, frees int64) {
	if k.verb != nil {
		a, f, err := m.allocator.Counts(k.verb)
		if err != nil {
			return 0, 0
		}
		return int64(a), int64(f)
	}
	return int64(k.account.Taken()), int64(k.freed())
}

// holds is how many chunks k's session has.
func (m *onesided) holds(k *counter) int {
	a, f := m.rounds(k)
	return k.account.Base + int(a-f)
}

func (m *onesided) held(s *session) int {
	if s.client != nil && !s.client.closed {
		if k := m.counters[s.client]; k != nil {
			return m.holds(k)
		}
	}
	return len(m.borrower(s).chunks)
}

func (m *onesided) space(s *session) wire.Space {
	return wire.Space{
		Free:   uint32(m.w.queue.Free() + m.w.queue.Freed()),
		Budget: uint32(max(0, m.node.cfg.budget()-m.held(s))),
	}
}

func (m *onesided) work() bool { return m.w.scrub() }

func (m *onesided) count() {
	allocs, frees := m.goneAllocs, m.goneFrees
	for _, k := range m.counters {
		a, f := m.rounds(k)
		allocs, frees = allocs+a, frees+f
	}
	m.allocs.Store(allocs)
	m.frees.Store(frees)
}

func (m *onesided) stats(s *Stats) {
	m.node.Clients() // has the control goroutine count
	s.Allocs, s.Frees = m.allocs.Load(), m.frees.Load()
	s.Dirty = int64(m.w.queue.Freed())
	s.Lent = s.Chunks - int64(m.w.queue.Free()) - s.Dirty
}

func (m *onesided) close() error {
	m.timer.Stop()
	var err error
	if m.allocator != nil {
		err = m.allocator.Close()
	}
	m.w.close()
	return err
}
