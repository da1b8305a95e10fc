package resp

import (
	"errors"
	"time"

	"polder/far"
	"polder/resp/proto"
	"polder/resp/reply"
)

// Tags of entries in the map of keys.
const (
	tagString uint8 = iota // a string
	tagText                // a string that Redis does not keep as an integer, even if it is one
	tagRaw                 // a string that Redis calls raw whatever its length
	tagHash                // a hash that Redis would keep in a listpack
	tagTable               // a hash that Redis would keep in a table, here one entry
	tagLarge               // a hash in blocks; the value is empty
)

func isHash(tag uint8) bool   { return tag >= tagHash }
func isString(tag uint8) bool { return tag <= tagRaw }

// get appends the value of key to dst. Found is false if there is no such key.
func (s *session) get(key, dst []byte) (e far.Entry, found bool, err error) {
	e, err = s.srv.keys.Get(s.ctx, key, dst)
	s.count(s.reads, err)
	if err == nil {
		if isHash(e.Tag) {
			if gone := s.struckOut(key); gone != nil {
				list := gone.Rest(0, e.Value[len(dst):])
				e.Value = e.Value[:len(dst)+len(list)]
			}
		}
		return e, true, nil
	}
	if errors.Is(err, far.ErrNotFound) {
		s.missed(key)
		return e, false, nil
	}
	return e, false, err
}

// lookups are the keys that the command that runs has looked up to read them, as Redis counts
// them: those that a write looks up count only if it replies with them (GETEX, GETDEL).
type lookups struct {
	reads        bool
	hits, misses int64
}

// count counts a lookup that ended with err, if its key is read.
func (l *lookups) count(read bool, err error) {
	switch {
	case !read:
	case err == nil:
		l.hits++
	case errors.Is(err, far.ErrNotFound):
		l.misses++
	}
}

// stat is get without the value.
func (s *session) stat(key []byte) (e far.Entry, size int, found bool, err error) {
	e, size, err = s.srv.keys.Stat(s.ctx, key)
	s.count(s.reads, err)
	if errors.Is(err, far.ErrNotFound) {
		s.missed(key)
		return e, size, false, nil
	}
	return e, size, err == nil, err
}

// missed notes that a key is not in the cache: if the client stores it next, the time
// until then is what the miss cost it. A command that writes tells its client nothing of
// that kind.
func (s *session) missed(key []byte) {
	if s.srv.cache != nil && !s.heldWrite {
		s.unstored.Missed(key, s.arrived)
	}
}

// put stores an entry under key. If it is that of a large hash, key leads to what it has led to.
func (s *session) put(key []byte, e far.Entry) error {
	err := s.store(key, e)
	if err == nil {
		s.note(opPut, e, key, e.Value)
	}
	return err
}

// store is put without a note in the journal.
func (s *session) store(key []byte, e far.Entry) error {
	if len(key) > far.MaxKeySize {
		return reply.ErrKeyTooLong
	}
	s.changing()
	var err error
	switch {
	case s.together:
		err = s.txn.Set(s.ctx, s.srv.entries, key, e)
	case s.srv.cache != nil:
		err = s.srv.cache.put(key, e, s.unstored.Stored(key, s.arrived))
	default:
		err = s.srv.keys.Set(s.ctx, key, e)
	}
	if err != nil {
		return err
	}
	s.changedKey(key)
	if e.Tag != tagLarge {
		s.lead(key, nil)
	}
	return nil
}

// del removes key and reports whether it was there.
func (s *session) del(key []byte) (bool, error) {
	ok, err := s.remove(key)
	if ok {
		s.note(opDel, far.Entry{}, key)
	}
	return ok, err
}

// remove is del without a note in the journal.
func (s *session) remove(key []byte) (bool, error) {
	s.changing()
	var ok bool
	var err error
	if s.together {
		ok, err = s.txn.Delete(s.ctx, s.srv.entries, key)
	} else {
		ok, err = s.srv.keys.Delete(s.ctx, key)
	}
	if err != nil {
		return false, err
	}
	if ok {
		s.changedKey(key)
	}
	s.lead(key, nil)
	return ok, nil
}

// delMany is del of keys, all or none of them, and returns how many were there.
func (s *session) delMany(keys [][]byte) (n int64, err error) {
	if len(keys) > 1 {
		s.begin()
	}
	if len(keys) == 1 || !s.together {
		for _, key := range keys {
			ok, err := s.del(key)
			if err != nil {
				return 0, err
			}
			if ok {
				n++
			}
		}
		return n, nil
	}
	gone := make([]bool, len(keys))
	if err := s.txn.DeleteMany(s.ctx, s.srv.entries, keys, gone); err != nil {
		return 0, err
	}
	for i, key := range keys {
		if gone[i] {
			n++
			s.changedKey(key)
			s.note(opDel, far.Entry{}, key)
		}
		s.lead(key, nil)
	}
	return n, nil
}

// stripe is the stripe of key, which the command has locked.
func (s *session) stripe(key []byte) *stripe {
	if len(s.held) == 1 {
		return &s.srv.stripes[s.held[0]]
	}
	return &s.srv.stripes[s.srv.stripeOf(key)]
}

// getString appends a string's value to dst; errWrongType if it is no string.
func (s *session) getString(key, dst []byte) (far.Entry, bool, error) {
	e, found, err := s.get(key, dst)
	if found && !isString(e.Tag) {
		return far.Entry{}, false, reply.ErrWrongType
	}
	return e, found, err
}

// replyString appends the value of a string key as a bulk string, or the null
// reply. The value is copied once, from the map to out: room for its header is
// left in front of it, as much as the last value needed. A large one is given memory of
// its size.
func (s *session) replyString(key []byte) (e far.Entry, found bool, err error) {
	const blank = "$0123456789012\r\n"
	start, size := len(s.Out), 0
	s.Out = append(s.Out, blank[:s.hdr]...)
	e, size, err = s.srv.keys.GetInto(s.ctx, key, s.Out)
	if size > 0 && err == nil {
		s.hdr = proto.BulkHeaderLen(size)
		if s.Out = s.Out[:start]; start-s.Mark+s.hdr+size+2 > s.srv.cfg.maxReply() {
			return e, false, reply.ErrOutput
		}
		start = s.Room(s.hdr + size + 2)
		s.Out = append(s.Out, blank[:s.hdr]...)
		e, _, err = s.srv.keys.GetInto(s.ctx, key, s.Out)
	}
	s.count(true, err)
	if err != nil {
		if s.Out = s.Out[:start]; errors.Is(err, far.ErrNotFound) {
			s.missed(key)
			s.Out, err = proto.AppendNull(s.Out, s.Ver), nil
		}
		return e, false, err
	}
	if !isString(e.Tag) {
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

// expireAt turns milliseconds since 1970 into a time.
func expireAt(ms int64) time.Time { return time.UnixMilli(ms) }

// reuse keeps a buffer for the next command, unless it has grown large or
// there is none.
func reuse(buf *[]byte, b []byte) {
	if cap(b) > 0 && cap(b) <= 64<<10 {
		*buf = b[:0]
	} else if cap(b) > 0 {
		*buf = nil
	}
}
