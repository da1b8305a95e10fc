package resp

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"polder/internal/accept"
)

const (
	// loginTimeout is how long a connection may take to give the password; a
	// person may be typing it.
	loginTimeout = 30 * time.Second
	// maxLogin is how long a command may be before the password is given.
	maxLogin = 16 << 10
)

var errLogin = errors.New("it has not given the password")

// accept handles a new connection without waiting for its peer. A peer that must give a password does so at the door,
// where it takes no client's place.
func (srv *Server) accept(nc net.Conn) {
	srv.stats.connections.Add(1)
	switch {
	case srv.password() != "":
		srv.door.Go(nc, func(v *accept.Visitor) error { return srv.awaitLogin(nc, v) })
	case srv.takePlace():
		srv.drive(nc, srv.newSession(), nil)
	default:
		srv.door.Go(nc, func(*accept.Visitor) error { return srv.turnAway(nc) })
	}
}

// takePlace counts a client, unless there are maxClients already, and reports whether it has. Server.forget gives the
// place back; for a client that ends before it has a driver, awaitLogin or drive does.
func (srv *Server) takePlace() bool {
	if srv.clients.Add(1) <= srv.maxClients.Load() {
		return true
	}
	srv.clients.Add(-1)
	srv.stats.rejected.Add(1)
	return false
}

// turnAway tells a client that there are too many. The error says so, too.
func (srv *Server) turnAway(nc net.Conn) error {
	_, err := io.WriteString(nc, "-ERR max number of clients reached\r\n")
	return errors.Join(fmt.Errorf("there are %d clients, as many as may be", srv.maxClients.Load()), err)
}

// awaitLogin runs the commands of a client that is not let in yet, until it has given the password.
func (srv *Server) awaitLogin(nc net.Conn, v *accept.Visitor) (err error) {
	s := srv.newSession()
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	s.entering = true
	s.info.addr, s.info.laddr = nc.RemoteAddr().String(), nc.LocalAddr().String()
	in := make([]byte, 0, 256)
	for {
		if len(in) == cap(in) {
			if len(in) >= maxLogin {
				return fmt.Errorf("%w in %d bytes", errLogin, len(in))
			}
			in = append(make([]byte, 0, 2*cap(in)), in...)
		}
		n, err := nc.Read(in[len(in):cap(in)])
		in = in[:len(in)+n]
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		s.in = in
		status := s.run()
		for status == needFlush {
			if err := s.say(nc); err != nil {
				return err
			}
			status = s.run()
		}
		if status == sessionLogin {
			break
		}
		if err := errors.Join(err, s.say(nc)); err != nil || status == sessionEnd {
			return errors.Join(errLogin, err)
		}
		in = in[:copy(in, s.in)]
	}
	in = s.in
	if !srv.takePlace() {
		return srv.turnAway(nc)
	}
	if err := errors.Join(s.say(nc), v.Enter()); err != nil {
		srv.clients.Add(-1)
		return err
	}
	s.Out, s.in = nil, nil
	srv.drive(nc, s, in)
	return nil
}

// say writes the replies that the session has at the door.
func (s *session) say(nc net.Conn) error {
	_, err := nc.Write(s.Out)
	s.Out = s.Out[:0]
	return err
}

// drive gives a client that has a place to a driver. In is what it has sent
// already.
func (srv *Server) drive(nc net.Conn, s *session, in []byte) {
	s.info.addr, s.info.laddr = nc.RemoteAddr().String(), nc.LocalAddr().String()
	srv.mu.Lock()
	if srv.stopping {
		srv.mu.Unlock()
		srv.clients.Add(-1)
		s.close()
		nc.Close()
		return
	}
	srv.sessions[s] = struct{}{}
	srv.live.Add(1)
	srv.mu.Unlock()
	if len(srv.loops) > 0 && srv.loops[int(srv.nextLoop.Add(1))%len(srv.loops)].adopt(nc, s, in) {
		return
	}
	srv.serveStream(nc, s, in)
}

// SetPassword makes password what clients must present from now on, nothing if
// it is empty. Those who have been let in stay.
func (srv *Server) SetPassword(password string) { srv.secret.Store(&password) }

// password is what clients must present at the moment.
func (srv *Server) password() string { return *srv.secret.Load() }

// login checks a password, in constant time, and lets the client in.
func (s *session) login(user, pass []byte) error {
	want := s.srv.password()
	if string(user) != "default" || want != "" && subtle.ConstantTimeCompare(pass, []byte(want)) != 1 {
		s.srv.stats.authFailures.Add(1)
		return errWrongPass
	}
	s.authed = true
	s.parser.Unauth = false
	return nil
}
