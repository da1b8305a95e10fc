package pool

import (
	"context"
	"encoding/binary"
	"sync/atomic"
	"time"

	"polder/verbs"
)

// pieceState says how far a piece has come.
type pieceState uint8

const (
	pieceIdle   pieceState = iota // to be started
	pieceReady                    // has a block, and is about to be submitted
	pieceFlying                   // submitted: it belongs to the link until it has landed
	pieceDone                     // finished, or given up
)

// A piece is the part of an operation that one work request carries out: all of the operation or, of a long one, at
// most maxBlock bytes within one extent. What the link needs of the operation is copied, because a caller that gives
// up takes its Op with it.
type piece struct {
	call   *call
	op     *Op // for the call's caller only
	extent *extent
	off    int // in op.Buf, and in the range that the operation touches
	n      int
	state  pieceState

	kind     OpKind
	bulk     bool
	old, new uint64
	group    *group
	path     int
	stray    bool // its caller has given up
	block    block
	addr     uint64
	key      verbs.RKey
	sge      [1]verbs.SGE
	posted   bool          // the device may have seen it
	landed   atomic.Uint32 // 0 while flying, then the completion's status + 1
}

// request returns p as a work request.
func (p *piece) request(id uint64) verbs.SendWR {
	wr := verbs.SendWR{
		ID: id, Flags: verbs.SendSignaled, SGL: p.sge[:], RemoteAddr: p.addr, RKey: p.key,
	}
	switch p.kind {
	case OpRead:
		wr.Op = verbs.OpRead
	case OpWrite:
		wr.Op = verbs.OpWrite
	case OpCompareAndSwap:
		wr.Op, wr.Compare, wr.Swap = verbs.OpCmpSwap, p.old, p.new
	case OpFetchAdd:
		wr.Op, wr.Swap = verbs.OpFetchAdd, p.new
	}
	return wr
}

// finish tells the call that p has landed. The link calls it once for every flight, and does not touch p or its call
// after waking somebody.
func (p *piece) finish(status verbs.Status) {
	c := p.call
	p.landed.Store(uint32(status) + 1)
	if c.flying.Add(-1) > 0 {
		return
	}
	landed := c.landed // another caller may reuse the call as soon as it is done
	if c.fate.Add(1) == 2 {
		c.recycle()
		return
	}
	c.done <- struct{}{}
	if landed != nil {
		landed()
	}
}

// fail sets the operation's error, unless it has one.
func (p *piece) fail(err error) { p.op.fail(p.extent, err) }

// A call is one caller's batch on its way. Calls are reused, together with everything that they have allocated.
type call struct {
	pool   *Pool
	row    row // in place, while ops are planned
	pieces []piece
	groups []*group // groups that the present round submits pieces to

	flying atomic.Int32 // pieces in flight in this round
	// fate decides who disposes of the call when its caller may give up while pieces fly. The last piece to land and
	// the caller each add one; whoever comes second disposes of the call.
	fate atomic.Int32
	done chan struct{} // capacity 1: the round's last piece has landed

	landed func() // if not nil, called when the first round has landed; see Flight

	submitted time.Time // when the pieces of the present round were submitted

	room  roomWaiter
	held  block // received from room, for the next piece that needs a block
	timer *time.Timer
	armed bool

	progress bool // a piece has succeeded in this round
}

func newCall(p *Pool) *call {
	c := &call{pool: p, done: make(chan struct{}, 1)}
	c.room.ready = make(chan block, 1)
	c.timer = time.NewTimer(time.Hour)
	c.timer.Stop()
	return c
}

// run carries out ops and disposes of the call.
func (c *call) run(ctx context.Context, ops []Op) {
	c.plan(ctx, ops)
	c.rest(ctx)
}

// rest carries out what is left of a call, and disposes of it.
func (c *call) rest(ctx context.Context) {
	for {
		more, abandoned := c.round(ctx)
		if abandoned {
			return // the last piece to land disposes of the call
		}
		if !more {
			break
		}
		if c.progress { // each bufferful of a call larger than the buffer gets the full time
			c.progress = false
			c.disarm()
		}
	}
	c.dispose()
}

// plan carries out in place what it can, and cuts the other ops into pieces. A read that follows an op that changes
// memory goes over the fabric, like that op: in place it would come too early, and would not save a round trip.
func (c *call) plan(ctx context.Context, ops []Op) {
	changes := false
	for i := range ops {
		op := &ops[i]
		op.Err = nil
		if err := op.check(c.pool); err != nil {
			op.refuse(err)
			continue
		}
		if !changes && c.row.add(ctx, op) {
			continue
		}
		c.row.end(c.cut) // before op, which may change what was to be read
		if !changes && op.Chunk.inPlace(ctx, op) {
			continue
		}
		changes = changes || op.Kind != OpRead
		c.cut(op)
	}
	c.row.end(c.cut)
}

