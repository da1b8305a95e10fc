package proto

import "errors"

// ErrReply is for bytes that are no reply of RESP2 or RESP3 as Redis sends them.
var ErrReply = errors.New("cannot understand what was sent: it is no reply")

// MaxBulk is the longest string of a reply in bytes, Redis's own limit.
const MaxBulk = 512 << 20

// Skimmer finds where a reply ends, and is given the reply in pieces as they come. It keeps nothing of them.
// Attributes belong to the reply behind them. The zero value stands before a reply. A Skimmer is not for concurrent
// use, and of no use after an error.
type Skimmer struct {
	values int64    // values of the reply that are still to come, without those of an incomplete header
	bulk   int64    // how many bytes of a string and of the end of its line are still to come
	kind   byte     // of the line that is being read; 0 between lines
	number [24]byte // the number in that line, as far as it was read
	digits int
}

// Idle reports whether s stands before a reply.
func (s *Skimmer) Idle() bool { return s.values == 0 && s.bulk == 0 && s.kind == 0 }

// Skim takes the bytes of the present reply from b. It returns how many these are, and whether the reply ends with
// them. The error is ErrReply.
func (s *Skimmer) Skim(b []byte) (n int, done bool, err error) {
	if s.Idle() {
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
func (s *Skimmer) line(c byte) (ended bool, err error) {
	if s.kind == 0 {
		if !counted(c) && !plain(c) {
			return false, ErrReply
		}
		s.kind, s.digits = c, 0
		return false, nil
	}
	if c != '\n' {
		if counted(s.kind) {
			if s.digits == len(s.number) {
				return false, ErrReply
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
		return true, nil
	}
	count, err := parseCount(s.number[:s.digits])
	if err != nil {
		return false, err
	}
	switch kind {
	case '$', '=', '!':
		if count > MaxBulk {
			return false, ErrReply
		}
		if count >= 0 {
			s.bulk = count + 2
		}
	case '|':
		s.values += 2*max(0, count) + 1 // the value that the attributes are about follows
	case '%':
		s.values += 2 * max(0, count)
	default:
		s.values += max(0, count)
	}
	return true, nil
}

// counted reports whether a line of that kind has a number of bytes or values that follow.
func counted(kind byte) bool {
	switch kind {
	case '$', '=', '!', '*', '%', '~', '>', '|':
		return true
	}
	return false
}

// plain reports whether a line of that kind is a whole value.
func plain(kind byte) bool {
	switch kind {
	case '+', '-', ':', ',', '#', '_', '(':
		return true
	}
	return false
}

// parseCount reads a length up to its carriage return: -1 stands for null.
func parseCount(b []byte) (int64, error) {
	if len(b) == 0 || b[len(b)-1] != '\r' {
		return 0, ErrReply
	}
	n, ok := ParseInt(b[:len(b)-1])
	if !ok || n < -1 || n > 1<<32 {
		return 0, ErrReply
	}
	return n, nil
}
