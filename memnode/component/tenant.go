package component

import (
	"fmt"
	"sync"
	"sync/atomic"

	"polder/internal/arena"
	"polder/memnode/component/wire"
	"polder/verbs"
)

// A Tenant has one client's objects at a node, as long as the client's session lasts: the lane, the worker while
// there is one, and the connection while there is one.
type Tenant struct {
	server *Server
	chunks Chunks // the chunks lent to the client; nil if the node's manager cannot tell

	mu     sync.Mutex
	closed bool
	lane   *lane // nil until the first connection
	file   *arena.Memfd
	slots  [credits]slot
	spare  []uint8       // buffers for replies that nobody uses; a stack
	sent   [replies]bool // buffers for replies that have been sent and not yet completed
	link   *link         // nil while disconnected
	worker *hosted       // nil until an object is constructed in a worker, and after the worker's end
	starts bool          // a worker is being started

	inside  *worker      // for objects of Bounded components; nil until one is constructed
	used    atomic.Int64 // bytes used by inside's objects
	objects int          // how many objects inside has
	calls   int          // calls of inside's objects that are being carried out
	places  int          // how many of inside and the worker there are; if any, the client's memory is reserved
}

// A slot is a buffer for a request.
type slot struct {
	state  slotState
	link   *link  // the connection that the request came over
	id     uint32 // the request's
	verb   wire.Verb
	size   int    // bytes of the request
	reply  int    // the buffer for the reply, unless idle or starved
	serial uint64 // counts the requests that the worker has had
}

type slotState uint8

const (
	idle    slotState = iota // is empty: ready for a request, if there is a connection
	starved                  // has a request that waits for a buffer for its reply
	waiting                  // has a request that waits for the worker to be started
	working                  // the worker has the request
	inside                   // the request is being carried out in this process
)

// link is a connected queue pair of a tenant.
type link struct {
	t     *Tenant
	qp    verbs.QP
	cq    verbs.CQ
	mr    verbs.MR
	recvs [credits]verbs.RecvWR // by slot, to be posted
	sends [replies]verbs.SendWR // by buffer
}

// Connect answers a client's request to connect. An error is the reason to
// refuse it.
func (t *Tenant) Connect(req verbs.ConnRequest) error {
	s := t.server
	l, err := t.newLink()
	if err != nil {
		return err
	}
	t.mu.Lock()
	if t.link != nil || t.closed {
		t.mu.Unlock()
		l.close()
		return fmt.Errorf("a connection has one queue pair for components")
	}
	t.link = l
	free := make([]int, 0, credits)
	for i := range t.slots {
		// The other slots are still busy with requests of the last connection.
		if t.slots[i].state == idle {
			free = append(free, i)
		}
	}
	t.mu.Unlock()
	for _, i := range free {
		if err == nil {
			err = l.receive(i)
		}
	}
	if err == nil && len(free) == 0 {
		err = fmt.Errorf("all %d requests of the last connection are still being carried out", credits)
	}
	if err != nil {
		t.Disconnect()
		return err
	}
	w := wire.Welcome{Credits: len(free), Message: messageSize, Time: s.cfg.Time}
	if err := req.Accept(l.qp, w.Append(nil)); err != nil {
		t.Disconnect() // the connection is gone, and its watcher will say so
	}
	return nil
}

// newLink makes the queues of a connection; before the first connection it makes the lane, too.
func (t *Tenant) newLink() (l *link, err error) {
	s := t.server
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lane == nil && !t.closed {
		if t.lane, t.file, err = newLane(); err != nil {
			return nil, err
		}
		for i := range replyBuffers {
			t.spare = append(t.spare, uint8(i))
		}
	}
	if t.closed {
		return nil, errClosed
	}
	l = &link{t: t}
	// Registering and creating does not call back.
	if l.mr, err = s.pd.RegMR(t.lane.mem.Bytes(), verbs.AccessLocalWrite); err != nil {
		return nil, fmt.Errorf("cannot register message buffers: %w", err)
	}
	l.fill()
	if l.cq, err = s.dev.CreateCQ(verbs.CQInit{Depth: 4 * credits, Handler: l.complete}); err != nil {
		l.close()
		return nil, fmt.Errorf("cannot create a completion queue: %w", err)
	}
	l.qp, err = s.pd.CreateQP(verbs.QPInit{
		SendCQ: l.cq, RecvCQ: l.cq, SendDepth: 2 * credits, RecvDepth: 2 * credits, LazyAcks: true, OnEvent: s.onEvent,
	})
	if err != nil {
		l.close()
		return nil, fmt.Errorf("cannot create a queue pair: %w", err)
	}
	return l, nil
}

