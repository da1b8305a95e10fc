package memnode

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"polder/memnode/wire"
	"polder/verbs"
)

// ErrDraining is the error of Drain when a node is being drained already.
var ErrDraining = errors.New("the node is being drained already")

// A HeldError says what is still lent by nodes that could not be drained in time.
type HeldError struct {
	Clients []ClientInfo // the clients that hold chunks
	Bytes   int64        // in those chunks
	Cause   error        // why the drain stopped waiting
}

func (e *HeldError) Error() string {
	names := []string{}
	for _, c := range e.Clients {
		names = append(names, c.Name())
	}
	return fmt.Sprintf("%d bytes are still lent, to %s: %v", e.Bytes, strings.Join(names, ", "), e.Cause)
}

func (e *HeldError) Unwrap() error { return e.Cause }

// drain is what the control goroutine does for Drain.
type drain struct {
	empty chan struct{} // closed when nothing is lent
	over  bool          // empty is closed
	tick  *time.Ticker  // when to look: some clients allocate and free without the control goroutine's help
	looks int           // how often in a row there was nothing
}

// A node that is being drained checks every drainEvery whether anything is lent. It believes that nothing is when
// drainLooks checks in a row have found nothing: a chunk that a chain allocates is counted a little later than the
// client has it.
const (
	drainEvery = 50 * time.Millisecond
	drainLooks = 2
)

func (d *drain) ticks() <-chan time.Time {
	if d == nil {
		return nil
	}
	return d.tick.C
}

// Drain tells every client of these nodes that the nodes are leaving, so that the client moves what it has there; it
// lets no new client in, and returns nil when nothing is lent any more. The caller then closes the nodes. If ctx ends
// before that, the clients are told that the nodes stay, and the error is a *HeldError.
//
// Whether a client moves anything is up to the client: package copies does if there are enough other nodes.
func Drain(ctx context.Context, nodes ...*Node) (err error) {
	begun := make([]*drain, 0, len(nodes))
	defer func() {
		for i, d := range begun {
			d.tick.Stop()
			if err != nil {
				nodes[i].run(func() { nodes[i].leave(nil) })
			}
		}
	}()
	for _, n := range nodes {
		d := &drain{empty: make(chan struct{}), tick: time.NewTicker(drainEvery)}
		busy := false
		if !n.run(func() {
			if busy = n.leaving != nil; !busy {
				n.leave(d)
			}
		}) {
			return verbs.ErrClosed
		}
		if busy {
			return ErrDraining
		}
		begun = append(begun, d)
		n.log.Info("the node is being drained")
	}
	for i, d := range begun {
		select {
		case <-d.empty:
		case <-nodes[i].ctx.Done():
			return verbs.ErrClosed
		case <-ctx.Done():
			return held(context.Cause(ctx), nodes)
		}
	}
	return nil
}

// held returns the error that says what is still lent by nodes, with cause as the reason for giving up.
func held(cause error, nodes []*Node) error {
	e := &HeldError{Cause: cause}
	for _, n := range nodes {
		for _, c := range n.Clients() {
			if c.Chunks > 0 {
				e.Clients = append(e.Clients, c)
				e.Bytes += int64(c.Chunks) * int64(n.cfg.ChunkSize)
			}
		}
	}
	return e
}

// leave makes the node tell its clients that it is leaving, or, if d is nil, that it stays.
func (n *Node) leave(d *drain) {
	n.leaving = d
	n.tellAll()
}

// tellAll puts every client on the ready list, so that look tells it what has changed.
func (n *Node) tellAll() {
	for _, c := range n.clients {
		n.ready.add(c)
	}
}

// goes reports whether clients should move what they have at this node elsewhere.
func (n *Node) goes() bool { return n.leaving != nil || n.pressed }

// drained closes the drain's channel if nothing has been lent for drainLooks checks in a row, and every client has
// been told that the node is leaving.
func (n *Node) drained() {
	if n.leaving == nil || n.leaving.over {
		return
	}
	for _, c := range n.clients {
		if !c.told {
			return
		}
	}
	for _, s := range n.sessions {
		if n.manager.held(s) > 0 {
			n.leaving.looks = 0
			return
		}
	}
	if n.leaving.looks++; n.leaving.looks < drainLooks {
		return
	}
	n.leaving.over = true
	close(n.leaving.empty)
}

// staysFor is how long the node waits, after it has told a client that it is leaving, before it tells the client that
// it stays. Unasked messages use up the client's receives. If the host's need kept coming and going, a client that
// does not get to run would have no receives left and lose its connection.
const staysFor = 500 * time.Millisecond

// tellLeaving tells c whether the node is leaving, unless c knows already. If no reply buffer is free it does
// nothing: look is called again when a buffer has come back.
func (n *Node) tellLeaving(c *client) error {
	leaving := n.goes()
	if c.told == leaving || len(c.replies) == 0 {
		return nil
	}
	if leaving {
		c.settled = time.Now().Add(staysFor)
	} else if early := time.Until(c.settled); early > 0 {
		if c.later == nil {
			c.later = time.AfterFunc(early, func() { n.ready.add(c) })
		} else {
			c.later.Reset(early)
		}
		return nil
	}
	c.told = leaving
	reply := wire.Reply{Op: wire.OpLeaving}
	if leaving {
		reply.N = 1
	}
	return n.send(c, &reply, nil)
}

// run makes the control goroutine call f, and returns true when f has returned, or false if the node is closed.
func (n *Node) run(f func()) bool {
	done := make(chan struct{})
	select {
	case n.calls <- func() { defer close(done); f() }:
		<-done
		return true
	case <-n.ctx.Done():
		return false
	}
}
