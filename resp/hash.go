package resp

import (
	"slices"
	"strconv"

	"polder/resp/keyspace"
	"polder/resp/proto"
	"polder/resp/reply"
)

// replyFields replies with an aggregate: what one appends for each field. Its
// length is how many there were, not how many are counted in h: a length that is
// wrong would shift all replies that follow.
func (s *session) replyFields(h *keyspace.Hash, head func(n int), one func(field, value []byte)) error {
	start := len(s.Out)
	head(h.Len())
	body := len(s.Out)
	n := 0
	if err := s.Fields(h, func(f, v []byte) error { n++; one(f, v); return s.Over() }); err != nil {
		return err
	}
	if n != h.Len() {
		rest := slices.Clone(s.Out[body:])
		s.Out = s.Out[:start]
		head(n)
		s.Out = append(s.Out, rest...)
	}
	return nil
}

func cmdHSet(s *session, a [][]byte) error {
	n, err := s.hset(a, "hset")
	if err == nil {
		s.Int(n)
	}
	return err
}

func cmdHMSet(s *session, a [][]byte) error {
	_, err := s.hset(a, "hmset")
	if err == nil {
		s.OK()
	}
	return err
}

func (s *session) hset(a [][]byte, name string) (int64, error) {
	if len(a)%2 == 1 {
		return 0, reply.Error("ERR wrong number of arguments for '" + name + "' command")
	}
	h, err := s.Hash(a[1])
	if err != nil {
		return 0, err
	}
	n, err := s.SetFields(&h, a[2:])
	return int64(n), err
}

func cmdHSetNX(s *session, a [][]byte) error {
	h, err := s.Hash(a[1])
	if err != nil {
		return err
	}
	_, ok, err := s.Field(&h, a[2])
	if err != nil {
		return err
	}
	if ok {
		s.Int(0)
		return nil
	}
	if _, err := s.SetFields(&h, a[2:]); err != nil {
		return err
	}
	s.Int(1)
	return nil
}

func cmdHGet(s *session, a [][]byte) error {
	h, err := s.Hash(a[1])
	if err != nil {
		return err
	}
	return s.replyField(&h, a[2])
}

func (s *session) replyField(h *keyspace.Hash, field []byte) error {
	v, ok, err := s.Field(h, field)
	if err != nil {
		return err
	}
	if ok {
		s.Bulk(v)
	} else {
		s.Null()
	}
	return s.Over()
}

func cmdHMGet(s *session, a [][]byte) error {
	h, err := s.Hash(a[1])
	if err != nil {
		return err
	}
	s.Array(len(a) - 2)
	for _, f := range a[2:] {
		if err := s.replyField(&h, f); err != nil {
			return err
		}
	}
	return nil
}

func cmdHGetAll(s *session, a [][]byte) error {
	h, err := s.Hash(a[1])
	if err != nil {
		return err
	}
	return s.replyFields(&h, s.Map, func(f, v []byte) { s.Bulk(f); s.Bulk(v) })
}

func cmdHKeys(s *session, a [][]byte) error {
	h, err := s.Hash(a[1])
	if err != nil {
		return err
	}
	return s.replyFields(&h, s.Array, func(f, _ []byte) { s.Bulk(f) })
}

func cmdHVals(s *session, a [][]byte) error {
	h, err := s.Hash(a[1])
	if err != nil {
		return err
	}
	return s.replyFields(&h, s.Array, func(_, v []byte) { s.Bulk(v) })
}

func cmdHDel(s *session, a [][]byte) error {
	h, err := s.Hash(a[1])
	if err != nil {
		return err
	}
	n, err := s.RemoveFields(&h, a[2:])
	if err == nil {
		s.Int(int64(n))
	}
	return err
}

func cmdHExists(s *session, a [][]byte) error {
	h, err := s.Hash(a[1])
	if err != nil {
		return err
	}
	_, ok, err := s.Field(&h, a[2])
	if err == nil {
		s.Bool(ok)
	}
	return err
}

func cmdHLen(s *session, a [][]byte) error {
	h, err := s.Hash(a[1])
	if err == nil {
		s.Int(int64(h.Len()))
	}
	return err
}

func cmdHStrLen(s *session, a [][]byte) error {
	h, err := s.Hash(a[1])
	if err != nil {
		return err
	}
	v, _, err := s.Field(&h, a[2])
	if err == nil {
		s.Int(int64(len(v)))
	}
	return err
}

func cmdHIncrBy(s *session, a [][]byte) error {
	by, ok := proto.ParseInt(a[3])
	if !ok {
		return reply.ErrNotInt
	}
	h, err := s.Hash(a[1])
	if err != nil {
		return err
	}
	old, ok, err := s.Field(&h, a[2])
	if err != nil {
		return err
	}
	var v int64
	if ok {
		if v, ok = proto.ParseInt(old); !ok {
			return reply.ErrHashNotInt
		}
	}
	sum, ok := addInt(v, by)
	if !ok {
		return reply.ErrOverflow
	}
	if _, err := s.SetFields(&h, keyspace.Pairs{a[2], strconv.AppendInt(nil, sum, 10)}); err != nil {
		return err
	}
	s.Int(sum)
	return nil
}

func cmdHIncrByFloat(s *session, a [][]byte) error {
	by, ok := proto.ParseLongDouble(a[3])
	if !ok {
		return reply.ErrNotFloat
	}
	if by.IsInf() {
		return reply.Error("ERR value is NaN or Infinity")
	}
	h, err := s.Hash(a[1])
	if err != nil {
		return err
	}
	old, ok, err := s.Field(&h, a[2])
	if err != nil {
		return err
	}
	v := new(proto.LongDouble)
	if ok {
		if v, ok = proto.ParseLongDouble(old); !ok {
			return reply.ErrHashNotFloat
		}
	}
	sum, ok := proto.AddLongDouble(v, by)
	if !ok {
		return reply.ErrNaN
	}
	text := proto.AppendLongDouble(nil, sum)
	if _, err := s.SetFields(&h, keyspace.Pairs{a[2], text}); err != nil {
		return err
	}
	s.Bulk(text)
	return nil
}
