package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"polder/memnode/wire"
	"polder/pool/control"
	"polder/pool/finemem"
	"polder/pool/manager"
)

// session is an application's standing with one node.
type session struct {
	conn *conn
	ch   *control.Channel
	id   uint64
	k    int // class of a chunk
	info manager.Info
	held *holding
	stop chan struct{} // closed with the session

	mu     sync.Mutex // guards what follows
	closed bool
	space  wire.Space
}

// holding is what an application has at a node. It outlives connections to the node
// by the grace period, but not the connection to the broker.
type holding struct {
	id    uint64 // of the session with the broker
	class uint8  // of a chunk

	mu     sync.Mutex // guards what follows
	grants map[uint32]manager.Grant

	expiry *time.Timer // of Client.mu; while there is no connection to the node
}

// hold returns what is held in a session at a node. Without resume, what was held in
// an earlier session of the same id is wanted no more. What has expired is not given
// back: its chunks are lost.
func (c *Client) hold(node int, id uint64, class uint8, resume bool) *holding {
	c.mu.Lock()
	old := c.holdings[node]
	if old != nil && old.expiry != nil {
		if old.expiry.Stop() {
			c.expiries.Done()
		} else {
			resume = false // it is about to be freed, or has been
		}
		old.expiry = nil
	}
	if old != nil && old.id == id && resume {
		c.mu.Unlock()
		return old
	}
	h := &holding{id: id, class: class, grants: make(map[uint32]manager.Grant)}
	c.holdings[node] = h
	c.mu.Unlock()
	if old != nil {
		c.surrender(node, old)
	}
	return h
}

// expire has what is held at a node freed after the grace period.
func (c *Client) expire(node int, h *holding, grace time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.holdings[node] != h {
		return
	}
	c.expiries.Add(1)
	h.expiry = time.AfterFunc(grace, func() {
		defer c.expiries.Done()
		c.surrender(node, h)
		if c.enter() == nil {
			defer c.leave()
			ctx, cancel := context.WithTimeout(context.Background(), surrenderTime)
			defer cancel()
			_ = c.settle(ctx, nil) // what is left then is freed by later calls
		}
	})
}

// surrenderTime bounds the freeing of what has expired.
const surrenderTime = 10 * time.Second

// surrender owes what is held.
func (c *Client) surrender(node int, h *holding) {
	h.mu.Lock()
	grants := h.grants
	h.grants = make(map[uint32]manager.Grant)
	h.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range grants {
		c.owed = append(c.owed, request{op: opFree, node: uint16(node), session: h.id, class: h.class, first: g.Chunk << h.class})
	}
}

func (s *session) open(ctx context.Context, l manager.Link) error {
	c := s.conn
	addr := c.client.addrs[c.node]
	resume := l.Resume
	c.dialer.mu.Lock()
	l.Resume = c.dialer.sessions[addr]
	c.dialer.mu.Unlock()
	ch, w, err := control.Open(ctx, l, finemem.Name, control.Handlers{})
	if err != nil {
		return err
	}
	s.ch = ch
	c.dialer.mu.Lock()
	c.dialer.sessions[addr] = w.Session
	c.dialer.mu.Unlock()
	qp, err := l.Access()
	if err != nil {
		return err
	}
	hello := wire.Hello{Kind: wire.KindAccess, Manager: finemem.Name}
	if _, err := l.Conn.Connect(ctx, qp, hello.Append(nil)); err != nil {
		return fmt.Errorf("cannot connect a queue pair: %w", err)
	}
	info, err := c.client.Attach(ctx, c.node)
	if err != nil {
		return err
	}
	if info.ChunkSize != int(w.ChunkSize) || info.Chunks != int(w.Chunks) {
		return s.ch.Violated("%d chunks of %d bytes, where the broker says %d of %d", w.Chunks, w.ChunkSize, info.Chunks, info.ChunkSize)
	}
	s.id, s.k, s.space = info.Session, info.Least, wire.Space{Free: info.Free, Budget: info.Budget}
	s.info = manager.Info{
		Session: wire.Session{ID: s.id}, Resumed: s.id == resume.ID,
		ChunkSize: info.ChunkSize, Chunks: info.Chunks, Grace: info.Grace,
	}
	s.held = c.client.hold(c.node, s.id, uint8(s.k), s.info.Resumed)
	return nil
}

