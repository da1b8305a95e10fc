package resp

import (
	"slices"
	"strconv"

	"polder/far"
	"polder/resp/hashes"
	"polder/resp/proto"
	"polder/resp/reply"
)

// Redis keeps a hash in a listpack up to these limits.
const (
	listpackFields = 128
	listpackValue  = 64
)

// A hash is one entry up to these limits.
const (
	smallBytes  = 16 << 10
	smallFields = 512
)

// hash is a hash that a command works on.
type hash struct {
	key   []byte
	found bool
	e     far.Entry     // without its value
	list  hashes.List   // if it is small
	large *hashes.Large // if it is large
}

// hash loads the hash under key; errWrongType if that is no hash.
func (s *session) hash(key []byte) (h hash, err error) {
	e, found, err := s.get(key, s.scratch[:0])
	if err != nil {
		return h, err
	}
	h = hash{key: key, found: found, e: e}
	if !found {
		h.e.Tag = tagHash
		h.list = s.scratch[:0]
		return h, nil
	}
	if !isHash(e.Tag) {
		return h, reply.ErrWrongType
	}
	reuse(&s.scratch, e.Value)
	if e.Tag == tagLarge {
		if h.large = s.largeOf(key); h.large == nil {
			h = hash{key: key, e: far.Entry{Tag: tagHash}} // it has just expired and been swept
		}
		return h, nil
	}
	h.list = e.Value
	return h, nil
}

func (h *hash) len() int {
	if h.large != nil {
		return h.large.Count
	}
	return h.list.Len()
}

// field returns the value of a field, which is valid until the next call.
func (s *session) field(h *hash, field []byte) (v []byte, ok bool, err error) {
	l := h.list
	if h.large != nil {
		l, err = s.block(h.large, h.large.Bucket(s.srv.fieldHash(field)), s.scratch2[:0])
		if err != nil {
			return nil, false, err
		}
		reuse(&s.scratch2, l)
	}
	v, ok = l.Get(field)
	return v, ok, nil
}

// fields calls yield with all fields and values.
func (s *session) fields(h *hash, yield func(field, value []byte)) error {
	each := func(l hashes.List) error {
		for f, v := range l.All() {
			yield(f, v)
		}
		return s.Over()
	}
	if h.large != nil {
		return s.walk(h.large, each)
	}
	return each(h.list)
}

// replyFields replies with an aggregate: what one appends for each field. Its
// length is how many there were, not how many are counted in h: a length that is
// wrong would shift all replies that follow.
func (s *session) replyFields(h *hash, head func(n int), one func(field, value []byte)) error {
	start := len(s.Out)
	head(h.len())
	body := len(s.Out)
	n := 0
	if err := s.fields(h, func(f, v []byte) { n++; one(f, v) }); err != nil {
		return err
	}
	if n != h.len() {
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
	h, err := s.hash(a[1])
	if err != nil {
		return 0, err
	}
	n, err := s.setFields(&h, a[2:])
	return int64(n), err
}

func cmdHSetNX(s *session, a [][]byte) error {
	h, err := s.hash(a[1])
	if err != nil {
		return err
	}
	_, ok, err := s.field(&h, a[2])
	if err != nil {
		return err
	}
	if ok {
		s.Int(0)
		return nil
	}
	if _, err := s.setFields(&h, a[2:]); err != nil {
		return err
	}
	s.Int(1)
	return nil
}

func cmdHGet(s *session, a [][]byte) error {
	h, err := s.hash(a[1])
	if err != nil {
		return err
	}
	return s.replyField(&h, a[2])
}

func (s *session) replyField(h *hash, field []byte) error {
	v, ok, err := s.field(h, field)
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
	h, err := s.hash(a[1])
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
	h, err := s.hash(a[1])
	if err != nil {
		return err
	}
	return s.replyFields(&h, s.Map, func(f, v []byte) { s.Bulk(f); s.Bulk(v) })
}

func cmdHKeys(s *session, a [][]byte) error {
	h, err := s.hash(a[1])
	if err != nil {
		return err
	}
	return s.replyFields(&h, s.Array, func(f, _ []byte) { s.Bulk(f) })
}

func cmdHVals(s *session, a [][]byte) error {
	h, err := s.hash(a[1])
	if err != nil {
		return err
	}
	return s.replyFields(&h, s.Array, func(_, v []byte) { s.Bulk(v) })
}

func cmdHDel(s *session, a [][]byte) error {
	h, err := s.hash(a[1])
	if err != nil {
		return err
	}
	n, err := s.removeFields(&h, a[2:])
	if err == nil {
		s.Int(int64(n))
	}
	return err
}

func cmdHExists(s *session, a [][]byte) error {
	h, err := s.hash(a[1])
	if err != nil {
		return err
	}
	_, ok, err := s.field(&h, a[2])
	if err == nil {
		s.Bool(ok)
	}
	return err
}

func cmdHLen(s *session, a [][]byte) error {
	h, err := s.hash(a[1])
	if err == nil {
		s.Int(int64(h.len()))
	}
	return err
}

func cmdHStrLen(s *session, a [][]byte) error {
	h, err := s.hash(a[1])
	if err != nil {
		return err
	}
	v, _, err := s.field(&h, a[2])
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
	h, err := s.hash(a[1])
	if err != nil {
		return err
	}
	old, ok, err := s.field(&h, a[2])
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
	if _, err := s.setFields(&h, pairs{a[2], strconv.AppendInt(nil, sum, 10)}); err != nil {
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
	h, err := s.hash(a[1])
	if err != nil {
		return err
	}
	old, ok, err := s.field(&h, a[2])
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
	if _, err := s.setFields(&h, pairs{a[2], text}); err != nil {
		return err
	}
	s.Bulk(text)
	return nil
}
