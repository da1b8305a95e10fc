package resp

import (
	"math"
	"strconv"

	"polder/resp/keyspace"
	"polder/resp/proto"
	"polder/resp/reply"
)

func cmdIncr(s *session, a [][]byte) error { return s.incr(a[1], 1) }

func cmdDecr(s *session, a [][]byte) error { return s.incr(a[1], -1) }

func cmdIncrBy(s *session, a [][]byte) error {
	by, ok := proto.ParseInt(a[2])
	if !ok {
		return reply.ErrNotInt
	}
	return s.incr(a[1], by)
}

func cmdDecrBy(s *session, a [][]byte) error {
	by, ok := proto.ParseInt(a[2])
	if !ok {
		return reply.ErrNotInt
	}
	if by == math.MinInt64 {
		return reply.ErrDecrOverflow
	}
	return s.incr(a[1], -by)
}

func (s *session) incr(key []byte, by int64) error {
	e, found, err := s.GetString(key, s.Scratch[:0])
	if err != nil {
		return err
	}
	var v int64
	if found {
		keyspace.Reuse(&s.Scratch, e.Value)
		var ok bool
		if v, ok = proto.ParseInt(e.Value); !ok {
			return reply.ErrNotInt
		}
	}
	sum, ok := addInt(v, by)
	if !ok {
		return reply.ErrOverflow
	}
	e.Value = strconv.AppendInt(s.Scratch[:0], sum, 10)
	s.Scratch = e.Value
	e.Tag = keyspace.TagString
	if err := s.Put(key, e); err != nil {
		return err
	}
	s.Int(sum)
	return nil
}

// addInt adds without overflow.
func addInt(a, b int64) (int64, bool) {
	sum := a + b
	return sum, (sum > a) == (b > 0)
}

func cmdIncrByFloat(s *session, a [][]byte) error {
	e, found, err := s.GetString(a[1], s.Scratch[:0])
	if err != nil {
		return err
	}
	v := new(proto.LongDouble)
	if found {
		keyspace.Reuse(&s.Scratch, e.Value)
		var ok bool
		if v, ok = proto.ParseLongDouble(e.Value); !ok {
			return reply.ErrNotFloat
		}
	}
	by, ok := proto.ParseLongDouble(a[2])
	if !ok {
		return reply.ErrNotFloat
	}
	sum, ok := proto.AddLongDouble(v, by)
	if !ok {
		return reply.ErrNaN
	}
	e.Value = proto.AppendLongDouble(nil, sum)
	e.Tag = keyspace.TagText
	if err := s.Put(a[1], e); err != nil {
		return err
	}
	s.Bulk(e.Value)
	return nil
}
