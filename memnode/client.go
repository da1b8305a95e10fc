package memnode

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"polder/internal/arena"
	"polder/memnode/component"
	"polder/memnode/tenancy"
	"polder/memnode/wire"
	"polder/verbs"
)

// A session is a client as it outlives its connections. It belongs to the
// control goroutine.
type session struct {
	wire    wire.Session
	owner   uint64    // its number in the tables that say who has which chunk; never 0, never reused
	record  int       // in the node's ledger, if it has one
	keep    wire.Keep // zero: the session is reclaimed when the grace period is over
	chunks  []uint32  // only for managers whose control goroutine hands chunks out
	client  *client   // nil while disconnected
	expires time.Time // disconnected: when its chunks are reclaimed (kept session: its components, if any); else zero

	components *component.Tenant // nil unless the client has used components
}

func newSession(keep wire.Keep, owner uint64) *session {
	s := &session{keep: keep, owner: owner}
	var id [8]byte
	for s.wire.ID == 0 {
		rand.Read(id[:])
		s.wire.ID = binary.LittleEndian.Uint64(id[:])
	}
	rand.Read(s.wire.Secret[:])
	return s
}

// knows reports whether the peer that claims to be w knows s's secret.
func (s *session) knows(w *wire.Session) bool {
	return subtle.ConstantTimeCompare(s.wire.Secret[:], w.Secret[:]) == 1
}

// credits is how many requests a client may have unanswered.
const credits = 8

// A client is one connection of a session. Apart from queued and gone it
// belongs to the control goroutine.
type client struct {
	session *session
	conn    verbs.Conn
	mgmt    verbs.QP
	cq      verbs.CQ   // of mgmt, both directions
	access  []verbs.QP // the connected access queue pairs, by group; nothing is posted to them
	groups  int        // how many access queue pairs it may have; 0 means 1
	part    any        // what the manager keeps for this connection
	closed  bool

	lease *tenancy.Lease // for reading in place; nil: the client does not

	mem *arena.Mapping // credits requests, then credits replies
	mr  verbs.MR

	// A request stays in its receive buffer until a reply buffer is free,
	// so whoever does not take replies fills its own credits only.
	waiting []received
	replies []uint8 // free reply buffers
	told    bool    // the client knows that the node is leaving, or has to give memory back

	settled time.Time   // until then the client is not told that the node stays
	later   *time.Timer // puts the client on the ready list when settled has passed

	concession concession

	queued   bool        // guarded by readyList.mu
	gone     atomic.Bool // the connection is lost
	offended atomic.Bool // mgmt has failed, and the client caused it
}

// received is a request in receive buffer slot.
type received struct {
	slot uint8
	size uint16
}

// IDs of work requests on management queue pairs: a slot, and which way.
const replyID = 1 << 8

func newClient(dev verbs.Device, pd verbs.PD, conn verbs.Conn, s *session, ready *readyList, onEvent func(verbs.AsyncEvent)) (*client, error) {
	c := &client{session: s, conn: conn}
	if err := c.open(dev, pd, ready, onEvent); err != nil {
		c.release()
		return nil, err
	}
	return c, nil
}

func (c *client) open(dev verbs.Device, pd verbs.PD, ready *readyList, onEvent func(verbs.AsyncEvent)) (err error) {
	if c.mem, err = arena.Anonymous(2*credits*wire.MaxMessage, false); err != nil {
		return err
	}
	if c.mr, err = pd.RegMR(c.mem.Bytes(), verbs.AccessLocalWrite); err != nil {
		return fmt.Errorf("cannot register message buffers: %w", err)
	}
	c.cq, err = dev.CreateCQ(verbs.CQInit{
		Depth:   2 * credits,
		Handler: func(verbs.CQ) { ready.add(c) },
	})
	if err != nil {
		return fmt.Errorf("cannot create a completion queue: %w", err)
	}
	c.mgmt, err = pd.CreateQP(verbs.QPInit{
		SendCQ: c.cq, RecvCQ: c.cq, SendDepth: credits, RecvDepth: credits,
		OnEvent: func(e verbs.AsyncEvent) {
			if e.Type != verbs.EventCommEstablish && e.Type != verbs.EventDisconnected {
				c.offended.Store(true)
			}
			onEvent(e)
		},
	})
	if err != nil {
		return fmt.Errorf("cannot create a management queue pair: %w", err)
	}
	for slot := range uint8(credits) {
		if err := c.postRecv(slot); err != nil {
			return fmt.Errorf("cannot post a receive: %w", err)
		}
		c.replies = append(c.replies, slot)
	}
	return nil
}

