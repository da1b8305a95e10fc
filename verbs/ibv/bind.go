//go:build ibverbs

package ibv

import "polder/verbs"

// A window of type 2B is bound and invalidated by the queue pair that it
// belongs to, and by no other: so says the standard. Package verbs has the
// memory node do both from a queue pair of its own, as the OneSidedMW paper
// does with firmware that skips the check. Here such a request is relayed: the
// window's own queue pair executes it, and the one that it was posted to
// completes it, in its turn.
//
// Binds are checked before they are posted: the node itself posts them, so a
// wrong one is a mistake and not an attack, and must not cost a client the queue
// pair that would have to execute it; and not every device checks all of it.

// windowRights is what a bind may ask for.
const windowRights = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic

// relay names a request in a queue pair's ring.
type relay struct {
	q     *qp
	place uint32
}

// result is how a relayed request ended, in the queue at.
type result struct {
	relay
	at     *cq
	status verbs.Status
}

// planBind checks a BIND_MW, and notes which queue pair the window will belong to.
func (q *qp) planBind(wr *verbs.SendWR) planned {
	refused := planned{status: verbs.StatusMWBindErr}
	d := q.pd.d
	w := d.mwOf(wr.RKey, q.pd)
	if w == nil {
		return refused
	}
	if w.typ == verbs.MWType1 && wr.BindLength == 0 && d.quirks.Unbind {
		if w.revoke() != nil {
			return refused
		}
		return planned{here: true}
	}
	var m *mr
	if wr.BindLength > 0 || w.typ == verbs.MWType2B {
		m = d.mrOf(wr.BindLKey, q.pd)
		switch {
		case m == nil, !m.access.Has(verbs.AccessMWBind), !m.covers(wr.RemoteAddr, wr.BindLength),
			wr.BindLength == 0, wr.BindAccess&^windowRights != 0,
			wr.BindAccess&(verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic) != 0 && !m.access.Has(verbs.AccessLocalWrite):
			return refused
		}
	}
	to := q
	if w.typ == verbs.MWType2B && wr.QPN != 0 && wr.QPN != q.num {
		d.mu.RLock()
		to = d.qps[wr.QPN]
		d.mu.RUnlock()
		if to == nil || to.pd != q.pd {
			return refused
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.owner != nil || w.typ == verbs.MWType2B && w.next.Key() == wr.RKey.Key() {
		return refused
	}
	p := planned{bind: &binding{mw: w, mr: m, key: verbs.MakeRKey(w.key.Index(), wr.RKey.Key()), old: w.next}}
	if w.typ == verbs.MWType2B {
		w.own(to)
		w.next = p.bind.key
		if to != q {
			p.to = to
		}
	}
	return p
}

// planInvalidate checks a LOCAL_INV, and notes that the window will belong to no queue pair.
func (q *qp) planInvalidate(wr *verbs.SendWR) planned {
	refused := planned{status: verbs.StatusMWBindErr}
	w := q.pd.d.mwOf(wr.RKey, q.pd)
	if w == nil {
		return refused
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	owner := w.owner
	if w.closed || w.typ != verbs.MWType2B || owner == nil || w.next != wr.RKey ||
		owner != q && wr.Flags&verbs.SendAnyQP == 0 {
		return refused
	}
	p := planned{bind: &binding{mw: w, key: w.next, old: w.next, previous: owner}}
	w.disown()
	if owner != q {
		p.to = owner
	}
	return p
}

// undo forgets a plan that is not carried out.
func (p *planned) undo() {
	if p.bind != nil {
		p.bind.rollback()
	}
}

// translate fills in what the device is given for a bind.
func (b *binding) translate(w *hwWR, wr *verbs.SendWR) {
	w.op = hwBind1
	if b.mw.typ == verbs.MWType2B {
		w.op = hwBind2
	}
	b.mw.mu.Lock()
	w.mw = hwHandle(b.mw.hw)
	b.mw.mu.Unlock()
	if b.mr != nil {
		w.mr = hwHandle(b.mr.hw)
	}
	w.rkey, w.remote, w.swap = hwKey(b.key), hwWord(wr.RemoteAddr), hwWord(wr.BindLength)
	w.access = hwByte(wr.BindAccess)
}

// executed notes what a BIND_MW or LOCAL_INV has done.
func (b *binding) executed(q *qp, s verbs.Status) {
	if s != verbs.StatusSuccess {
		b.rollback()
		return
	}
	w := b.mw
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || b.revoked {
		return
	}
	w.settle(b.mr)
	switch {
	case w.typ == verbs.MWType1:
		w.key = verbs.RKey(hwMWKey(w.hw)) // the provider's choice
	case b.mr != nil:
		w.key = b.key
	}
}

// rollback undoes the plan of a bind that was not executed.
func (b *binding) rollback() {
	w := b.mw
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.typ != verbs.MWType2B {
		return
	}
	w.next = b.old
	switch {
	case b.mr != nil:
		w.disown()
		hwSetMWKey(w.hw, uint32(b.old))
	case b.previous != nil:
		w.own(b.previous)
	}
}

// sendRelays posts a batch's relayed requests to the queue pairs that execute them, in order, with one doorbell for
// each run of requests to the same queue pair.
func (q *qp) sendRelays(wrs []verbs.SendWR, plan []planned) {
	for i := 0; i < len(plan); {
		to := plan[i].to
		n := 1
		for i+n < len(plan) && plan[i+n].to == to {
			n++
		}
		if to != nil {
			q.relayTo(to, wrs[i:i+n], plan[i:i+n])
		}
		i += n
	}
}

func (q *qp) relayTo(to *qp, wrs []verbs.SendWR, plan []planned) {
	c := to.sendCQ
	own := q.sendCQ
	own.mu.Lock()
	own.awaited[c] += len(wrs)
	own.mu.Unlock()
	c.mu.Lock()
	c.relays += len(wrs)
	watched := c.closed || c.watch() == nil
	c.mu.Unlock()

	to.post.Lock()
	closed := to.closed || !watched
	if !closed {
		to.batch = to.batch[:0]
		for i := range wrs {
			place := to.send.tail.Load()
			*to.send.at(place) = slot{op: wrs[i].Op, hidden: true, relay: relay{q, plan[i].place}}
			to.batch = append(to.batch, hwWR{})
			w := &to.batch[len(to.batch)-1]
			to.translate(w, &wrs[i], plan[i].bind)
			to.given(w, place, true)
		}
		if verbs.State(to.state.Load()) == verbs.StateRTS {
			to.ring()
		} else {
			to.refuse(to.batch, verbs.StatusWRFlushErr)
		}
	}
	to.post.Unlock()

	c.mu.Lock()
	if closed {
		c.relays -= len(wrs)
		for i := range plan {
			to.room.Add(1)
			c.results = append(c.results, result{relay{q, plan[i].place}, c, verbs.StatusWRFlushErr})
		}
	}
	if c.watcher != nil {
		c.watcher.wake() // it asks the device for an event
	}
	c.unlock()
}

// deliver completes a relayed request where it was posted. Revoke unbinds a
// window by force.
func (r result) deliver(revoke func(*mw) error) {
	q, c := r.q, r.q.sendCQ
	c.mu.Lock()
	s := q.send.at(r.place)
	b, op := s.bind, s.op
	c.mu.Unlock()
	if r.status != verbs.StatusSuccess && op == verbs.OpLocalInv && b != nil {
		// The queue pair that the window belongs to has failed, and executes
		// nothing more. The window goes another way.
		if revoke(b.mw) == nil {
			b.revoked, r.status = true, verbs.StatusSuccess
		}
	}
	c.mu.Lock()
	if c.awaited[r.at]--; c.awaited[r.at] <= 0 {
		delete(c.awaited, r.at)
	}
	if !s.done {
		s.done, s.status = true, r.status
		q.advance()
		c.added()
	}
	c.unlock()
}
