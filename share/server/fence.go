package server

import (
	"fmt"
	"os"
	"time"

	"polder/internal/fdpass"
	"polder/share/internal/shm"
	"polder/share/internal/wire"
	"polder/share/resource"
)

// A client that is stopped, or whose container is, may go on at any time. It may look at pages by views that it has
// open, and after a restart the daemon does not know at which. To serve others without waiting for such a client, the
// daemon fences it. The client's session ends: its pins are gone and its regions released. What it may look at stays
// as it is: the regions that it may have mapped are retired. No page of a retired region is used again. The region's
// memory comes back as a whole, and as other memory, when its owner has returned it and its last key is gone. So a
// view of a fenced client, whenever that goes on, shows the bytes that it has shown before; or, in a page that the
// page's owner was filling, bytes that nobody has ever promised. When the process of the last fenced client is dead,
// pages of retired regions are used again. If nothing tells of that death, as with a client in another pid namespace
// before Linux 6.5, they never are.
//
// On a DAX device a region has no memory of its own. Its pages wait until the
// client is dead.

// nameAfter is how long clients may take to come back before the log names
// them: most take milliseconds.
const nameAfter = time.Second

// awaitNoLonger names the clients that the daemon has waited for since it was
// restarted, and fences them when their time is over.
func (s *Server) awaitNoLonger() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.res.Regions() {
		s.askBack(r) // its owner was not attached before, maybe
	}
	for _, ss := range s.settling {
		away := s.opt.Now().Sub(ss.gone)
		if away >= s.opt.Settle {
			if err := s.fence(ss); err != nil {
				s.opt.Log.Error("cannot log that a client is fenced", "pid", ss.pid, "err", err)
				return
			}
		} else if away >= nameAfter && !ss.named {
			ss.named = true
			s.opt.Log.Warn("waiting for a client of before the restart: until it is back, dead or fenced, no page is used again",
				"client", fmt.Sprintf("%016x", ss.id), "pid", ss.pid, "uid", ss.uid, "name", ss.name, "fenced_in", s.opt.Settle-away)
		}
	}
}

// fence ends the session of a client that may be alive.
//
// Preconditions: s.mu is held.
func (s *Server) fence(ss *session) error {
	if ss.ended {
		return nil
	}
	before := s.settling[ss.id] != nil // it may have mapped any region from before the restart
	for r := range s.res.Regions() {
		if !r.Maru && (before && r.ID < s.first || ss.maps[r.ID]) {
			if err := s.retire(r, true); err != nil {
				return err
			}
		}
	}
	if ss.unwatch == nil && ss.start == 0 {
		s.lostSight = true // nothing will tell that it is dead
	} else {
		s.fenced[ss.id] = ss
	}
	if err := s.endSession(ss); err != nil {
		delete(s.fenced, ss.id)
		return err
	}
	ss.hangUp()
	s.opt.Log.Warn("a client is fenced: it may be alive, and is served no more; what it looked at is not used again",
		"client", fmt.Sprintf("%016x", ss.id), "pid", ss.pid, "uid", ss.uid, "name", ss.name)
	for r := range s.res.Regions() {
		s.askBack(r)
	}
	return nil
}

// hangUp closes a session's connections.
//
// Preconditions: Server.mu is held.
func (ss *session) hangUp() {
	for link := range ss.links {
		link.Close()
	}
}

// unfence is called when the process of a client is dead. If that was the last fenced client, no region is retired
// any more.
//
// Preconditions: s.mu is held.
func (s *Server) unfence(ss *session) {
	if s.fenced[ss.id] == nil || s.closed {
		return
	}
	if ss.unwatch != nil {
		ss.unwatch()
	}
	delete(s.fenced, ss.id)
	if len(s.fenced) > 0 || s.lostSight {
		return
	}
	for r := range s.res.Regions() {
		if !r.Retired || s.retire(r, false) != nil {
			continue // stays retired: the log cannot take it, and nothing is lost but time
		}
		for i := range uint32(r.Pages()) {
			if page := r.Base + i; s.pageState(page) == shm.Dying && !s.pages.IsDying(page) {
				s.pages.Dying(page, r.ID, 0, false)
				r.Refs++
			}
		}
	}
	s.pending.Store(true)
	s.maintainNow()
}

// retire logs and applies that pages of a region are not used again, or are
// again.
//
// Preconditions: s.mu is held.
func (s *Server) retire(r *resource.Region, retired bool) error {
	if r.Retired == retired {
		return nil
	}
	if _, err := s.append(s.rec[:0].U8(recRetired).U64(r.ID).U8(flag(retired))); err != nil {
		return err
	}
	r.Retired = retired
	return nil
}

// askBack asks the owner of a retired region that nothing refers to any more to
// return it.
//
// Preconditions: s.mu is held.
func (s *Server) askBack(r *resource.Region) {
	if !r.Retired || r.Refs > 0 || r.Owner == 0 || s.recalls[r.ID] {
		return
	}
	if owner := s.sessions[r.Owner]; owner != nil && owner.watch != nil {
		s.recalls[r.ID] = true
		s.notify(owner, r.ID, wire.Recalled)
	}
}

// kick fences a client because another one asks for that.
func (c *conn) kick() error {
	id, err := c.id()
	if err != nil {
		return err
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	ss := s.sessions[id]
	switch {
	case ss == nil:
		return fmt.Errorf("%w: client %016x", errMissing, id)
	case c.ss.uid != 0 && c.ss.uid != os.Getuid() && c.ss.uid != ss.uid:
		s.stats.denied.Add(1)
		return fmt.Errorf("%w: client %016x is another user's", errDenied, id)
	case ss.door != local:
		if err := s.endSession(ss); err != nil {
			return err
		}
		ss.hangUp() // if it comes back, it is a new client
		c.need = need{lsn: s.log.Last()}
		return nil
	}
	if err := s.fence(ss); err != nil {
		return err
	}
	c.need = need{lsn: s.log.Last()}
	return nil
}

// watchAgain begins to watch for the death of the process at the other end, unless that is watched already. Without a
// pidfd, poll looks at the process.
//
// Preconditions: s.mu is held.
func (s *Server) watchAgain(c *conn, ss *session, peer fdpass.Peer) error {
	if c.unix == nil || ss.unwatch != nil {
		return nil
	}
	if ss.elsewhere {
		ss.pid, ss.elsewhere = peer.PID, false
		if peer.PID != 0 {
			ss.start, _ = fdpass.StartTime("/proc", peer.PID)
		}
	}
	pidfd, err := c.unix.PeerPidFD()
	if err != nil {
		return nil
	}
	return s.watchProcess(ss, pidfd)
}

// enterNamespace notes the namespace that pids refer to from here on. If it is another one than before, the sessions'
// pids mean nothing any more.
//
// Preconditions: s.mu is held, or nothing runs yet.
func (s *Server) enterNamespace(ns string) {
	if s.pidNamespace != "" && s.pidNamespace != ns {
		for _, ss := range s.sessions {
			ss.pid, ss.start, ss.elsewhere = 0, 0, true
		}
	}
	s.pidNamespace = ns
}

func readPIDNamespace() string {
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	return ns
}
