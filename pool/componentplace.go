package pool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"polder/internal/arena"
	"polder/internal/offload"
	"polder/memnode/component"
	"polder/memnode/component/hashtable"
	"polder/memnode/component/vector"
	"polder/memnode/component/wire"
)

// portable is the components whose objects are in this process where a node on
// the same machine passes memory for them.
var portable = component.Set{offload.Table: hashtable.Component, offload.Vector: vector.Component}

// A place is where this client's objects are in this process, for one session
// with a node. Their requests need the node only to lend them memory.
type place struct {
	session uint64
	objects *component.Place
	link    atomic.Pointer[link] // the session's latest

	mu     sync.RWMutex // held for reading while objects are called
	closed bool         // guarded by mu
}

// receiver is a connection that carries memory.
type receiver interface {
	ReceiveMemory(context.Context) (*arena.Memfd, error)
}

// receivePlace takes the memory that the node has passed over l. With a session
// that is resumed it is what there is already.
func (n *node) receivePlace(ctx context.Context, l *link) (*place, error) {
	from, ok := l.conn.(receiver)
	if !ok {
		return nil, fmt.Errorf("%w: the node says that it has passed memory over a connection that carries none", wire.ErrMalformed)
	}
	fd, err := from.ReceiveMemory(ctx)
	if err != nil {
		return nil, err
	}
	session := l.session.Info().Session.ID
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.session.ID != session || n.place != nil {
		fd.Close()
		if n.session.ID != session {
			return nil, errRetry // l is not the node's link any more
		}
		return n.place, nil
	}
	objects, err := component.NewPlace(fd, portable)
	if err != nil {
		fd.Close()
		return nil, fmt.Errorf("cannot use the memory that the node has passed: %w", err)
	}
	n.place = &place{session: session, objects: objects}
	n.place.link.Store(l)
	return n.place, nil
}

// dropPlace closes the place of a session that is not the node's any more.
func (n *node) dropPlace() {
	n.mu.Lock()
	p := n.place
	if p == nil || p.session == n.session.ID && n.state != nodeClosed {
		n.mu.Unlock()
		return
	}
	n.place = nil
	n.mu.Unlock()
	p.close()
}

// close waits for those who call objects, and ends these.
func (p *place) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.objects.Close()
}

// inPlace carries out a request to o, which is in this process, or reports false:
// nothing has happened then, or has to be repeated, and the slow path says why.
//
// Hot path: it neither blocks, but for those who use the same object, nor
// allocates.
func (o *Object) inPlace(ctx context.Context, req *wire.Request, buf []byte, repeat bool) (out []byte, err error, ok bool) {
	p := o.place
	p.mu.RLock()
	defer p.mu.RUnlock()
	l := p.link.Load()
	if p.closed || l.dead.Load() || o.dead.Load() || ctx.Err() != nil || l.ended() {
		return nil, nil, false
	}
	deadline, _ := ctx.Deadline()
	out, err = p.call(l, deadline, o, req, buf)
	if err == errRetry {
		return nil, ErrOutcomeUnknown, !repeat
	}
	return out, err, true
}

// call carries out a request to o, or constructs it, and appends what it gives to
// buf. It fails with errRetry if the memory is not the client's any more.
//
// Preconditions: p.mu is held, and p is not closed.
func (p *place) call(l *link, deadline time.Time, o *Object, req *wire.Request, buf []byte) (out []byte, err error) {
	if req.Size() > component.MaxResult {
		return nil, fmt.Errorf("%w: a request of %d bytes, want at most %d", ErrTooLarge, req.Size(), component.MaxResult)
	}
	var made component.Placed
	if req.Verb == wire.Construct {
		made, err = p.objects.Construct(req, deadline)
	} else {
		out, err = p.objects.Do(o.placed, req, deadline, l.node.pool.cfg.Timeout, buf)
	}
	if l.verifier != nil && !l.verifier.Valid() {
		// What was looked at may have been taken back already.
		l.node.linkBroke(l)
		return nil, errRetry
	}
	if err != nil {
		return nil, &ComponentError{Status: component.StatusOf(err), Reason: err.Error()}
	}
	if req.Verb == wire.Construct {
		o.id, o.session, o.place, o.placed = made.ID(), p.session, p, made
	}
	return out, nil
}

// callSlowly is call for who does not hold p.mu. It fails with errRetry also if the
// link or p has ended; tried says whether anything was done.
func (p *place) callSlowly(l *link, deadline time.Time, o *Object, req *wire.Request, buf []byte) (out []byte, tried bool, err error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed || l.ended() {
		return nil, false, errRetry
	}
	out, err = p.call(l, deadline, o, req, buf)
	return out, true, err
}

// ended reports whether l's connection has ended. The link is dead then, which
// would not show until the keeper sees it.
func (l *link) ended() bool {
	select {
	case <-l.conn.Done():
		l.node.linkBroke(l)
		return true
	default:
		return false
	}
}

// vacate tells the node that the place, which has been closed, needs no memory any
// more.
func (l *link) vacate(ctx context.Context) {
	l.mu.Lock()
	a := l.components
	l.mu.Unlock()
	if a == nil {
		return
	}
	select {
	case <-a.made:
	case <-ctx.Done():
		return
	}
	if a.port == nil || a.port.place == nil {
		return
	}
	deadline, _ := ctx.Deadline()
	req := wire.Request{Verb: wire.Destruct, Object: component.WholePlace}
	_, _, _ = a.port.call(ctx, deadline, &Object{node: l.node}, &req, nil) // otherwise the node reclaims it in time
}

// constructs reports whether objects of a component are made in p.
func (p *place) constructs(name string) bool {
	_, ok := portable[name]
	return p != nil && ok
}

var errElsewhere = errors.New("it is not where the other object is")
