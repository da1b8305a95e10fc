package sim

import (
	"sync/atomic"
	"time"

	"polder/verbs/inproc"
	"polder/verbs/internal/softdev"
	"polder/verbs/softnic"
)

// maxBacklog is how long a device's outgoing line may be taken ahead of time
// before the engine has to wait.
const maxBacklog = 100 * time.Microsecond

// wire is the softdev.LinkDriver of one end of a connection. The group's lock is
// held in its methods.
type wire struct {
	w         *World
	from, to  *Device
	fromEnd   *inproc.End
	toEnd     *inproc.End
	suspended atomic.Bool // the engine waits for Resume
}

// carry makes the drivers of connections.
func (w *World) carry(from, to *inproc.End) softdev.LinkDriver {
	w.lock()
	defer w.unlock()
	return &wire{w: w, from: w.devices[from.Device], to: w.devices[to.Device], fromEnd: from, toEnd: to}
}

// Ready implements softdev.LinkDriver.
func (l *wire) Ready() bool {
	backlog := l.from.out - l.w.Now()
	if backlog <= maxBacklog {
		return true
	}
	if !l.suspended.Swap(true) {
		l.w.after(backlog-maxBacklog/2, l)
	}
	return false
}

// run tells the engine that there is room.
func (l *wire) run() {
	l.suspended.Store(false)
	l.from.Resume(l.fromEnd.Link)
}

// Send implements softdev.LinkDriver: the packet leaves when the sender's line
// is free, and has arrived when it has come in on the receiver's.
func (l *wire) Send(p *softnic.Packet) {
	c := &l.w.costs
	size := transfer(int64(c.Header+len(p.Payload)), c.LinkRate)
	start := max(l.w.Now(), l.from.out)
	l.from.out = start + size
	l.to.in = max(start+c.Wire, l.to.in) + size
	l.to.received += uint64(c.Header + len(p.Payload))

	m := l.w.parcel()
	m.d, m.end, m.q = l.to, l.toEnd, nil
	payload := append(m.p.Payload[:0], p.Payload...)
	m.p = *p
	m.p.Payload = payload
	l.w.at(l.to.in+c.Receive, m)
}

// parcel is a packet under way.
type parcel struct {
	d     *Device
	end   *inproc.End
	p     softnic.Packet // its payload is the parcel's own
	q     *queue         // that it is for, once it has come in
	given bool           // to the engine
}

// parcel returns one to be used. The group's lock is held.
func (w *World) parcel() *parcel {
	if n := len(w.free); n > 0 {
		m := w.free[n-1]
		w.free = w.free[:n-1]
		return m
	}
	return new(parcel)
}

// run brings the parcel from the wire to the queue pair's context, its payload
// to memory, and the packet to the engine.
func (m *parcel) run() {
	d, q := m.d, m.q
	if q == nil {
		q = d.queue(m.p.DestQP)
		m.q = q
		now := d.w.Now()
		t := now
		if !q.active && !d.contexts.use(q) {
			t += d.w.costs.PCIeRead
		}
		if size := len(m.p.Payload); size > 0 {
			d.writes = max(t, d.writes) + transfer(int64(size), d.w.costs.PCIeRate)
			t = d.writes
		}
		if q.rx = max(t, q.rx); q.rx > now || q.coming > 0 { // in order
			q.coming++
			d.w.at(q.rx, m)
			return
		}
	} else {
		q.coming--
	}
	switch m.p.Kind {
	case softnic.KindRead, softnic.KindCmpSwap, softnic.KindFetchAdd, softnic.KindMaskedAdd, softnic.KindAlloc:
		q.ask()
	}
	wasActive := q.active
	q.active = true
	brought := len(m.p.Payload) > 0
	m.given = false
	d.Deliver(m.end.Link, m.next)
	if !wasActive && !q.told.Load() {
		q.active = false
	}
	if brought && len(d.watchers) > 0 {
		d.arrived()
	}
}

// next hands the packet to the engine, and is called again when the engine is
// done with it. The group's lock is held.
func (m *parcel) next() (*softnic.Packet, bool) {
	if m.given {
		m.d.w.free = append(m.d.w.free, m)
		return nil, false
	}
	m.given = true
	return &m.p, true
}
