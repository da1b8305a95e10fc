package broker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
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
	k    int // class of a chunk at the node
	info manager.Info
	held *holding
	stop chan struct{} // closed when the session is
	runs finemem.Runs

	groups int           // how many groups there are, each of one access queue pair
	lent   atomic.Uint32 // blocks lent so far, to deal them out to groups

	mu     sync.Mutex // guards what follows
	closed bool
	space  wire.Space
}

// holding is what an application has at a node. It outlives a lost connection to the node for the grace period, but
// not the connection to the broker.
type holding struct {
	id uint64 // number of the session with the broker

	mu     sync.Mutex      // guards what follows
	grants map[uint32]lent // by first chunk

	expiry *time.Timer // runs while there is no connection to the node; guarded by Client.mu
}

// A loan is a block that was granted, with a grant for every key. The block is freed as a whole.
type loan struct {
	free   request
	grants int // how many have not been given back; guarded by holding.mu
}

// lent is a grant of a loan.
type lent struct {
	manager.Grant
	loan *loan
}

// hold returns the holding of session id at a node. Without resume it returns a new one, and has what was held in an
// earlier session freed. A holding that has expired is not returned either: its chunks are lost.
func (c *Client) hold(node int, id uint64, resume bool) *holding {
	c.mu.Lock()
	old := c.holdings[node]
	if old != nil && old.expiry != nil {
		if old.expiry.Stop() {
			c.expiries.Done()
		} else {
			resume = false // the holding is about to be freed, or has been
		}
		old.expiry = nil
	}
	if old != nil && old.id == id && resume {
		c.mu.Unlock()
		return old
	}
	h := &holding{id: id, grants: make(map[uint32]lent)}
	c.holdings[node] = h
	c.mu.Unlock()
	if old != nil {
		c.surrender(old)
	}
	return h
}

// expire makes what is held at a node be freed after the grace period.
func (c *Client) expire(node int, h *holding, grace time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.holdings[node] != h {
		return
	}
	c.expiries.Add(1)
	h.expiry = time.AfterFunc(grace, func() {
		defer c.expiries.Done()
		c.surrender(h)
		if c.enter() == nil {
			defer c.leave()
			ctx, cancel := context.WithTimeout(context.Background(), surrenderTime)
			defer cancel()
			_ = c.settle(ctx, nil) // later calls free what is left then
		}
	})
}

// surrenderTime is how long the freeing of an expired holding may take.
const surrenderTime = 10 * time.Second

// surrender notes that everything in the holding is to be freed.
func (c *Client) surrender(h *holding) {
	var owed []request
	h.mu.Lock()
	for _, g := range h.grants {
		if g.loan.grants--; g.loan.grants == 0 {
			owed = append(owed, g.loan.free)
		}
	}
	clear(h.grants)
	h.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owed = append(c.owed, owed...)
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
	if s.groups, err = ch.ConnectAccess(ctx); err != nil {
		return err
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
		ChunkSize: info.ChunkSize, Chunks: info.Chunks, Grace: info.Grace, Zone: w.Zone,
	}
	s.held = c.client.hold(c.node, s.id, s.info.Resumed)
	return nil
}

// remove takes out all grants with these first chunks, or none and returns false if one of them is missing. It
// returns the blocks of which no grant is left.
func (h *holding) remove(chunks []uint32) ([]*loan, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	removed := make([]lent, 0, len(chunks))
	for _, c := range chunks {
		g, ok := h.grants[c]
		if !ok {
			for _, g := range removed {
				h.grants[g.Chunk] = g
			}
			return nil, false
		}
		delete(h.grants, c)
		removed = append(removed, g)
	}
	var whole []*loan
	for _, g := range removed {
		if g.loan.grants--; g.loan.grants == 0 {
			whole = append(whole, g.loan)
		}
	}
	return whole, true
}

// Info implements manager.Session.
func (s *session) Info() manager.Info { return s.info }

// Leaving implements manager.Session.
func (s *session) Leaving() bool { return s.ch.Leaving() }

// Space implements manager.Session.
func (s *session) Space() wire.Space {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.space
}

// fault is the error that the session's caller gets for err.
func (s *session) fault(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed && !errors.Is(err, manager.ErrNoMemory) {
		return manager.ErrClosed
	}
	return err
}

// says takes note of what is left according to the broker.
func (s *session) says(a *answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.space = wire.Space{Free: a.free, Budget: a.budget}
}

// Alloc implements manager.Session.
func (s *session) Alloc(ctx context.Context, grants []manager.Grant) (int, error) {
	n := 0
	for chunks := 0; chunks < len(grants); {
		var got []manager.Grant
		err := s.runs.Alloc(s.k, len(grants)-chunks, func(class int) (err error) {
			got, err = s.allocBlock(ctx, class)
			return err
		})
		if err != nil {
			if n > 0 && (errors.Is(err, manager.ErrNoMemory) || ctx.Err() != nil) {
				return n, nil
			}
			return 0, s.fault(err) // Owned lists the block that the call may have got
		}
		for _, g := range got {
			grants[n] = g
			chunks += g.Chunks
			n++
		}
	}
	return n, nil
}

// allocBlock allocates a block of a class, and returns its grants: one for every key.
func (s *session) allocBlock(ctx context.Context, class int) ([]manager.Grant, error) {
	var a answer
	r := request{op: opAlloc, node: uint16(s.conn.node), session: s.id, class: uint8(class)}
	if err := s.conn.client.call(ctx, s.stop, &r, &a); err != nil {
		return nil, err
	}
	keys, chunks := len(a.keys), 1<<(class-s.k)
	if keys == 0 || chunks%keys != 0 || a.first&(1<<class-1) != 0 || int(a.first>>s.k)+chunks > s.info.Chunks {
		return nil, s.conn.client.violated("class %d at chunk %d with %d keys", class, a.first, keys)
	}
	l := &loan{free: r, grants: keys}
	l.free.op, l.free.first = opFree, a.first
	grants, group := make([]manager.Grant, keys), int(s.lent.Add(1))%s.groups
	s.held.mu.Lock()
	for i := range grants {
		g := &grants[i]
		g.Chunk, g.Chunks, g.Group = a.first>>s.k+uint32(i*chunks/keys), chunks/keys, group
		g.Addr = a.addr + uint64(i*chunks/keys*s.info.ChunkSize)
		g.Keys[0] = a.keys[i]
		s.held.grants[g.Chunk] = lent{*g, l}
	}
	s.held.mu.Unlock()
	s.says(&a)
	return grants, nil
}

// Free implements manager.Session.
func (s *session) Free(ctx context.Context, chunks []uint32) error {
	blocks, ok := s.held.remove(chunks)
	if !ok {
		return ErrNotOwner
	}
	var failed error
	for _, l := range blocks {
		// A block that the broker cannot be asked to free now is owed, and freed by a later call.
		var a answer
		err := s.conn.client.call(ctx, s.stop, &l.free, &a)
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

// Owned implements manager.Session. Keys stay the same as long as the broker's session with the node lasts.
func (s *session) Owned(context.Context) ([]manager.Grant, error) {
	s.held.mu.Lock()
	defer s.held.mu.Unlock()
	grants := make([]manager.Grant, 0, len(s.held.grants))
	for _, g := range s.held.grants {
		g.Group %= s.groups // the node may have granted more groups before
		grants = append(grants, g.Grant)
	}
	return grants, nil
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
