package resp

import (
	"strings"

	"polder/resp/proto"
)

func cmdPing(s *session, a [][]byte) error {
	subscriber := s.ver == 2 && s.subs.len() > 0 // who tells replies from messages by their shape
	if subscriber && len(a) <= 2 {
		s.array(2)
		s.str("pong")
	}
	switch {
	case len(a) == 1 && subscriber:
		s.str("")
	case len(a) == 1:
		s.status("PONG")
	case len(a) == 2:
		s.bulk(a[1])
	default:
		return replyError("ERR wrong number of arguments for 'ping' command")
	}
	return nil
}

func cmdEcho(s *session, a [][]byte) error {
	s.bulk(a[1])
	return nil
}

func cmdSelect(s *session, a [][]byte) error {
	err := checkDB(a[1])
	if err == errDBIndex && s.front.parts != nil {
		return errSelect
	}
	if err == nil {
		s.ok()
	}
	return err
}

// checkDB refuses all databases but 0.
func checkDB(arg []byte) error {
	db, ok := proto.ParseInt(arg)
	switch {
	case !ok:
		return errNotInt
	case db != int64(int32(db)):
		return errNotInt32
	case db != 0:
		return errDBIndex
	}
	return nil
}

func cmdQuit(s *session, a [][]byte) error {
	s.ok()
	s.ending = true
	return nil
}

func cmdReset(s *session, a [][]byte) error {
	s.endMulti()
	s.endFeed()
	s.mute, s.replica = muteNone, replica{}
	s.ver = 2
	s.info.ver.Store(2)
	s.info.name.Store(nil)
	s.authed = s.srv.password() == ""
	s.parser.Unauth = !s.authed
	s.status("RESET")
	return nil
}

func cmdAuth(s *session, a [][]byte) error {
	user, pass := []byte("default"), a[1]
	switch {
	case len(a) > 3:
		return errSyntax
	case len(a) == 3:
		user, pass = a[1], a[2]
	case s.srv.password() == "":
		return errNoPassword
	}
	if err := s.login(user, pass); err != nil {
		return err
	}
	s.ok()
	return nil
}

func cmdHello(s *session, a [][]byte) error {
	ver := s.ver
	var name []byte
	if len(a) > 1 {
		v, ok := proto.ParseInt(a[1])
		if !ok {
			return replyError("ERR Protocol version is not an integer or out of range")
		}
		if v < 2 || v > 3 {
			return replyError("NOPROTO unsupported protocol version")
		}
		ver = int(v)
	}
	for i := 2; i < len(a); i++ {
		switch more := len(a) - 1 - i; {
		case is(a[i], "auth") && more >= 2:
			if err := s.login(a[i+1], a[i+2]); err != nil {
				return err
			}
			i += 2
		case is(a[i], "setname") && more >= 1:
			name = a[i+1]
			if !validName(name) {
				return errClientName
			}
			i++
		default:
			return replyError("ERR Syntax error in HELLO option '" + clip(a[i], len(a[i])) + "'")
		}
	}
	if !s.authed {
		return replyError("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time")
	}
	if name != nil {
		s.setName(name)
	}
	s.ver = ver
	s.info.ver.Store(int32(ver))
	s.mapHead(7)
	s.str("server")
	s.str("redis")
	s.str("version")
	s.str(redisVersion)
	s.str("proto")
	s.int(int64(ver))
	s.str("id")
	s.int(s.info.id)
	s.str("mode")
	s.str(s.srv.mode())
	s.str("role")
	if s.srv.masterNow().Self {
		s.str("master")
	} else {
		s.str("replica")
	}
	s.str("modules")
	s.array(0)
	return nil
}

// cmdHelp lists the subcommands of a container.
func cmdHelp(s *session, a [][]byte) error {
	c := find(s.srv.table.by, a[0])
	names := sortedNames(c.subs)
	s.array(len(names) + 1)
	s.status(strings.ToUpper(c.name) + " <subcommand> [<arg> [value] [opt] ...]. Subcommands are:")
	for _, n := range names {
		s.status(strings.ToUpper(n))
	}
	return nil
}
