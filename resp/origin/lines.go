package origin

import (
	"bufio"
	"errors"
	"net"
	"strings"
	"time"

	"polder/resp/proto"
)

// maxLine is the longest line that the link reads.
const maxLine = 64 << 10

// attentive is a connection on which silence for the time patience is an error.
type attentive struct {
	net.Conn
	patience time.Duration
}

func (c *attentive) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.patience)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// lines reads replies. The bytes that a method returns are valid until the next read, unless the method says
// otherwise.
type lines struct{ r *bufio.Reader }

// line reads a line and returns it without its end. It has at least the byte that says its kind.
func (l *lines) line() ([]byte, error) {
	b, err := l.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return nil, proto.ErrReply
	}
	if err != nil {
		return nil, err
	}
	if len(b) < 3 || b[len(b)-2] != '\r' {
		return nil, proto.ErrReply
	}
	return b[:len(b)-2], nil
}

// length returns the number of bytes or values that a line announces; -1 means null.
func length(line []byte) (int64, error) {
	n, ok := proto.ParseInt(line[1:])
	if !ok || n < -1 || n > proto.MaxBulk {
		return 0, proto.ErrReply
	}
	return n, nil
}

// bytes reads a string of n bytes into memory of its own, and passes over the line's end.
func (l *lines) bytes(n int) ([]byte, error) {
	b := make([]byte, n)
	for done := 0; done < n; {
		k, err := l.r.Read(b[done:])
		if err != nil {
			return nil, err
		}
		done += k
	}
	return b, l.discard(2)
}

func (l *lines) discard(n int64) error {
	_, err := l.r.Discard(int(n))
	return err
}

// skip passes over the reply that begins with line.
func (l *lines) skip(line []byte) error {
	var s proto.Skimmer
	if _, _, err := s.Skim(line); err != nil {
		return err
	}
	_, done, err := s.Skim([]byte("\r\n"))
	for !done && err == nil {
		done, err = l.skim(&s)
	}
	return err
}

// skipValues passes over n replies.
func (l *lines) skipValues(n int64) error {
	var s proto.Skimmer
	for n > 0 {
		done, err := l.skim(&s)
		if err != nil {
			return err
		}
		if done {
			n--
		}
	}
	return nil
}

// skim passes over the bytes that have come of the reply at which s stands, and reports whether the reply has ended.
func (l *lines) skim(s *proto.Skimmer) (done bool, err error) {
	if _, err := l.r.Peek(1); err != nil {
		return false, err
	}
	b, _ := l.r.Peek(l.r.Buffered())
	n, done, err := s.Skim(b)
	return done, errors.Join(err, l.discard(int64(n)))
}

// oneLine returns an error's text for a client, on one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
