package server

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"polder/internal/fdpass"
	"polder/share/internal/wire"
	"polder/share/resource"
)

// What package maru needs of the daemon: clients that speak Maru's protocol are sessions like others, and their
// regions and keys are in the same pools, index and log. What differs is that these clients open a region by its path
// and map it writable, that a key lies anywhere in a region, and that a client which is told where a key lies does
// not say for how long it looks at it.

// Errors that Maru's clients meet.
var (
	// ErrLate is returned for a request that has waited so long that its client may have given up, and filled the
	// place anew.
	ErrLate = errors.New("the request comes too late: its sender has given up")
	// ErrToken is returned for a token that the daemon has not issued for what is
	// asked, or to somebody else.
	ErrToken = errors.New("the token does not grant this")
	// ErrNoRegion is returned for a region that does not exist.
	ErrNoRegion = resource.ErrUnknown
)

// A Guest is a client that speaks Maru's protocol, for as long as one of its connections lasts. Its methods may be
// called by any number of goroutines.
type Guest struct {
	s  *Server
	ss *session // guarded by s.mu: see owns

	link  io.Closer // the connection to the directory, or nil
	known bool      // the session was there before

	mu   sync.Mutex
	told map[told]uint64 // tokens, at most maxTold; guarded by mu
}

// told is what a token is for.
type told struct {
	session, region uint64
	length          int64
}

// maxTold bounds the tokens that a Guest remembers: to compute one takes as long as a
// lookup.
const maxTold = 1024

func (g *Guest) token(t told) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	token, ok := g.told[t]
	if !ok {
		if g.told == nil || len(g.told) >= maxTold {
			g.told = map[told]uint64{}
		}
		token = g.s.maruToken(t.session, t.region, t.length)
		g.told[t] = token
	}
	return token
}

// Admit attaches a connection. A client that shows an identity again is the same client; a client without an identity
// is always a new one. Link is closed if somebody kicks the client. Unix is the connection, if the client is on this
// machine and came by a Unix socket: its death is noticed at once.
func (s *Server) Admit(identity string, link io.Closer, unix *fdpass.Conn) (*Guest, error) {
	return s.admitMaru(identity, link, unix, maru)
}

// AdmitDirectory attaches a connection of another directory server, which asks for
// regions and tells its own clients of them: they may present its tokens.
func (s *Server) AdmitDirectory(identity string) (*Guest, error) {
	return s.admitMaru(identity, nil, nil, maruOther)
}

func (s *Server) admitMaru(identity string, link io.Closer, unix *fdpass.Conn, d door) (*Guest, error) {
	peer, tenant := fdpass.Peer{UID: -1}, "maru"
	if unix != nil {
		var err error
		if peer, err = unix.Peer(); err != nil {
			return nil, err
		}
		if !s.mayConnect(peer) {
			s.stats.denied.Add(1)
			return nil, fmt.Errorf("%w: user %d may not connect", errDenied, peer.UID)
		}
		tenant = fmt.Sprintf("uid:%d", peer.UID)
	}
	if identity == "" {
		d = maruPlain
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("%w: it ends", errBusy)
	}
	var tok token
	mac := hmac.New(sha256.New, s.secret[:])
	fmt.Fprintf(mac, "maru %d %s %s", d, tenant, identity)
	copy(tok[:], mac.Sum(nil))
	ss := s.tokens[tok]
	known := ss != nil && d != maruPlain
	if ss == nil || d == maruPlain {
		var err error
		if ss, err = s.newSession(peer, d, tenant, ""); err != nil {
			return nil, err
		}
		if d != maruPlain {
			delete(s.tokens, ss.token)
			ss.token = tok
			s.tokens[tok] = ss
		}
		if unix != nil {
			if pidfd, err := unix.PeerPidFD(); err == nil {
				if err := s.watchProcess(ss, pidfd); err != nil {
					return nil, err
				}
			}
		}
	}
	ss.recovered = false
	ss.silent = true
	g := &Guest{s: s, ss: ss, link: link, known: known}
	g.join(ss)
	return g, nil
}

