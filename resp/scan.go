package resp

import (
	"bytes"
	"strconv"

	"polder/far"
	"polder/resp/glob"
	"polder/resp/proto"
	"polder/resp/reply"
)

func itoa(v int64) string { return strconv.FormatInt(v, 10) }

// scanOptions are those of SCAN and HSCAN.
type scanOptions struct {
	match glob.Pattern // nil: everything
	count int
	typ   []byte
}

func parseScan(a [][]byte, types bool) (o scanOptions, err error) {
	o.count = 10
	var pattern []byte
	for i := 0; i < len(a); i += 2 {
		if i+1 == len(a) {
			return o, reply.ErrSyntax
		}
		switch {
		case proto.Is(a[i], "count"):
			n, ok := proto.ParseInt(a[i+1])
			if !ok {
				return o, reply.ErrNotInt
			}
			if n < 1 {
				return o, reply.ErrSyntax
			}
			o.count = int(min(n, 1<<20))
		case proto.Is(a[i], "match"):
			pattern = a[i+1]
		case types && proto.Is(a[i], "type"):
			o.typ = a[i+1]
		default:
			return o, reply.ErrSyntax
		}
	}
	if pattern != nil {
		o.match, err = glob.Compile(pattern)
	}
	return o, err
}

// parseCursor reads a cursor as strtoul does: nothing is 0, and a minus sign
// counts backwards.
func parseCursor(b []byte) (uint64, error) {
	if len(b) == 0 {
		return 0, nil
	}
	digits := bytes.TrimPrefix(b, []byte("-"))
	if len(digits) == len(b) {
		digits = bytes.TrimPrefix(b, []byte("+"))
	}
	cur, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil {
		return 0, reply.ErrCursor
	}
	if b[0] == '-' {
		cur = -cur
	}
	return cur, nil
}

// keyList collects keys during a scan.
type keyList struct {
	buf  []byte
	ends []int
}

func (l *keyList) add(key []byte) {
	l.buf = append(l.buf, key...)
	l.ends = append(l.ends, len(l.buf))
}

func (l *keyList) at(i int) []byte {
	start := 0
	if i > 0 {
		start = l.ends[i-1]
	}
	return l.buf[start:l.ends[i]]
}

// scanStep adds the keys that want reports true for to l. Those that a step yields before it fails are taken back.
func (s *session) scanStep(cursor uint64, l *keyList, want func(key []byte, e far.Entry) bool) (uint64, error) {
	buf, ends := len(l.buf), len(l.ends)
	next, err := s.Scan(cursor, func(key []byte, e far.Entry) {
		if want(key, e) {
			l.add(key)
		}
	})
	if err != nil {
		l.buf, l.ends = l.buf[:buf], l.ends[:ends]
	}
	return next, err
}

func cmdScan(s *session, a [][]byte) error {
	cursor, err := parseCursor(a[1])
	if err != nil {
		return err
	}
	o, err := parseScan(a[2:], true)
	if err != nil {
		return err
	}
	var l keyList
	seen := 0
	at, first := s.cursorIn(cursor)
	cursor = 0
	err = s.each(first, func(number int) (done bool, err error) {
		if number > first {
			at = 0
		}
		for seen < o.count {
			at, err = s.scanStep(at, &l, func(key []byte, e far.Entry) bool {
				seen++
				return (o.match == nil || o.match.Match(key)) && (o.typ == nil || proto.Is(o.typ, typeName(e.Tag)))
			})
			if err == nil {
				err = s.fits(&l)
			}
			if err != nil {
				return true, err
			}
			seen++ // empty steps count too
			if at == 0 {
				cursor = s.cursorOf(0, number+1)
				return false, nil
			}
		}
		cursor = s.cursorOf(at, number)
		return true, nil
	})
	if err != nil {
		return err
	}
	s.Array(2)
	s.Str(strconv.FormatUint(cursor, 10))
	return s.replyKeys(&l)
}

// A cursor of a server of partitions has the number of the partition below that of a step in it.
const cursorPartBits = 10

// cursorIn is the step, and the partition, of a cursor.
func (s *session) cursorIn(cursor uint64) (at uint64, number int) {
	if s.srv.parts == nil {
		return cursor, 0
	}
	return cursor >> cursorPartBits, int(cursor & (1<<cursorPartBits - 1))
}

// cursorOf is the cursor of a step in a partition: 0 behind the last one.
func (s *session) cursorOf(at uint64, number int) uint64 {
	switch {
	case s.srv.parts == nil:
		return at
	case number >= len(s.srv.parts):
		return 0
	}
	return at<<cursorPartBits | uint64(number)
}

func cmdKeys(s *session, a [][]byte) error {
	pattern, err := glob.Compile(a[1])
	if err != nil {
		return err
	}
	var l keyList
	err = s.each(0, func(int) (bool, error) {
		for cursor := uint64(0); ; {
			if cursor, err = s.scanStep(cursor, &l, func(key []byte, e far.Entry) bool { return pattern.Match(key) }); err == nil {
				err = s.fits(&l)
			}
			if err != nil || cursor == 0 {
				return false, err
			}
		}
	})
	if err != nil {
		return err
	}
	return s.replyKeys(&l)
}

// fits fails a command that has collected more than it may reply.
func (s *session) fits(l *keyList) error {
	if len(l.buf) > s.srv.cfg.maxReply() {
		return reply.ErrOutput
	}
	return nil
}

func (s *session) replyKeys(l *keyList) error {
	s.Array(len(l.ends))
	for i := range l.ends {
		s.Bulk(l.at(i))
	}
	return s.Over()
}
