package broker

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"polder/internal/fdpass"
	"polder/memnode/twolayer"
	"polder/pool/manager"
	"polder/verbs"
)

// Block is memory of a node that a broker has allocated for this application.
type Block struct {
	First uint32 // number of its first chunk, as FineMem counts chunks
	Class int    // it has 4 KiB << Class
	Addr  uint64 // of its first byte
	// Keys open equal parts of the block, in order. They work on every queue pair that is connected to the node.
	Keys []verbs.RKey
}

// NodeInfo is what a broker says about one of its memory nodes.
type NodeInfo struct {
	Session   uint64 // changes when everything that was allocated there is lost
	ChunkSize int    // size in bytes of the smallest allocation
	Least     int    // class of the smallest allocation
	Chunks    int    // units of ChunkSize at the node
	Grace     time.Duration
	Free      uint32 // chunks that are free, as far as is known
	Budget    uint32 // chunks that this application may still have
}

// Client is an application's connection to a broker. When the connection is lost, everything that was allocated over
// it is lost, too.
type Client struct {
	sock  *fdpass.Conn
	ring  *ring
	addrs []string
	least []atomic.Int32 // by node, the class of a chunk; 0 before Attach
	free  chan int       // slots that nobody uses
	late  chan abandoned // slots with requests whose callers have stopped waiting
	done  chan struct{}  // closed when the connection is lost
	ended chan struct{}  // closed when the client's goroutine has ended

	bellMu   sync.Mutex     // serialises bells
	expiries sync.WaitGroup // timers of holdings that are running

	mu       sync.Mutex // guards what follows
	using    int        // calls that may access the ring
	closed   bool       // no more calls may begin
	unmapped bool
	owed     []request // frees that the next call asks for
	holdings map[int]*holding
}

type abandoned struct {
	slot int
	r    request
}

// Dial connects to the broker at the path of a socket, with or without scheme.Broker.
func Dial(ctx context.Context, path string) (*Client, error) {
	c, err := dial(ctx, trim(path))
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the broker at %s: %w", trim(path), err)
	}
	return c, nil
}

func dial(ctx context.Context, path string) (*Client, error) {
	sock, err := fdpass.Dial(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	stop := context.AfterFunc(ctx, func() { sock.Close() })
	c, err := greet(sock)
	if !stop() && err == nil {
		c.ring.close()
		err = context.Cause(ctx)
	}
	if err != nil {
		sock.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	go c.watch()
	return c, nil
}

func greet(sock *fdpass.Conn) (*Client, error) {
	if err := sock.SetDeadline(time.Now().Add(handshakeTime)); err != nil {
		return nil, err
	}
	sendErr := sock.Send(appendHello(nil)) // sending may fail because the broker has refused already
	msg, files, err := sock.RecvFDs()
	if errors.Is(err, syscall.ECONNRESET) {
		msg, files, err = sock.RecvFDs() // we may have read the reason before our hello was sent
	}
	if err != nil {
		return nil, fmt.Errorf("%w: no answer: %w", ErrGone, errors.Join(err, sendErr))
	}
	addrs, err := decodeWelcome(msg)
	if err == nil && len(files) != 1 {
		err = malformed("hello with %d descriptors, want 1", len(files))
	}
	if err != nil {
		fdpass.CloseAll(files)
		return nil, err
	}
	r, err := openRing(files[0])
	if err != nil {
		return nil, err
	}
	if err := sock.SetDeadline(time.Time{}); err != nil {
		r.close()
		return nil, err
	}
	c := &Client{
		sock: sock, ring: r, addrs: addrs, least: make([]atomic.Int32, len(addrs)), free: make(chan int, slots), late: make(chan abandoned, slots),
		done: make(chan struct{}), ended: make(chan struct{}), holdings: make(map[int]*holding),
	}
	for i := range slots {
		c.free <- i
	}
	return c, nil
}

// watch waits until the socket is closed, and wakes everybody who waits for an answer.
func (c *Client) watch() {
	defer close(c.ended)
	_, err := c.sock.Recv()
	if err == nil {
		c.sock.Done() // a broker sends nothing
	}
	c.sock.Close()
	close(c.done)
	c.rouse()
}

// rouse makes all callers that wait for answers check whether they should go on waiting.
func (c *Client) rouse() {
	if c.enter() == nil {
		for i := range slots {
			c.ring.rouse(i)
		}
		c.leave()
	}
}

// violated ends the connection to a broker that breaks the protocol.
func (c *Client) violated(format string, args ...any) error {
	c.sock.Close()
	return malformed(format, args...)
}

// Nodes are the addresses of the broker's memory nodes. The methods name a node by its index here.
func (c *Client) Nodes() []string { return c.addrs }

// Done is closed when the connection is lost or closed.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close disconnects. Everything that was allocated is freed. Calls in progress end
// with ErrGone. Closing twice is a no-op.
func (c *Client) Close() error {
	c.sock.Close()
	<-c.ended
	c.mu.Lock()
	c.closed = true
	for _, h := range c.holdings {
		if h.expiry != nil && h.expiry.Stop() {
			c.expiries.Done()
		}
	}
	c.unmap()
	c.mu.Unlock()
	c.expiries.Wait()
	return nil
}

// unmap unmaps the ring when no call accesses it any more.
//
// Preconditions: c.mu is held.
func (c *Client) unmap() {
	if c.closed && c.using == 0 && !c.unmapped {
		c.unmapped = true
		c.ring.close()
	}
}

// enter keeps the ring mapped until leave.
func (c *Client) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrGone
	}
	c.using++
	return nil
}

