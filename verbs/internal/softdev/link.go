package softdev

import (
	"fmt"

	"polder/verbs"
	"polder/verbs/softnic"
)

// LinkDriver carries packets to one peer.
type LinkDriver interface {
	// Send takes a packet, which is valid during the call only. It is
	// called with the group's lock held, when Ready has just said yes, or
	// for a packet without payload that says that a queue pair is gone: at
	// most one for each.
	Send(*softnic.Packet)
	// Ready reports whether more packets may be sent. After it has said
	// no, the driver calls Device.Resume when it would say yes. It is
	// called with the group's lock held.
	Ready() bool
}

// Flusher is a LinkDriver that gathers packets.
type Flusher interface {
	// Flush puts on the wire what Send took. It is called with no lock
	// held, from any goroutine, possibly several at a time, after the lock
	// under which Send was called has been released. It must not block for
	// long.
	Flush()
}

// linkEnd is a link in a device's table.
type linkEnd struct {
	id      softnic.Link
	driver  LinkDriver
	flusher Flusher // driver, if it is one
	inBatch bool    // guarded by Group.mu: in the batch's flushes
}

// maxLinks is the most links of a device at a time. A Link is a slot in the
// low 16 bits, from 1, and a generation above.
const maxLinks = 1<<16 - 1

// AddLink adds a link to a peer.
func (d *Device) AddLink(driver LinkDriver) (softnic.Link, error) {
	if err := d.lock(); err != nil {
		return 0, fmt.Errorf("cannot add a link: %w", err)
	}
	defer d.g.mu.Unlock()
	d.linkGen++
	slot := 1
	for slot < len(d.links) && d.links[slot] != nil {
		slot++
	}
	if slot > maxLinks {
		return 0, fmt.Errorf("cannot add a link: %w", verbs.ErrNoResources)
	}
	if slot == len(d.links) {
		d.links = append(d.links, nil)
	}
	l := &linkEnd{id: softnic.Link(uint32(d.linkGen)<<16 | uint32(slot)), driver: driver}
	l.flusher, _ = driver.(Flusher)
	d.links[slot] = l
	return l.id, nil
}

// link returns a link's end, or nil if it has been removed. g.mu must be held.
func (d *Device) link(id softnic.Link) *linkEnd {
	if slot := int(id & maxLinks); slot < len(d.links) {
		if l := d.links[slot]; l != nil && l.id == id {
			return l
		}
	}
	return nil
}

// Deliver hands received packets to the engine: those that next returns, until
// it returns false. next is called with the lock held; a packet and its
// payload are consumed before the next call.
func (d *Device) Deliver(id softnic.Link, next func() (*softnic.Packet, bool)) {
	if d.lock() != nil {
		return
	}
	defer d.unlock()
	if d.link(id) == nil {
		return
	}
	d.inEngine = true
	for p, ok := next(); ok; p, ok = next() {
		d.nic.Receive(id, p)
	}
	d.inEngine = false
}

// DeliverLocked hands one packet to the engine that another device of the same
// group is sending: its driver's Send calls this. The group's lock is held.
func (d *Device) DeliverLocked(id softnic.Link, p *softnic.Packet) {
	if d.closed || d.link(id) == nil {
		return
	}
	d.nic.Receive(id, p)
	d.g.wake(d)
}

// Resume tells the engine that a link is Ready again.
func (d *Device) Resume(id softnic.Link) {
	if d.lock() != nil {
		return
	}
	d.nic.Resume(id)
	d.unlock()
}

// RemoveLink takes a link away: the queue pairs on it go to the error state.
// Its driver's Send and Ready are not called any more when it returns. It is
// idempotent.
func (d *Device) RemoveLink(id softnic.Link) {
	d.g.mu.Lock()
	if d.link(id) == nil {
		d.g.mu.Unlock()
		return
	}
	d.links[id&maxLinks] = nil
	d.nic.LinkDown(id)
	d.unlock()
}

// QPNum returns the number of a queue pair that can be connected, to be told
// to the peer.
func (d *Device) QPNum(v verbs.QP) (uint32, error) {
	q, err := d.own(v)
	if err != nil {
		return 0, err
	}
	if err := d.lock(); err != nil {
		return 0, err
	}
	defer d.g.mu.Unlock()
	return q.num, q.connectable()
}

// ConnectQP joins a queue pair to the one of number remote at the other end of
// a link, and takes it to StateRTS. reply, if set, is called with the lock held
// when that has succeeded, before the queue pair can send its first packet: it
// puts the news for the peer on the wire.
func (d *Device) ConnectQP(v verbs.QP, id softnic.Link, remote uint32, reply func()) error {
	q, err := d.own(v)
	if err != nil {
		return err
	}
	if err := d.lock(); err != nil {
		return err
	}
	defer d.unlock()
	if d.link(id) == nil {
		return fmt.Errorf("cannot connect QP %d: the link is gone: %w", q.num, verbs.ErrClosed)
	}
	if err := q.connectable(); err != nil {
		return err
	}
	if err := d.nic.ConnectQP(q.num, id, remote); err != nil {
		return err
	}
	if reply != nil {
		reply()
	}
	return nil
}

// ConnectPair joins a queue pair of d to one of peer's, a device of the same
// group, over the two ends of a link.
func (d *Device) ConnectPair(v verbs.QP, id softnic.Link, peer *Device, pv verbs.QP, pid softnic.Link) error {
	q, err := d.own(v)
	if err != nil {
		return err
	}
	pq, err := peer.own(pv)
	if err != nil {
		return err
	}
	if q == pq {
		return fmt.Errorf("cannot connect QP %d to itself over a link: %w", q.num, verbs.ErrInvalid)
	}
	if err := d.lock(); err != nil {
		return err
	}
	defer d.unlock()
	if peer.closed || d.link(id) == nil || peer.link(pid) == nil {
		return fmt.Errorf("cannot connect QP %d: the link is gone: %w", q.num, verbs.ErrClosed)
	}
	if err := q.connectable(); err != nil {
		return err
	}
	if err := pq.connectable(); err != nil {
		return err
	}
	if err := d.nic.ConnectQP(q.num, id, pq.num); err != nil {
		return err
	}
	d.g.wake(peer)
	return peer.nic.ConnectQP(pq.num, pid, q.num)
}

// Disconnect tells the peer at the other end of a link that its queue pair of
// this number has no counterpart here, when a connection was abandoned.
func (d *Device) Disconnect(id softnic.Link, remote uint32) {
	if d.lock() != nil {
		return
	}
	d.nic.Disconnect(id, remote)
	d.unlock()
}

// own returns v as this device's.
func (d *Device) own(v verbs.QP) (*qp, error) {
	if q, ok := v.(*qp); ok && q.d == d {
		return q, nil
	}
	return nil, fmt.Errorf("the QP is not of this device: %w", verbs.ErrInvalid)
}