func (l *link) close() {
	if l.qp != nil {
		l.qp.Close()
	}
	if l.cq != nil {
		l.cq.Close()
	}
	l.mr.Deregister()
}

// Disconnect ends the client's connection. Requests that are being carried out go on, and nobody is told how they
// end.
func (t *Tenant) Disconnect() {
	t.mu.Lock()
	l := t.link
	t.link = nil
	for i := range t.slots {
		if s := &t.slots[i]; s.state == starved {
			s.state = idle
		}
	}
	for b, sent := range t.sent {
		if sent {
			t.giveBack(b)
		}
	}
	t.mu.Unlock()
	if l != nil {
		l.close()
	}
}

// Busy reports whether there are objects, so that the session is worth keeping.
func (t *Tenant) Busy() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.starts || t.objects > 0 || t.worker != nil && t.worker.objects > 0
}

// Close ends the objects. It does not wait until the worker has ended; Server.Close does that. The tenant must have
// been disconnected.
func (t *Tenant) Close() {
	s := t.server
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	t.closed = true
	if t.worker != nil {
		t.worker.kill()
	}
	t.free()
	s.mu.Lock()
	delete(s.tenants, t)
	s.mu.Unlock()
}

// free unmaps the lane, and ends the objects in this process, when t is closed
// and nobody uses them any more.
//
// Preconditions: t.mu is held.
func (t *Tenant) free() {
	if !t.closed || t.worker != nil || t.starts || t.calls > 0 {
		return
	}
	if t.inside != nil {
		t.inside.close()
		t.inside = nil
		t.server.counts.objects.Add(-int64(t.objects))
		t.objects = 0
		t.leave()
	}
	if t.lane != nil {
		t.lane.mem.Close()
		t.file.Close()
		t.lane, t.file = nil, nil
	}
}

// replyBuffers is replies; tests set it to less.
var replyBuffers = replies

// giveBack makes a reply's buffer available to other replies.
//
// Preconditions: t.mu is held.
func (t *Tenant) giveBack(reply int) {
	t.sent[reply] = false
	t.spare = append(t.spare, uint8(reply))
}

const replyID = 1 << 8 // of work requests: a slot or a buffer, and which way

// fill makes the work requests.
func (l *link) fill() {
	sge := func(off, n int) []verbs.SGE {
		return []verbs.SGE{{Addr: l.mr.Addr() + uint64(off), Length: uint32(n), LKey: l.mr.LKey()}}
	}
	for i := range l.recvs {
		l.recvs[i] = verbs.RecvWR{ID: uint64(i), SGL: sge(requestOffset(i), messageSize)}
	}
	for i := range l.sends {
		l.sends[i] = verbs.SendWR{
			ID: uint64(i) | replyID, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: sge(replyOffset(i), 0),
		}
	}
}

func (l *link) receive(i int) error { return l.qp.PostRecv(l.recvs[i : i+1]...) }

// outbox collects replies, so that the replies to requests that have come together go out with one doorbell.
type outbox struct {
	l     *link             // the connection that they go over
	wcs   [credits]verbs.WC // for the use of the goroutine that fills the outbox
	recvs [credits]verbs.RecvWR
	sends [credits]verbs.SendWR
	n     int
}

var outboxes = sync.Pool{New: func() any { return new(outbox) }}

// add adds the reply in a buffer, to the request of a slot, to be sent over l.
func (o *outbox) add(l *link, slot, reply int) {
	if o.l != l || o.n == len(o.sends) {
		o.flush()
	}
	o.l, o.recvs[o.n], o.sends[o.n] = l, l.recvs[slot], l.sends[reply]
	o.n++
}

