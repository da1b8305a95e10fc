package memnode

import (
	"errors"
	"slices"
	"time"

	"polder/memnode/chain"
	"polder/memnode/wire"
	"polder/verbs"
)

func (m *onesided) answer(c *client, req *wire.Request, reply *wire.Reply) []wire.Grant {
	k := m.counters[c]
	m.grants = m.grants[:0]
	switch req.Op {
	case wire.OpSpace:
		m.settle()
		reply.Status = m.status(k)
	case wire.OpOwned:
		reply.Status = m.owned(k, int(req.Skip), req.N)
	default:
		reply.Status = wire.StatusBad
	}
	return m.grants
}

// status returns how an allocation by k's client would end now.
func (m *onesided) status(k *counter) wire.Status {
	empty := false
	for i := range k.pairs {
		empty = k.pairs[i].account.Empty(m.w.queue) || empty
	}
	switch {
	case empty:
		m.node.counters.noMemory.Add(1)
		m.soon()
		return wire.StatusNoMemory
	case m.holds(k) >= m.node.cfg.budget():
		return wire.StatusBudget
	}
	return wire.StatusOK
}

func (m *onesided) look(c *client) error {
	k := m.counters[c]
	if k == nil {
		return nil
	}
	if k.trouble.Swap(false) {
		if err := m.inspect(k); err != nil {
			return err
		}
	}
	return m.tell(k)
}

var errNotOwner = errors.New("freed what is not its own")

// inspect finds out what an event on one of k's queue pairs meant. An error means that k's client must be
// disconnected.
func (m *onesided) inspect(k *counter) error {
	select {
	case <-k.client.conn.Done():
		return nil // the watcher will say so
	default:
	}
	for i := range k.pairs {
		if err := m.inspectPair(k, &k.pairs[i]); err != nil {
			return err
		}
	}
	return nil
}

func (m *onesided) inspectPair(k *counter, p *pair) error {
	if p.verb != nil {
		if p.verb.State() == verbs.StateError {
			m.node.counters.notOwner.Add(1)
			return errNotOwner
		}
		return nil
	}
	if d := p.free; d != nil && !k.cut && (d.refused.Load() || d.chain.State() == verbs.StateError) {
		m.node.counters.notOwner.Add(1)
		return errNotOwner
	}
	if d := p.alloc; d != nil && d.chain != nil {
		if d.refused.Load() {
			return errors.New("the queue pair to allocate with has failed")
		}
		if d.chain.State() == verbs.StateError {
			return m.stopped(k, p)
		}
	}
	return nil
}

// stopped deals with an allocation chain that has failed.
func (m *onesided) stopped(k *counter, p *pair) error {
	p.alloc.disarm()
	switch cause, entry := p.account.Stopped(m.w.queue); cause {
	case chain.QueueEmpty:
		m.settle()
		m.soon()
		return nil
	case chain.NotBegun:
		return nil // the device is closed
	default:
		// The chunk has left the queue, and nobody has it yet.
		if i, ok := m.w.table.Chunk(entry); ok && m.w.table.Owner(i) != k.owner {
			if err := m.w.takeBack(i); err != nil {
				return err
			}
		}
		return errors.New("its allocation failed")
	}
}

// settle zeroes some of the freed chunks, takes what has arrived in queue elements that are owed, and resumes the
// chains that stopped there.
func (m *onesided) settle() { m.w.settle() }

// tell sends k's client a notice if one is due. If no reply buffer is free, look is called again when a buffer has
// come back; the notice then describes the state at that time.
func (m *onesided) tell(k *counter) error {
	due, failed := false, uint32(0)
	for i := range k.pairs {
		a := &k.pairs[i].account
		due = due || a.Due
		failed |= uint32(uint8(a.Failed)) << (8 * i)
	}
	if !due || len(k.client.replies) == 0 {
		return nil
	}
	for i := range k.pairs {
		k.pairs[i].account.Due = false
	}
	return m.node.notify(k.client, m.status(k), failed)
}

func (m *onesided) ticks() <-chan time.Time { return m.timer.C }

// soon makes the next tick come after emptyEvery.
func (m *onesided) soon() { m.timer.Reset(emptyEvery) }

func (m *onesided) tick(time.Time) {
	m.timer.Reset(auditEvery)
	m.settle()
	for c, k := range m.counters {
		for i := range k.pairs {
			if k.pairs[i].account.Tick(m.w.queue) {
				m.soon()
			}
		}
		m.audit(k)
		if err := m.tell(k); err != nil {
			c.gone.Store(true)
			m.node.ready.add(c)
		}
	}
}

// audit takes the queue pairs to allocate and to free with away from a client that has asked for more than its
// budget. The client has not got more: its allocation chain waits until the client has freed as much. It keeps the
// chunks that it has, and can access them.
func (m *onesided) audit(k *counter) {
	if !slices.ContainsFunc(k.pairs, func(p pair) bool { return p.account.Over(p.freed) }) {
		return
	}
	m.node.log.Warn("client cut off: it has asked for more than its budget", "peer", k.client.conn.RemoteAddr(),
		"session", k.client.session.wire.ID, "chunks", m.holds(k))
	k.cut = true
	m.node.counters.cutOff.Add(1)
	m.rest(k)
	for i := range k.pairs {
		p := &k.pairs[i]
		m.goneAllocs += int64(p.account.Taken())
		p.account.Close(m.w.queue)
		if p.alloc != nil {
			p.alloc.close()
			p.alloc = nil
		}
		if p.free != nil {
			p.free.disarm() // but keep its front, which windows are bound to
		}
	}
}

// rest stops k's chains for good, and deals with what the allocation chains leave behind. It makes their fronts fail
// first: otherwise a request that arrived later could be in progress when its chain is destroyed, and nobody would
// have its chunk.
func (m *onesided) rest(k *counter) {
	for i := range k.pairs {
		for _, d := range []*desk{k.pairs[i].alloc, k.pairs[i].free} {
			if d != nil {
				_ = d.front.Fail() // fails if the front is closed already
			}
		}
	}
	m.quiesce()
	for i := range k.pairs {
		if d := k.pairs[i].alloc; d != nil && d.chain != nil && d.chain.State() == verbs.StateError {
			_ = m.stopped(k, &k.pairs[i]) // the client is going anyway
		}
	}
}

// quiesce returns when every chain that had a request has done what it can do by itself. A NIC serves its queue pairs
// in turn, and in every turn a chain executes one work request. So it is enough to wait for as many turns as a chain
// has work requests.
func (m *onesided) quiesce() {
	b := m.w.binder
	for range chain.RingSize / verbs.WQESize {
		b.WRs = append(b.WRs[:0], verbs.SendWR{Op: verbs.OpNop, Flags: verbs.SendSignaled})
		if _, err := b.Run(); err != nil {
			m.node.log.Warn("cannot wait for chains", "error", err)
			return
		}
	}
}
