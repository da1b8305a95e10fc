package server

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"polder/internal/fdpass"
	"polder/share/internal/wire"
	"polder/share/resource"
)

// token proves that a connection belongs to a session.
type token [16]byte

// session is a client.
type session struct {
	// Immutable, and in the log.
	id     uint64
	token  token
	pid    int    // 0 if the process is in another namespace, or remote
	start  uint64 // when the process started, 0 if unknown
	uid    int
	door   door
	tenant string
	name   string // of a client of Maru's: its instance id, "" until it has said it

	box atomic.Pointer[mailbox] // changed under Server.mu; nil if it has none

	// Guarded by Server.mu.
	conns     int                 // open connections
	links     map[closer]struct{} // the open connections, except those to Maru's resource manager
	gone      time.Time           // when a connection was last closed
	maps      map[uint64]bool     // regions of others that it maps
	issued    map[uint64]bool     // regions that it was sent a handle to read
	watch     *fdpass.Conn        // where notices go, or nil
	unwatch   func()              // ends the watch of its process, or nil
	logged    bool                // it is in the log: it may hold something
	recovered bool                // known from the log, and not yet back
	elsewhere bool                // its pid means nothing here: it is another namespace's
	named     bool                // the log has said that it is awaited
	silent    bool                // a client of Maru's that has not said anything
	dead      bool                // its process is dead, and the log could not take that yet
	ended     bool
}

// door is how a client reaches the daemon. It is in the log.
type door uint8

const (
	local     door = iota // by the socket
	remote                // from another host
	maru                  // by Maru's protocol, with an identity that it shows again
	maruPlain             // likewise, with none
	maruOther             // by Maru's resource manager only: another directory, which tells others of its regions
)

// Maru reports whether the client speaks Maru's protocol.
func (d door) Maru() bool { return d >= maru }

// byConnection reports whether the session ends with its connections.
func (ss *session) byConnection() bool { return ss.door != local || ss.unwatch == nil && ss.start == 0 }

// addSession makes a session known.
//
// Preconditions: s.mu is held, or nothing runs yet.
func (s *Server) addSession(ss *session) {
	ss.maps, ss.issued, ss.links = map[uint64]bool{}, map[uint64]bool{}, map[closer]struct{}{}
	s.sessions[ss.id] = ss
	s.tokens[ss.token] = ss
}

// newSession adds a session. It is logged when it first asks for something: if
// the daemon dies before, the client has nothing to lose and begins anew; and a
// client that has given up never makes the next daemon wait.
//
// Preconditions: s.mu is held.
func (s *Server) newSession(peer fdpass.Peer, d door, tenant, name string) (*session, error) {
	if len(s.sessions) >= s.opt.MaxSessions {
		return nil, fmt.Errorf("%w: %d clients are attached", errBusy, len(s.sessions))
	}
	ss := &session{pid: peer.PID, uid: peer.UID, door: d, tenant: tenant, name: name}
	var id [8]byte
	for ss.id == 0 || s.sessions[ss.id] != nil {
		rand.Read(id[:])
		ss.id = binary.LittleEndian.Uint64(id[:])
	}
	rand.Read(ss.token[:])
	if peer.PID != 0 {
		// If it cannot be read, the process is dead or hides; without a pidfd
		// its session then ends with its connections.
		ss.start, _ = fdpass.StartTime("/proc", peer.PID)
	}
	s.addSession(ss)
	return ss, nil
}