// flush posts what has been collected.
func (o *outbox) flush() {
	// Post the receives first: the client's next requests may come right after the replies. If posting fails the
	// connection is gone.
	if o.n > 0 && o.l.qp.PostRecv(o.recvs[:o.n]...) == nil {
		_ = o.l.qp.PostSend(o.sends[:o.n]...)
	}
	o.l, o.n = nil, 0
}

// complete is the completion handler.
func (l *link) complete(cq verbs.CQ) {
	out := outboxes.Get().(*outbox)
	defer outboxes.Put(out)
	for {
		n := cq.Poll(out.wcs[:])
		if n == 0 {
			return
		}
		for _, wc := range out.wcs[:n] {
			switch {
			case wc.Status != verbs.StatusSuccess:
				// The queue pair has failed, and the client will find out.
			case wc.ID&replyID != 0:
				l.replied(int(wc.ID&^replyID), out)
			default:
				l.received(int(wc.ID), int(wc.ByteLen), out)
			}
		}
		out.flush()
	}
}

// replied is called when a reply has been sent.
func (l *link) replied(reply int, out *outbox) {
	t := l.t
	t.mu.Lock()
	if t.link != l || !t.sent[reply] {
		t.mu.Unlock()
		return
	}
	t.giveBack(reply)
	for i := range t.slots {
		if t.slots[i].state == starved {
			t.begin(i, out)
			return
		}
	}
	t.mu.Unlock()
}

// received is called when a request of n bytes has arrived in slot i.
func (l *link) received(i, n int, out *outbox) {
	t := l.t
	t.mu.Lock()
	s := &t.slots[i]
	switch {
	case t.link != l:
		t.mu.Unlock()
		return
	case s.state != idle:
		panic(fmt.Sprintf("BUG: a request arrived in slot %d, which is in state %d", i, s.state))
	}
	s.link, s.size = l, n
	t.begin(i, out)
}

// begin has the request in slot i carried out, or, if there is no buffer for its reply, leaves it starved until there
// is one.
//
// Preconditions: t.mu is held. It is released.
func (t *Tenant) begin(i int, out *outbox) {
	s := &t.slots[i]
	last := len(t.spare) - 1
	if last < 0 {
		s.state = starved
		t.mu.Unlock()
		return
	}
	s.reply, t.spare = int(t.spare[last]), t.spare[:last]
	var req wire.Request
	err := req.Decode(t.lane.request(i)[:s.size])
	s.id, s.verb = req.ID, req.Verb
	switch {
	case err != nil:
		err = &refusal{wire.Malformed, err.Error()}
	case req.Verb == wire.Construct && (*installed.Load())[string(req.Key)].Bounded:
		if err = t.open(); err == nil {
			t.carryOut(i, out)
			return
		}
	case t.inside != nil && uint32(req.Object>>32) == t.inside.cfg.Number:
		t.carryOut(i, out)
		return
	case req.Verb == wire.Construct && t.worker == nil:
		s.state = waiting
		start := !t.starts
		t.starts = true
		t.mu.Unlock()
		if start {
			t.server.wg.Go(t.start)
		}
		return
	case req.Verb == wire.Construct, t.worker != nil && uint32(req.Object>>32) == t.worker.number:
		t.give(i)
		t.mu.Unlock()
		return
	default:
		err = refuse(wire.Lost, "object %#x was lost with the process that held it", req.Object)
	}
	t.answer(i, err, out)
}

// open makes the place for objects in this process, if there is none.
//
// Preconditions: t.mu is held.
func (t *Tenant) open() error {
	if t.inside != nil {
		return nil
	}
	if err := t.enter(); err != nil {
		return &refusal{wire.Busy, err.Error()}
	}
	s := t.server
	t.inside = newWorker(installed.Load().bounded(), s.workerConfig(), t.lane, &t.used)
	t.inside.chunks = t.chunks
	return nil
}

// enter and leave are called when a place for objects (inside or the worker) begins and ends. While there is any
// place, the client's memory is reserved.
//
// Preconditions: t.mu is held.
func (t *Tenant) enter() error {
	if t.places == 0 {
		if err := t.server.reserve(); err != nil {
			return err
		}
	}
	t.places++
	return nil
}

