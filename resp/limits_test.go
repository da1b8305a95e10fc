package resp

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// rest reads what comes until the server closes the connection.
func (c *client) rest() string {
	c.t.Helper()
	b, err := io.ReadAll(c.r)
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		c.t.Fatalf("the server did not close the connection; it sent %.200q", b)
	}
	return string(b)
}

// drivers runs a test with event loops and with goroutines.
func drivers(t *testing.T, test func(t *testing.T, cfg Config)) {
	for _, d := range []struct {
		name  string
		loops int
	}{{"event loops", 2}, {"goroutines", -1}} {
		t.Run(d.name, func(t *testing.T) { test(t, Config{Loops: d.loops}) })
	}
}

func TestProtocolErrorsEndTheConnection(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		cfg.MaxBulk, cfg.MaxArgs, cfg.MaxInlineLen = 1000, 100, 500
		srv, addr := startServer(t, roomy, cfg)
		cases := map[string]string{
			"*1\r\n$1001\r\n":              "-ERR Protocol error: invalid bulk length\r\n",
			"*1\r\n$-5\r\n":                "-ERR Protocol error: invalid bulk length\r\n",
			"*101\r\n":                     "-ERR Protocol error: invalid multibulk length\r\n",
			"*x\r\n":                       "-ERR Protocol error: invalid multibulk length\r\n",
			"*1\r\nPING\r\n":               "-ERR Protocol error: expected '$', got 'P'\r\n",
			"set 'a\r\n":                   "-ERR Protocol error: unbalanced quotes in request\r\n",
			strings.Repeat("x", 600):       "-ERR Protocol error: too big inline request\r\n",
			"*" + strings.Repeat("1", 600): "-ERR Protocol error: too big mbulk count string\r\n",
			"PING\r\n*1\r\n$x\r\n":         "+PONG\r\n-ERR Protocol error: invalid bulk length\r\n",
			"QUIT\r\nPING\r\n":             "+OK\r\n",
		}
		for in, want := range cases {
			c := dial(t, addr)
			c.send(in)
			if got := c.rest(); got != want {
				t.Errorf("%.40q: got %q, want %q", in, got, want)
			}
		}
		if n := srv.Stats().ProtocolErrors; n != int64(len(cases)-1) {
			t.Errorf("%d protocol errors counted, want %d", n, len(cases)-1)
		}
	})
}

func TestInlineCommandsAndPipelines(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		_, addr := startServer(t, roomy, cfg)
		c := dial(t, addr)
		c.send("set k \"a b\"\r\nget k\r\n\r\n" + encode("GET", "k") + "PING\n")
		for _, want := range []string{"+OK", `"a b"`, `"a b"`, "+PONG"} {
			if got := c.recv().String(); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		// A long pipeline, in pieces that end anywhere.
		var in strings.Builder
		const n = 5000
		for i := range n {
			in.WriteString(encode("SET", fmt.Sprint("key", i), strings.Repeat("v", i%300)))
			in.WriteString(encode("STRLEN", fmt.Sprint("key", i)))
		}
		go func() {
			for s := in.String(); s != ""; {
				k := min(len(s), 7777)
				io.WriteString(c.c, s[:k])
				s = s[k:]
			}
		}()
		for i := range n {
			if got := c.recv().String(); got != "+OK" {
				t.Fatalf("SET %d: %s", i, got)
			}
			if got, want := c.recv().String(), fmt.Sprint(":", i%300); got != want {
				t.Fatalf("STRLEN %d: got %s, want %s", i, got, want)
			}
		}
	})
}

// TestBigValuesComeThroughWhole checks values that span many reads and writes.
func TestBigValuesComeThroughWhole(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		_, addr := startServer(t, roomy, cfg)
		c := dial(t, addr)
		for _, n := range []int{0, 1, 4095, 65536, 1 << 20, 4 << 20} {
			v := strings.Repeat("0123456789abcdef", n/16+1)[:n]
			if got := c.do("SET", "big", v).String(); got != "+OK" {
				t.Fatalf("SET of %d bytes: %s", n, got)
			}
			if got := c.do("GET", "big").bulk; got != v {
				t.Errorf("GET of %d bytes: other bytes (%d) came back", n, len(got))
			}
		}
	})
}

