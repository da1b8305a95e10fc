// Package testdns is a name server for tests. It gives the same records for every name. A test can change them while
// the server is being asked.
package testdns

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A Server answers at a UDP port of this machine until the test ends.
type Server struct {
	Addr string

	mu    sync.Mutex
	addrs []netip.AddrPort
	mute  bool
}

// New starts a server that knows nothing yet.
func New(t testing.TB) *Server {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Addr: c.LocalAddr().String()}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b := make([]byte, 512)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			if reply := s.answer(b[:n]); reply != nil {
				_, _ = c.WriteTo(reply, from)
			}
		}
	}()
	t.Cleanup(func() { c.Close(); <-ended })
	return s
}

// Set gives every name these addresses: the IPs as its A records, and with the ports as its SRV records, which name
// hosts such as ip-127-0-0-1.test. That has its own address. With none there is no such name.
func (s *Server) Set(addrs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addrs = nil
	for _, a := range addrs {
		s.addrs = append(s.addrs, netip.MustParseAddrPort(a))
	}
}

// Mute has the server answer nobody, or everybody again.
func (s *Server) Mute(yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mute = yes
}

const (
	typeA   = 1
	typeSRV = 33

	notFound = 3
)

// answer is the reply to a request of one question (RFC 1035, section 4), or nil.
func (s *Server) answer(request []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	be := binary.BigEndian
	end := 12
	for end < len(request) && request[end] != 0 {
		end += 1 + int(request[end])
	}
	if end += 5; s.mute || end > len(request) {
		return nil
	}
	kind := be.Uint16(request[end-4:])
	var records [][]byte
	addrs := s.addrs
	if label, ok := strings.CutPrefix(string(request[13:13+request[12]]), "ip-"); ok {
		addrs = []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(strings.ReplaceAll(label, "-", ".")), 0)}
	}
	for _, a := range addrs {
		switch ip := a.Addr().As4(); kind {
		case typeA:
			records = append(records, ip[:])
		case typeSRV:
			r := be.AppendUint16([]byte{0, 0, 0, 0}, a.Port()) // priority and weight are 0
			label := "ip-" + strings.ReplaceAll(a.Addr().String(), ".", "-")
			r = append(append(r, byte(len(label))), label...)
			records = append(records, append(r, "\x04test\x00"...))
		}
	}
	b := slices.Clone(request[:end])
	be.PutUint16(b[2:], 0x8180) // a reply, of a server that recurses
	if len(addrs) == 0 {
		b[3] |= notFound
	}
	be.PutUint16(b[6:], uint16(len(records)))
	be.PutUint32(b[8:], 0)
	for _, r := range records {
		b = append(b, 0xc0, 12) // the name that was asked for
		b = be.AppendUint16(b, kind)
		b = append(b, 0, 1, 0, 0, 0, 0) // class IN, for 0 seconds
		b = append(be.AppendUint16(b, uint16(len(r))), r...)
	}
	return b
}
