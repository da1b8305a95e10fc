package resp

import (
	"polder/resp/proto"
	"polder/resp/reply"
)

// kill has the session's connection closed, by whoever drives it. Any goroutine
// may call it, and more than once.
func (s *session) kill() {
	s.killed.Store(true)
	if f := s.hangUp.Load(); f != nil {
		(*f)()
	}
}

// drop counts the client among those that are disconnected because they do not read,
// once, however many notice it.
func (s *session) drop() {
	if !s.unread.Swap(true) {
		s.srv.stats.outputDrops.Add(1)
	}
}

// onKill has hangUp called when the client is to be disconnected. HangUp must not block.
func (s *session) onKill(hangUp func()) {
	s.mem.HangUp = hangUp
	s.hangUp.Store(&hangUp)
	if s.killed.Load() {
		hangUp()
	}
}

// doomed reports whether the connection is to be closed, for what the client holds
// or because it was killed.
func (s *session) doomed() bool { return s.killed.Load() || s.mem.Evicted() }

// cmdClientKill takes an address, or filters that all must match.
func cmdClientKill(s *session, a [][]byte) error {
	if len(a) == 3 {
		for _, o := range s.srv.sessionList() {
			if o.info.shown() == string(a[2]) {
				s.disconnect(o)
				s.OK()
				return nil
			}
		}
		return reply.Error("ERR No such client")
	}
	keep, err := s.killFilters(a[2:])
	if err != nil {
		return err
	}
	n := int64(0)
	for _, o := range s.srv.sessionList() {
		if keep(o) {
			s.disconnect(o)
			n++
		}
	}
	s.Int(n)
	return nil
}

// killFilters reads filters, and returns whether a session matches all of them.
func (s *session) killFilters(args [][]byte) (matches func(*session) bool, err error) {
	var all []func(*session) bool
	skipMe := true
	for i := 0; i < len(args); i += 2 {
		if i+1 == len(args) {
			return nil, reply.ErrSyntax
		}
		v := string(args[i+1])
		switch name := args[i]; {
		case proto.Is(name, "id"):
			id, ok := proto.ParseInt(args[i+1])
			if !ok || id < 1 {
				return nil, reply.Error("ERR client-id should be greater than 0")
			}
			all = append(all, func(o *session) bool { return o.info.id == id })
		case proto.Is(name, "addr"):
			all = append(all, func(o *session) bool { return o.info.shown() == v })
		case proto.Is(name, "laddr"):
			all = append(all, func(o *session) bool { return o.info.laddr == v })
		case proto.Is(name, "type"):
			is, err := ofType(args[i+1])
			if err != nil {
				return nil, err
			}
			all = append(all, is)
		case proto.Is(name, "user"):
			if v != "default" {
				return nil, reply.Error("ERR No such user '" + proto.Clip(args[i+1], 128) + "'")
			}
		case proto.Is(name, "skipme") && proto.Is(args[i+1], "yes"):
			skipMe = true
		case proto.Is(name, "skipme") && proto.Is(args[i+1], "no"):
			skipMe = false
		default:
			return nil, reply.ErrSyntax
		}
	}
	return func(o *session) bool {
		for _, match := range all {
			if !match(o) {
				return false
			}
		}
		return o != s || !skipMe
	}, nil
}

// ofType returns a function that reports whether a session is of the type that Redis calls name: a subscriber, or
// not.
func ofType(name []byte) (func(*session) bool, error) {
	switch {
	case proto.Is(name, "normal"):
		return func(o *session) bool { return !o.subs.Any() }, nil
	case proto.Is(name, "pubsub"):
		return func(o *session) bool { return o.subs.Any() }, nil
	case proto.Is(name, "master"), proto.Is(name, "replica"), proto.Is(name, "slave"):
		return func(*session) bool { return false }, nil
	}
	return nil, reply.Error("ERR Unknown client type '" + proto.Clip(name, 128) + "'")
}

// disconnect ends the connection of o: at once, or, if o is s itself, when this command has been answered.
func (s *session) disconnect(o *session) {
	if o == s {
		s.ending = true
		return
	}
	o.kill()
}

// cmdClientReply switches replies on and off. The replies that are not to be sent
// are dropped where the command ends: see session.exec. In a transaction, OFF and SKIP are refused: they would take
// the rest of EXEC's reply away, and Redis sends the beginning of it.
func cmdClientReply(s *session, a [][]byte) error {
	switch {
	case s.multi && (proto.Is(a[2], "off") || proto.Is(a[2], "skip")):
		return errNotInMulti
	case proto.Is(a[2], "on"):
		s.mute = muteNone
		s.OK()
	case proto.Is(a[2], "off"):
		s.mute = muteAll
	case proto.Is(a[2], "skip"):
		if s.mute != muteAll {
			s.mute = muteNext
		}
	default:
		return reply.ErrSyntax
	}
	return nil
}

// What CLIENT REPLY has asked for.
const (
	muteNone uint8 = iota
	muteThis       // the reply of the command that runs
	muteNext       // the reply of the next command, too
	muteAll
)