func TestPassword(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		cfg.Password = "secret"
		_, addr := startServer(t, roomy, cfg)
		c := dial(t, addr)
		expect(t, c, "PING", "-NOAUTH Authentication required.")
		expect(t, c, "SET a b", "-NOAUTH Authentication required.")
		expect(t, c, "HELLO 3", "-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time")
		expect(t, c, "AUTH wrong", "-WRONGPASS invalid username-password pair or user is disabled.")
		expect(t, c, "AUTH other secret", "-WRONGPASS invalid username-password pair or user is disabled.")
		expect(t, c, "AUTH default secret", "+OK")
		expect(t, c, "PING", "+PONG")
		expect(t, c, "RESET", "+RESET")
		expect(t, c, "PING", "-NOAUTH Authentication required.")
		if got := c.words("HELLO 3 AUTH default secret SETNAME me"); !strings.HasPrefix(got, `%["server" "redis"`) {
			t.Errorf("HELLO with AUTH: %s", got)
		}
		expect(t, c, "CLIENT GETNAME", `"me"`)

		c = dial(t, addr)
		c.send("*11\r\n")
		if got, want := c.rest(), "-ERR Protocol error: unauthenticated multibulk length\r\n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestMaxClients(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		cfg.MaxClients = 2
		srv, addr := startServer(t, roomy, cfg)
		a, b := dial(t, addr), dial(t, addr)
		expect(t, a, "PING", "+PONG")
		expect(t, b, "PING", "+PONG")
		c := dial(t, addr)
		if got, want := c.rest(), "-ERR max number of clients reached\r\n"; got != want {
			t.Errorf("third client: got %q, want %q", got, want)
		}
		a.c.Close()
		eventually(t, "the end of a client", func() bool { return srv.Stats().Clients == 1 })
		expect(t, dial(t, addr), "PING", "+PONG")
	})
}

// TestSlowReadersAreDisconnected has a client ask for much and read nothing.
func TestSlowReadersAreDisconnected(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		cfg.OutputLimit = 1 << 20
		srv, addr := startServer(t, roomy, cfg)
		slow, other := dial(t, addr), dial(t, addr)
		value := strings.Repeat("v", 100<<10)
		other.do("SET", "k", value)
		sent := make(chan error, 1)
		go func() {
			get := []byte(encode("GET", "k"))
			for {
				if _, err := slow.c.Write(get); err != nil {
					sent <- err
					return
				}
			}
		}()
		eventually(t, "disconnection of the slow reader", func() bool { return srv.Stats().OutputDrops == 1 })
		<-sent
		if got := other.do("GET", "k").bulk; got != value {
			t.Errorf("another client got other bytes")
		}
		eventually(t, "the end of its session", func() bool { return srv.Stats().Clients == 1 })
	})
}

// TestLongPipelinesGetAll has a client ask at once for many times what may wait
// for it, and read all of it.
func TestLongPipelinesGetAll(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		cfg.OutputLimit = 256 << 10
		srv, addr := startServer(t, roomy, cfg)
		c, other := dial(t, addr), dial(t, addr)
		const n = 2000
		for i := range 10 {
			c.do("SET", fmt.Sprint(i), strings.Repeat(fmt.Sprint(i), 20<<10))
		}
		var in strings.Builder
		for i := range n {
			in.WriteString(encode("GET", fmt.Sprint(i%10)))
		}
		c.send(in.String() + "PING\r\n")
		other.do("SET", "other", "served")
		for i := range n {
			if got, want := c.recv().bulk, strings.Repeat(fmt.Sprint(i%10), 20<<10); got != want {
				t.Fatalf("reply %d: got %d bytes that begin with %.3q, want %d of %q", i, len(got), got, len(want), want[:1])
			}
		}
		if got := c.recv().String(); got != "+PONG" {
			t.Errorf("at the end: %s", got)
		}
		if n := srv.Stats().OutputDrops; n != 0 {
			t.Errorf("%d clients counted as not reading, want none", n)
		}
	})
}

