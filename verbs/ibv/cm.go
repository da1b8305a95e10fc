//go:build ibverbs

package ibv

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"

	"polder/verbs"
)

// How a queue pair repeats what is not acknowledged: 7 times, after 4.096 us
// times two to the power of ackTimeout each, 0.27 s. So a peer that does not
// answer is given up after some two seconds, and a device that is slow because
// it is software on a busy machine is not.
const (
	ackTimeout = 16
	ackRetries = 7
)

// newPSN returns a random first packet number.
func newPSN() uint32 { return rand.Uint32() & 0xffffff }

// pathBetween is what a queue pair must know to reach peer.
func pathBetween(here ownAddress, there address, psn, peer, peerPSN uint32) hwPath {
	return hwPath{
		gid: there.gid, gidIndex: here.gidIndex, global: there.global(), lid: there.lid, port: port,
		mtu: min(here.mtu, there.mtu), qpn: peer, psn: psn, peerPSN: peerPSN,
		rdAtom: min(here.rdAtom, there.rdAtom), peerRdAtom: here.rdAtom,
		timeout: ackTimeout, retries: ackRetries,
	}
}

// ownAddress is an address of this host.
type ownAddress struct {
	address
	gidIndex int // of its GID in the port's table
}

// address returns the port's address: on Ethernet the RoCE v2 GID of the IP
// address local, if it has that, else the first that is of an IPv4 address, else
// the first.
func (d *device) address(local string) (ownAddress, error) {
	if err := d.stay(); err != nil {
		return ownAddress{}, err
	}
	defer d.life.RUnlock()
	p, err := hwQueryPort(d.ctx, port)
	if err != nil {
		return ownAddress{}, err
	}
	if p.state != portActive {
		return ownAddress{}, fmt.Errorf("port %d of %s is down", port, d.name)
	}
	a := ownAddress{address: address{lid: p.lid, mtu: p.mtu, rdAtom: d.attr.MaxRdAtom}}
	if !p.ethernet && p.lid != 0 {
		return a, nil
	}
	gids, err := hwQueryGIDs(d.ctx, port)
	if err != nil {
		return ownAddress{}, err
	}
	var ip netip.Addr
	if ap, err := netip.ParseAddrPort(local); err == nil {
		ip = ap.Addr().Unmap().WithZone("")
	}
	best := -1
	for _, g := range gids {
		if !g.roce2 {
			continue
		}
		addr, rank := netip.AddrFrom16(g.gid).Unmap(), 1
		switch {
		case addr == ip:
			rank = 3
		case addr.Is4():
			rank = 2
		}
		if rank > best {
			best, a.gid, a.gidIndex = rank, g.gid, g.index
		}
	}
	if best < 0 {
		return ownAddress{}, fmt.Errorf("port %d of %s has no RoCE v2 address: give its network interface an IP address", port, d.name)
	}
	a.lid = 0
	return a, nil
}

// Connect implements verbs.Conn.
func (c *conn) Connect(ctx context.Context, q verbs.QP, private []byte) ([]byte, error) {
	reply, err := c.connect(ctx, q, private)
	if err != nil {
		return nil, fmt.Errorf("cannot connect a queue pair to %s: %w", c.RemoteAddr(), err)
	}
	return reply, nil
}

func (c *conn) connect(ctx context.Context, qp verbs.QP, private []byte) ([]byte, error) {
	if err := checkPrivate(private); err != nil {
		return nil, err
	}
	q, err := c.dev.own(qp)
	if err != nil {
		return nil, err
	}
	if err := q.claim(); err != nil {
		return nil, err
	}
	j := &joining{qp: q, psn: newPSN(), answer: make(chan answer, 1)}
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		q.unclaim()
		return nil, c.closedErr()
	}
	id := c.nextRequest
	c.nextRequest++
	c.joining[id] = j
	c.mu.Unlock()

	c.send(message{typ: frameConnect, request: id, qpn: q.num, psn: j.psn, data: private})
	select {
	case a := <-j.answer:
		return a.private, a.err
	case <-ctx.Done():
	}
	if c.takeJoining(id) == nil {
		a := <-j.answer // it has come after all
		return a.private, a.err
	}
	q.unclaim()
	return nil, ctx.Err()
}

func checkPrivate(private []byte) error {
	if len(private) > verbs.MaxPrivateData {
		return fmt.Errorf("%d bytes of private data exceed %d: %w", len(private), verbs.MaxPrivateData, verbs.ErrInvalid)
	}
	return nil
}

// takeJoining returns the waiting call of the given number, once.
func (c *conn) takeJoining(id uint32) *joining {
	c.mu.Lock()
	defer c.mu.Unlock()
	j := c.joining[id]
	delete(c.joining, id)
	return j
}

// handle does what a frame says.
func (c *conn) handle(m message) error {
	switch m.typ {
	case framePing:
		c.send(message{typ: framePong})
	case frameBye:
		return errPeerClosed
	case frameConnect:
		refusal := errNoListener
		if c.requests != nil {
			refusal = c.requests.Offer(&connRequest{conn: c, m: m})
		}
		if refusal != nil {
			c.send(message{typ: frameReject, request: m.request, data: []byte(refusal.Error())})
		}
	case frameAccept:
		c.accepted(m)
	case frameReject:
		if j := c.takeJoining(m.request); j != nil {
			j.qp.unclaim()
			j.answer <- answer{err: &verbs.RejectError{Reason: string(m.data)}}
		}
	case frameReady:
		if q := c.joined(m.qpn); q != nil {
			q.open()
		}
	case frameDown:
		if q := c.joined(m.qpn); q != nil {
			q.peerFailed(m.status)
		}
	}
	return nil
}

