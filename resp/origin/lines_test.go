package origin

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"polder/resp/proto"
)

// replies are examples of all there are.
var replies = []string{
	"+OK\r\n", "-ERR no\r\n", ":1\r\n", "$5\r\nhello\r\n", "$0\r\n\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n", "_\r\n", "#t\r\n", ",1.5\r\n", "(12\r\n",
	"=7\r\ntxt:abc\r\n", "!5\r\nERR x\r\n", "*2\r\n*1\r\n:1\r\n$1\r\na\r\n", "%1\r\n+a\r\n*1\r\n:2\r\n", "~2\r\n:1\r\n:2\r\n",
	">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n", "|1\r\n+a\r\n:1\r\n*1\r\n:2\r\n", "*2\r\n|1\r\n+a\r\n:1\r\n:2\r\n:3\r\n",
}

func TestASkippedReplyEndsWhereTheNextBegins(t *testing.T) {
	all := strings.Join(replies, "") + "+next\r\n"
	for _, size := range []int{16, maxLine} { // of the buffer
		r := &lines{r: bufio.NewReaderSize(strings.NewReader(all), size)}
		for i, reply := range replies {
			var err error
			if i%2 == 0 {
				err = r.skipValues(1)
			} else if line, failed := r.line(); failed != nil {
				err = failed
			} else {
				err = r.skip(line)
			}
			if err != nil {
				t.Fatalf("cannot skip %q: %v", reply, err)
			}
		}
		if line, err := r.line(); string(line) != "+next" {
			t.Errorf("with a buffer of %d bytes: got %q (%v) behind the replies, want +next", size, line, err)
		}
	}
}

// FuzzLink: whatever the origin sends, the link applies it or breaks.
func FuzzLink(f *testing.F) {
	for _, r := range replies {
		f.Add([]byte(r + ":-1\r\n" + r))
	}
	f.Add([]byte("$1\r\nv\r\n:100\r\n+PONG\r\n" + nullInvalidation))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newServer(t, Config{URL: URL{Network: "unix", Address: "/nowhere"}})
		tr := newTracker(&s.cfg, s.items, nil)
		tr.asked = []*question{
			{flight: &flight{key: "k"}, done: make(chan struct{})},
			{done: make(chan struct{})},
		}
		r := &lines{r: bufio.NewReaderSize(bytes.NewReader(b), maxLine)}
		for range len(b) + 1 {
			if err := tr.apply(r); err != nil {
				if !errors.Is(err, proto.ErrReply) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("the link breaks with %v", err)
				}
				return
			}
		}
		t.Error("the link applies more than there is")
	})
}
