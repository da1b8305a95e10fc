package maru

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"polder/share/server"

	"github.com/vmihailenco/msgpack/v5"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestRequestsAreReadAsTheClientsWriteThem has requests of Maru's own client.
func TestRequestsAreReadAsTheClientsWriteThem(t *testing.T) {
	for _, c := range []struct {
		bytes string
		check func(h header, q *request) bool
	}{
		{"cf0001fe000000000000000100000001 80", func(h header, q *request) bool { return h.kind == typeHandshake && h.sequence == 1 }},
		{"cf000101000000000000000 20000001a 82ab696e7374616e63655f6964a27730a473697a65ce00400000",
			func(_ header, q *request) bool { return q.instance == "w0" && q.size == 4<<20 }},
		{"cf00010100000000000000100000001e 82ab696e7374616e63655f6964a27230a473697a65cf0000010000000000",
			func(h header, q *request) bool { return h.sequence == 16 && q.instance == "r0" && q.size == 1<<40 }},
		{"cf00010400000000000000 0300000018 81b36578636c7564655f696e7374616e63655f6964a27230",
			func(_ header, q *request) bool { return q.exclude == "r0" }},
		{"cf000112000000000000000400000 00a 81a36b6579a46b765f31", func(_ header, q *request) bool { return q.key.Key == "kv_1" }},
		{"cf00011000000000000000050000002b 84a36b6579a46b765f31a9726567696f6e5f696401a96b765f6f666673657400a96b765f6c656e67746805",
			func(_ header, q *request) bool { return q.key == server.MaruKey{Key: "kv_1", Region: 1, Length: 5} }},
		{"cf00012000000000000000070000006e 81a7656e747269657392 84a36b6579a46b765f32a9726567696f6e5f696401a96b765f6f6666736574ce00100000a96b765f6c656e677468ce00100000" +
			"84a36b6579a46b765f33a9726567696f6e5f696401a96b765f6f6666736574ce00200000a96b765f6c656e677468cd012c",
			func(_ header, q *request) bool {
				return len(q.entries) == 2 && q.entries[1] == server.MaruKey{Key: "kv_3", Region: 1, Offset: 2 << 20, Length: 300}
			}},
		{"cf00012300000000 0000000b00000016 81a46b65797393a46b765f31a46e6f7065a46b765f32",
			func(_ header, q *request) bool { return strings.Join(q.keys, " ") == "kv_1 nope kv_2" }},
		{"cf000103000000000000000900000 01b 82ab696e7374616e63655f6964a27730a9726567696f6e5f696401",
			func(_ header, q *request) bool { return q.instance == "w0" && q.key.Region == 1 }},
		{"cf00011100000000000000040000000 8 81a36b6579cd03e9", func(_ header, q *request) bool { return q.key.Key == "\xff1001" }},
		{"cf00011100000000000000040000000 6 81a36b6579ff", func(_ header, q *request) bool { return q.key.Key == "\xff-1" }},
		{"cf00011100000000000000040000000a 81a36b6579a431303031", func(_ header, q *request) bool { return q.key.Key == "1001" }},
	} {
		msg := unhex(t, c.bytes)
		h, err := parseHeader(msg)
		if err != nil {
			t.Errorf("%s: %v", c.bytes, err)
			continue
		}
		q, err := parseRequest(h.kind, msg[headerSize:])
		if err != nil || !c.check(h, q) {
			t.Errorf("%s: got %+v, %v", c.bytes, q, err)
		}
	}
}

func TestRequestsThatAreNoneAreRefusedInWords(t *testing.T) {
	for _, c := range []struct{ bytes, want string }{
		{"", "no header"},
		{"cf0001fe0000000000000001000000", "no header"},
		{"cf0101fe000000000000000100000001 80", "begins with"},
		{"cf0002fe000000000000000100000001 80", "version 2"},
		{"cf0001fe000000000000000100000002 80", "announces 2 bytes and has 1"},
		{"cf0001fe000000000000000100000001 90", "no map"},
		{"cf0001fe000000000000000100000000", "no map"},
		{"cf0001fe000000000000000100000003 810101", "want a string"},
		{"cf000112000000000000000100000001 80", "the field key is missing"},
		{"cf000112000000000000000100000006 81a36b6579c0", "field key: want a string"},
		{"cf000112000000000000000100000008 81a36b6579c40161", "field key: want a string"},
		{"cf000112000000000000000100000007 81a36b6579a1ff", "not UTF-8"},
		{"cf000121000000000000000100000009 81a46b657973dfffff", "want a list"},
		{"cf00012100000000000000010000000b 81a46b657973ddffffffff", "at most 65536"},
		{"cf000120000000000000000100000014 81a7656e747269657391 81a36b6579a46b765f31", "region_id is missing"},
		{"cf00010100000000000000010000001e 82ab696e7374616e63655f6964a27230a473697a65cfffffffffffffffff", "too large"},
		{"cf0001f1000000000000000100000015 81a178 91919191919191919191919191919191919101", "too deep"},
	} {
		msg := unhex(t, c.bytes)
		h, err := parseHeader(msg)
		if err == nil {
			_, err = parseRequest(h.kind, msg[headerSize:])
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.bytes, err, c.want)
		}
	}
}

