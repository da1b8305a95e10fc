package pool

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"polder/memnode/component/wire"
)

// Failures of components. Their errors are *OpErrors with a *ComponentError, which Is one of these, or another error
// of the pool where that fits.
var (
	// ErrNotFound: the object has nothing under that key.
	ErrNotFound = errors.New("not found")
	// ErrRefused: the component refused the request.
	ErrRefused = errors.New("component refused")
	// ErrNoComponent: the node runs no components, or none of that name, or
	// as many as it may.
	ErrNoComponent = errors.New("no such component")
	// ErrTooLarge: a request or a reply is larger than the node allows.
	ErrTooLarge = errors.New("too large for a message")
)

// ComponentError is what a node answers when a component fails.
type ComponentError struct {
	Status wire.Status
	Reason string // what the node says about it
}

func (e *ComponentError) Error() string {
	if e.Reason == "" || e.Reason == e.Status.String() {
		return e.Status.String()
	}
	return e.Status.String() + ": " + e.Reason
}

// Is tells what kind of failure it is.
func (e *ComponentError) Is(target error) bool {
	switch e.Status {
	case wire.NotFound:
		return target == ErrNotFound
	case wire.NoMemory:
		return target == ErrNoMemory
	case wire.Unknown, wire.Busy:
		return target == ErrNoComponent
	case wire.NoObject:
		return target == ErrFreed
	case wire.Lost, wire.Panicked:
		return target == ErrLost
	case wire.Expired:
		return target == ErrTimeout
	case wire.TooLarge:
		return target == ErrTooLarge
	}
	return target == ErrRefused
}

// An Object lives at a memory node, in memory that counts against this client's budget there, and does what a
// component of the node's program does (AIFM, section 4.2.4). A request takes one round trip.
//
// It is as lasting as a chunk: it survives the loss of the connection for the node's grace period. It is lost when a
// request to any of this client's objects at the node runs for too long, when such a request runs out of memory in
// the component, or when the component panics.
//
// Requests that only read are repeated when the connection breaks under them: Read, and Compute with Repeat. Other
// requests fail with ErrOutcomeUnknown then.
type Object struct {
	node      *node
	component string
	id        uint64
	session   uint64 // the session that it belongs to
	dead      atomic.Bool
}

// Construct makes an object of a component, with parameters that the component understands. It makes it at the node
// where this client has the fewest objects.
func (p *Pool) Construct(ctx context.Context, component string, params []byte) (*Object, error) {
	var best *node
	for _, n := range p.all() {
		if state, _ := n.watch(); (state == nodeUp || state == nodeConnecting) && (best == nil || n.objects.Load() < best.objects.Load()) {
			best = n
		}
	}
	if best == nil {
		err := p.all()[0].unusable()
		if err == nil {
			err = ErrNodeGone
		}
		return nil, &OpError{Op: "construct " + component, Err: err}
	}
	return p.constructAt(ctx, best, component, params)
}

// ConstructAt is Construct at the node that c begins on.
func (p *Pool) ConstructAt(ctx context.Context, c *Chunk, component string, params []byte) (*Object, error) {
	return p.constructAt(ctx, c.extents[0].node, component, params)
}

func (p *Pool) constructAt(ctx context.Context, n *node, component string, params []byte) (*Object, error) {
	o := &Object{node: n, component: component}
	if err := p.enter(); err != nil {
		return nil, o.fail("construct", err)
	}
	defer p.leave()
	req := wire.Request{Verb: wire.Construct, Key: []byte(component), Data: params}
	if _, err := n.callComponent(ctx, o, &req, nil, false); err != nil {
		return nil, o.fail("construct", err)
	}
	n.objects.Add(1)
	return o, nil
}

// disown ends an object that was constructed after its caller had given up. It does not wait.
func (n *node) disown(id, session uint64) {
	if n.pool.enter() != nil {
		return // it ends with the session
	}
	go func() {
		defer n.pool.leave()
		o := &Object{node: n, id: id, session: session}
		req := wire.Request{Verb: wire.Destruct, Object: id}
		if _, err := n.callComponent(context.Background(), o, &req, nil, true); err != nil && !errors.Is(err, ErrLost) {
			n.log.Warn("an object that came too late is left until the session ends", "object", id, "error", err)
		}
	}()
}

// Name says what o is and where, such as "node0/vector 100000001".
func (o *Object) Name() string { return o.node.name + "/" + o.region() }

func (o *Object) region() string { return fmt.Sprintf("%s %x", o.component, o.id) }

