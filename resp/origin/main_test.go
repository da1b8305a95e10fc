package origin

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"polder/internal/child"
	"polder/soft"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testTimeout = time.Minute

// startRedis runs an origin.
func startRedis(t testing.TB, args ...string) *child.Redis {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	r, err := child.StartRedis(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// newServer makes a server with a heap of its own, patient enough for a busy machine.
func newServer(t testing.TB, cfg Config) *Server {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	heap, err := soft.Open(soft.Config{Budget: 16 << 20, Logger: cfg.Logger})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Heap = heap
	if cfg.Lag == 0 {
		cfg.Lag = 20 * time.Second
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = max(testTimeout, cfg.Lag)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := heap.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// startServer runs a cache before the origin at addr, and waits until it caches.
func startServer(t testing.TB, addr string, cfg Config) (*Server, string) {
	t.Helper()
	if cfg.URL.Address = addr; cfg.URL.Network == "" {
		cfg.URL.Network = "tcp"
	}
	s := newServer(t, cfg)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	until(t, "the origin is cached", func() bool { return s.Health() == nil })
	return s, lis.Addr().String()
}

// until waits for a condition.
func until(t testing.TB, what string, done func() bool) {
	t.Helper()
	for limit := time.Now().Add(testTimeout); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func connect(t testing.TB, addr string, change ...func(*redis.Options)) *redis.Client {
	t.Helper()
	o := &redis.Options{Addr: addr, MaxRetries: -1, ReadTimeout: testTimeout, WriteTimeout: testTimeout, DialTimeout: testTimeout, PoolSize: 4}
	for _, f := range change {
		f(o)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// wire is a client that sees the bytes.
type wire struct {
	t    testing.TB
	conn net.Conn
	r    *bufio.Reader
}

func dial(t testing.TB, addr string) *wire {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		t.Fatal(err)
	}
	return &wire{t, conn, bufio.NewReader(conn)}
}

func (w *wire) send(lines ...string) {
	w.t.Helper()
	if _, err := io.WriteString(w.conn, strings.Join(lines, "\r\n")+"\r\n"); err != nil {
		w.t.Fatal(err)
	}
}

// want reads as much as text is long, and compares.
func (w *wire) want(text string) {
	w.t.Helper()
	b := make([]byte, len(text))
	n, err := io.ReadFull(w.r, b)
	if string(b[:n]) != text {
		w.t.Fatalf("got %q (%v), want %q", b[:n], err, text)
	}
}

// do sends an inline command and returns the first line of the reply, and with a bulk
// string that instead.
func (w *wire) do(format string, args ...any) string {
	w.t.Helper()
	w.send(fmt.Sprintf(format, args...))
	line, err := w.r.ReadString('\n')
	if err != nil {
		w.t.Fatal(err)
	}
	line = strings.TrimSuffix(line, "\r\n")
	if n, err := strconv.Atoi(line[1:]); line[0] == '$' && err == nil && n >= 0 {
		b := make([]byte, n+2)
		if _, err := io.ReadFull(w.r, b); err != nil {
			w.t.Fatal(err)
		}
		return string(b[:n])
	}
	return line
}
