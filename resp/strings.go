package resp

import (
	"time"

	"polder/far"
	"polder/resp/keyspace"
	"polder/resp/proto"
	"polder/resp/reply"
)

// replyString appends the value of a string key as a bulk string, or the null
// reply. The value is copied once, from the map to out: room for its header is
// left in front of it, as much as the last value needed. A large one is given memory of
// its size.
func (s *session) replyString(key []byte) (e far.Entry, found bool, err error) {
	const blank = "$0123456789012\r\n"
	start, size := len(s.Out), 0
	s.Out = append(s.Out, blank[:s.hdr]...)
	e, size, found, err = s.GetInto(key, s.Out)
	if size > 0 && err == nil {
		s.hdr = proto.BulkHeaderLen(size)
		if s.Out = s.Out[:start]; start-s.Mark+s.hdr+size+2 > s.Limit {
			return e, false, reply.ErrOutput
		}
		start = s.Room(s.hdr + size + 2)
		s.Out = append(s.Out, blank[:s.hdr]...)
		e, _, found, err = s.GetInto(key, s.Out)
	}
	if err != nil || !found {
		if s.Out = s.Out[:start]; err == nil {
			s.Null()
		}
		return e, false, err
	}
	if !keyspace.IsString(e.Tag) {
		s.Out = s.Out[:start]
		return e, false, reply.ErrWrongType
	}
	out := e.Value
	n := len(out) - start - s.hdr
	if hdr := proto.BulkHeaderLen(n); hdr != s.hdr {
		if hdr > s.hdr {
			out = append(out, blank[:hdr-s.hdr]...)
		}
		copy(out[start+hdr:], out[start+s.hdr:start+s.hdr+n])
		out = out[:start+hdr+n]
		s.hdr = hdr
	}
	proto.PutBulkHeader(out[start:], n)
	e.Value = out[start+s.hdr:]
	s.Out = append(out, '\r', '\n')
	return e, true, s.Over()
}

func cmdGet(s *session, a [][]byte) error {
	_, _, err := s.replyString(a[1])
	return err
}

func cmdGetDel(s *session, a [][]byte) error {
	_, found, err := s.replyString(a[1])
	if err != nil || !found {
		return err
	}
	_, err = s.Del(a[1])
	return err
}

func cmdGetSet(s *session, a [][]byte) error {
	if _, _, err := s.replyString(a[1]); err != nil {
		return err
	}
	return s.Put(a[1], far.Entry{Value: a[2]})
}

func cmdGetEx(s *session, a [][]byte) error {
	o, err := parseSetOptions(a[2:], optEx|optPersist)
	if err != nil {
		return err
	}
	s.Reads = true
	e, found, err := s.GetString(a[1], s.Scratch[:0])
	if err != nil || !found {
		if err == nil {
			s.Null()
		}
		return err
	}
	keyspace.Reuse(&s.Scratch, e.Value)
	at, err := o.expireTime("getex")
	if err != nil {
		return err
	}
	s.Bulk(e.Value)
	switch {
	case o.flags&optAt != 0 && at <= nowMilli():
		_, err = s.Del(a[1])
	case o.flags&optEx != 0:
		e.Expire = expireAt(at)
		err = s.Put(a[1], e)
	case o.flags&optPersist != 0 && !e.Expire.IsZero():
		e.Expire = time.Time{}
		err = s.Put(a[1], e)
	}
	return err
}

func cmdSet(s *session, a [][]byte) error {
	if len(a) == 3 {
		// Fast path: nothing but key and value.
		if err := s.Put(a[1], far.Entry{Value: a[2]}); err != nil {
			return err
		}
		s.OK()
		return nil
	}
	o, err := parseSetOptions(a[3:], optNX|optXX|optGet|optKeepTTL|optEx)
	if err != nil {
		return err
	}
	at, err := o.expireTime("set")
	if err != nil {
		return err
	}
	return s.setWith(a[1], a[2], o, at, "+OK\r\n", false)
}

// setWith is SET with options, and what is like it.
func (s *session) setWith(key, value []byte, o setOptions, at int64, okReply string, intReply bool) error {
	var old far.Entry
	found := false
	var err error
	switch {
	case o.flags&optGet != 0:
		old, found, err = s.replyString(key)
	case o.flags&(optNX|optXX|optKeepTTL) != 0:
		old, _, found, err = s.Stat(key)
	}
	if err != nil {
		return err
	}
	if o.flags&optNX != 0 && found || o.flags&optXX != 0 && !found {
		switch {
		case o.flags&optGet != 0:
		case intReply:
			s.Int(0)
		default:
			s.Null()
		}
		return nil
	}
	e := far.Entry{Value: value}
	switch {
	case o.flags&optEx != 0:
		e.Expire = expireAt(at)
	case o.flags&optKeepTTL != 0:
		e.Expire = old.Expire
	}
	if o.flags&optEx != 0 && at <= nowMilli() {
		_, err = s.Del(key) // as good as set and expired
	} else {
		err = s.Put(key, e)
	}
	if err == nil && o.flags&optGet == 0 {
		s.Out = append(s.Out, okReply...)
	}
	return err
}

