package origin

import (
	"errors"

	"polder/resp/proto"
)

// errReply is for what is no reply of RESP2 or RESP3 as Redis sends them.
var errReply = errors.New("cannot understand the origin: it sent what is no reply")

// maxBulk is the longest string that an origin may send, Redis's own limit.
const maxBulk = 512 << 20

// skimmer finds where a reply ends, in pieces as they come. It keeps nothing of
// them. The zero value stands before a reply.
type skimmer struct {
	values int64    // still to come of the reply, without what the header at hand announces
	bulk   int64    // bytes of a string and its line's end, still to come
	kind   byte     // of the line that is being read; 0 between lines
	number [24]byte // of that line
	digits int
}

// idle reports whether s stands before a reply.
func (s *skimmer) idle() bool { return s.values == 0 && s.bulk == 0 && s.kind == 0 }

// skim takes the bytes of the reply at hand from b: n of them, and done says that it
// ends there.
func (s *skimmer) skim(b []byte) (n int, done bool, err error) {
	if s.idle() {
		s.values = 1
	}
	for n < len(b) {
		if s.bulk > 0 {
			k := min(s.bulk, int64(len(b)-n))
			n += int(k)
			if s.bulk -= k; s.bulk > 0 {
				return n, false, nil
			}
		} else if ended, err := s.line(b[n]); err != nil {
			return n, false, err
		} else if n++; !ended {
			continue
		}
		if s.bulk == 0 && s.values == 0 {
			return n, true, nil
		}
	}
	return n, false, nil
}

// line takes a byte of a line, and reports whether the line ends with it.
func (s *skimmer) line(c byte) (ended bool, err error) {
	if s.kind == 0 {
		s.kind, s.digits = c, 0
		return false, nil
	}
	if c != '\n' {
		if counted(s.kind) {
			if s.digits == len(s.number) {
				return false, errReply
			}
			s.number[s.digits] = c
			s.digits++
		}
		return false, nil
	}
	kind := s.kind
	s.kind = 0
	s.values--
	if !counted(kind) {
		return true, plain(kind)
	}
	count, err := parseCount(s.number[:s.digits])
	if err != nil {
		return false, err
	}
	switch kind {
	case '$', '=', '!':
		if count > maxBulk {
			return false, errReply
		}
		if count >= 0 {
			s.bulk = count + 2
		}
	case '|':
		s.values += 2*max(0, count) + 1 // what it is about follows
	case '%':
		s.values += 2 * max(0, count)
	default:
		s.values += max(0, count)
	}
	return true, nil
}

// counted reports whether a line of that kind is a number of bytes or values.
func counted(kind byte) bool {
	switch kind {
	case '$', '=', '!', '*', '%', '~', '>', '|':
		return true
	}
	return false
}

// plain refuses lines of a kind that there is not.
func plain(kind byte) error {
	switch kind {
	case '+', '-', ':', ',', '#', '_', '(':
		return nil
	}
	return errReply
}

// parseCount reads a length up to its carriage return: -1 stands for null.
func parseCount(b []byte) (int64, error) {
	if len(b) == 0 || b[len(b)-1] != '\r' {
		return 0, errReply
	}
	n, ok := proto.ParseInt(b[:len(b)-1])
	if !ok || n < -1 || n > 1<<32 {
		return 0, errReply
	}
	return n, nil
}
