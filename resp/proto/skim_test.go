package proto

import (
	"bytes"
	"errors"
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
		var s Skimmer
		var got []string
		var reply strings.Builder
		for from := 0; from < len(all); from += size {
			for b := []byte(all[from:min(from+size, len(all))]); len(b) > 0; {
				n, done, err := s.Skim(b)
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
		if strings.Join(got, "|") != strings.Join(replies, "|") || !s.Idle() {
			t.Errorf("in pieces of %d: got %q, want %q", size, got, replies)
		}
	}
}

// TestWhatIsNoReplyIsRefusedAtItsFirstByte: its sender may never end the line.
func TestWhatIsNoReplyIsRefusedAtItsFirstByte(t *testing.T) {
	for _, in := range []string{"H", "\x00", "\r", "*1\r\n\n"} {
		var s Skimmer
		if _, _, err := s.Skim([]byte(in)); !errors.Is(err, ErrReply) {
			t.Errorf("%q: got %v, want %v", in, err, ErrReply)
		}
	}
}

// errShort says that a reply has not ended.
var errShort = errors.New("not all of it has come")

// replyEnd is where the first reply of b ends, found by one who sees all of it.
func replyEnd(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, errShort
	}
	kind := b[0]
	if !strings.ContainsRune("+-:,#_($=!*~>%|", rune(kind)) {
		return 0, ErrReply
	}
	end := bytes.IndexByte(b, '\n') + 1
	simple := strings.ContainsRune("+-:,#_(", rune(kind))
	if end == 0 {
		if !simple && len(b)-1 > 24 {
			return 0, ErrReply // that long is no number
		}
		return 0, errShort
	}
	if simple {
		return end, nil
	}
	digits, ok := bytes.CutSuffix(b[1:end-1], []byte("\r"))
	n, isInt := ParseInt(digits)
	if !ok || !isInt || n < -1 || n > 1<<32 {
		return 0, ErrReply
	}
	switch kind {
	case '$', '=', '!':
		switch {
		case n > MaxBulk:
			return 0, ErrReply
		case n < 0:
			return end, nil
		case int64(len(b)-end) < n+2:
			return 0, errShort
		}
		return end + int(n) + 2, nil
	case '%':
		n *= 2
	case '|':
		n = 2*max(0, n) + 1
	}
	for range n {
		k, err := replyEnd(b[end:])
		if err != nil {
			return 0, err
		}
		end += k
	}
	return end, nil
}

// FuzzSkimmer: in pieces, a reply's end is where it is for one who sees all of it.
func FuzzSkimmer(f *testing.F) {
	for _, r := range replies {
		f.Add([]byte(r), uint8(3))
	}
	f.Add([]byte("$536870913\r\n"), uint8(1))
	f.Add([]byte("*4294967297\r\n"), uint8(1))
	f.Add([]byte("%-1\r\n"), uint8(0))
	f.Add([]byte("|-1\r\n$-1\r\n"), uint8(2))
	f.Add([]byte("*2\r\n\x00\n"), uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, size uint8) {
		var s Skimmer
		end, done, got := 0, false, error(nil)
		for end < len(b) && !done && got == nil {
			var n int
			n, done, got = s.Skim(b[end:min(end+int(size)+1, len(b))])
			if end += n; n == 0 && got == nil {
				t.Fatalf("no progress at %d of %q", end, b)
			}
			if got == nil && done != s.Idle() {
				t.Fatalf("done is %v, and idle %v", done, s.Idle())
			}
		}
		if !done && got == nil {
			end, got = 0, errShort
		}
		want, wanted := replyEnd(b)
		if got != wanted || got == nil && end != want {
			t.Errorf("the reply %q ends at %d (%v), want %d (%v)", b, end, got, want, wanted)
		}
	})
}
