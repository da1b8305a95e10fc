package nbd

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"net"
	"testing"
	"time"

	"polder/far"
	"polder/pages"
)

// script is a connection of which everything that the client sends has come already.
type script struct {
	*bytes.Reader
	said bytes.Buffer
}

func (s *script) Write(b []byte) (int, error)      { return s.said.Write(b) }
func (s *script) Close() error                     { return nil }
func (s *script) LocalAddr() net.Addr              { return nil }
func (s *script) RemoteAddr() net.Addr             { return nil }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// FuzzConnection: whatever a client sends, it ends, and does not end the server; and each
// reply is of a form that a client understands.
func FuzzConnection(f *testing.F) {
	h, err := far.NewHeap(far.NewMemStore(256<<10, 64), far.Config{Local: far.MinLocal})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = h.Close() })
	v, err := pages.New(h, "disk", 1<<20)
	if err != nil {
		f.Fatal(err)
	}
	s, err := New(Config{Volume: v, Name: "disk", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Close() })
	f.Fuzz(func(t *testing.T, sent []byte) {
		c := &script{Reader: bytes.NewReader(sent)}
		nc, chosen, err := s.negotiate(c)
		if err != nil {
			return
		}
		c.said.Reset()
		_ = newConn(s, nc, chosen).serve()
		be := binary.BigEndian
		for b := c.said.Bytes(); chosen.structured && len(b) > 0; {
			if len(b) < 20 || be.Uint32(b) != chunkMagic || be.Uint16(b[4:])&^chunkDone != 0 || len(b)-20 < int(be.Uint32(b[16:])) {
				t.Fatalf("a reply is %x", b[:min(len(b), 32)])
			}
			b = b[20+be.Uint32(b[16:]):]
		}
	})
}
