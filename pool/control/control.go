// Package control carries messages between a client and a memory node's control
// goroutine, on the management queue pair of a connection. Managers that
// allocate by messages are built on it, and the others resume sessions with it.
//
// The messages are those of package memnode/wire. A Channel has as many in
// flight as the node gives it credits, matches replies by id, and waits without
// a goroutine: the completion handler wakes the caller.
//
// Lock order: Channel.pollMu, Channel.mu.
package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"polder/internal/arena"
	"polder/memnode/wire"
	"polder/pool/manager"
	"polder/verbs"
)

// maxCredits bounds what a node can make a client hold.
const maxCredits = 32

// Handlers are called with replies that no caller waits for. They are called with a lock held, must not block, and
// must not call the channel.
type Handlers struct {
	// Late gets the reply to a request whose caller has given up.
	Late func(*wire.Reply)
	// Notice gets what the node sends without being asked. If Notice is nil, such a message is an error.
	Notice func(*wire.Reply)
	// Space gets what a message of the node says about its free memory, even if a caller waits for the message.
	Space func(wire.Space)
}

// A Channel is an open management queue pair.
type Channel struct {
	link manager.Link
	name string // of the manager
	on   Handlers
	cq   verbs.CQ
	mgmt verbs.QP
	mem  *arena.Mapping // buffers of requests, then of replies: one of each for every slot, more for notices
	mr   verbs.MR

	idle   chan *slot
	slots  []*slot
	broken chan struct{} // closed when the channel can do nothing more

	groups  int         // how many the node has granted
	version uint16      // version of wire that the connection speaks
	leaving atomic.Bool // what the node has said last about leaving

	pollMu sync.Mutex // serialises completion handlers
	wcs    [2 * maxCredits]verbs.WC

	mu    sync.Mutex
	err   error          // why broken is closed
	users sync.WaitGroup // calls that may touch mem; no new ones once broken
	spare []int          // reply buffers for which no receive is posted
	seq   uint32
}

// A slot carries one request at a time. Apart from done, it is guarded by Channel.mu between the post and the
// wake-up, and belongs to its caller otherwise.
type slot struct {
	index     int
	id        uint32
	op        wire.Op // of the request
	left      int     // completions that are still to come: the send's and the reply's
	abandoned bool
	done      chan struct{} // capacity 1
	reply     [wire.MaxMessage]byte
	size      int
}

// replyID marks the work request IDs of receives.
const replyID = 1 << 16

// notices is how many receives are always posted for messages that the node sends without being asked. It sends a few
// in a second at most. So this process may be kept from running for a few seconds before it loses the connection.
const notices = 16

// Open connects a management queue pair for the manager of the given name.
func Open(ctx context.Context, l manager.Link, name string, on Handlers) (*Channel, *wire.Welcome, error) {
	c := &Channel{link: l, name: name, on: on, broken: make(chan struct{})}
	w, err := c.open(ctx)
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return c, w, nil
}