// cut cuts op, which has been checked, into pieces.
func (c *call) cut(op *Op) {
	size, i := op.size(), op.Chunk.at(op.Off)
	for off := 0; off < size; i++ {
		x := op.Chunk.extents[i]
		end := int(min(int64(size), x.off+x.size-op.Off))
		for ; off < end; off += maxBlock {
			c.pieces = append(c.pieces, piece{
				call: c, op: op, extent: x, off: off, n: min(maxBlock, end-off),
				kind: op.Kind, bulk: op.Bulk, old: op.Old, new: op.New,
			})
		}
		off = end
	}
}

// round starts as many pieces as there is room for and waits for them. If it can start none, it waits for the buffer
// space or for the node that they lack. more is false when every piece is done; abandoned is true if the caller gave
// up and pieces still fly.
func (c *call) round(ctx context.Context) (more, abandoned bool) {
	if ctx.Err() != nil {
		c.failAll(context.Cause(ctx))
		return false, false
	}
	started, lacksRoom, lacksNode := c.begin()
	switch {
	case started > 0:
		c.submit(started)
		return true, c.land(ctx)
	case lacksRoom != nil:
		return c.waitRoom(ctx, lacksRoom.n), false
	case lacksNode != nil:
		return c.waitNode(ctx, lacksNode), false
	}
	return false, false
}

// begin makes as many pieces ready as there is room for. lacksRoom is the first piece that found no room in the slab;
// lacksNode is a node of a piece that is still being connected to.
func (c *call) begin() (started int, lacksRoom *piece, lacksNode *node) {
	c.groups = c.groups[:0]
	for i := range c.pieces {
		p := &c.pieces[i]
		if p.state != pieceIdle {
			continue
		}
		if p.op.Err != nil {
			p.state = pieceDone
			continue
		}
		switch c.start(p) {
		case startOK:
			started++
		case startNoNode:
			lacksNode = p.extent.node
		case startNoRoom:
			return started, p, lacksNode
		}
	}
	return started, nil, lacksNode
}

type startResult uint8

const (
	startOK     startResult = iota
	startFailed             // for good; the operation's error is set
	startNoNode             // its node is being connected to
	startNoRoom             // the slab is used up
)

// start makes p ready to be submitted.
func (c *call) start(p *piece) startResult {
	if err := p.extent.chunk.acquire(); err != nil {
		p.fail(err)
		p.state = pieceDone
		return startFailed
	}
	b := p.extent.binding.Load()
	if b == nil || b.group.link.dead.Load() {
		p.extent.chunk.release()
		if err := p.extent.node.unusable(); err != nil {
			p.fail(err)
			p.state = pieceDone
			return startFailed
		}
		return startNoNode
	}
	slab := c.pool.slab
	if c.held.order == 0 || minBlock<<(c.held.order-1) < p.n {
		var ok bool
		if p.block, ok = slab.try(p.n); !ok {
			p.extent.chunk.release()
			return startNoRoom
		}
	} else {
		p.block, c.held = c.held, block{}
	}
	if p.kind == OpWrite {
		copy(slab.bytes(p.block, p.n), p.op.Buf[p.off:p.off+p.n])
	}
	p.group = b.group
	p.path = p.extent.path(b.group, p.bulk)
	p.addr, p.key = b.addr+uint64(p.op.Off-p.extent.off)+uint64(p.off), b.keys[p.path]
	p.sge[0] = b.group.link.node.fabric.sge(p.block, p.n)
	p.posted = false
	p.landed.Store(0)
	p.state = pieceReady
	for _, g := range c.groups {
		if g == p.group {
			return startOK
		}
	}
	c.groups = append(c.groups, p.group)
	return startOK
}

// submit submits the pieces that are ready.
func (c *call) submit(started int) {
	c.flying.Store(int32(started))
	c.fate.Store(0)
	c.submitted = time.Now()
	for _, g := range c.groups {
		g.submit(c.pieces)
	}
}

// land waits until what was submitted has landed, or gives up.
func (c *call) land(ctx context.Context) (abandoned bool) {
	select {
	case <-c.done: // fast path: everything has landed already
	default:
		if err := c.wait(ctx, c.done); err != nil {
			return c.abandon(err)
		}
	}
	c.harvest()
	return false
}

// wait waits for ready, for as long as the call's clock and ctx allow.
func (c *call) wait(ctx context.Context, ready <-chan struct{}) error {
	c.arm()
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.timer.C:
		return ErrTimeout
	}
}

