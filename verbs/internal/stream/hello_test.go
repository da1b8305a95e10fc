package stream

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

// peer is a stream whose other end has already said its part.
type peer struct {
	says  *bytes.Reader
	heard bytes.Buffer
}

func (p *peer) Read(b []byte) (int, error)  { return p.says.Read(b) }
func (p *peer) Write(b []byte) (int, error) { return p.heard.Write(b) }

func saying(b []byte) *peer { return &peer{says: bytes.NewReader(b)} }

var testHello = hello{version: protocolVersion, features: 0b1010, mtu: 64 << 10, maxRdAtm: 128}

func TestHelloAgreesOnCommonFeatures(t *testing.T) {
	theirs := hello{version: protocolVersion, features: 0b0110, mtu: 128 << 10, maxRdAtm: 300}
	b := theirs.encode()
	p := saying(b[:])
	got, err := exchangeHello(p, testHello)
	if err != nil {
		t.Fatal(err)
	}
	want := theirs
	want.features = 0b0010
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	ours := testHello.encode()
	if !bytes.Equal(p.heard.Bytes(), ours[:]) {
		t.Errorf("sent %x, want %x", p.heard.Bytes(), ours)
	}
}

func TestHelloRefusesWhatItDoesNotUnderstand(t *testing.T) {
	encode := func(change func(h *hello)) []byte {
		h := testHello
		change(&h)
		b := h.encode()
		return b[:]
	}
	damaged := encode(func(*hello) {})
	damaged[20] ^= 1
	for _, c := range []struct {
		name string
		says []byte
		want error
	}{
		{"another protocol", []byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n"), errNotPolder},
		{"version 2", encode(func(h *hello) { h.version = 2 }), errVersion},
		{"version 0", encode(func(h *hello) { h.version = 0 }), errVersion},
		{"damage", damaged, errHelloChecksum},
		{"smaller packets", encode(func(h *hello) { h.mtu -= 1024 }), errHelloLimits},
		{"fewer reads", encode(func(h *hello) { h.maxRdAtm-- }), errHelloLimits},
		{"cut short", damaged[:31], io.ErrUnexpectedEOF},
		{"nothing", nil, io.EOF},
	} {
		p := saying(c.says)
		if _, err := exchangeHello(p, testHello); !errors.Is(err, c.want) {
			t.Errorf("%s: got error %v, want %v", c.name, err, c.want)
		}
		if p.heard.Len() != helloSize {
			t.Errorf("%s: %d bytes were sent, want our hello of %d", c.name, p.heard.Len(), helloSize)
		}
	}
}

func FuzzHello(f *testing.F) {
	good := testHello.encode()
	f.Add(good[:])
	f.Add([]byte("polderTC"))
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n 123456"))
	f.Fuzz(func(t *testing.T, says []byte) {
		got, err := exchangeHello(saying(says), testHello)
		if err != nil {
			return
		}
		if got.version != protocolVersion || got.mtu < testHello.mtu || got.maxRdAtm < testHello.maxRdAtm ||
			got.features&^testHello.features != 0 {
			t.Errorf("agreed on %+v with %x", got, says)
		}
	})
}