// remove takes all chunks out, or none; false if it does not have one of them.
func (h *holding) remove(chunks []uint32) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	removed := make([]manager.Grant, 0, len(chunks))
	for _, c := range chunks {
		g, ok := h.grants[c]
		if !ok {
			for _, g := range removed {
				h.grants[g.Chunk] = g
			}
			return false
		}
		delete(h.grants, c)
		removed = append(removed, g)
	}
	return true
}

// Info implements manager.Session.
func (s *session) Info() manager.Info { return s.info }

// Space implements manager.Session.
func (s *session) Space() wire.Space {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.space
}

// fault is err as the session's caller is to see it.
func (s *session) fault(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed && !errors.Is(err, manager.ErrNoMemory) {
		return manager.ErrClosed
	}
	return err
}

// says takes note of what the broker has said is left.
func (s *session) says(a *answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.space = wire.Space{Free: a.free, Budget: a.budget}
}

// Alloc implements manager.Session.
func (s *session) Alloc(ctx context.Context, grants []manager.Grant) (int, error) {
	for i := range grants {
		var a answer
		err := s.conn.client.call(ctx, s.stop, &request{op: opAlloc, node: uint16(s.conn.node), session: s.id, class: uint8(s.k)}, &a)
		if err == nil && (len(a.keys) != 1 || a.first&(1<<s.k-1) != 0 || int(a.first>>s.k) >= s.info.Chunks) {
			err = s.conn.client.violated("chunk %d with %d keys", a.first, len(a.keys))
		}
		if err != nil {
			if i > 0 && (errors.Is(err, manager.ErrNoMemory) || ctx.Err() != nil) {
				return i, nil
			}
			return 0, s.fault(err) // what it has got is listed by Owned
		}
		g := manager.Grant{Chunk: a.first >> s.k, Chunks: 1, Addr: a.addr}
		g.Keys[0] = a.keys[0]
		grants[i] = g
		s.held.mu.Lock()
		s.held.grants[g.Chunk] = g
		s.held.mu.Unlock()
		s.says(&a)
	}
	return len(grants), nil
}

// Free implements manager.Session.
func (s *session) Free(ctx context.Context, chunks []uint32) error {
	if !s.held.remove(chunks) {
		return ErrNotOwner
	}
	var failed error
	for _, c := range chunks {
		// One that cannot be asked for now is owed, and freed by a later call.
		var a answer
		err := s.conn.client.call(ctx, s.stop, &request{
			op: opFree, node: uint16(s.conn.node), session: s.id, class: uint8(s.k), first: c << s.k,
		}, &a)
		if err == nil {
			s.says(&a)
		} else if failed == nil {
			failed = err
		}
	}
	if failed != nil {
		return s.fault(failed)
	}
	return nil
}

// Owned implements manager.Session. Keys stay what they are as long as the broker's
// session with the node lasts.
func (s *session) Owned(context.Context) ([]manager.Grant, error) {
	s.held.mu.Lock()
	defer s.held.mu.Unlock()
	return slices.Collect(maps.Values(s.held.grants)), nil
}

// Close implements manager.Session.
func (s *session) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	s.mu.Unlock()
	close(s.stop)
	s.conn.client.rouse()
	if s.held != nil {
		s.conn.client.expire(s.conn.node, s.held, s.info.Grace)
	}
	if s.ch != nil {
		s.ch.Fail(manager.ErrClosed)
		s.ch.Close()
	}
}
