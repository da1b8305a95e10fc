package resp

import (
	"errors"
	"math/rand/v2"
	"time"

	"polder/far"
	"polder/resp/hashes"
	"polder/resp/keyspace"
	"polder/resp/proto"
	"polder/resp/reply"
)

func cmdDel(s *session, a [][]byte) error {
	n, err := s.DelMany(a[1:])
	if err == nil {
		s.Int(n)
	}
	return err
}

func cmdExists(s *session, a [][]byte) error {
	n := int64(0)
	for _, key := range a[1:] {
		_, _, found, err := s.Stat(key)
		if err != nil {
			return err
		}
		if found {
			n++
		}
	}
	s.Int(n)
	return nil
}

func typeName(tag uint8) string {
	if keyspace.IsHash(tag) {
		return "hash"
	}
	return "string"
}

func cmdType(s *session, a [][]byte) error {
	e, _, found, err := s.Stat(a[1])
	switch {
	case err != nil:
		return err
	case !found:
		s.Status("none")
	default:
		s.Status(typeName(e.Tag))
	}
	return nil
}

func cmdRename(s *session, a [][]byte) error {
	_, err := s.rename(a[1], a[2], false)
	if err == nil {
		s.OK()
	}
	return err
}

func cmdRenameNX(s *session, a [][]byte) error {
	done, err := s.rename(a[1], a[2], true)
	if err == nil {
		s.Bool(done)
	}
	return err
}

func (s *session) rename(src, dst []byte, nx bool) (bool, error) {
	e, found, err := s.Get(src, s.Scratch[:0])
	if err != nil {
		return false, err
	}
	if !found {
		return false, reply.ErrNoKey
	}
	keyspace.Reuse(&s.Scratch, e.Value)
	if string(src) == string(dst) {
		return !nx, nil
	}
	if nx {
		if _, _, found, err = s.Stat(dst); err != nil || found {
			return false, err
		}
	}
	s.Begin()
	h := s.LargeOf(src)
	if len(dst) > far.MaxKeySize {
		return false, reply.ErrKeyTooLong
	}
	if h == nil {
		if _, err := s.Del(src); err != nil {
			return false, err
		}
		return true, s.Put(dst, e)
	}
	return true, s.MoveLarge(src, dst, h, e)
}

func cmdCopy(s *session, a [][]byte) error {
	replace := false
	for i := 3; i < len(a); i++ {
		switch {
		case proto.Is(a[i], "replace"):
			replace = true
		case proto.Is(a[i], "db") && i+1 < len(a):
			i++
			if err := checkDB(a[i]); err != nil {
				return err
			}
		default:
			return reply.ErrSyntax
		}
	}
	if string(a[1]) == string(a[2]) {
		return reply.ErrSameObject
	}
	e, found, err := s.Get(a[1], s.Scratch[:0])
	if err != nil {
		return err
	}
	if !found {
		s.Int(0)
		return nil
	}
	keyspace.Reuse(&s.Scratch, e.Value)
	if !replace {
		if _, _, found, err = s.Stat(a[2]); err != nil {
			return err
		}
		if found {
			s.Int(0)
			return nil
		}
	}
	if h := s.LargeOf(a[1]); h != nil {
		err = s.CopyLarge(h, a[1], a[2], e)
	} else {
		err = s.Put(a[2], e)
	}
	if err == nil {
		s.Int(1)
	}
	return err
}

// randomTries is how many keys RANDOMKEY looks at for one that is there.
const randomTries = 100

func cmdRandomKey(s *session, a [][]byte) error {
	found := false
	pick := func(int) (done bool, err error) {
		found, err = s.randomKey()
		return found, err
	}
	err := s.each(rand.IntN(max(1, len(s.srv.parts))), pick)
	if err == nil && !found && s.srv.parts != nil {
		err = s.each(0, pick)
	}
	if err == nil && !found {
		s.Null()
	}
	return err
}