func (c *Channel) open(ctx context.Context) (_ *wire.Welcome, err error) {
	if c.mem, err = arena.Anonymous((2*maxCredits+notices)*wire.MaxMessage, false); err != nil {
		return nil, err
	}
	if c.mr, err = c.link.PD.RegMR(c.mem.Bytes(), verbs.AccessLocalWrite); err != nil {
		return nil, fmt.Errorf("cannot register message buffers: %w", err)
	}
	c.cq, err = c.link.Device.CreateCQ(verbs.CQInit{Depth: 2*maxCredits + notices, Handler: c.complete})
	if err != nil {
		return nil, fmt.Errorf("cannot create a completion queue: %w", err)
	}
	c.mgmt, err = c.link.PD.CreateQP(verbs.QPInit{
		SendCQ: c.cq, RecvCQ: c.cq, SendDepth: maxCredits, RecvDepth: maxCredits + notices,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot create a management queue pair: %w", err)
	}
	hello := wire.Hello{
		Kind: wire.KindManagement, Manager: c.name, Session: c.link.Resume, Keep: c.link.Keep, Cluster: wire.ClusterOf(c.link.Cluster),
		Groups: uint8(min(c.link.Groups, wire.MaxGroups)), Pairs: uint8(min(c.link.Pairs, wire.MaxPairs)),
	}
	private, err := c.greet(ctx, &hello)
	if wire.Foreign.Is(err) {
		err = fmt.Errorf("this end is of %s: %w", clusterNamed(c.link.Cluster), err)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot connect a management queue pair: %w", err)
	}
	var w wire.Welcome
	if err := w.Decode(private); err != nil {
		return nil, err
	}
	if w.Version != hello.Version {
		return nil, fmt.Errorf("%w: the node answers version %d of the protocol with %d", wire.ErrMalformed, hello.Version, w.Version)
	}
	c.version = w.Version
	credits := min(int(w.Credits), maxCredits)
	c.idle = make(chan *slot, credits)
	for i := range credits {
		sl := &slot{index: i, done: make(chan struct{}, 1)}
		c.slots = append(c.slots, sl)
		c.spare = append(c.spare, i)
		c.idle <- sl
	}
	c.groups = max(int(w.Groups), 1)
	c.leaving.Store(w.Leaving) // before the node's next message about leaving can come
	for i := range notices {
		if err := c.postRecv(maxCredits + i); err != nil {
			return nil, err
		}
	}
	return &w, nil
}

// greet sends h in the current version and, if the node does not know that, in the version before it.
func (c *Channel) greet(ctx context.Context, h *wire.Hello) (private []byte, err error) {
	h.Version = wire.Version
	private, err = c.link.Conn.Connect(ctx, c.mgmt, h.Append(nil))
	if !wire.Unknown(err) {
		return private, err
	}
	if h.Keep.Kept() {
		return nil, fmt.Errorf("the node does not speak version %d of the protocol, without which it cannot keep a session: upgrade it: %w", wire.Version, err)
	}
	if h.Cluster != (wire.Cluster{}) {
		return nil, fmt.Errorf("the node does not say which cluster it is of, and this end is of %s: upgrade the node: %w", clusterNamed(c.link.Cluster), err)
	}
	h.Version = wire.Before
	if private, err = c.link.Conn.Connect(ctx, c.mgmt, h.Append(nil)); wire.Unknown(err) {
		err = fmt.Errorf("the node speaks neither version %d of the protocol nor %d, as this end does: %w", wire.Version, wire.Before, err)
	}
	return private, err
}

func clusterNamed(name string) string {
	if name == "" {
		return "no cluster"
	}
	return "cluster " + name
}

// Version is the version of wire that the connection speaks.
func (c *Channel) Version() uint16 { return c.version }

// ConnectAccess connects as many groups as the node has granted, each of one access queue pair, and returns how many
// there are.
func (c *Channel) ConnectAccess(ctx context.Context) (groups int, err error) {
	l := &c.link
	if c.groups > max(l.Groups, 1) {
		return 0, c.Violated("%d groups where %d were asked for", c.groups, l.Groups)
	}
	for i := range c.groups {
		if i > 0 {
			if err := l.NextGroup(); err != nil {
				return 0, err
			}
		}
		access, err := l.Access()
		if err != nil {
			return 0, err
		}
		hello := wire.Hello{Version: c.version, Kind: wire.KindAccess, Index: uint8(i), Manager: c.name}
		if _, err := l.Conn.Connect(ctx, access, hello.Append(nil)); err != nil {
			return 0, fmt.Errorf("cannot connect an access queue pair: %w", err)
		}
	}
	return c.groups, nil
}

// Leaving reports whether the node has said that it will end when nothing is lent any more.
func (c *Channel) Leaving() bool { return c.leaving.Load() }

// Violated gives up on a node that breaks the protocol.
func (c *Channel) Violated(format string, args ...any) error {
	err := fmt.Errorf("%w: %s", wire.ErrMalformed, fmt.Sprintf(format, args...))
	c.Fail(err)
	return err
}

// Exchange sends the request that encode appends, and decodes the answer into r. r is valid until release is called.
// The caller must call release unless there is an error.
func (c *Channel) Exchange(ctx context.Context, r *wire.Reply, encode func(b []byte, id uint32) []byte) (release func(), err error) {
	sl, err := c.exchange(ctx, r, encode)
	if err != nil {
		return nil, err
	}
	return func() { c.idle <- sl }, nil
}

func (c *Channel) exchange(ctx context.Context, r *wire.Reply, encode func(b []byte, id uint32) []byte) (*slot, error) {
	var sl *slot
	select {
	case sl = <-c.idle:
	case <-c.broken:
		return nil, c.Err()
	case <-c.link.Conn.Done():
		return nil, c.link.Conn.Err()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := c.post(sl, encode); err != nil {
		c.Fail(err)
		return nil, c.Err()
	}
	select {
	case <-sl.done:
	case <-c.broken:
		return nil, c.Err()
	case <-c.link.Conn.Done():
		return nil, c.link.Conn.Err()
	case <-ctx.Done():
		if c.abandon(sl) {
			return nil, context.Cause(ctx)
		}
		<-sl.done
	}
	if err := r.Decode(sl.reply[:sl.size]); err != nil {
		return nil, c.Violated("%v", err)
	}
	if r.Op != sl.op {
		return nil, c.Violated("%v answered with %v", sl.op, r.Op)
	}
	return sl, nil
}

func (c *Channel) post(sl *slot, encode func([]byte, uint32) []byte) error {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return c.err
	}
	c.users.Add(1)
	defer c.users.Done()
	c.seq++
	sl.id = c.seq<<8 | uint32(sl.index)
	sl.left, sl.abandoned = 2, false
	spare := c.spare[len(c.spare)-1]
	c.spare = c.spare[:len(c.spare)-1]
	c.mu.Unlock()
	msg := encode(c.buffer(sl.index)[:0], sl.id)
	sl.op = wire.Op(msg[0])
	if err := c.postRecv(spare); err != nil {
		return err
	}
	if err := c.mgmt.PostSend(verbs.SendWR{
		ID: uint64(sl.index), Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: c.sge(sl.index, len(msg)),
	}); err != nil {
		return fmt.Errorf("cannot send a request: %w", err)
	}
	return nil
}

// postRecv posts a receive into reply buffer i.
func (c *Channel) postRecv(i int) error {
	if err := c.mgmt.PostRecv(verbs.RecvWR{
		ID: replyID | uint64(i), SGL: c.sge(maxCredits+i, wire.MaxMessage),
	}); err != nil {
		return fmt.Errorf("cannot post a receive: %w", err)
	}
	return nil
}

func (c *Channel) buffer(i int) []byte {
	return c.mem.Bytes()[i*wire.MaxMessage : (i+1)*wire.MaxMessage]
}

func (c *Channel) sge(i, n int) []verbs.SGE {
	return []verbs.SGE{{
		Addr: c.mr.Addr() + uint64(i*wire.MaxMessage), Length: uint32(n), LKey: c.mr.LKey(),
	}}
}

// abandon leaves sl to the completion handler. It returns false if sl is done already.
func (c *Channel) abandon(sl *slot) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if sl.left == 0 {
		return false
	}
	sl.abandoned = true
	return true
}