// join counts the connection in.
//
// Preconditions: s.mu is held.
func (g *Guest) join(ss *session) {
	ss.conns++
	if g.link != nil {
		ss.links[g.link] = struct{}{}
	}
}

// Leave ends a connection. The client ends when it has had no connection for the grace period, or at once if it holds
// nothing.
func (g *Guest) Leave() {
	s := g.s
	s.mu.Lock()
	defer s.mu.Unlock()
	g.ss.conns--
	if g.link != nil {
		delete(g.ss.links, g.link)
	}
	g.ss.gone = s.opt.Now()
	if g.ss.conns == 0 && !g.ss.logged {
		s.must(s.endSession(g.ss)) // nothing to log, so nothing can fail
	}
}

// Same reports whether two guests are one client.
func (g *Guest) Same(o *Guest) bool {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	return g.ss == o.ss
}

// Known reports whether the client was there before: its caller may have given up on what it sends first.
func (g *Guest) Known() bool { return g.known }

// Plain reports whether the client shows no identity, so that its connections
// cannot be told to be the same client's.
func (g *Guest) Plain() bool {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	return g.ss.door == maruPlain
}

// Bearer reports whether the tokens that the client was told may be presented by
// others.
func (g *Guest) Bearer() bool {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	return g.ss.door == maruOther
}

// ID returns the number by which the daemon knows the client.
func (g *Guest) ID() uint64 {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	return g.ss.id
}

// Speaks records that the connection has said something. A connection that has said nothing may be that of any client
// without an identity that has lost its own connection.
func (g *Guest) Speaks() {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	g.ss.silent = false
}

// fresh fails if a request that arrived at that time has waited for too long.
func (s *Server) fresh(arrived time.Time) error {
	if waited := s.opt.Now().Sub(arrived); waited > s.opt.Late {
		s.stats.late.Add(1)
		return fmt.Errorf("%w (it has waited %v)", ErrLate, waited.Round(time.Millisecond))
	}
	return nil
}

// live fails if the session has ended while its connection has not.
//
// Preconditions: s.mu is held.
func (g *Guest) live() error {
	if g.ss.ended {
		return fmt.Errorf("%w: the session has ended", errMissing)
	}
	return nil
}

// hold makes sure that the client is in the log before it comes to hold
// something. The name that it gives first stays.
func (g *Guest) hold(instance string) error {
	if len(instance) > wire.MaxName {
		return fmt.Errorf("%w: an instance id of %d bytes, want at most %d", errInvalid, len(instance), wire.MaxName)
	}
	g.s.mu.Lock()
	ss := g.ss
	g.s.mu.Unlock()
	return g.s.logSession(ss, instance)
}

// owns reports whether the client may register keys in a region and return it. That is
// the owner. Clients that show no identity cannot be told from one another, except that
// over a Unix socket the kernel tells their processes apart; so any of them that acts
// as the owner counts as the owner. If the owner has no connection at that moment, the
// client is taken to be the owner with a new connection, and goes on with its session.
//
// Preconditions: s.mu is held.
func (g *Guest) owns(r *resource.Region) bool {
	owner := g.s.sessions[r.Owner]
	switch {
	case owner == g.ss:
		return true
	case owner == nil || owner.door != maruPlain || g.ss.door != maruPlain || owner.pid != g.ss.pid:
		return false
	}
	owner.gone = g.s.opt.Now()
	if owner.conns == 0 && !g.ss.logged && g.ss.conns == 1 {
		g.s.must(g.s.endSession(g.ss)) // it has held nothing
		owner.recovered, g.ss = false, owner
		g.join(owner)
	}
	return true
}

// mayBeBack reports whether a client that shows no identity, and has no connection, may
// have come back by one that has not said anything yet.
//
// Preconditions: s.mu is held.
func (s *Server) mayBeBack(ss *session) bool {
	if ss.door != maruPlain {
		return false
	}
	for _, o := range s.sessions {
		if o.door == maruPlain && o.silent && o.conns > 0 && o.pid == ss.pid {
			return true
		}
	}
	return false
}