// TestAnswersAreWhatTheClientsRead compares with what was captured.
func TestAnswersAreWhatTheClientsRead(t *testing.T) {
	region := server.MaruRegion{ID: 1, Length: 4 << 20, Token: 0xa1b2c3d4e5f60701}
	handle := "84a9726567696f6e5f696401a66f666673657400a66c656e677468ce00400000aa617574685f746f6b656ecfa1b2c3d4e5f60701"
	for want, write := range map[string]func(e *encoder){
		"cf00018100000000000000020000004582a773756363657373c3a668616e646c65" + handle: func(e *encoder) {
			e.begin(header{kind: 0x81, sequence: 2})
			e.object(2)
			e.boolField("success", true)
			e.text("handle")
			e.handle(region)
		},
		"cf00019100000000000000040000005984a5666f756e64c3a668616e646c65" + handle + "a96b765f6f666673657400a96b765f6c656e67746805": func(e *encoder) {
			e.begin(header{kind: 0x91, sequence: 4})
			e.found(true, server.Found{MaruRegion: region, Size: 5})
		},
		"cf0001910000000000000005 0000000881a5666f756e64c2": func(e *encoder) {
			e.begin(header{kind: 0x91, sequence: 5})
			e.found(false, server.Found{})
		},
		"cf0001a3000000000000000b0000000d81a7726573756c747393c3c2c2": func(e *encoder) {
			e.begin(header{kind: 0xa3, sequence: 11})
			e.object(1)
			e.bools("results", []bool{true, false, false})
		},
		"cf0001ff0000000000000007 0000002181a56572726f72b9556e6b6e6f776e206d65737361676520747970653a20323535": func(e *encoder) {
			e.fail(header{kind: 0xff, sequence: 7}, errUnknown(255))
		},
	} {
		e := newEncoder()
		write(e)
		if got := e.end(); !bytes.Equal(got, unhex(t, want)) {
			t.Errorf("got  %x\nwant %s", got, want)
		}
	}
	got := errorReply(&refusal{13, "invalid auth token", false})
	if want := unhex(t, "5552414d 0200 ff00 1a000000 f3ffffff 12000000 696e76616c6964206175746820746f6b656e"); !bytes.Equal(got, want) {
		t.Errorf("the resource manager's refusal: got %x, want %x", got, want)
	}
}

// tape is a connection that has said all that it says.
type tape struct {
	net.Conn // nil
	in       io.Reader
	out      bytes.Buffer
}

func (c *tape) Read(p []byte) (int, error)       { return c.in.Read(p) }
func (c *tape) Write(p []byte) (int, error)      { return c.out.Write(p) }
func (c *tape) SetReadDeadline(time.Time) error  { return nil }
func (c *tape) SetWriteDeadline(time.Time) error { return nil }

// reader calls a function to read.
type reader func(p []byte) (int, error)

func (r reader) Read(p []byte) (int, error) { return r(p) }

// longFrame is the head of a frame, which announces n bytes.
func longFrame(n int) []byte { return binary.BigEndian.AppendUint64([]byte{flagLong}, uint64(n)) }