func cmdSetNX(s *session, a [][]byte) error {
	return s.setWith(a[1], a[2], setOptions{flags: optNX}, 0, ":1\r\n", true)
}

func cmdSetEX(s *session, a [][]byte) error { return setExpiring(s, a, optEx, "setex") }

func cmdPSetEX(s *session, a [][]byte) error { return setExpiring(s, a, optEx|optMilli, "psetex") }

func setExpiring(s *session, a [][]byte, f optFlags, name string) error {
	o := setOptions{flags: f, expire: a[2]}
	at, err := o.expireTime(name)
	if err != nil {
		return err
	}
	return s.setWith(a[1], a[3], o, at, "+OK\r\n", false)
}

func cmdMGet(s *session, a [][]byte) error {
	s.Array(len(a) - 1)
	for _, key := range a[1:] {
		if _, _, err := s.replyString(key); err == reply.ErrWrongType {
			s.Null()
		} else if err != nil {
			return err
		}
		if err := s.Over(); err != nil {
			return err
		}
	}
	return nil
}

func cmdMSet(s *session, a [][]byte) error {
	if err := s.setPairs(a, "mset"); err != nil {
		return err
	}
	s.OK()
	return nil
}

func cmdMSetNX(s *session, a [][]byte) error {
	if len(a)%2 == 0 {
		return reply.Error("ERR wrong number of arguments for 'msetnx' command")
	}
	for i := 1; i < len(a); i += 2 {
		_, _, found, err := s.Stat(a[i])
		if err != nil {
			return err
		}
		if found {
			s.Int(0)
			return nil
		}
	}
	if err := s.setPairs(a, "msetnx"); err != nil {
		return err
	}
	s.Int(1)
	return nil
}

func (s *session) setPairs(a [][]byte, name string) error {
	if len(a)%2 == 0 {
		return reply.Error("ERR wrong number of arguments for '" + name + "' command")
	}
	for i := 1; i < len(a); i += 2 {
		if len(a[i]) > far.MaxKeySize {
			return reply.ErrKeyTooLong
		}
	}
	if len(a) > 3 {
		s.Begin()
	}
	for i := 1; i < len(a); i += 2 {
		if err := s.Put(a[i], far.Entry{Value: a[i+1]}); err != nil {
			return err
		}
	}
	return nil
}

func cmdStrLen(s *session, a [][]byte) error {
	e, size, found, err := s.Stat(a[1])
	switch {
	case err != nil:
		return err
	case found && !keyspace.IsString(e.Tag):
		return reply.ErrWrongType
	}
	s.Int(int64(size))
	return nil
}

func cmdAppend(s *session, a [][]byte) error {
	e, found, err := s.GetString(a[1], s.Scratch[:0])
	if err != nil {
		return err
	}
	if !found {
		e = far.Entry{Value: a[2]}
	} else {
		if len(e.Value)+len(a[2]) > s.srv.cfg.MaxBulk {
			return reply.ErrTooLong
		}
		e.Value = append(e.Value, a[2]...)
		e.Tag = keyspace.TagRaw
		keyspace.Reuse(&s.Scratch, e.Value)
	}
	if err := s.Put(a[1], e); err != nil {
		return err
	}
	s.Int(int64(len(e.Value)))
	return nil
}

func cmdGetRange(s *session, a [][]byte) error {
	start, ok1 := proto.ParseInt(a[2])
	end, ok2 := proto.ParseInt(a[3])
	if !ok1 || !ok2 {
		return reply.ErrNotInt
	}
	e, found, err := s.GetString(a[1], s.Scratch[:0])
	if err != nil {
		return err
	}
	n := int64(len(e.Value))
	if !found || start < 0 && end < 0 && start > end {
		s.Str("")
		return nil
	}
	keyspace.Reuse(&s.Scratch, e.Value)
	if start < 0 {
		start = max(0, start+n)
	}
	if end < 0 {
		end = max(0, end+n)
	}
	end = min(end, n-1)
	if start > end || n == 0 {
		s.Str("")
		return nil
	}
	s.Bulk(e.Value[start : end+1])
	return nil
}

func cmdSetRange(s *session, a [][]byte) error {
	off, ok := proto.ParseInt(a[2])
	if !ok {
		return reply.ErrNotInt
	}
	if off < 0 {
		return reply.ErrOffset
	}
	e, found, err := s.GetString(a[1], s.Scratch[:0])
	if err != nil {
		return err
	}
	if len(a[3]) == 0 {
		s.Int(int64(len(e.Value)))
		return nil
	}
	if off > int64(s.srv.cfg.MaxBulk) || off+int64(len(a[3])) > int64(s.srv.cfg.MaxBulk) {
		return reply.ErrTooLong
	}
	if !found {
		e.Value = s.Scratch[:0]
	}
	end := int(off) + len(a[3])
	for len(e.Value) < end {
		e.Value = append(e.Value, make([]byte, end-len(e.Value))...)
	}
	copy(e.Value[off:], a[3])
	e.Tag = keyspace.TagRaw
	keyspace.Reuse(&s.Scratch, e.Value)
	if err := s.Put(a[1], e); err != nil {
		return err
	}
	s.Int(int64(len(e.Value)))
	return nil
}
