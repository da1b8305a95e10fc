package pool

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"polder/internal/arena"
	"polder/memnode/component/wire"
	nodewire "polder/memnode/wire"
	"polder/verbs"
)

// A port is what a link's requests to components go out over: a queue pair, and registered memory for as many
// messages in either direction as the node gives credits. Requests wait for a free slot.
type port struct {
	link    *link
	qp      verbs.QP
	cq      verbs.CQ
	mem     *arena.Mapping
	mr      verbs.MR
	message int // bytes of a buffer
	longest time.Duration
	slots   []portSlot
	recvs   []verbs.RecvWR
	free    chan *portSlot // slots that no request has

	broke  chan struct{} // closed by fail
	failed sync.Once
	users  sync.WaitGroup // calls that may touch mem
	mu     sync.Mutex     // guards closed, and users.Add against close
	closed bool

	postMu  sync.Mutex // guards what follows
	queue   []verbs.SendWR
	spare   []verbs.SendWR // swapped with queue; belongs to whoever set posting
	posting bool           // somebody is in post, and will also post what is queued now
}

// A portSlot is for one request at a time.
type portSlot struct {
	index  int
	serial atomic.Uint32 // with index, the id of the slot's request
	done   chan int      // capacity 1: number of the receive buffer that has the reply
	size   int           // of the reply; set before done
	timer  *time.Timer   // of the caller that has the slot
	send   [1]verbs.SendWR
	sge    [1]verbs.SGE // of the send

	state atomic.Uint32 // whether the reply is waited for
	uses  atomic.Int32  // the send, and the reply: the last to be done frees the slot
}

const (
	slotWaited uint32 = iota
	slotDelivered
	slotAbandoned
)

const portSendID = 1 << 16

// portAttempt is a port that is being made, or the reason why it could not be made.
type portAttempt struct {
	made chan struct{} // closed when the attempt has ended
	port *port
	err  error
}

// openPort returns the link's port. The first caller has it made.
func (l *link) openPort(ctx context.Context, deadline time.Time) (*port, error) {
	l.mu.Lock()
	a := l.components
	first := a == nil
	if first {
		a = &portAttempt{made: make(chan struct{})}
		l.components = a
	}
	l.mu.Unlock()
	if first {
		go l.makePort(a) // closePort waits for it
	}
	select {
	case <-a.made: // fast path
	default:
		if err := waitUntil(ctx, a.made, deadline); err != nil {
			return nil, err
		}
	}
	if a.err != nil && !first {
		return nil, errRetry // somebody else's attempt failed: try again
	}
	return a.port, a.err
}

// makePort makes the link's port. It works for the link and not for its caller, which may give up: a node accepts
// only one such queue pair per connection.
func (l *link) makePort(a *portAttempt) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), l.node.pool.cfg.Timeout, ErrTimeout)
	defer cancel()
	a.port, a.err = newPort(ctx, l)
	l.mu.Lock()
	if a.err != nil && !l.dead.Load() {
		l.components = nil // the next caller tries again
	}
	l.mu.Unlock()
	close(a.made)
}

// closePort ends the link's port, if it has one. When it returns nothing of it
// is in use.
func (l *link) closePort() {
	l.mu.Lock()
	a := l.components
	if a == nil {
		a = &portAttempt{made: make(chan struct{}), err: errRetry}
		close(a.made)
		l.components = a
	}
	l.mu.Unlock()
	<-a.made // the connection is going, so this does not take long
	if a.port != nil {
		a.port.close()
	}
}