// TestAFrameThatIsOnlyAnnouncedTakesNothingFromOthers has clients announce the largest frames and send nothing.
func TestAFrameThatIsOnlyAnnouncedTakesNothingFromOthers(t *testing.T) {
	b, watch := newBudget(maxFrame), newStalls()
	var wg sync.WaitGroup
	release := make(chan struct{})
	for range 3 {
		waiting := make(chan struct{})
		body := reader(func([]byte) (int, error) {
			close(waiting)
			<-release
			return 0, io.EOF
		})
		wg.Go(func() {
			l := newLink(&tape{in: io.MultiReader(bytes.NewReader(longFrame(maxFrame)), body)}, watch, b)
			defer l.rest()
			if _, _, err := l.frame(maxFrame); err == nil {
				t.Error("a frame whose body has not come was read")
			}
		})
		<-waiting
	}
	l := newLink(&tape{in: bytes.NewReader(append(longFrame(maxFrame), make([]byte, maxFrame)...))}, watch, b)
	if _, body, err := l.frame(maxFrame); err != nil || len(body) != maxFrame {
		t.Errorf("meanwhile, another client's frame: got %d bytes, %v, want %d", len(body), err, maxFrame)
	}
	l.rest()
	close(release)
	wg.Wait()
	if b.left != maxFrame {
		t.Errorf("at the end %d bytes are left, want %d", b.left, maxFrame)
	}
}

// TestFramesThatAreHalfThereDoNotWaitForEachOther has two of them use up the whole budget.
func TestFramesThatAreHalfThereDoNotWaitForEachOther(t *testing.T) {
	b, watch := newBudget(maxFrame), newStalls()
	var wg, half sync.WaitGroup
	half.Add(2)
	for range 2 {
		frame := append(longFrame(maxFrame), make([]byte, maxFrame)...)
		pause := reader(func([]byte) (int, error) {
			half.Done()
			half.Wait()
			return 0, io.EOF
		})
		const part = maxFrame/2 - 1 // more would make a frame ask for more already
		wg.Go(func() {
			l := newLink(&tape{in: io.MultiReader(bytes.NewReader(frame[:part]), pause, bytes.NewReader(frame[part:]))}, watch, b)
			defer l.rest()
			if _, body, err := l.frame(maxFrame); err != nil || len(body) != maxFrame {
				t.Errorf("got %d bytes, %v, want %d", len(body), err, maxFrame)
			}
		})
	}
	wg.Wait()
	if b.left != maxFrame || b.beyond != nil {
		t.Errorf("at the end %d bytes are left, and %v may take more, want %d, and nobody", b.left, b.beyond, maxFrame)
	}
}

// TestAPongIsOneCommandHoweverLongThePing: a PONG repeats the context of the PING, of which ZMTP allows 16 bytes.
func TestAPongIsOneCommandHoweverLongThePing(t *testing.T) {
	for n, repeated := range map[int]int{0: 0, 16: 16, 17: 16, 250: 16, 251: 16, maxCommand - 7: 16} {
		context := strings.Repeat("c", n)
		ping := binary.BigEndian.AppendUint64([]byte{flagCommand | flagLong}, uint64(7+n))
		ping = append(ping, "\x04PING\x00\x00"+context...)
		c := &tape{in: bytes.NewReader(ping)}
		if _, _, err := newLink(c, newStalls(), nil).message(nil); err != io.EOF {
			t.Fatal(err)
		}
		if got, want := c.out.String(), "\x04"+string(rune(5+repeated))+"\x04PONG"+context[:repeated]; got != want {
			t.Errorf("a context of %d bytes: got %q, want %q", n, got, want)
		}
	}
}

func FuzzLink(f *testing.F) {
	var greeting [64]byte
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	hello := string(greeting[:]) + "\x04\x31\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x0812345678"
	f.Add([]byte(hello + "\x01\x00\x00\x03abc"))
	f.Add([]byte(hello + "\x04\x09\x04PING\x00\x00ab\x01\x00\x02\x00\x00\x00\x00\x00\x00\x00\x03abc"))
	f.Add([]byte(hello + "\x01\x00\x02\x7f\xff\xff\xff\xff\xff\xff\xff"))
	watch := newStalls()
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &tape{in: bytes.NewReader(b)}
		l := newLink(c, watch, newBudget(maxFrame))
		if _, err := l.greet("ROUTER", ""); err != nil {
			return
		}
		for {
			body, _, err := l.message(nil)
			if err != nil {
				break
			}
			if len(body) > len(b) {
				t.Fatalf("a body of %d bytes came out of %d", len(body), len(b))
			}
			l.rest()
		}
		l.rest()
		if l.budget.left != maxFrame {
			t.Fatalf("%d bytes of the budget are gone", maxFrame-l.budget.left)
		}
		if cap(l.body) > 2*len(b)+smallFrame {
			t.Fatalf("%d bytes of memory for %d that came", cap(l.body), len(b))
		}
	})
}

