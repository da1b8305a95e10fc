package origin

import (
	"bufio"
	"errors"
	"net"
	"strings"
	"time"

	"polder/resp/proto"
)

// Bounds of what the link reads.
const (
	maxLine    = 64 << 10
	maxNesting = 32
)

// attentive is a connection on which silence is an error.
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

// lines reads replies. What it returns is valid until it reads again, unless it says
// otherwise.
type lines struct{ r *bufio.Reader }

// line reads a line of at least its kind, without its end.
func (l *lines) line() ([]byte, error) {
	b, err := l.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return nil, errReply
	}
	if err != nil {
		return nil, err
	}
	if len(b) < 3 || b[len(b)-2] != '\r' {
		return nil, errReply
	}
	return b[:len(b)-2], nil
}

// length is the number of bytes or values that a line announces; -1 is null.
func length(line []byte) (int64, error) {
	n, ok := proto.ParseInt(line[1:])
	if !ok || n < -1 || n > maxBulk {
		return 0, errReply
	}
	return n, nil
}

// bytes reads a string of n bytes into memory of its own, and the line's end.
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
func (l *lines) skip(line []byte, depth int) error {
	if depth > maxNesting {
		return errReply
	}
	if !counted(line[0]) {
		return plain(line[0])
	}
	kind := line[0]
	n, err := length(line)
	switch {
	case err != nil:
		return err
	case kind == '$' || kind == '=' || kind == '!':
		if n < 0 {
			return nil
		}
		return l.discard(n + 2)
	case kind == '%':
		n *= 2
	case kind == '|':
		n = 2*n + 1
	}
	return l.skipValues(n, depth+1)
}

// skipValues passes over n replies.
func (l *lines) skipValues(n int64, depth int) error {
	for range n {
		line, err := l.line()
		if err != nil {
			return err
		}
		if err := l.skip(line, depth); err != nil {
			return err
		}
	}
	return nil
}

// appendCommand appends a command as clients send it.
func appendCommand(dst []byte, args ...string) []byte {
	dst = proto.AppendArray(dst, len(args))
	for _, a := range args {
		dst = proto.AppendBulk(dst, a)
	}
	return dst
}

// oneLine is an error's text for a client.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