func (t *Tenant) leave() {
	if t.places--; t.places == 0 {
		t.server.release()
	}
}

// carryOut carries out the request in slot i in this process.
//
// Preconditions: t.mu is held, and t is not closed. It is released.
func (t *Tenant) carryOut(i int, out *outbox) {
	s := &t.slots[i]
	s.state = inside
	t.calls++
	t.server.wg.Add(1)
	defer t.server.wg.Done()
	w, size, reply := t.inside, s.size, s.reply
	t.mu.Unlock()
	n := w.do(i, reply, size)
	t.mu.Lock()
	t.calls--
	t.objects += t.account(i)
	if t.closed {
		t.drop(s)
		t.free()
		t.mu.Unlock()
		return
	}
	t.reply(i, n, out)
}

// account counts the result of the request in slot i, and returns by how much the number of objects has changed.
//
// Preconditions: t.mu is held.
func (t *Tenant) account(i int) (objects int) {
	counts := &t.server.counts
	status := wire.Status(t.lane.reply(t.slots[i].reply)[13])
	switch {
	case status == wire.Panicked:
		counts.panics.Add(1)
	case status != wire.OK:
	case t.slots[i].verb == wire.Construct:
		objects = 1
	case t.slots[i].verb == wire.Destruct:
		objects = -1
	}
	if status != wire.OK {
		counts.refused.Add(1)
	}
	counts.objects.Add(int64(objects))
	return objects
}

// give passes the request in slot i to the worker.
//
// Preconditions: t.mu is held; there is a worker.
func (t *Tenant) give(i int) {
	s := &t.slots[i]
	s.state = working
	s.serial++
	t.worker.send(i, s.reply, s.size)
}

// answer sends err as the reply to the request in slot i.
//
// Preconditions: t.mu is held. It is released.
func (t *Tenant) answer(i int, err error, out *outbox) {
	s := &t.slots[i]
	b := t.lane.reply(s.reply)
	size := copy(b[wire.ReplyHeader:][:maxReason], err.Error())
	r := wire.Reply{ID: s.id, Verb: s.verb, Status: statusOf(err)}
	t.server.counts.refused.Add(1)
	t.reply(i, r.Put(b, size), out)
}

// reply adds the reply to the request in slot i, which has n bytes, to out. If its connection is gone, it calls
// undeliver.
//
// Preconditions: t.mu is held. It is released.
func (t *Tenant) reply(i, n int, out *outbox) {
	s := &t.slots[i]
	t.server.counts.requests.Add(1)
	l := t.link
	if s.link != l || l == nil {
		t.undeliver(i, n, out)
		return
	}
	s.state = idle
	t.sent[s.reply] = true
	l.sends[s.reply].SGL[0].Length = uint32(n)
	reply := s.reply
	t.mu.Unlock()
	out.add(l, i, reply)
}

// undeliver deals with a reply of n bytes that nobody waits for any more. If the request has constructed an object,
// the client does not know of it, and it is destructed.
//
// Preconditions: t.mu is held. It is released.
func (t *Tenant) undeliver(i, n int, out *outbox) {
	s := &t.slots[i]
	var r wire.Reply
	if s.verb == wire.Construct && r.Decode(t.lane.reply(s.reply)[:n]) == nil && r.Status == wire.OK {
		destruct := wire.Request{Verb: wire.Destruct, Object: r.Object, Time: t.server.cfg.Time}
		s.verb, s.size = wire.Destruct, len(destruct.Append(t.lane.request(i)[:0]))
		switch number := uint32(r.Object >> 32); {
		case t.inside != nil && number == t.inside.cfg.Number:
			t.carryOut(i, out)
			return
		case t.worker != nil && number == t.worker.number:
			t.give(i)
			t.mu.Unlock()
			return
		}
	}
	t.drop(s)
	t.mu.Unlock()
}

// drop makes s idle. Nobody waits for the reply to its request any more.
//
// Preconditions: t.mu is held.
func (t *Tenant) drop(s *slot) {
	s.state = idle
	t.giveBack(s.reply)
}
