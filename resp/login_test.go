package resp

import (
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"
)

// serveTLS has srv listen with TLS, too, until it is closed.
func serveTLS(t *testing.T, srv *Server) (addr string, dial func() *client) {
	t.Helper()
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{selfSigned(t)}})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	t.Cleanup(func() {
		srv.Close()
		if err := <-served; err != ErrServerClosed {
			t.Errorf("Serve returned %v, want ErrServerClosed", err)
		}
	})
	addr = ln.Addr().String()
	return addr, func() *client {
		t.Helper()
		d := tls.Dialer{NetDialer: &net.Dialer{Timeout: testTimeout}, Config: &tls.Config{InsecureSkipVerify: true}}
		c, err := d.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		return dialed(t, c)
	}
}

// TestARequestOfHTTPIsNotRun: a web page could have a browser send it, with commands in its body. Redis disconnects
// who sends one, too.
func TestARequestOfHTTPIsNotRun(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		_, addr := startServer(t, roomy, cfg)
		for _, addr := range []string{addr, startRedis(t)} {
			for _, head := range []string{"POST / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nHost: localhost:6379\r\n", "post /\n"} {
				c := dial(t, addr)
				c.send(head + "\r\nset k v\r\nquit\r\n")
				if got := c.rest(); strings.Contains(got, "+OK") {
					t.Errorf("%q: got %q, want that nothing is set", head, got)
				}
				expect(t, dial(t, addr), "GET k", "nil")
			}
		}
	})
}

// TestSilentPeersTakeNoClientsPlace has more peers than there may be clients
// connect to a TLS door and say nothing. Clients come and go nevertheless, one too
// many is told so, and the server can be closed.
func TestSilentPeersTakeNoClientsPlace(t *testing.T) {
	srv, _ := startServer(t, roomy, Config{MaxClients: 2})
	addr, dialTLS := serveTLS(t, srv)
	for range 10 {
		dial(t, addr)
	}
	a, b := dialTLS(), dialTLS()
	expect(t, a, "PING", "+PONG")
	expect(t, b, "PING", "+PONG")
	if got, want := dialTLS().rest(), "-ERR max number of clients reached\r\n"; got != want {
		t.Errorf("third client: got %q, want %q", got, want)
	}
	if got := srv.Stats(); got.Clients != 2 || got.Rejected != 1 {
		t.Errorf("got %d clients and %d rejected, want 2 and 1", got.Clients, got.Rejected)
	}
	a.c.Close()
	eventually(t, "the end of a client", func() bool { return srv.Stats().Clients == 1 })
	expect(t, dialTLS(), "PING", "+PONG")
}

// TestWhoHasNotGivenThePasswordTakesNoClientsPlace is the same for plain doors.
func TestWhoHasNotGivenThePasswordTakesNoClientsPlace(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		cfg.MaxClients, cfg.Password = 2, "secret"
		srv, addr := startServer(t, roomy, cfg)
		for i := range 10 {
			stranger := dial(t, addr)
			if i%2 == 0 {
				expect(t, stranger, "PING", "-NOAUTH Authentication required.")
			}
		}
		a, b, c := dial(t, addr), dial(t, addr), dial(t, addr)
		expect(t, a, "AUTH secret", "+OK")
		expect(t, b, "AUTH secret", "+OK")
		c.send(encode("AUTH", "secret"))
		if got, want := c.rest(), "-ERR max number of clients reached\r\n"; got != want {
			t.Errorf("third client: got %q, want %q", got, want)
		}
		if got := srv.Stats(); got.Clients != 2 || got.Rejected != 1 {
			t.Errorf("got %d clients and %d rejected, want 2 and 1", got.Clients, got.Rejected)
		}
		b.c.Close()
		eventually(t, "the end of a client", func() bool { return srv.Stats().Clients == 1 })
		d := dial(t, addr)
		expect(t, d, "AUTH secret", "+OK")
		expect(t, d, "PING", "+PONG")
	})
}

// TestWhatIsSentWithThePasswordIsAnswered cuts a pipeline that begins with AUTH at
// every byte.
func TestWhatIsSentWithThePasswordIsAnswered(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		cfg.Password = "secret"
		_, addr := startServer(t, roomy, cfg)
		pipeline := "PING\r\n" + encode("AUTH", "secret") + encode("SET", "k", "v") + "GET k\r\nQUIT\r\n"
		const want = "-NOAUTH Authentication required.\r\n+OK\r\n+OK\r\n$1\r\nv\r\n+OK\r\n"
		for cut := range len(pipeline) {
			c := dial(t, addr)
			c.c.(*net.TCPConn).SetNoDelay(true)
			c.send(pipeline[:cut])
			c.send(pipeline[cut:])
			if got := c.rest(); got != want {
				t.Fatalf("cut after %d bytes: got %q, want %q", cut, got, want)
			}
		}
	})
}

// TestLittleIsKeptOfWhoHasNoPassword sends commands without an end.
func TestLittleIsKeptOfWhoHasNoPassword(t *testing.T) {
	srv, addr := startServer(t, roomy, Config{Password: "secret"})
	c := dial(t, addr)
	c.send("*9\r\n" + strings.Repeat("$16000\r\n"+strings.Repeat("x", 16000)+"\r\n", 2))
	if got := c.rest(); got != "" {
		t.Errorf("got %q, want that the connection is closed", got)
	}
	eventually(t, "nobody at the door", func() bool { return srv.door.Waiting() == 0 })
}

// TestTheServerClosesWhileManyWaitAtTheDoor has them say nothing.
func TestTheServerClosesWhileManyWaitAtTheDoor(t *testing.T) {
	srv, addr := startServer(t, roomy, Config{Password: "secret"})
	tlsAddr, _ := serveTLS(t, srv)
	for range 20 {
		dial(t, addr)
		dial(t, tlsAddr)
	}
	eventually(t, "those without a password wait", func() bool { return srv.door.Waiting() == 20 })
	began := time.Now()
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > loginTimeout/2 {
		t.Errorf("closing took %v: it has waited for the silent", took)
	}
}
