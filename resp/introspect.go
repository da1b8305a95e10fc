package resp

import (
	"strings"

	"polder/resp/proto"
)

func cmdCommand(s *session, a [][]byte) error {
	names := sortedNames(s.srv.table.by)
	s.array(len(names))
	for _, n := range names {
		s.describe(s.srv.table.by[n])
	}
	return nil
}

func cmdCommandCount(s *session, a [][]byte) error {
	s.int(int64(len(s.srv.table.by)))
	return nil
}

func cmdCommandInfo(s *session, a [][]byte) error {
	if len(a) == 2 {
		return cmdCommand(s, a)
	}
	s.array(len(a) - 2)
	for _, n := range a[2:] {
		if c := s.srv.table.full(n); c != nil {
			s.describe(c)
		} else {
			s.out = proto.AppendNullArray(s.out, s.ver)
		}
		if err := s.over(); err != nil {
			return err
		}
	}
	return nil
}

func cmdCommandList(s *session, a [][]byte) error {
	names := sortedNames(s.srv.table.by)
	s.array(len(names))
	for _, n := range names {
		s.str(n)
	}
	return nil
}

// cmdCommandDocs gives the little that there is to say: the rest is in Redis's
// documentation.
func cmdCommandDocs(s *session, a [][]byte) error {
	var list []*command
	if len(a) == 2 {
		for _, n := range sortedNames(s.srv.table.by) {
			list = append(list, s.srv.table.by[n])
		}
	}
	for _, n := range a[2:] {
		if c := s.srv.table.full(n); c != nil {
			list = append(list, c)
		}
	}
	s.mapHead(len(list))
	for _, c := range list {
		s.str(c.name)
		s.mapHead(2)
		s.str("summary")
		s.str("As in Redis " + redisVersion)
		s.str("group")
		s.str(c.group)
		if err := s.over(); err != nil {
			return err
		}
	}
	return nil
}

func cmdCommandGetKeys(s *session, a [][]byte) error {
	c, err := s.srv.table.lookup(a[2:])
	if err != nil {
		if find(s.srv.table.by, a[2]) == nil {
			return replyError("ERR Invalid command specified")
		}
		return replyError("ERR Invalid number of arguments specified for command")
	}
	var keys [][]byte
	for k := range c.keys(a[2:]) {
		keys = append(keys, k)
	}
	if keys == nil {
		return replyError("ERR The command has no key arguments")
	}
	s.array(len(keys))
	for _, k := range keys {
		s.bulk(k)
	}
	return nil
}

// full finds "config" or "config|get".
func (t *table) full(name []byte) *command {
	parent, sub, nested := strings.Cut(string(name), "|")
	c := find(t.by, []byte(parent))
	if c != nil && nested {
		return find(c.subs, []byte(sub))
	}
	return c
}

// describe appends what COMMAND INFO says of a command.
func (s *session) describe(c *command) {
	s.array(10)
	s.str(c.name)
	s.int(int64(c.arity))
	var names []string
	for _, f := range flagNames {
		if c.flags&f.f != 0 {
			names = append(names, f.name)
		}
	}
	s.out = proto.AppendSet(s.out, s.ver, len(names))
	for _, n := range names {
		s.status(n)
	}
	s.int(int64(c.first))
	s.int(int64(c.last))
	s.int(int64(c.step))
	s.out = proto.AppendSet(s.out, s.ver, 1)
	s.status("@" + c.group)
	s.array(0) // tips
	s.array(0) // key specifications
	subs := sortedNames(c.subs)
	s.array(len(subs))
	for _, n := range subs {
		s.describe(c.subs[n])
	}
}