// logSession logs a session that is about to hold something, or that says its name. The session keeps the first name
// that it has said; the name "" says none.
func (s *Server) logSession(ss *session, name string) error {
	s.mu.Lock()
	was := ss.name
	switch {
	case name != "" && was != "" && name != was:
		s.mu.Unlock()
		return fmt.Errorf("%w: the client is %q, and now %q", errInvalid, was, name)
	case ss.ended, ss.logged && (name == "" || name == was):
		s.mu.Unlock()
		return nil
	}
	if name != "" {
		ss.name = name
	}
	lsn, err := s.append(encodeSession(s.rec[:0], ss))
	if err != nil {
		ss.name = was // under which the log has what it holds already
	} else {
		ss.logged = true
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.commit(lsn, false)
}

// watchProcess ends the session when its process dies. The watcher owns pidfd.
//
// Preconditions: s.mu is held.
func (s *Server) watchProcess(ss *session, pidfd *os.File) error {
	stop, err := s.watcher.Watch(pidfd, func() {
		s.mu.Lock()
		ss.dead = true
		err := s.endSession(ss)
		s.unfence(ss)
		s.mu.Unlock()
		s.stats.reaped.Add(1)
		if err != nil {
			s.opt.Log.Error("cannot log that a client is dead", "pid", ss.pid, "err", err)
			return // poll tries again
		}
		if err := s.flushLog(); err != nil {
			s.opt.Log.Error("cannot commit that a client is dead", "pid", ss.pid, "err", err)
		}
		s.finish(true)
	})
	if err != nil {
		return err
	}
	ss.unwatch = stop
	return nil
}

// endSession ends a session: its pins and references are gone, its regions are
// released. Ending it twice is a no-op.
//
// Preconditions: s.mu is held.
func (s *Server) endSession(ss *session) error {
	if ss.ended || s.closed {
		return nil
	}
	if ss.logged {
		if _, err := s.append(s.rec[:0].U8(recSessionEnd).U64(ss.id)); err != nil {
			return err
		}
	}
	ss.ended = true
	if ss.unwatch != nil && s.fenced[ss.id] == nil {
		ss.unwatch()
	}
	for id := range ss.maps {
		if err := s.res.Unmapped(id); err != nil {
			s.opt.Log.Error("BUG: cannot unmap what a dead client had mapped", "region", id, "err", err)
		}
	}
	clear(ss.maps)
	ss.setMailbox(nil)
	s.pages.Detach(ss.id)
	released := s.applySessionEnd(ss.id)
	s.settled(ss)
	for _, r := range released {
		s.settle(r)
	}
	s.pending.Store(true)
	return nil
}

// applySessionEnd is the part of endSession that is replayed.
//
// Preconditions: s.mu is held, or nothing runs yet.
func (s *Server) applySessionEnd(id uint64) []*resource.Region {
	ss := s.sessions[id]
	delete(s.sessions, id)
	delete(s.tokens, ss.token)
	s.idx.UnpinAll(id)
	s.idx.OrphanAll(id)
	var released []*resource.Region
	for r := range s.res.Regions() {
		if r.Owner == id {
			s.must(s.applyReleased(r))
			released = append(released, r)
		}
	}
	return released
}

// applyReleased takes the owner from a region.
//
// Preconditions: s.mu is held, or nothing runs yet.
func (s *Server) applyReleased(r *resource.Region) error {
	if err := r.Step(resource.OwnerLeaves); err != nil {
		return err
	}
	delete(s.recalls, r.ID)
	s.idx.Orphan(r.ID)
	r.Owner = 0
	if s.log == nil { // replaying: whether it was freed, a later record tells
		return r.Step(resource.ReferencesHold)
	}
	return nil
}

// settled records that a session from before the restart is back or dead.
//
// Preconditions: s.mu is held.
func (s *Server) settled(ss *session) {
	ss.recovered = false
	if s.settling[ss.id] != nil {
		delete(s.settling, ss.id)
		if len(s.settling) == 0 {
			s.opt.Log.Info("settled: all clients of before the restart are back or dead")
			s.maintainNow()
		}
	}
}

// notify tells a session something of a region. If it does not read, its
// connection is closed, and it will attach anew.
//
// Preconditions: s.mu is held.
func (s *Server) notify(ss *session, region uint64, what wire.Notice) {
	if ss.watch == nil {
		return
	}
	var buf [9]byte
	if err := ss.watch.TrySend(wire.Writer(buf[:0]).U64(region).U8(uint8(what))); err != nil {
		ss.watch.Close()
		ss.watch = nil
	}
}

// poll ends the sessions whose end no pidfd tells: those whose pid now belongs to nobody or to a later process, and
// those that end with their connections and have had none for the grace period.
func (s *Server) poll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.opt.Now()
	for _, ss := range s.fenced {
		if ss.unwatch == nil && !fdpass.Alive("/proc", ss.pid, ss.start) {
			s.unfence(ss)
		}
	}
	for _, ss := range s.sessions {
		var alive bool
		switch {
		case ss.dead:
		case ss.byConnection():
			alive = ss.conns > 0 || now.Sub(ss.gone) < s.opt.Grace || s.mayBeBack(ss)
		case ss.unwatch != nil:
			alive = true
		default:
			alive = fdpass.Alive("/proc", ss.pid, ss.start)
		}
		if alive || ss.recovered && ss.door == local && ss.byConnection() { // awaitNoLonger ends the latter
			continue
		}
		end := s.endSession
		if !ss.dead && ss.door == local && ss.byConnection() {
			end = s.fence // it has no connection, and may be alive
		}
		if err := end(ss); err != nil {
			s.opt.Log.Error("cannot log that a client is dead", "pid", ss.pid, "err", err)
			return
		}
		s.stats.reaped.Add(1)
	}
}

// Errors that requests meet.
var (
	errBusy    = errors.New("the daemon is busy")
	errDenied  = errors.New("that is not allowed")
	errInvalid = errors.New("the request makes no sense")
	errMissing = errors.New("there is no such thing")
	errLog     = errors.New("the daemon's log has failed")

	errNotPostable = fmt.Errorf("%w: it cannot be asked for by mailbox, or its answer is too large for one", errInvalid)
)