func FuzzResourceRequest(f *testing.F) {
	f.Add(unhex(f, "5552414d 0200 0900 2e000000 0100000000000000 0000000000000000 0000400000000000 0107f6e5d4c3b2a1 0c00 6e6f64652d613a3137373535"))
	f.Add(unhex(f, "5552414d 0200 0100 26000000 8813000000000000 00000000 00000000 0c00 6e6f64652d613a3137373535 0100000000000000"))
	f.Add(unhex(f, "5552414d 0200 0500 00000000"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < resourceHeader {
			return
		}
		kind, n, err := parseResourceHeader(b)
		if err != nil {
			return
		}
		if n > maxPayload {
			t.Fatalf("a payload of %d bytes is taken", n)
		}
		q, err := parseResourceRequest(kind, b[resourceHeader:])
		if err == nil && (len(q.client)+len(q.pool) > len(b) || kind == allocRequest && q.client == "") {
			t.Fatalf("got %+v", q)
		}
	})
}

// FuzzDirectory sends what it likes to a real daemon: every answer is a map, is
// addressed to who has asked, and is as long as what was asked for.
func FuzzDirectory(f *testing.F) {
	for _, s := range []string{
		"cf0001fe00000000000000010000000180",
		"cf00010100000000000000020000001a82ab696e7374616e63655f6964a27730a473697a65ce00400000",
		"cf00011000000000000000050000002b84a36b6579a46b765f31a9726567696f6e5f696401a96b765f6f666673657400a96b765f6c656e67746805",
		"cf00012300000000 0000000b00000016 81a46b65797393a46b765f31a46e6f7065a46b765f32",
		"cf0001f2000000000000000900000022 81a7656e747269657391 82a76f705f74797065a567657420 20a673756d6d6572aa6c6174656e63795f7573 01",
	} {
		f.Add(unhex(f, s))
	}
	h := build(f, nil)
	guest, err := h.Admit("fuzzing", nil, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(guest.Leave)
	c := &client{d: h.Door, guest: guest, link: &link{conn: &net.TCPConn{}}, enc: newEncoder(), ready: time.Now()}
	f.Fuzz(func(t *testing.T, msg []byte) {
		reply := c.answer(msg, time.Now())
		got, err := parseHeader(reply)
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]any
		if err := msgpack.Unmarshal(reply[headerSize:], &fields); err != nil {
			t.Fatalf("the answer to %x is %x: %v", msg, reply, err)
		}
		if len(msg) > headerSize {
			in := decoder{string(msg[headerSize:])}
			mine, rest := in.skip(0), bytes.NewReader(msg[headerSize:])
			_, theirs := msgpack.NewDecoder(rest).DecodeRaw()
			if mine == nil && (theirs != nil || rest.Len() != len(in.in)) {
				t.Fatalf("%x is a value and %d bytes, but the library reads %v and leaves %d", msg[headerSize:], len(in.in), theirs, rest.Len())
			}
			if mine != nil && theirs == nil && !strings.Contains(mine.Error(), "too deep") {
				t.Fatalf("%x is %v, but the library reads it", msg[headerSize:], mine)
			}
		}
		asked, err := parseHeader(msg)
		if len(msg) >= headerSize && (got.sequence != asked.sequence || got.kind != asked.kind|replyBit) {
			t.Fatalf("the answer to request %d of type %#x is to %d of type %#x", asked.sequence, asked.kind, got.sequence, got.kind)
		}
		if err != nil {
			return
		}
		q, err := parseRequest(asked.kind, msg[headerSize:headerSize+int(asked.length)])
		if err != nil {
			if fields["error"] == nil {
				t.Fatalf("%v, but the answer is %v", err, fields)
			}
			return
		}
		n := -1
		switch asked.kind {
		case typeBatchRegister:
			n = len(q.entries)
		case typeBatchExists, typeBatchPin, typeBatchUnpin:
			n = len(q.keys)
		}
		if results, _ := fields["results"].([]any); n >= 0 && len(results) != n {
			t.Fatalf("%d results for %d", len(results), n)
		}
		if entries, _ := fields["entries"].([]any); asked.kind == typeBatchLookup && len(entries) != len(q.keys) {
			t.Fatalf("%d entries for %d", len(entries), len(q.keys))
		}
	})
}