func (c *Client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.using--
	c.unmap()
}

// Attach asks the broker about a node. It must be called before anything is allocated there, and again after
// ErrStale.
func (c *Client) Attach(ctx context.Context, node int) (NodeInfo, error) {
	var a answer
	err := c.check(node, twolayer.Classes-1)
	if err == nil {
		err = c.call(ctx, nil, &request{op: opAttach, node: uint16(node)}, &a)
	}
	if err != nil {
		return NodeInfo{}, fmt.Errorf("cannot attach to %s: %w", c.name(node), err)
	}
	c.least[node].Store(int32(a.least))
	return NodeInfo{
		Session: a.session, ChunkSize: int(a.chunk), Least: int(a.least), Chunks: int(a.chunks),
		Grace: time.Duration(a.grace) * time.Millisecond, Free: a.free, Budget: a.budget,
	}, nil
}

// Alloc allocates a block of a class at a node, in the session that Attach has returned. The error Is
// manager.ErrNoMemory if there is no memory left. If it is ctx's error, a block may have been allocated nevertheless;
// a later call frees it, or the end of the connection does.
func (c *Client) Alloc(ctx context.Context, node int, session uint64, class int) (Block, error) {
	var b Block
	err := c.check(node, class)
	if err == nil {
		b, _, err = c.alloc(ctx, node, session, class)
	}
	if err != nil {
		return Block{}, fmt.Errorf("cannot allocate class %d at %s: %w", class, c.name(node), err)
	}
	return b, nil
}

func (c *Client) alloc(ctx context.Context, node int, session uint64, class int) (b Block, a answer, err error) {
	err = c.call(ctx, nil, &request{op: opAlloc, node: uint16(node), session: session, class: uint8(class)}, &a)
	if err == nil && len(a.keys) == 0 {
		err = c.violated("a block without keys")
	}
	return Block{First: a.first, Class: class, Addr: a.addr, Keys: a.keys}, a, err
}

// Free frees a block. After ErrNotOwner or ErrStale the block is not the application's. After any other error it will
// still be freed.
func (c *Client) Free(ctx context.Context, node int, session uint64, b Block) error {
	var a answer
	err := c.check(node, b.Class)
	if err == nil {
		r := request{op: opFree, node: uint16(node), session: session, class: uint8(b.Class), first: b.First}
		err = c.call(ctx, nil, &r, &a)
	}
	if err != nil {
		return fmt.Errorf("cannot free class %d at chunk %d of %s: %w", b.Class, b.First, c.name(node), err)
	}
	return nil
}

// check refuses a node or class for which the broker would end the connection.
func (c *Client) check(node, class int) error {
	if node < 0 || node >= len(c.addrs) {
		return fmt.Errorf("the broker has %d nodes", len(c.addrs))
	}
	if least := int(c.least[node].Load()); class < least || class >= twolayer.Classes {
		return fmt.Errorf("there are classes %d to %d", least, twolayer.Classes-1)
	}
	return nil
}

func (c *Client) name(node int) string {
	if node < 0 || node >= len(c.addrs) {
		return fmt.Sprintf("node %d of %d", node, len(c.addrs))
	}
	return c.addrs[node]
}

// call has the broker carry out r. It gives up when stop is closed and the ring is roused.
func (c *Client) call(ctx context.Context, stop <-chan struct{}, r *request, a *answer) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if err := c.settle(ctx, stop); err != nil {
		c.owe(r)
		return err
	}
	return c.exchange(ctx, stop, r, a)
}

