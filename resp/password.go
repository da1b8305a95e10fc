package resp

import "crypto/subtle"

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
