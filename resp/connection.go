package resp

import (
	"time"

	"polder/resp/commands"
	"polder/resp/proto"
	"polder/resp/reply"
)

func cmdPing(s *session, a [][]byte) error {
	subscriber := s.Ver == 2 && s.subs.Any() // it tells replies from messages by their shape
	if subscriber && len(a) <= 2 {
		s.Array(2)
		s.Str("pong")
	}
	switch {
	case len(a) == 1 && subscriber:
		s.Str("")
	case len(a) == 1:
		s.Status("PONG")
	case len(a) == 2:
		s.Bulk(a[1])
	default:
		return reply.Error("ERR wrong number of arguments for 'ping' command")
	}
	return nil
}

func cmdEcho(s *session, a [][]byte) error {
	s.Bulk(a[1])
	return nil
}

func cmdSelect(s *session, a [][]byte) error {
	err := commands.CheckDB(a[1])
	if err == reply.ErrDBIndex && s.srv.parts != nil {
		return errSelect
	}
	if err == nil {
		s.OK()
	}
	return err
}

func cmdQuit(s *session, a [][]byte) error {
	s.OK()
	s.ending = true
	return nil
}

func cmdReset(s *session, a [][]byte) error {
	s.endMulti()
	s.endFeed()
	s.replica = replica{}
	if s.mute != muteThis { // the reply to RESET itself stays away
		s.mute = muteNone
	}
	s.redirect, s.strict = false, false
	s.Ver = 2
	s.info.ver.Store(2)
	s.info.name.Store(nil)
	s.authed = s.srv.password() == ""
	s.parser.Unauth = !s.authed
	s.Status("RESET")
	return nil
}

func cmdAuth(s *session, a [][]byte) error {
	user, pass := []byte("default"), a[1]
	switch {
	case len(a) > 3:
		return reply.ErrSyntax
	case len(a) == 3:
		user, pass = a[1], a[2]
	case s.srv.password() == "":
		return errNoPassword
	}
	if err := s.login(user, pass); err != nil {
		return err
	}
	s.OK()
	return nil
}

func cmdHello(s *session, a [][]byte) error {
	ver := s.Ver
	var name []byte
	if len(a) > 1 {
		v, ok := proto.ParseInt(a[1])
		if !ok {
			return reply.Error("ERR Protocol version is not an integer or out of range")
		}
		if v < 2 || v > 3 {
			return reply.Error("NOPROTO unsupported protocol version")
		}
		ver = int(v)
	}
	for i := 2; i < len(a); i++ {
		switch more := len(a) - 1 - i; {
		case proto.Is(a[i], "auth") && more >= 2:
			if err := s.login(a[i+1], a[i+2]); err != nil {
				return err
			}
			i += 2
		case proto.Is(a[i], "setname") && more >= 1:
			name = a[i+1]
			if !validName(name) {
				return errClientName
			}
			i++
		default:
			return reply.Error("ERR Syntax error in HELLO option '" + proto.Clip(a[i], len(a[i])) + "'")
		}
	}
	if !s.authed {
		return reply.Error("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time")
	}
	if name != nil {
		s.setName(name)
	}
	s.Ver = ver
	s.info.ver.Store(int32(ver))
	s.Map(7)
	s.Str("server")
	s.Str("redis")
	s.Str("version")
	s.Str(proto.RedisVersion)
	s.Str("proto")
	s.Int(int64(ver))
	s.Str("id")
	s.Int(s.info.id)
	s.Str("mode")
	s.Str(s.srv.mode())
	s.Str("role")
	if s.srv.masterNow().Self {
		s.Str("master")
	} else {
		s.Str("replica")
	}
	s.Str("modules")
	s.Array(0)
	return nil
}

func cmdTime(s *session, a [][]byte) error {
	now := time.Now()
	s.Array(2)
	s.Str(itoa(now.Unix()))
	s.Str(itoa(int64(now.Nanosecond() / 1000)))
	return nil
}