// TestRepliesBeyondTheLimitAreRefused asks for more in one reply than may wait
// for a client.
func TestRepliesBeyondTheLimitAreRefused(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		cfg.OutputLimit, cfg.MaxBulk = 64<<10, 64<<10
		_, addr := startServer(t, roomy, cfg)
		c := dial(t, addr)
		value := strings.Repeat("v", 60<<10)
		for _, k := range []string{"a", "b", "c"} {
			c.do("SET", k, value)
			c.do("HSET", "h", k, value)
		}
		const refused = "-ERR the reply would be longer than the output limit: ask for less at once"
		expect(t, c, "MGET a b c", refused)
		expect(t, c, "HGETALL h", refused)
		expect(t, c, "HRANDFIELD h -100000", refused)
		expect(t, c, "HSCAN h 0 COUNT 1000", refused)
		expect(t, c, "HRANDFIELD h 3", refused)
		expect(t, c, "MULTI", "+OK")
		for _, k := range []string{"GET a", "GET b", "GET c", "GETDEL a"} {
			expect(t, c, k, "+QUEUED")
		}
		r := c.do("EXEC")
		if len(r.elems) != 4 || r.elems[1].bulk != value || r.elems[2].line != refused || r.elems[3].line != refused {
			t.Errorf("EXEC: %.300s", r)
		}
		expect(t, c, "EXISTS a", ":1")
		if got := c.do("GET", "a").bulk; got != value {
			t.Errorf("GET: %d bytes, want %d", len(got), len(value))
		}
	})
}

// TestPatientReadersGetAll has a client send all its commands before it reads
// any reply, within the limit.
func TestPatientReadersGetAll(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		_, addr := startServer(t, roomy, cfg)
		c := dial(t, addr)
		value := strings.Repeat("v", 100<<10)
		c.do("SET", "k", value)
		const n = 100
		c.send(strings.Repeat(encode("GET", "k"), n) + "PING\r\n")
		for i := range n {
			if got := c.recv().bulk; got != value {
				t.Fatalf("reply %d: other bytes", i)
			}
		}
		if got := c.recv().String(); got != "+PONG" {
			t.Errorf("at the end: %s", got)
		}
	})
}

func TestHalfClosedClientsGetTheirReplies(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		srv, addr := startServer(t, roomy, cfg)
		c := dial(t, addr)
		value := strings.Repeat("v", 5<<20)
		c.do("SET", "k", value)
		c.send(encode("GET", "k") + "*2\r\n$3\r\nGET\r\n$1")
		if err := c.c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("$%d\r\n%s\r\n", len(value), value)
		if got := c.rest(); got != want {
			t.Errorf("got %d bytes, want %d", len(got), len(want))
		}
		eventually(t, "the end of the session", func() bool { return srv.Stats().Clients == 0 })
	})
}

func TestIdleClientsAreDisconnected(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		cfg.IdleTimeout = time.Second
		srv, addr := startServer(t, roomy, cfg)
		subscriber := dial(t, addr)
		subscriber.words("SUBSCRIBE news")
		c, former := dial(t, addr), dial(t, addr)
		expect(t, c, "PING", "+PONG")
		former.words("SUBSCRIBE news")
		former.words("UNSUBSCRIBE news")
		for _, c := range []*client{c, former} {
			if got := c.rest(); got != "" {
				t.Errorf("got %q", got)
			}
		}
		if srv.Stats().IdleDrops != 2 {
			t.Errorf("%d idle clients counted, want 2", srv.Stats().IdleDrops)
		}
		if got := dial(t, addr).words("PUBLISH news old"); got != ":1" {
			t.Errorf("after a subscriber was idle: PUBLISH replied %s, want :1", got)
		}
	})
}

// TestIdleClientsHoldLittleMemory has many clients send and receive much, and
// looks at what the process holds while they are idle.
func TestIdleClientsHoldLittleMemory(t *testing.T) {
	_, addr := startServer(t, roomy, Config{Loops: 1})
	const clients, size = 40, 1 << 19
	value := strings.Repeat("v", size)
	conns := make([]net.Conn, clients)
	for i := range conns {
		c := dial(t, addr)
		c.send(encode("SET", "k", value) + encode("APPEND", "k", "x") + encode("GET", "k"))
		for range 2 {
			c.recv()
		}
		if got := len(c.recv().bulk); got != size+1 {
			t.Fatalf("GET: %d bytes, want %d", got, size+1)
		}
		conns[i] = c.c // without its reader, which has a buffer
	}
	var m runtime.MemStats
	eventually(t, "a Go heap that is small again", func() bool {
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc < clients*size/4
	})
	runtime.KeepAlive(conns)
}