// buffer returns message buffer i: requests first, then replies.
func (c *client) buffer(i int) []byte {
	return c.mem.Bytes()[i*wire.MaxMessage : (i+1)*wire.MaxMessage]
}

func (c *client) sge(i, n int) []verbs.SGE {
	return []verbs.SGE{{
		Addr:   c.mr.Addr() + uint64(i*wire.MaxMessage),
		Length: uint32(n),
		LKey:   c.mr.LKey(),
	}}
}

func (c *client) postRecv(slot uint8) error {
	return c.mgmt.PostRecv(verbs.RecvWR{ID: uint64(slot), SGL: c.sge(int(slot), wire.MaxMessage)})
}

// postReply sends the n bytes in reply buffer slot.
func (c *client) postReply(slot uint8, n int) error {
	return c.mgmt.PostSend(verbs.SendWR{
		ID: uint64(slot) | replyID, Op: verbs.OpSend, Flags: verbs.SendSignaled,
		SGL: c.sge(credits+int(slot), n),
	})
}

// welcomeGroups decides how many groups of one access queue pair c may have.
func (n *Node) welcomeGroups(c *client, h *wire.Hello, w *wire.Welcome) {
	w.Groups = min(max(h.Groups, 1), uint8(n.cfg.MaxGroups))
	c.groups = int(w.Groups)
}

// mayAccess returns why c may not connect an access queue pair of that index, or nil if it is c's next one.
func (c *client) mayAccess(index uint8) error {
	switch groups := max(c.groups, 1); {
	case len(c.access) == groups && groups == 1:
		return errors.New("a connection has one access queue pair")
	case len(c.access) == groups:
		return fmt.Errorf("a connection has %d access queue pairs", groups)
	case int(index) != len(c.access):
		return fmt.Errorf("access queue pair %d comes before %d", len(c.access), index)
	}
	return nil
}

// connectAccess answers a request for an access queue pair, and adds the queue pair to c.access.
func (n *Node) connectAccess(c *client, req verbs.ConnRequest, onEvent func(verbs.AsyncEvent)) error {
	// Nothing is posted to it, so the client's completion queue will do.
	access, err := n.pd.CreateQP(verbs.QPInit{
		SendCQ: c.cq, RecvCQ: c.cq, SendDepth: 1, RecvDepth: 1, OnEvent: onEvent,
	})
	if err != nil {
		return fmt.Errorf("cannot create an access queue pair: %w", err)
	}
	if err := req.Accept(access, nil); err != nil {
		access.Close()
		return nil // the connection is gone, and its watcher will say so
	}
	c.access = append(c.access, access)
	return nil
}

// release gives back what the client holds of the device. Its chunks' windows
// must be unbound.
func (c *client) release() {
	c.closed = true
	if c.later != nil {
		c.later.Stop()
	}
	for _, qp := range c.access {
		qp.Close()
	}
	if c.mgmt != nil {
		c.mgmt.Close()
	}
	if c.cq != nil {
		c.cq.Close()
	}
	if c.mr != nil {
		c.mr.Deregister()
	}
	if c.mem != nil {
		c.mem.Close()
	}
}

// readyList collects clients that the control goroutine must look at. A client
// is on it at most once, so it is bounded by the number of clients.
type readyList struct {
	wake chan struct{} // capacity 1

	mu   sync.Mutex
	list []*client
}

func newReadyList() *readyList { return &readyList{wake: make(chan struct{}, 1)} }

func (r *readyList) add(c *client) {
	r.mu.Lock()
	if !c.queued {
		c.queued = true
		r.list = append(r.list, c)
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// take moves the list into buf.
func (r *readyList) take(buf []*client) []*client {
	r.mu.Lock()
	defer r.mu.Unlock()
	buf = append(buf[:0], r.list...)
	for _, c := range r.list {
		c.queued = false
	}
	clear(r.list)
	r.list = r.list[:0]
	return buf
}
