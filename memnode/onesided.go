package memnode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"polder/memnode/chain"
	"polder/memnode/component"
	"polder/memnode/wire"
	"polder/verbs"
)

// onesided manages memory without the CPU: the NIC hands chunks out and takes them back, by chains of work requests
// or by its own allocation verb. The control goroutine still makes the chains and queue pairs when a client connects,
// rebinds windows when a client comes back, reclaims what clients leave behind, zeroes large chunks, watches budgets,
// and deals with an empty queue.
type onesided struct {
	node      *Node
	w         *windows
	allocator verbs.Allocator // nil: chains
	borrowers map[*session]*borrower
	counters  map[*client]*counter
	timer     *time.Timer
	grants    []wire.Grant

	goneAllocs, goneFrees int64        // chunks allocated and freed over connections that are gone
	allocs, frees         atomic.Int64 // over all connections, when last counted
}

// A borrower is what onesided keeps for a session.
type borrower struct {
	chunks []uint32 // the session's chunks while it is not connected; afterwards, those it had when it connected
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

// chunksOf implements teller.
func (m *onesided) chunksOf(s *session) component.Chunks {
	owner := s.owner
	return &lent{m.node.mem, m.node.cfg.chunks(), func(i uint32) bool { return m.w.table.Owner(i) == owner }}
}

// welcome decides how many queue pairs c has. The allocation verb opens chunks to the group of the queue pair that it
// comes over, so with the verb there is one queue pair to allocate with for every group.
func (m *onesided) welcome(c *client, h *wire.Hello, w *wire.Welcome) {
	w.Group = uint8(m.w.count - 1)
	w.Groups = min(max(h.Groups, 1), uint8(m.node.cfg.MaxGroups))
	w.Pairs = min(max(h.Pairs, 1), uint8(m.node.cfg.MaxPairs))
	if m.allocator != nil {
		w.Pairs = w.Groups
	}
	m.open(c, int(w.Groups), int(w.Pairs))
}

func (m *onesided) borrower(s *session) *borrower {
	b := m.borrowers[s]
	if b == nil {
		b = new(borrower)
		m.borrowers[s] = b
	}
	return b
}

// open makes c's counter, with so many groups and pairs.
func (m *onesided) open(c *client, groups, pairs int) {
	b := m.borrower(c.session)
	k := &counter{client: c, owner: c.session.owner, groups: make([][]verbs.QP, groups), pairs: make([]pair, pairs)}
	for i := range k.groups {
		k.groups[i] = make([]verbs.QP, m.w.count-1)
	}
	for i := range k.pairs {
		p := &k.pairs[i]
		p.account = chain.Account{Budget: chain.Part(m.node.cfg.budget(), i, pairs), Base: chain.Part(len(b.chunks), i, pairs)}
		p.account.Resume = func(done, failed uint64) {
			if err := p.alloc.resume(m.node.dev, done, failed); err != nil {
				m.node.log.Warn("cannot arm a chain", "error", err)
				c.gone.Store(true)
				m.node.ready.add(c)
			}
		}
	}
	m.counters[c] = k
}

func (m *onesided) connect(c *client, h *wire.Hello, req verbs.ConnRequest) error {
	k := m.counters[c]
	i, group := int(h.Index), m.w.count-1
	if h.Kind == wire.KindAccess {
		switch {
		case i >= group*len(k.groups):
			return fmt.Errorf("%d groups have %d access queue pairs each", len(k.groups), group)
		case k.groups[i/group][i%group] != nil:
			return fmt.Errorf("access queue pair %d is connected", i)
		}
		return m.connectAccess(k, i, req)
	}
	if i >= len(k.pairs) {
		return fmt.Errorf("there are %d pairs of queue pairs to allocate and to free with", len(k.pairs))
	}
	p := &k.pairs[i]
	switch {
	case k.cut:
		return errors.New("the budget was exceeded")
	case h.Kind == wire.KindAlloc && m.allocator != nil && p.verb == nil:
		return m.connectVerb(k, i, req)
	case h.Kind == wire.KindFree && m.allocator == nil && p.free == nil:
		return m.connectDesk(k, p, req, true)
	case h.Kind == wire.KindAlloc && m.allocator == nil && p.alloc == nil && p.free != nil:
		return m.connectDesk(k, p, req, false)
	}
	return fmt.Errorf("no use for a queue pair of kind %d now", h.Kind)
}

// event returns the event handler for the queue pairs of k. It ignores the event that the client has closed its end.
func (m *onesided) event(k *counter) func(verbs.AsyncEvent) {
	return func(e verbs.AsyncEvent) {
		if e.Type != verbs.EventCommEstablish && e.Type != verbs.EventDisconnected {
			k.trouble.Store(true)
			m.node.ready.add(k.client)
		}
	}
}

func (m *onesided) connectAccess(k *counter, i int, req verbs.ConnRequest) error {
	n := m.node
	qp, err := n.pd.CreateQP(verbs.QPInit{SendCQ: k.client.cq, RecvCQ: k.client.cq, SendDepth: 1, RecvDepth: 1, OnEvent: n.event})
	if err != nil {
		return fmt.Errorf("cannot create an access queue pair: %w", err)
	}
	if req.Accept(qp, binary.LittleEndian.AppendUint32(nil, qp.Num())) != nil {
		qp.Close()
		return nil // the connection is gone, and its watcher will say so
	}
	k.groups[i/(m.w.count-1)][i%(m.w.count-1)] = qp
	return nil
}

// place is the answer to a request to connect a queue pair that allocates or frees: where the table begins, and how
// many chunks may be allocated with p.
func (m *onesided) place(p *pair) []byte {
	b := binary.LittleEndian.AppendUint64(nil, m.w.table.Addr)
	return binary.LittleEndian.AppendUint32(b, uint32(max(0, p.account.Spare())))
}

func (m *onesided) connectDesk(k *counter, p *pair, req verbs.ConnRequest, free bool) error {
	program, cfg := chain.Alloc, chain.Config{ChunkSize: uint64(m.w.size), Access: windowAccess}
	if free {
		program = chain.Free
		cfg.To, _ = m.w.freedTo()
		if z := m.w.zeroMR; z != nil {
			cfg.Zeros = &verbs.SGE{Addr: z.Addr(), Length: uint32(m.w.size), LKey: z.LKey()}
		}
	} else {
		cfg.FreeQP = p.free.front.Num()
		if p.account.Budget < m.node.cfg.chunks() {
			cfg.FreedCQ, cfg.Budget = p.free.cq.Num(), p.account.Spare()
		}
	}
	d, err := newDesk(m.node.dev, m.w, k.owner, program, cfg, m.event(k))
	if err != nil {
		return fmt.Errorf("cannot build a chain: %w", err)
	}
	// The client cannot send before Accept, but may then send before the desk has started.
	if err := req.Accept(d.front, m.place(p)); err != nil {
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
		p.free = d
	} else {
		p.alloc = d
		p.account.Open(d.program, d.ring())
	}
	return nil
}

// connectVerb connects the queue pair with which k's client allocates for group i.
func (m *onesided) connectVerb(k *counter, i int, req verbs.ConnRequest) (err error) {
	p, group := &k.pairs[i], k.groups[i]
	if j := slices.Index(group, nil); j >= 0 {
		return fmt.Errorf("access queue pair %d of group %d is not connected", j, i)
	}
	qp, err := m.node.pd.CreateQP(verbs.QPInit{
		SendCQ: k.client.cq, RecvCQ: k.client.cq, SendDepth: 1, RecvDepth: 1, OnEvent: m.event(k),
	})
	if err != nil {
		return fmt.Errorf("cannot create a queue pair to allocate with: %w", err)
	}
	budget := uint64(p.account.Budget)
	held := min(uint64(p.account.Base), budget)
	if err := m.allocator.Attach(qp, verbs.AllocClient{Owner: k.owner, Budget: budget, Held: held, Group: group}); err != nil {
		qp.Close()
		return err
	}
	if req.Accept(qp, m.place(p)) != nil {
		qp.Close()
		return nil
	}
	p.verb = qp
	return nil
}

// owned lists the chunks that k's session had when it connected. The first call binds them to the new queue pairs:
// before that the client cannot have freed any of them, and afterwards their windows are the NIC's business alone.
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

// rebind binds the windows of the chunks of k's session to k's queue pairs. These windows are new: the old ones were
// replaced when the last connection ended.
func (m *onesided) rebind(k *counter) error {
	k.listed = k.listed[:0]
	for n, i := range m.borrower(k.client.session).chunks {
		group := k.groups[n%len(k.groups)]
		if err := m.w.bind(i, append([]verbs.QP{k.pairs[n%len(k.pairs)].first()}, group...)); err != nil {
			return err
		}
		for j := range group {
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
	if slices.ContainsFunc(k.pairs, func(p pair) bool { return p.alloc != nil || p.free != nil }) {
		m.rest(k)
	}
	a, f := m.rounds(k)
	m.goneAllocs += a
	m.goneFrees += f
	for i := range k.pairs {
		k.pairs[i].account.Close(m.w.queue)
	}
	delete(m.counters, c)
	m.count()
	for i := range k.pairs {
		for _, d := range []*desk{k.pairs[i].alloc, k.pairs[i].free} {
			if d != nil {
				d.close()
			}
		}
		if qp := k.pairs[i].verb; qp != nil {
			qp.Close()
		}
	}
	for _, group := range k.groups {
		for _, qp := range group {
			if qp != nil {
				qp.Close()
			}
		}
	}
	b := m.borrower(c.session)
	b.chunks = m.w.table.Owned(c.session.owner)
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

// restore implements restorer. The table already says who owns the chunks, and the chunks are in no queue.
func (m *onesided) restore(s *session, chunks []uint32) { m.borrower(s).chunks = chunks }

func (m *onesided) forget(s *session) { delete(m.borrowers, s) }

// rounds returns how many chunks were allocated and freed over k's connection, as counted by the NIC.
func (m *onesided) rounds(k *counter) (allocs, frees int64) {
	for i := range k.pairs {
		p := &k.pairs[i]
		a, f := p.account.Taken(), p.freed()
		if p.verb != nil {
			a, f, _ = m.allocator.Counts(p.verb) // 0 if the device is closed
		}
		allocs, frees = allocs+int64(a), frees+int64(f)
	}
	return allocs, frees
}

// holds is how many chunks k's session has.
func (m *onesided) holds(k *counter) int {
	a, f := m.rounds(k)
	held := int(a - f)
	for i := range k.pairs {
		held += k.pairs[i].account.Base
	}
	return held
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
		Free:   uint32(max(0, m.w.queue.Free()+m.w.queue.Freed()-(m.w.toHold-len(m.w.held)))),
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
	s.Lent = s.Chunks - int64(m.w.queue.Free()) - s.Dirty - m.w.heldCount.Load()
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
