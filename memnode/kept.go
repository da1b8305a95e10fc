package memnode

import (
	"errors"
	"fmt"

	"polder/memnode/wire"
	"polder/verbs"
)

// ErrConnected is the error of GiveUp for a session whose client is connected.
var ErrConnected = errors.New("its client is connected")

// ErrNoSession is the error of GiveUp for a session that the node does not have.
var ErrNoSession = errors.New("the node has no kept session of that number")

// kept reports whether s outlives its client's absence.
func (s *session) kept() bool { return s.keep.Kept() }

// resume returns the session that h asks for, or nil if h is to get a new one. An error is the reason to refuse h.
func (n *Node) resume(h *wire.Hello) (*session, error) {
	s := n.sessions[h.Session.ID]
	known := s != nil && s.knows(&h.Session)
	switch {
	case s == nil, !known && !s.kept() && !h.Keep.Kept():
		return nil, nil
	case !known:
		return nil, denied("a client that does not know the secret asks for session %d", h.Session.ID)
	case s.kept() != h.Keep.Kept():
		return nil, denied("session %d was begun as one that is kept, or was not, and has to be resumed so", h.Session.ID)
	case h.Keep.Epoch < s.keep.Epoch:
		return nil, errors.New(wire.Superseded.Reason(fmt.Sprintf("heap %s is at epoch %d here, this client at %d",
			s.keep.Heap, s.keep.Epoch, h.Keep.Epoch)))
	}
	return s, nil
}

// foreign returns the reason to refuse a client that is not of the node's cluster.
func (n *Node) foreign(h *wire.Hello) error {
	mine, theirs := "no cluster", "another one"
	if n.cfg.Cluster != "" {
		mine = "cluster " + n.cfg.Cluster
	}
	if h.Cluster == (wire.Cluster{}) {
		theirs = "none"
	}
	return errors.New(wire.Foreign.Reason(fmt.Sprintf("this node is of %s, and the client of %s", mine, theirs)))
}

func denied(format string, args ...any) error {
	return errors.New(wire.Denied.Reason(fmt.Sprintf(format, args...)))
}

// mayKeep returns why the node cannot begin another kept session, or nil.
func (n *Node) mayKeep() error {
	if entry, _ := wire.ManagerNamed(n.cfg.Manager); !entry.Keeps {
		return fmt.Errorf("this node lends by %s, which cannot keep a session: whoever had it could not be kept from writing", n.cfg.Manager)
	}
	kept := 0
	for _, s := range n.sessions {
		if s.kept() {
			kept++
		}
	}
	if kept >= n.cfg.MaxKept {
		return fmt.Errorf("this node keeps no more than %d sessions, and has as many", n.cfg.MaxKept)
	}
	return nil
}

// GiveUp takes back the memory of a kept session whose client is not connected, and returns how many chunks that was.
// An operator calls it when nobody wants the memory any more.
func (n *Node) GiveUp(session uint64) (chunks int, err error) {
	if !n.run(func() { chunks, err = n.giveUp(session) }) {
		err = verbs.ErrClosed
	}
	if err != nil {
		return 0, fmt.Errorf("cannot give session %d up: %w", session, err)
	}
	return chunks, nil
}

func (n *Node) giveUp(session uint64) (int, error) {
	s := n.sessions[session]
	switch {
	case s == nil || !s.kept():
		return 0, ErrNoSession
	case s.client != nil:
		return 0, ErrConnected
	}
	return n.reclaim(s), nil
}

// reclaim takes back everything that s has, and forgets s. Its client must not be connected.
func (n *Node) reclaim(s *session) int {
	k := n.manager.reclaim(s)
	n.log.Info("chunks reclaimed", "session", s.wire.ID, "heap", s.keep.Heap, "chunks", k)
	n.counters.reclaimed.Add(int64(k))
	n.forget(s)
	return k
}

// countKept brings the counters of kept sessions up to date.
func (n *Node) countKept() {
	var sessions, away int64
	for _, s := range n.sessions {
		if s.kept() {
			sessions++
			if s.client == nil {
				away += int64(n.manager.held(s))
			}
		}
	}
	n.counters.kept.Store(sessions)
	n.counters.keptAway.Store(away)
}

// restore takes over the sessions that an earlier process has left in the ledger. Their clients count as away from
// now on. A session without chunks is forgotten.
func (n *Node) restore() {
	l := n.mem.ledger
	if l == nil {
		return
	}
	left, chunks := l.TakeLeft(), 0
	if len(left) == 0 {
		return
	}
	for _, e := range left {
		s := &session{wire: e.Wire, owner: e.Owner, record: e.Record, keep: e.Keep}
		n.lastOwner = max(n.lastOwner, s.owner)
		n.sessions[s.wire.ID] = s
		n.manager.(restorer).restore(s, e.Chunks)
		if k := n.manager.held(s); k > 0 {
			chunks += k
			n.await(s)
		} else {
			n.forget(s)
		}
	}
	n.log.Info("the node goes on with what an earlier one has left", "sessions", len(n.sessions), "chunks", chunks)
	n.counters.sessions.Store(int64(len(n.sessions)))
	n.countKept()
}