func newPort(ctx context.Context, l *link) (_ *port, err error) {
	p := &port{link: l, broke: make(chan struct{})}
	offered := false
	defer func() {
		if err == nil {
			return
		}
		p.close()
		if offered {
			// The node may have accepted the queue pair, and accepts no other over this connection.
			l.node.linkBroke(l)
		}
	}()
	fabric := l.node.fabric
	// The node says how many credits it gives when the queue pair is connected, and nothing is posted before that.
	const depth = 2 * wire.MaxCredits
	if p.cq, err = fabric.dev.CreateCQ(verbs.CQInit{Depth: 2 * depth, Handler: p.complete}); err != nil {
		return nil, err
	}
	if p.qp, err = fabric.pd.CreateQP(verbs.QPInit{
		SendCQ: p.cq, RecvCQ: p.cq, SendDepth: depth, RecvDepth: depth, LazyAcks: true, OnEvent: p.event,
	}); err != nil {
		return nil, err
	}
	h := nodewire.Hello{Version: l.session.Info().Version, Kind: nodewire.KindComponent, Manager: l.node.manager.Name()}
	offered = true
	answer, err := l.conn.Connect(ctx, p.qp, h.Append(nil))
	var rejected *verbs.RejectError
	switch {
	case errors.As(err, &rejected):
		offered = false
		return nil, fmt.Errorf("%w: %s", ErrNoComponent, rejected.Reason)
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, errRetry
	}
	var w wire.Welcome
	if err := w.Decode(answer); err != nil {
		return nil, err
	}
	p.message, p.longest = w.Message, w.Time
	if p.mem, err = arena.Anonymous(2*w.Credits*w.Message, false); err != nil {
		return nil, err
	}
	if p.mr, err = fabric.pd.RegMR(p.mem.Bytes(), verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	p.slots, p.recvs = make([]portSlot, w.Credits), make([]verbs.RecvWR, w.Credits)
	p.free = make(chan *portSlot, w.Credits)
	for i := range p.slots {
		s := &p.slots[i]
		s.index, s.done = i, make(chan int, 1)
		s.timer = time.NewTimer(time.Hour)
		s.timer.Stop()
		s.sge[0] = verbs.SGE{Addr: p.mr.Addr() + uint64(i*p.message), LKey: p.mr.LKey()}
		s.send[0] = verbs.SendWR{ID: portSendID | uint64(i), Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: s.sge[:]}
		p.recvs[i] = verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{{
			Addr: p.mr.Addr() + uint64((w.Credits+i)*p.message), Length: uint32(p.message), LKey: p.mr.LKey(),
		}}}
		if err := p.receive(i); err != nil {
			return nil, errRetry
		}
	}
	for i := range p.slots {
		p.free <- &p.slots[i]
	}
	return p, nil
}

// buffer returns buffer i: first come the buffers of requests, then those of replies.
func (p *port) buffer(i int) []byte { return p.mem.Bytes()[i*p.message : (i+1)*p.message] }

// receive posts a receive into buffer i, one of those of replies.
func (p *port) receive(i int) error {
	return p.qp.PostRecv(p.recvs[i : i+1]...)
}

// event is the queue pair's event handler.
func (p *port) event(e verbs.AsyncEvent) {
	if e.Type != verbs.EventCommEstablish {
		p.fail()
	}
}

// fail gives up on the port, and with it on the link.
func (p *port) fail() {
	p.failed.Do(func() { close(p.broke) })
	p.link.node.linkBroke(p.link)
}

// enter reports whether the port can be used, until leave.
func (p *port) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.users.Add(1)
	return true
}

// close waits for callers that use p, and releases what p holds of the device.
func (p *port) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.failed.Do(func() { close(p.broke) })
	p.users.Wait()
	if p.qp != nil {
		p.qp.Close()
	}
	if p.cq != nil {
		p.cq.Close()
	}
	if p.mr != nil {
		p.mr.Deregister()
	}
	if p.mem != nil {
		p.mem.Close()
	}
}

// call sends a request and appends the reply's data to buf. It fails with errRetry when the port is broken; posted
// then reports whether the node may have seen the request.
func (p *port) call(ctx context.Context, deadline time.Time, o *Object, req *wire.Request, buf []byte) (out []byte, posted bool, err error) {
	if req.Size() > p.message {
		return nil, false, fmt.Errorf("%w: a request of %d bytes, want at most %d", ErrTooLarge, req.Size(), p.message)
	}
	if !p.enter() {
		return nil, false, errRetry
	}
	defer p.users.Done()
	var s *portSlot
	select {
	case s = <-p.free: // fast path
	default:
		if s, err = p.await(ctx, deadline); err != nil {
			return nil, false, err
		}
	}
	left := time.Until(deadline)
	s.timer.Reset(left)
	id := s.serial.Add(wire.MaxCredits) | uint32(s.index)
	s.state.Store(slotWaited)
	s.uses.Store(2)
	r := *req
	r.ID = id
	r.Time = max(0, min(left, p.longest))
	r.Room = uint32(p.message - wire.ReplyHeader)
	b := r.Append(p.buffer(s.index)[:0])
	s.sge[0].Length = uint32(len(b))
	p.post(s)
	var i int
	select {
	case i = <-s.done:
	case <-p.broke:
		err = errRetry
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-s.timer.C:
		err = ErrTimeout
	}
	s.timer.Stop() // while the slot, and with it the timer, are still this caller's
	if err == errRetry {
		return nil, true, err
	}
	if err != nil {
		if s.state.CompareAndSwap(slotWaited, slotAbandoned) {
			return nil, true, err
		}
		i = <-s.done // it has come in the meantime
	}
	out, err = p.take(o, req, s, i, buf)
	if p.receive(i) != nil {
		p.fail()
		return out, true, err
	}
	p.release(s)
	return out, true, err
}

