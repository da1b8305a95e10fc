package memcached

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"polder/internal/testcert"
)

// patience bounds what should happen at all.
const patience = time.Minute

// TestSilentPeersTakeNoClientsPlace has more peers than there may be clients
// connect to a TLS door and say nothing. Clients are served nevertheless, one too
// many is told so, and the server can be closed.
func TestSilentPeersTakeNoClientsPlace(t *testing.T) {
	s, _ := start(t, func(c *Config) { c.MaxConns = 2 })
	cert, err := tls.LoadX509KeyPair(testcert.NewAuthority(t, "doors").Issue(t, "door"))
	if err != nil {
		t.Fatal(err)
	}
	lis, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(lis) }()
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for range 10 {
		silent, err := net.Dial("tcp", lis.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
	}
	client := func() net.Conn {
		t.Helper()
		d := &net.Dialer{Deadline: time.Now().Add(patience)}
		c, err := tls.DialWithDialer(d, "tcp", lis.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(patience))
		return c
	}
	for range 2 {
		c := client()
		io.WriteString(c, "version\r\n")
		if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.HasPrefix(line, "VERSION ") {
			t.Fatalf("got %q, %v, want the version", line, err)
		}
	}
	if got, err := io.ReadAll(client()); err != nil || string(got) != "ERROR Too many open connections\r\n" {
		t.Errorf("the third client got %q, %v", got, err)
	}
}
