package resp

import (
	"strings"

	"polder/resp/proto"
	"polder/resp/reply"
)

func cmdCommand(s *session, a [][]byte) error {
	names := sortedNames(s.srv.table.by)
	s.Array(len(names))
	for _, n := range names {
		s.describe(s.srv.table.by[n])
	}
	return nil
}

func cmdCommandCount(s *session, a [][]byte) error {
	s.Int(int64(len(s.srv.table.by)))
	return nil
}

func cmdCommandInfo(s *session, a [][]byte) error {
	if len(a) == 2 {
		return cmdCommand(s, a)
	}
	s.Array(len(a) - 2)
	for _, n := range a[2:] {
		if c := s.srv.table.full(n); c != nil {
			s.describe(c)
		} else {
			s.Out = proto.AppendNullArray(s.Out, s.Ver)
		}
		if err := s.Over(); err != nil {
			return err
		}
	}
	return nil
}

func cmdCommandList(s *session, a [][]byte) error {
	names := sortedNames(s.srv.table.by)
	s.Array(len(names))
	for _, n := range names {
		s.Str(n)
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
	s.Map(len(list))
	for _, c := range list {
		s.Str(c.name)
		s.Map(2)
		s.Str("summary")
		s.Str("As in Redis " + redisVersion)
		s.Str("group")
		s.Str(c.group)
		if err := s.Over(); err != nil {
			return err
		}
	}
	return nil
}

func cmdCommandGetKeys(s *session, a [][]byte) error {
	c, err := s.srv.table.lookup(a[2:])
	if err != nil {
		if find(s.srv.table.by, a[2]) == nil {
			return reply.Error("ERR Invalid command specified")
		}
		return reply.Error("ERR Invalid number of arguments specified for command")
	}
	var keys [][]byte
	for k := range c.keys(a[2:]) {
		keys = append(keys, k)
	}
	if keys == nil {
		return reply.Error("ERR The command has no key arguments")
	}
	s.Array(len(keys))
	for _, k := range keys {
		s.Bulk(k)
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
	s.Array(10)
	s.Str(c.name)
	s.Int(int64(c.arity))
	var names []string
	for _, f := range flagNames {
		if c.flags&f.f != 0 {
			names = append(names, f.name)
		}
	}
	s.Out = proto.AppendSet(s.Out, s.Ver, len(names))
	for _, n := range names {
		s.Status(n)
	}
	s.Int(int64(c.first))
	s.Int(int64(c.last))
	s.Int(int64(c.step))
	s.Out = proto.AppendSet(s.Out, s.Ver, 1)
	s.Status("@" + c.group)
	s.Array(0) // tips
	s.Array(0) // key specifications
	subs := sortedNames(c.subs)
	s.Array(len(subs))
	for _, n := range subs {
		s.describe(c.subs[n])
	}
}
