package ibv

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"polder/verbs"
)

var messages = []message{
	{typ: frameConnect, request: 7, qpn: 0xabcdef, psn: 0x123456, data: []byte("hello")},
	{typ: frameConnect, data: make([]byte, verbs.MaxPrivateData)},
	{typ: frameAccept, request: 7, qpn: 1, psn: 2, data: []byte{}},
	{typ: frameReject, request: 1 << 31, data: []byte("no room")},
	{typ: frameReady, qpn: 9, data: []byte{}},
	{typ: frameDown, qpn: 9, status: verbs.StatusRemAccessErr, data: []byte{}},
	{typ: framePing, data: []byte{}},
	{typ: framePong, data: []byte{}},
	{typ: frameBye, data: []byte{}},
}

func TestFramesComeBackAsTheyWere(t *testing.T) {
	var b []byte
	for _, m := range messages {
		b = appendFrame(b, m)
	}
	r := bytes.NewReader(b)
	for _, want := range messages {
		got, err := readFrame(r)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	if _, err := readFrame(r); err != io.EOF {
		t.Errorf("at the end: got %v, want EOF", err)
	}
}

func TestDamagedFramesAreRefused(t *testing.T) {
	for _, m := range messages {
		f := appendFrame(nil, m)
		for i := range f {
			bad := bytes.Clone(f)
			bad[i] ^= 0x10
			if got, err := readFrame(bytes.NewReader(bad)); err == nil {
				t.Errorf("type %d with byte %d changed was read as %+v", m.typ, i, got)
			}
		}
		for n := 1; n < len(f); n++ {
			if _, err := readFrame(bytes.NewReader(f[:n])); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("type %d, cut to %d bytes: got %v, want ErrUnexpectedEOF", m.typ, n, err)
			}
		}
	}
}

func TestFramesThatMakeNoSenseAreRefused(t *testing.T) {
	for what, m := range map[string]message{
		"an unknown type":          {typ: 99},
		"too much private data":    {typ: frameConnect, data: make([]byte, verbs.MaxPrivateData+1)},
		"a long reason":            {typ: frameReject, data: make([]byte, maxReason+1)},
		"data where there is none": {typ: framePing, data: []byte{1}},
		"a queue pair of 25 bits":  {typ: frameReady, qpn: 1 << 24},
		"a packet of 25 bits":      {typ: frameAccept, psn: 1 << 24},
		"an unknown status":        {typ: frameDown, status: verbs.StatusFatalErr + 1},
	} {
		if got, err := readFrame(bytes.NewReader(appendFrame(nil, m))); !errors.Is(err, errFrame) {
			t.Errorf("%s: got %+v, %v, want errFrame", what, got, err)
		}
	}
}

func FuzzReadFrame(f *testing.F) {
	for _, m := range messages {
		f.Add(appendFrame(nil, m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := readFrame(bytes.NewReader(b))
		if err != nil {
			return
		}
		again := appendFrame(nil, m)
		if !bytes.HasPrefix(b, again) {
			t.Errorf("%x was read as %+v, which is sent as %x", b, m, again)
		}
	})
}

// stream is one whose other end has already said its part.
type stream struct {
	io.Reader
	heard bytes.Buffer
}

func (s *stream) Write(b []byte) (int, error) { return s.heard.Write(b) }

var roce = address{gid: [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 1}, mtu: 3, rdAtom: 16}

func TestHello(t *testing.T) {
	theirs := address{gid: [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 2}, mtu: 5, rdAtom: 128}
	b := theirs.encode()
	s := &stream{Reader: bytes.NewReader(b[:])}
	got, err := exchangeHello(s, roce)
	if err != nil || got != theirs {
		t.Errorf("got %+v, %v, want %+v", got, err, theirs)
	}
	if ours := roce.encode(); !bytes.Equal(s.heard.Bytes(), ours[:]) {
		t.Errorf("sent %x, want %x", s.heard.Bytes(), ours)
	}
}

func TestHelloRefusesWhatItDoesNotUnderstand(t *testing.T) {
	edit := func(change func(b []byte)) []byte {
		b := roce.encode()
		change(b[:])
		return b[:]
	}
	encode := func(a address) []byte { b := a.encode(); return b[:] }
	for _, c := range []struct {
		name string
		says []byte
		want error
	}{
		{"another protocol", []byte(strings.Repeat("GET / HTTP/1.1\r\n", 4)), errNotPolder},
		{"another version", edit(func(b []byte) { b[8] = 9 }), errVersion},
		{"a flipped bit", edit(func(b []byte) { b[20] ^= 1 }), errHelloChecksum},
		{"no address", encode(address{mtu: 3, rdAtom: 1}), errHelloContent},
		{"an MTU of nothing", encode(address{lid: 1, mtu: 0, rdAtom: 1}), errHelloContent},
		{"an MTU of 6", encode(address{lid: 1, mtu: 6, rdAtom: 1}), errHelloContent},
		{"no reads", encode(address{lid: 1, mtu: 5}), errHelloContent},
		{"a LID, to a GID", encode(address{lid: 1, mtu: 5, rdAtom: 1}), errHelloContent},
		{"half of it", edit(func([]byte) {})[:20], io.ErrUnexpectedEOF},
	} {
		if _, err := exchangeHello(&stream{Reader: bytes.NewReader(c.says)}, roce); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
}

func FuzzHello(f *testing.F) {
	b := roce.encode()
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != helloSize {
			return
		}
		a, err := decodeHello((*[helloSize]byte)(b))
		if err != nil {
			return
		}
		if again, err := decodeHello(pointer(a.encode())); err != nil || again != a {
			t.Errorf("%+v came back as %+v, %v", a, again, err)
		}
	})
}

func TestOnlySoftRoCEHasItsQuirks(t *testing.T) {
	if q, name := quirksOf(softRoCEVendor, softRoCEPart); !q.WindowBounds || !q.DestroyBound || name == "" {
		t.Errorf("Soft-RoCE: got %+v, %q", q, name)
	}
	if q, name := quirksOf(0x02c9, 4119); q != (Quirks{}) || name != "" { // a ConnectX-5
		t.Errorf("a device that nobody knows: got %+v, %q, want none", q, name)
	}
}

func pointer(b [helloSize]byte) *[helloSize]byte { return &b }