// TestWaitingClientsHoldLittleMemory has many clients wait for a lock, as they do
// for a node that does not answer, while the event loop serves others.
func TestWaitingClientsHoldLittleMemory(t *testing.T) {
	srv, addr := startServer(t, roomy, Config{Loops: 1})
	const clients, most = 200, 64 << 10
	other := dial(t, addr)
	held := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	conns := make([]*client, clients)
	for i := range conns {
		conns[i] = dial(t, addr)
		conns[i].do("PING")
	}
	before := held()
	locks := srv.newSession()
	defer locks.close()
	locks.WantAll()
	locks.LockWanted(true, nil)
	unlock := sync.OnceFunc(locks.Unlock)
	defer unlock()
	for i, c := range conns {
		key := fmt.Sprint("key", i)
		set := encode("SET", key, fmt.Sprint("value", i))
		if i%2 == 0 {
			set = fmt.Sprintf("SET '%s' \"value%d\"\r\n", key, i)
		}
		c.send(encode("ECHO", fmt.Sprint("before", i)) + set + encode("GET", key) + encode("ECHO", fmt.Sprint("after", i)))
	}
	eventually(t, "all clients to wait", func() bool { return srv.stats.handovers.Load() >= clients })
	for range 10 {
		if want := strings.Repeat("x", 100<<10); other.do("ECHO", want).bulk != want {
			t.Fatal("another client's echo is not what it sent")
		}
	}
	if after := held(); after > before+clients*most {
		t.Errorf("%d clients that wait take %d bytes each, want at most %d", clients, (after-before)/clients, most)
	}
	unlock()
	for i, c := range conns {
		if got, want := c.recv().bulk, fmt.Sprint("before", i); got != want {
			t.Errorf("ECHO before SET: got %q, want %q", got, want)
		}
		if got := c.recv().String(); got != "+OK" {
			t.Errorf("SET: got %s", got)
		}
		if got, want := c.recv().bulk, fmt.Sprint("value", i); got != want {
			t.Errorf("GET after SET: got %q, want %q", got, want)
		}
		if got, want := c.recv().bulk, fmt.Sprint("after", i); got != want {
			t.Errorf("ECHO after SET: got %q, want %q", got, want)
		}
	}
}

func TestUnixSocketsAndTLS(t *testing.T) {
	heap := newHeap(t, roomy)
	srv, err := NewServer(heap, Config{})
	if err != nil {
		t.Fatal(err)
	}
	sock := filepath.Join(t.TempDir(), "s")
	unixLn, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	cert := selfSigned(t)
	tlsLn, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 2)
	for _, ln := range []net.Listener{unixLn, tlsLn} {
		go func() { served <- srv.Serve(ln) }()
	}
	a := dial(t, sock)
	tc, err := tls.Dial("tcp", tlsLn.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer tc.Close()
	b := dialed(t, tc)
	value := strings.Repeat("v", 3<<20)
	if got := a.do("SET", "k", value).String(); got != "+OK" {
		t.Fatalf("SET: %s", got)
	}
	if got := b.do("GET", "k").bulk; got != value {
		t.Errorf("GET over TLS: other bytes")
	}
	srv.Close()
	for range 2 {
		if err := <-served; err != ErrServerClosed {
			t.Errorf("Serve: %v", err)
		}
	}
	heap.Close()
}

// TestGarbageDoesNoHarm throws bytes at the server and then uses it.
func TestGarbageDoesNoHarm(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		srv, addr := startServer(t, roomy, cfg)
		for i := range 64 {
			c := dial(t, addr)
			junk := bytes.Repeat([]byte{byte(i * 4), '\r', '\n', byte(i), '*', '$', '9'}, i*50)
			c.c.Write(junk)
			c.c.Close()
		}
		eventually(t, "the end of the sessions", func() bool { return srv.Stats().Clients == 0 })
		expect(t, dial(t, addr), "PING", "+PONG")
	})
}
