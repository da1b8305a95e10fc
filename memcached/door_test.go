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

// TestARequestOfHTTPIsNotRun: a web page could have a browser send it, with commands in its body.
func TestARequestOfHTTPIsNotRun(t *testing.T) {
	_, addr := start(t, nil)
	for _, head := range []string{"POST / HTTP/1.1\r\nHost: localhost:11211\r\n", "POST /set%20k HTTP/1.0\r\n", "OPTIONS / HTTP/1.1\n"} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(patience))
		io.WriteString(conn, "version\r\n"+head+"\r\nset k 0 0 1\r\nv\r\nquit\r\n")
		got, _ := io.ReadAll(conn) // the connection may be reset: not all has been read
		if strings.Contains(string(got), "STORED") {
			t.Errorf("%q: got %q, want that nothing is stored", head, got)
		}
		if got := talk(t, addr, "get k\r\ndelete k\r\n"); got != "END\r\nNOT_FOUND\r\n" {
			t.Errorf("%q: what its body sets: got %q, want nothing", head, got)
		}
	}
}