func (o *Object) fail(op string, err error) error {
	e := &OpError{Op: op, Node: o.node.name, Err: err}
	if o.id != 0 {
		e.Region = o.region()
	} else {
		e.Op += " " + o.component
	}
	return e
}

// call sends a request and appends the reply's data to buf.
func (o *Object) call(ctx context.Context, req wire.Request, buf []byte, repeat bool) ([]byte, error) {
	req.Object = o.id
	p := o.node.pool
	err := p.enter()
	if err == nil {
		defer p.leave()
		if o.dead.Load() {
			err = ErrFreed
		} else {
			buf, err = o.node.callComponent(ctx, o, &req, buf, repeat)
		}
	}
	if err != nil {
		return nil, o.fail(req.Verb.String(), err)
	}
	return buf, nil
}

// Destruct ends the object and frees its memory. It succeeds if the object is lost.
func (o *Object) Destruct(ctx context.Context) error {
	if o.dead.Load() {
		return nil
	}
	_, err := o.call(ctx, wire.Request{Verb: wire.Destruct}, nil, true)
	if err == nil || errors.Is(err, ErrLost) || errors.Is(err, ErrFreed) {
		if !o.dead.Swap(true) {
			o.node.objects.Add(-1)
		}
		return nil
	}
	return err
}

// Read appends what the object has under key to buf.
func (o *Object) Read(ctx context.Context, key, buf []byte) ([]byte, error) {
	return o.call(ctx, wire.Request{Verb: wire.Read, Key: key}, buf, true)
}

// Write puts data under key.
func (o *Object) Write(ctx context.Context, key, data []byte) error {
	_, err := o.call(ctx, wire.Request{Verb: wire.Write, Key: key, Data: data}, nil, false)
	return err
}

// Delete removes what the object has under key.
func (o *Object) Delete(ctx context.Context, key []byte) error {
	_, err := o.call(ctx, wire.Request{Verb: wire.Delete, Key: key}, nil, false)
	return err
}

// Computation is what an object is to compute.
type Computation struct {
	Op uint16
	In []byte
	// Repeat says that the computation may be done twice.
	Repeat bool
}

// Compute has the object do c, and appends the result to buf.
func (o *Object) Compute(ctx context.Context, c Computation, buf []byte) ([]byte, error) {
	return o.call(ctx, wire.Request{Verb: wire.Compute, Op: c.Op, Data: c.In}, buf, c.Repeat)
}

// enter begins a call, which ends with leave. Close waits for calls that have begun.
func (p *Pool) enter() error {
	p.callMu.Lock()
	defer p.callMu.Unlock()
	if p.closing {
		return ErrClosed
	}
	p.running++
	return nil
}

func (p *Pool) leave() {
	p.callMu.Lock()
	defer p.callMu.Unlock()
	p.running--
	if p.closing && p.running == 0 {
		close(p.drained)
	}
}

// callComponent sends req to n, for o. When the connection breaks, it sends req again until the deadline, if req
// cannot have been carried out or repeat is set.
func (n *node) callComponent(ctx context.Context, o *Object, req *wire.Request, buf []byte, repeat bool) ([]byte, error) {
	deadline := time.Now().Add(n.pool.cfg.Timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		l, changed, err := n.linkFor(o)
		if err != nil {
			return nil, err
		}
		if l == nil {
			if err := waitUntil(ctx, changed, deadline); err != nil {
				return nil, err
			}
			continue
		}
		var out []byte
		var posted bool
		port, err := l.openPort(ctx, deadline)
		if err == nil {
			out, posted, err = port.call(ctx, deadline, o, req, buf)
		}
		if err == nil {
			return out, nil
		}
		switch {
		case !errors.Is(err, errRetry):
			return nil, err
		case posted && !repeat:
			return nil, ErrOutcomeUnknown
		case !time.Now().Before(deadline):
			return nil, ErrTimeout
		}
	}
}

// linkFor returns the link over which o can be called; if there is none yet, it returns a channel to wait for.
func (n *node) linkFor(o *Object) (l *link, changed <-chan struct{}, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case o.id != 0 && n.session.ID != o.session:
		return nil, nil, ErrLost
	case n.state == nodeDown:
		return nil, nil, &goneError{n.cause}
	case n.state == nodeClosed:
		return nil, nil, ErrClosed
	}
	return n.link, n.changed, nil
}

// waitUntil waits for ready, until the deadline.
func waitUntil(ctx context.Context, ready <-chan struct{}, deadline time.Time) error {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return ErrTimeout
	}
}