// joined returns the queue pair of that number which was joined over the
// connection, or nil: it may have been closed meanwhile.
func (c *conn) joined(qpn uint32) *qp {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.qps[qpn].qp
}

// join connects q, which has been claimed, to the peer's queue pair.
func (c *conn) join(q *qp, psn, peer, peerPSN uint32, gated bool) error {
	c.mu.Lock()
	over := c.over
	if !over {
		c.qps[q.num] = joined{q, peer}
	}
	c.mu.Unlock()
	if over {
		q.unclaim()
		return c.closedErr()
	}
	if err := q.connect(c, c.here, c.there, psn, peer, peerPSN, gated); err != nil {
		c.mu.Lock()
		delete(c.qps, q.num)
		c.mu.Unlock()
		return err
	}
	return nil
}

// accepted connects the queue pair that a call of Connect brought, in the
// reader, and tells the peer that it is ready.
func (c *conn) accepted(m message) {
	j := c.takeJoining(m.request)
	if j == nil { // given up
		c.send(message{typ: frameDown, qpn: m.qpn, status: verbs.StatusWRFlushErr})
		return
	}
	if err := c.join(j.qp, j.psn, m.qpn, m.psn, false); err != nil {
		c.send(message{typ: frameDown, qpn: m.qpn, status: verbs.StatusWRFlushErr})
		j.answer <- answer{err: err}
		return
	}
	c.send(message{typ: frameReady, qpn: m.qpn})
	j.answer <- answer{private: m.data}
}

// qpFailed tells the peer that a request of q's has failed, and qpClosed that q
// is no more, so that the other queue pair need not find out by a timeout, or
// not at all. They do not block.
func (c *conn) qpFailed(q *qp, s verbs.Status) {
	c.mu.Lock()
	j, ok := c.qps[q.num]
	c.mu.Unlock()
	if ok && j.qp == q {
		c.send(message{typ: frameDown, qpn: j.peer, status: s})
	}
}

func (c *conn) qpClosed(q *qp) {
	c.mu.Lock()
	j, ok := c.qps[q.num]
	if ok = ok && j.qp == q; ok {
		delete(c.qps, q.num)
	}
	c.mu.Unlock()
	if ok {
		c.send(message{typ: frameDown, qpn: j.peer, status: verbs.StatusWRFlushErr})
	}
}

// peerFailed does what the device should have done when a request of the peer's
// was refused here (Quirks.SilentResponder), and what it would do in the end if
// the peer is gone.
func (q *qp) peerFailed(s verbs.Status) {
	switch s {
	case verbs.StatusRemAccessErr:
		q.fail(verbs.EventQPAccessErr)
	case verbs.StatusRemInvReqErr, verbs.StatusRemOpErr:
		q.fail(verbs.EventQPReqErr)
	default:
		q.fail(verbs.EventDisconnected)
	}
	q.open() // what waited is flushed
}

// connRequest implements verbs.ConnRequest.
type connRequest struct {
	conn     *conn
	m        message
	answered atomic.Bool
}

func (r *connRequest) Conn() verbs.Conn { return r.conn }

// Void implements endpoint.Request.
func (r *connRequest) Void() bool {
	select {
	case <-r.conn.down:
		return true
	default:
		return false
	}
}

func (r *connRequest) Private() []byte { return bytes.Clone(r.m.data) }

// Accept implements verbs.ConnRequest.
func (r *connRequest) Accept(qp verbs.QP, private []byte) error {
	if err := r.accept(qp, private); err != nil {
		return fmt.Errorf("cannot accept a queue pair from %s: %w", r.conn.RemoteAddr(), err)
	}
	return nil
}

func (r *connRequest) accept(qp verbs.QP, private []byte) error {
	if err := checkPrivate(private); err != nil {
		return err
	}
	q, err := r.conn.dev.own(qp)
	if err != nil {
		return err
	}
	if r.answered.Swap(true) {
		return errAnswered
	}
	psn := newPSN()
	if err = q.claim(); err == nil {
		err = r.conn.join(q, psn, r.m.qpn, r.m.psn, true)
	}
	if err != nil {
		r.reject(err.Error())
		return err
	}
	r.conn.send(message{typ: frameAccept, request: r.m.request, qpn: q.num, psn: psn, data: private})
	return nil
}

// Reject implements verbs.ConnRequest.
func (r *connRequest) Reject(reason string) error {
	if r.answered.Swap(true) {
		return fmt.Errorf("cannot reject a queue pair from %s: %w", r.conn.RemoteAddr(), errAnswered)
	}
	r.reject(reason)
	return nil
}

func (r *connRequest) reject(reason string) {
	r.conn.send(message{typ: frameReject, request: r.m.request, data: []byte(reason[:min(len(reason), maxReason)])})
}