// arm starts the call's clock at its first wait: what comes before that takes no time.
func (c *call) arm() {
	if !c.armed {
		c.armed = true
		c.timer.Reset(c.pool.cfg.Timeout)
	}
}

// disarm stops the call's clock.
func (c *call) disarm() {
	if c.armed {
		c.timer.Stop()
		c.armed = false
	}
}

// waitRoom waits for a block of n bytes. It reports whether the call goes on.
func (c *call) waitRoom(ctx context.Context, n int) bool {
	if c.held.order != 0 { // the block is too small
		c.pool.slab.release(c.held)
		c.held = block{}
	}
	c.arm()
	c.pool.slab.enqueue(&c.room, n)
	var err error
	select {
	case c.held = <-c.room.ready:
		return true
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-c.timer.C:
		err = ErrTimeout
	}
	c.pool.slab.cancel(&c.room)
	c.failAll(err)
	return false
}

// waitNode waits for n to be connected or gone. It reports whether the call goes on.
func (c *call) waitNode(ctx context.Context, n *node) bool {
	state, changed := n.watch()
	if state != nodeConnecting {
		return true
	}
	if err := c.wait(ctx, changed); err != nil {
		c.failAll(err)
		return false
	}
	return true
}

// failAll fails all pieces that are not done.
func (c *call) failAll(err error) {
	for i := range c.pieces {
		if p := &c.pieces[i]; p.state != pieceDone {
			p.fail(err)
			p.state = pieceDone
		}
	}
}

// harvest takes the results of the pieces that have landed.
func (c *call) harvest() {
	for i := range c.pieces {
		p := &c.pieces[i]
		if p.state != pieceFlying {
			continue
		}
		if landed := p.landed.Load(); landed != 0 {
			c.reap(p, verbs.Status(landed-1))
		}
	}
}

// reap takes the result of a piece that has landed.
func (c *call) reap(p *piece, status verbs.Status) {
	n := p.extent.node
	p.state = pieceDone
	switch status {
	case verbs.StatusSuccess:
		c.progress = true
		data := c.pool.slab.bytes(p.block, p.n)
		switch {
		case p.kind == OpRead:
			copy(p.op.Buf[p.off:], data)
		case p.kind.atomic():
			p.op.Prev = binary.LittleEndian.Uint64(data)
		}
		n.counters.count(p.kind, p.n, time.Since(c.submitted))
	case verbs.StatusWRFlushErr, verbs.StatusRetryExcErr, verbs.StatusRNRRetryExcErr:
		n.linkBroke(p.group.link)
		if p.kind.atomic() && p.posted {
			p.fail(ErrOutcomeUnknown)
		} else {
			n.counters.retries.Add(1)
			p.state = pieceIdle
		}
	case verbs.StatusRemAccessErr:
		n.linkBroke(p.group.link)
		p.fail(ErrRevoked)
	default:
		n.linkBroke(p.group.link)
		p.fail(&verbs.StatusError{Status: status})
	}
	c.letGo(p)
}

// letGo gives back what p held while it was in flight.
func (c *call) letGo(p *piece) {
	if p.stray {
		p.stray = false
		p.extent.strays[p.path].Add(-1)
	}
	c.pool.slab.release(p.block)
	p.block = block{}
	p.extent.chunk.release()
}

// abandon gives up on the pieces that fly. It reports whether any of them still flies.
func (c *call) abandon(err error) bool {
	c.harvest()
	for i := range c.pieces {
		switch p := &c.pieces[i]; p.state {
		case pieceFlying:
			p.fail(err)
			p.extent.strays[p.path].Add(1)
			p.stray = true
		case pieceIdle:
			p.fail(err)
			p.state = pieceDone
		}
	}
	if c.fate.Add(1) == 1 {
		return true
	}
	<-c.done // the last one has landed in the meantime
	c.harvest()
	c.failAll(err)
	return false
}

// recycle disposes of a call whose caller has given up.
func (c *call) recycle() {
	for i := range c.pieces {
		if p := &c.pieces[i]; p.state == pieceFlying {
			c.letGo(p)
		}
	}
	c.dispose()
}

// dispose makes the call available to other callers.
func (c *call) dispose() {
	c.disarm()
	c.landed, c.progress = nil, false
	if c.held.order != 0 {
		c.pool.slab.release(c.held)
		c.held = block{}
	}
	clear(c.pieces)
	c.pieces = c.pieces[:0]
	if cap(c.pieces) > maxKeptPieces {
		c.pieces = nil
	}
	clear(c.groups)
	c.pool.putCall(c)
}

// maxKeptPieces is the capacity for pieces above which a call is not kept for reuse.
const maxKeptPieces = 1024