// post sends s's request. While one caller is posting, the requests of others are queued and go out with its next
// doorbell. If posting fails, the port fails, and with it every slot.
func (p *port) post(s *portSlot) {
	p.postMu.Lock()
	p.queue = append(p.queue, s.send[0])
	if p.posting {
		p.postMu.Unlock()
		return
	}
	p.posting = true
	if len(p.slots)-len(p.free) >= busy {
		// Callers that the last replies have woken are about to post.
		p.postMu.Unlock()
		runtime.Gosched()
		p.postMu.Lock()
	}
	for len(p.queue) > 0 {
		batch := p.queue
		p.queue = p.spare[:0]
		p.postMu.Unlock()
		if p.qp.PostSend(batch...) != nil {
			p.fail()
		}
		p.postMu.Lock()
		p.spare = batch
	}
	p.posting = false
	p.postMu.Unlock()
}

// await waits for a slot.
func (p *port) await(ctx context.Context, deadline time.Time) (*portSlot, error) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case s := <-p.free:
		return s, nil
	case <-p.broke:
		return nil, errRetry
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-timer.C:
		return nil, ErrTimeout
	}
}

// take decodes the reply in buffer i.
func (p *port) take(o *Object, req *wire.Request, s *portSlot, i int, buf []byte) ([]byte, error) {
	var r wire.Reply
	if err := r.Decode(p.buffer(len(p.slots) + i)[:s.size]); err != nil {
		return nil, err
	}
	switch {
	case r.Verb != req.Verb:
		return nil, fmt.Errorf("%w: a reply to %v, want one to %v", wire.ErrMalformed, r.Verb, req.Verb)
	case r.Status != wire.OK:
		return nil, &ComponentError{Status: r.Status, Reason: string(r.Data)}
	case r.Verb == wire.Construct:
		o.id, o.session = r.Object, p.link.session.Info().Session.ID
	}
	return append(buf, r.Data...), nil
}

// release is called twice for s's request: when its send has completed, and when its reply has been dealt with.
func (p *port) release(s *portSlot) {
	if s.uses.Add(-1) == 0 {
		p.free <- s
	}
}

// completions are buffers for completion handlers to poll into.
var completions = sync.Pool{New: func() any { return new([16]verbs.WC) }}

// complete is the completion handler.
func (p *port) complete(cq verbs.CQ) {
	if !p.enter() {
		return
	}
	defer p.users.Done()
	wcs := completions.Get().(*[16]verbs.WC)
	defer completions.Put(wcs)
	for {
		n := cq.Poll(wcs[:])
		if n == 0 {
			return
		}
		for _, wc := range wcs[:n] {
			switch {
			case wc.Status != verbs.StatusSuccess:
				p.fail()
			case wc.ID&portSendID != 0:
				p.release(&p.slots[wc.ID&^portSendID])
			default:
				p.deliver(int(wc.ID), int(wc.ByteLen))
			}
		}
	}
}

// deliver passes the reply of n bytes in buffer i to the caller that waits for it.
func (p *port) deliver(i, n int) {
	var r wire.Reply
	err := r.Decode(p.buffer(len(p.slots) + i)[:n])
	index := r.ID % wire.MaxCredits
	if err != nil || int(index) >= len(p.slots) {
		p.fail()
		return
	}
	s := &p.slots[index]
	if r.ID != s.serial.Load()|index {
		p.fail() // it answers no request
		return
	}
	switch {
	case s.state.CompareAndSwap(slotWaited, slotDelivered):
		s.size = n
		s.done <- i
	case s.state.CompareAndSwap(slotAbandoned, slotDelivered):
		if r.Verb == wire.Construct && r.Status == wire.OK {
			p.link.node.disown(r.Object, p.link.session.Info().Session.ID)
		}
		if p.receive(i) != nil {
			p.fail()
			return
		}
		p.release(s)
	default:
		p.fail() // there was a reply already, or the connection is gone
	}
}