// randomKey replies with any key, if it has found one.
func (s *session) randomKey() (bool, error) {
	for range randomTries {
		key, err := s.Random(s.Scratch[:0])
		if errors.Is(err, far.ErrNotFound) {
			break
		}
		if err != nil {
			return false, err
		}
		keyspace.Reuse(&s.Scratch, key)
		if _, _, found, err := s.Stat(key); err == nil && found {
			s.Bulk(key)
			return true, nil
		} else if errors.Is(err, far.ErrWouldBlock) {
			return false, err
		}
	}
	return false, nil
}

func cmdDBSize(s *session, a [][]byte) error {
	n := 0
	err := s.each(0, func(int) (bool, error) {
		n += s.Space.Len()
		return false, nil
	})
	s.Int(int64(n))
	return err
}

func cmdFlush(s *session, a [][]byte) error {
	if len(a) > 2 || len(a) == 2 && !proto.Is(a[1], "sync") && !proto.Is(a[1], "async") {
		return reply.ErrSyntax
	}
	if err := s.Flush(); err != nil {
		return err
	}
	s.OK()
	return nil
}

func lockEverything(*session) bool { return true }

// objectMaxInt is how long a string may be that Redis keeps as an integer.
const objectMaxInt = 20

// embedMax is the length up to which Redis embeds a string in its object.
const embedMax = 44

func encoding(e far.Entry) string {
	switch e.Tag {
	case keyspace.TagHash:
		return "listpack"
	case keyspace.TagTable, keyspace.TagLarge:
		return "hashtable"
	}
	if e.Tag == keyspace.TagString && len(e.Value) <= objectMaxInt {
		if _, ok := proto.ParseInt(e.Value); ok {
			return "int"
		}
	}
	if e.Tag != keyspace.TagRaw && len(e.Value) <= embedMax {
		return "embstr"
	}
	return "raw"
}

// object looks up the key of an OBJECT command; a missing one gets the null
// reply.
func (s *session) object(key []byte) (far.Entry, bool, error) {
	e, found, err := s.Get(key, s.Scratch[:0])
	if err == nil && !found {
		s.Null()
	}
	keyspace.Reuse(&s.Scratch, e.Value)
	return e, found, err
}

func cmdObjectEncoding(s *session, a [][]byte) error {
	e, found, err := s.object(a[2])
	if found {
		s.Str(encoding(e))
	}
	return err
}

func cmdObjectRefcount(s *session, a [][]byte) error {
	_, found, err := s.object(a[2])
	if found {
		s.Int(1)
	}
	return err
}

func cmdObjectIdletime(s *session, a [][]byte) error {
	_, found, err := s.object(a[2])
	if found {
		s.Int(0)
	}
	return err
}

func cmdObjectFreq(s *session, a [][]byte) error {
	_, found, err := s.object(a[2])
	if found {
		return reply.Error("ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.")
	}
	return err
}

// entryOverhead is what an entry costs beside key and value: its place in the
// index and its header in the log.
const entryOverhead = 16 + 24

func cmdMemoryUsage(s *session, a [][]byte) error {
	for i := 3; i < len(a); i++ {
		if !proto.Is(a[i], "samples") || i+1 == len(a) {
			return reply.ErrSyntax
		}
		i++
		if n, ok := proto.ParseInt(a[i]); !ok {
			return reply.ErrNotInt
		} else if n < 0 {
			return reply.ErrSyntax
		}
	}
	e, size, found, err := s.Stat(a[2])
	if err != nil {
		return err
	}
	if !found {
		s.Null()
		return nil
	}
	if e.Tag == keyspace.TagLarge {
		if h := s.LargeOf(a[2]); h != nil {
			size += h.Bytes + int(h.Buckets)*(entryOverhead+hashes.BlockKeyLen)
		}
	}
	s.Int(int64(len(a[2]) + size + entryOverhead))
	return nil
}

func cmdTime(s *session, a [][]byte) error {
	now := time.Now()
	s.Array(2)
	s.Str(itoa(now.Unix()))
	s.Str(itoa(int64(now.Nanosecond() / 1000)))
	return nil
}
