package wire

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
	"time"
)

func sample() Request {
	return Request{
		ID: 7, Verb: Compute, Op: 3, Object: 1<<32 | 5, Time: 1500 * time.Microsecond,
		Room: 100, Key: []byte("key"), Data: []byte("data"),
	}
}

func TestWhatIsEncodedIsDecoded(t *testing.T) {
	want := sample()
	b := want.Append(nil)
	var got Request
	if err := got.Decode(b); err != nil || !reflect.DeepEqual(got, want) || len(b) != want.Size() {
		t.Fatalf("got %+v, %v, want %+v", got, err, want)
	}
	r := Reply{ID: 9, Verb: Read, Status: OK, Object: 11}
	buf := make([]byte, 64)
	copy(buf[ReplyHeader:], "data")
	n := r.Put(buf, 4)
	r.Data = []byte("data")
	var reply Reply
	if err := reply.Decode(buf[:n]); err != nil || !reflect.DeepEqual(reply, r) {
		t.Fatalf("got %+v, %v, want %+v", reply, err, r)
	}
	w := Welcome{Credits: 16, Message: 1 << 16, Time: time.Second}
	var welcome Welcome
	if err := welcome.Decode(w.Append(nil)); err != nil || welcome != w {
		t.Fatalf("got %+v, %v, want %+v", welcome, err, w)
	}
}

func TestNoDamagedByteGetsThrough(t *testing.T) {
	q := sample()
	request := q.Append(nil)
	buf := make([]byte, 64)
	reply := buf[:(&Reply{ID: 9, Verb: Read}).Put(buf, 8)]
	for name, c := range map[string]struct {
		b      []byte
		decode func([]byte) error
	}{
		"request": {request, new(Request).Decode},
		"reply":   {reply, new(Reply).Decode},
	} {
		for i := range c.b {
			bad := bytes.Clone(c.b)
			bad[i] ^= 0x10
			if err := c.decode(bad); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s, byte %d damaged: got %v, want %v", name, i, err, ErrMalformed)
			}
			if err := c.decode(c.b[:i]); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s cut after %d bytes: got %v, want %v", name, i, err, ErrMalformed)
			}
		}
	}
}

func FuzzRequest(f *testing.F) {
	q := sample()
	f.Add(q.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= RequestHeader {
			b = bytes.Clone(b)
			seal(b) // or nothing but the checksum would be tried
		}
		var r Request
		if err := r.Decode(b); err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("got %v, want %v", err, ErrMalformed)
			}
			return
		}
		if again := r.Append(nil); !bytes.Equal(again, b) {
			t.Fatalf("%x is decoded, and encoded again as %x", b, again)
		}
	})
}

func FuzzReply(f *testing.F) {
	buf := make([]byte, 64)
	f.Add(buf[:(&Reply{ID: 9, Verb: Read}).Put(buf, 8)])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= ReplyHeader {
			b = bytes.Clone(b)
			seal(b)
		}
		var r Reply
		if err := r.Decode(b); err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("got %v, want %v", err, ErrMalformed)
			}
			return
		}
		again := bytes.Clone(b)
		if n := r.Put(again, len(r.Data)); n != len(b) || !bytes.Equal(again, b) {
			t.Fatalf("%x is decoded, and encoded again as %x", b, again)
		}
	})
}