// complete is the completion handler. It posts receives with no lock held, since posting one may call complete again.
func (c *Channel) complete(cq verbs.CQ) {
	for {
		n, reposts, err := c.poll(cq)
		for _, i := range reposts {
			if err == nil {
				err = c.postRecv(i)
			}
		}
		if err != nil {
			c.Fail(err)
			return
		}
		if n == 0 {
			return
		}
	}
}

// poll handles completions. For every notice it returns a reply buffer for which a receive is to be posted again.
func (c *Channel) poll(cq verbs.CQ) (n int, reposts []int, err error) {
	c.pollMu.Lock()
	defer c.pollMu.Unlock()
	n = cq.Poll(c.wcs[:])
	if n == 0 {
		return 0, nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	again := 0
	for _, wc := range c.wcs[:n] {
		noticed, err := c.arrived(wc)
		if err != nil {
			return n, nil, err
		}
		if noticed {
			again++
		}
	}
	return n, c.takeSpares(again), nil
}

// arrived handles one completion.
//
// Preconditions: c.mu is held.
func (c *Channel) arrived(wc verbs.WC) (noticed bool, err error) {
	if err := wc.Err(); err != nil {
		return false, fmt.Errorf("management queue pair failed: %w", err)
	}
	var sl *slot
	if wc.ID&replyID == 0 {
		sl = c.slots[wc.ID]
	} else {
		// Replies fill the receives in the order in which these were posted, whichever requests they answer.
		spare := int(wc.ID &^ replyID)
		c.spare = append(c.spare, spare)
		b := c.buffer(maxCredits + spare)[:wc.ByteLen]
		var r wire.Reply
		if err := r.Decode(b); err != nil {
			return false, err
		}
		if c.on.Space != nil {
			c.on.Space(r.Space)
		}
		switch {
		case r.Op == wire.OpNotice && c.on.Notice != nil:
			c.on.Notice(&r)
			return true, nil
		case r.Op == wire.OpLeaving:
			c.leaving.Store(r.N > 0)
			return true, nil
		case r.Op == wire.OpVanished && r.ID == 0 && c.link.Vanished != nil:
			c.link.Vanished()
			return true, nil
		}
		index := int(r.ID & 0xff)
		if index >= len(c.slots) || c.slots[index].id != r.ID || c.slots[index].left == 0 {
			return false, fmt.Errorf("%w: reply to a request that was not made", wire.ErrMalformed)
		}
		sl = c.slots[index]
		sl.size = copy(sl.reply[:], b)
	}
	sl.left--
	switch {
	case sl.left > 0:
	case !sl.abandoned:
		sl.done <- struct{}{}
	default:
		var r wire.Reply
		if c.on.Late != nil && r.Decode(sl.reply[:sl.size]) == nil {
			c.on.Late(&r)
		}
		c.idle <- sl
	}
	return false, nil
}

// takeSpares takes k spare reply buffers, as many as notices have filled.
//
// Preconditions: c.mu is held.
func (c *Channel) takeSpares(k int) []int {
	if k == 0 {
		return nil
	}
	taken := slices.Clone(c.spare[len(c.spare)-k:])
	c.spare = c.spare[:len(c.spare)-k]
	return taken
}

// Fail ends every call in progress and to come with err.
func (c *Channel) Fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		close(c.broken)
	}
}

// Err returns why the channel is broken, or nil.
func (c *Channel) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Broken is closed when the channel can do nothing more.
func (c *Channel) Broken() <-chan struct{} { return c.broken }

// Close ends the channel; calls in progress end with manager.ErrClosed.
func (c *Channel) Close() {
	c.Fail(manager.ErrClosed)
	c.users.Wait()
	var errs []error
	if c.mgmt != nil {
		errs = append(errs, c.mgmt.Close())
	}
	// Wait for a handler that is running before the buffers go.
	c.pollMu.Lock()
	defer c.pollMu.Unlock()
	if c.cq != nil {
		errs = append(errs, c.cq.Close())
	}
	if c.mr != nil {
		errs = append(errs, c.mr.Deregister())
	}
	// If the device still has it registered, the memory stays mapped until the device is closed.
	if c.mem != nil && errors.Join(errs...) == nil {
		c.mem.Close()
	}
}
