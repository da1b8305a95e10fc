package origin

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

// replies are examples of all there are.
var replies = []string{
	"+OK\r\n", "-ERR no\r\n", ":1\r\n", "$5\r\nhello\r\n", "$0\r\n\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n", "_\r\n", "#t\r\n", ",1.5\r\n", "(12\r\n",
	"=7\r\ntxt:abc\r\n", "!5\r\nERR x\r\n", "*2\r\n*1\r\n:1\r\n$1\r\na\r\n", "%1\r\n+a\r\n*1\r\n:2\r\n", "~2\r\n:1\r\n:2\r\n",
	">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n", "|1\r\n+a\r\n:1\r\n*1\r\n:2\r\n", "*2\r\n|1\r\n+a\r\n:1\r\n:2\r\n:3\r\n",
}

func TestARepliesEndIsFoundInAnyPieces(t *testing.T) {
	all := strings.Join(replies, "")
	for size := 1; size < 9; size++ {
		var s skimmer
		var got []string
		var reply strings.Builder
		for from := 0; from < len(all); from += size {
			for b := []byte(all[from:min(from+size, len(all))]); len(b) > 0; {
				n, done, err := s.skim(b)
				if err != nil {
					t.Fatal(err)
				}
				reply.Write(b[:n])
				if b = b[n:]; done {
					got = append(got, reply.String())
					reply.Reset()
				}
			}
		}
		if strings.Join(got, "|") != strings.Join(replies, "|") || !s.idle() {
			t.Errorf("in pieces of %d: got %q, want %q", size, got, replies)
		}
	}
}

// FuzzReplies: both readers of replies find the same end, or refuse.
func FuzzReplies(f *testing.F) {
	for _, r := range replies {
		f.Add([]byte(r), uint8(3))
	}
	f.Add([]byte("$536870913\r\n"), uint8(1))
	f.Add([]byte("*4294967297\r\n"), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, size uint8) {
		var s skimmer
		end, failed := 0, error(nil)
		for done := false; end < len(b) && !done && failed == nil; {
			var n int
			n, done, failed = s.skim(b[end:min(end+int(size)+1, len(b))])
			if end += n; n == 0 && failed == nil {
				t.Fatalf("no progress at %d of %q", end, b)
			}
			if done != (s.idle() && failed == nil) {
				t.Fatalf("done is %v, and idle %v", done, s.idle())
			}
			if !done && failed == nil && end == len(b) {
				return // it is no whole reply
			}
		}
		src := bytes.NewReader(b)
		l := &lines{r: bufio.NewReaderSize(src, maxLine)}
		line, err := l.line()
		if err == nil {
			err = l.skip(line, 0)
		}
		if err != nil || failed != nil {
			return // they are strict in different ways
		}
		if read := len(b) - src.Len() - l.r.Buffered(); read != end && len(b) > 0 {
			t.Errorf("the reply %q ends at %d for one reader, at %d for the other", b, end, read)
		}
	})
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
				if !errors.Is(err, errReply) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("the link breaks with %v", err)
				}
				return
			}
		}
		t.Error("the link applies more than there is")
	})
}
