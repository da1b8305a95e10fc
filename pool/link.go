package pool

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"polder/pool/manager"
	"polder/verbs"
)

// A link is one connection to a node, with its access queue pairs. The node's keeper makes it. A link that is dead is
// never used again.
type link struct {
	node    *node
	conn    verbs.Conn
	groups  []*group        // fixed before anybody else sees the link
	session manager.Session // set once, before anybody else sees the link

	verifier manager.Verifier // the session, if it is a Verifier
	mapper   manager.Mapper   // says what lies in this process's memory: the session or view; nil if nothing does
	view     *view            // nil unless the node's memory is read in place, but not written
	mapped   sync.RWMutex     // held for reading while memory from mapper is accessed in place

	news  chan struct{} // capacity 1: chunks have been dropped
	broke chan struct{} // closed by node.linkBroke
	dead  atomic.Bool   // nothing is accepted any more

	mu         sync.Mutex
	components *portAttempt // guarded by mu: where components are called, once somebody has
}

// newLink creates a link over conn, with its first group.
func newLink(n *node, conn verbs.Conn) (*link, error) {
	l := &link{node: n, conn: conn, news: make(chan struct{}, 1), broke: make(chan struct{})}
	return l, l.nextGroup()
}

// nextGroup makes the next group.
func (l *link) nextGroup() error {
	g, err := newGroup(l)
	if err == nil {
		l.groups = append(l.groups, g)
	}
	return err
}

// access makes another queue pair of the group that was made last.
func (l *link) access() (verbs.QP, error) { return l.groups[len(l.groups)-1].access() }

// event is the access queue pairs' event handler. Whatever the event is, the queue pair is of no use after it.
func (l *link) event(e verbs.AsyncEvent) {
	if e.Type != verbs.EventCommEstablish {
		l.node.linkBroke(l)
	}
}

// tellVanished makes watch ask the node which chunks have been dropped.
func (l *link) tellVanished() {
	select {
	case l.news <- struct{}{}:
	default:
	}
}

// kill makes the link accept nothing more, and fails the pieces that were not posted. Those that were posted fail by
// themselves, or in close.
func (l *link) kill() {
	l.dead.Store(true)
	for _, g := range l.groups {
		g.kill()
	}
}

// state is how many operations have completed, and whether any is in flight.
func (l *link) state() (progress uint64, flying bool) {
	for _, g := range l.groups {
		n, some := g.state()
		progress += n
		flying = flying || some
	}
	return progress, flying
}

// watch returns when the link is dead or ctx ends. It retires the link when operations are in flight and none has
// completed for the time of patience: then the node hangs, and only a new connection can show whether it is still
// there. Once a second watch asks a node that lends what is idle how much that is, unless the node seems to hang.
func (l *link) watch(ctx context.Context, patience time.Duration) {
	const looks = 4
	tick := time.NewTicker(max(patience/looks, time.Millisecond))
	defer tick.Stop()
	var seen uint64
	var room <-chan time.Time
	if l.session.Info().Yielder != nil {
		ticker := time.NewTicker(lookEvery)
		defer ticker.Stop()
		room = ticker.C
	}
	var looked uint64 // the value of progress when it was asked last
	for still := 0; ; {
		select {
		case <-l.broke:
			return
		case <-l.conn.Done():
			return
		case <-ctx.Done():
			return
		case <-l.news:
			l.node.learnVanished(ctx, l)
			continue
		case <-room:
			// While it is asked, nobody checks whether it hangs.
			if progress, flying := l.state(); progress != looked || !flying {
				looked = progress
				l.node.lookForRoom(ctx, l)
			}
			continue
		case <-tick.C:
		}
		if progress, flying := l.state(); progress != seen || !flying {
			seen, still = progress, 0
		} else {
			still++
		}
		if still > looks {
			l.node.log.Warn("memory node hangs")
			l.node.linkBroke(l)
			return
		}
	}
}

// ground ends the pieces that are in flight on a dead link.
func (l *link) ground() {
	for _, g := range l.groups {
		g.ground()
	}
}

// close disconnects a dead link and releases what it holds of the device.
func (l *link) close() {
	if l.session != nil {
		// Wait for those that access its memory in place and have not seen that the link is dead.
		l.mapped.Lock()
		l.session.Close()
		if l.view != nil {
			l.view.Close()
		}
		l.mapped.Unlock()
	}
	l.conn.Close()
	l.closePort()
	l.ground()
	for _, g := range l.groups {
		g.cq.Close()
	}
}

// backoff is the wait before the next attempt to connect. It doubles from 10 ms to 1 s. Up to half of it, at random,
// is left off, so that a node's clients do not all come back at the same instant.
type backoff time.Duration

func (b *backoff) next() time.Duration {
	d := min(max(2*time.Duration(*b), 10*time.Millisecond), time.Second)
	*b = backoff(d)
	return d - rand.N(d/2)
}