// owe records r, if it is a free, so that a later call asks for it.
func (c *Client) owe(r *request) {
	if r.op == opFree {
		c.mu.Lock()
		c.owed = append(c.owed, *r)
		c.mu.Unlock()
	}
}

// exchange posts r and waits for the answer.
func (c *Client) exchange(ctx context.Context, stop <-chan struct{}, r *request, a *answer) error {
	slot, err := c.slot(ctx, stop)
	if err != nil {
		c.owe(r)
		return err
	}
	r.encode(c.ring.request(slot))
	if c.ring.post(slot) {
		c.wake()
	}
	if err := c.await(ctx, stop, slot); err != nil {
		c.late <- abandoned{slot, *r}
		return err
	}
	return c.read(slot, a)
}

// read takes the answer out of a slot, and gives the slot back.
func (c *Client) read(slot int, a *answer) error {
	err := a.decode(c.ring.answer(slot))
	c.free <- slot
	if err != nil {
		return c.violated("%v", err)
	}
	switch a.status {
	case statusOK:
		return nil
	case statusNoMemory:
		return manager.ErrNoMemory
	case statusBudget:
		return manager.ErrBudget
	case statusNotOwner:
		return ErrNotOwner
	case statusStale:
		return ErrStale
	case statusDown:
		return ErrNodeDown
	}
	return manager.ErrRefused
}

// wake wakes the broker.
func (c *Client) wake() {
	c.bellMu.Lock()
	defer c.bellMu.Unlock()
	_ = c.sock.TrySend([]byte{1}) // if there is no room, bells enough are under way
}

// slot returns a slot that nobody uses.
func (c *Client) slot(ctx context.Context, stop <-chan struct{}) (int, error) {
	select {
	case i := <-c.free: // fast path
		return i, nil
	default:
	}
	for {
		select {
		case i := <-c.free:
			return i, nil
		case w := <-c.late:
			if err := c.await(ctx, stop, w.slot); err != nil {
				c.late <- w
				return 0, err
			}
			c.collect(w)
		case <-c.done:
			return 0, ErrGone
		case <-stop:
			return 0, manager.ErrClosed
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// A caller looks for the answer spins times before it sleeps, and lets other goroutines run after every yields looks:
// some microseconds in all.
const (
	spins  = 320
	yields = 32
)

// await waits for the answer in a slot.
func (c *Client) await(ctx context.Context, stop <-chan struct{}, slot int) error {
	for i := range spins {
		if c.ring.answered(slot) {
			return nil
		}
		if i%yields == yields-1 {
			runtime.Gosched()
		}
	}
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, func() {
			if c.enter() == nil {
				c.ring.rouse(slot)
				c.leave()
			}
		})()
	}
	var err error
	over := func() bool {
		select {
		case <-c.done:
			err = ErrGone
		case <-stop:
			err = manager.ErrClosed
		case <-ctx.Done():
			err = context.Cause(ctx)
		default:
			return false
		}
		return true
	}
	for {
		ended := over()
		if c.ring.answered(slot) {
			return nil
		}
		if ended {
			return err
		}
		c.ring.sleep(slot, over)
	}
}

// collect reads an answer for which nobody has waited. A block that it brings will be freed.
func (c *Client) collect(w abandoned) {
	var a answer
	if err := c.read(w.slot, &a); err == nil && w.r.op == opAlloc {
		c.owe(&request{op: opFree, node: w.r.node, session: w.r.session, class: w.r.class, first: a.first})
	}
}

// reap collects those answers to abandoned requests that have come.
func (c *Client) reap() {
	for range len(c.late) {
		select {
		case w := <-c.late:
			if c.ring.answered(w.slot) {
				c.collect(w)
			} else {
				c.late <- w
			}
		default:
			return
		}
	}
}

// settle asks for the frees that are owed.
func (c *Client) settle(ctx context.Context, stop <-chan struct{}) error {
	c.mu.Lock()
	none := len(c.owed) == 0
	c.mu.Unlock()
	if none && len(c.late) == 0 { // fast path
		return nil
	}
	c.reap()
	for {
		c.mu.Lock()
		if len(c.owed) == 0 {
			c.mu.Unlock()
			return nil
		}
		r := c.owed[len(c.owed)-1]
		c.owed = c.owed[:len(c.owed)-1]
		c.mu.Unlock()
		var a answer
		switch err := c.exchange(ctx, stop, &r, &a); {
		case err == nil, errors.Is(err, ErrNotOwner), errors.Is(err, ErrStale):
		default:
			return err
		}
	}
}
