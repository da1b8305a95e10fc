package resp

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/far"
	"polder/internal/invariants"
	"polder/soft"
)

func TestMain(m *testing.M) {
	checks := "40"
	if invariants.Enabled {
		checks = "6" // which is ten times slower
	}
	if err := flag.Set("rapid.checks", checks); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

const testTimeout = time.Minute

// roomy is a local budget in which everything stays local.
const roomy = 64 << 20

// startServer starts a server with the given local budget on a TCP port and
// returns it with its address.
func startServer(t testing.TB, local int64, cfg Config) (*Server, string) {
	t.Helper()
	return startOn(t, newHeap(t, local), cfg)
}

// startOn is startServer with a given heap, which it closes in the end.
func startOn(t testing.TB, heap *far.Heap, cfg Config) (*Server, string) {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.OpTimeout == 0 {
		cfg.OpTimeout = testTimeout // a machine may be busy for seconds
	}
	srv, err := NewServer(heap, cfg)
	if err != nil {
		t.Fatalf("NewServer: %v", err)
	}
	return srv, serve(t, srv, heap.Close)
}

// startCache starts a cache with the given budget, and returns its heap too.
func startCache(t testing.TB, cfg Config, heapCfg soft.Config) (*Server, *soft.Heap, string) {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	heapCfg.Logger = cfg.Logger
	heap, err := soft.Open(heapCfg)
	if err != nil {
		t.Fatal(err)
	}
	srv, err := NewCache(heap, cfg)
	if err != nil {
		t.Fatalf("NewCache: %v", err)
	}
	return srv, heap, serve(t, srv, heap.Close)
}

// serve serves on a TCP port, which it returns, until the test ends. Then it
// closes the server's heap too.
func serve(t testing.TB, srv *Server, closeHeap func() error) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		if err := srv.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-served; err != ErrServerClosed {
			t.Errorf("Serve returned %v, want ErrServerClosed", err)
		}
		if err := closeHeap(); err != nil {
			t.Errorf("closing the heap: %v", err)
		}
	})
	return ln.Addr().String()
}

// startRedis starts the real redis-server and returns its Unix socket.
func startRedis(t testing.TB, options ...string) string {
	t.Helper()
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("this test compares with the real redis-server, which is not installed (Debian: apt-get install redis-server): %v", err)
	}
	dir := t.TempDir()
	sock := filepath.Join(dir, "s")
	cmd := exec.Command(bin, slices.Concat([]string{"--port", "0", "--unixsocket", sock, "--save", "", "--databases", "1",
		"--proto-max-bulk-len", "1mb", "--dir", dir, "--logfile", filepath.Join(dir, "log")}, options)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	deadline := time.Now().Add(testTimeout)
	for {
		c, err := net.Dial("unix", sock)
		if err == nil {
			c.Close()
			return sock
		}
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Fatalf("redis-server does not answer: %v\n%s", err, log)
		}
	}
}

// client speaks RESP without any library in between.
type client struct {
	t testing.TB
	c net.Conn
	r *bufio.Reader
}

func dial(t testing.TB, addr string) *client {
	t.Helper()
	network := "tcp"
	if strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	c, err := net.Dial(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(testTimeout))
	return &client{t: t, c: c, r: bufio.NewReader(c)}
}

func encode(args ...string) string {
	var b strings.Builder
	line := func(parts ...string) { // not by fmt, which takes most of a test's time with the race detector
		for _, p := range parts {
			b.WriteString(p)
		}
		b.WriteString("\r\n")
	}
	line("*", strconv.Itoa(len(args)))
	for _, a := range args {
		line("$", strconv.Itoa(len(a)))
		line(a)
	}
	return b.String()
}

func (c *client) send(raw string) {
	c.t.Helper()
	c.c.SetDeadline(time.Now().Add(testTimeout))
	if _, err := io.WriteString(c.c, raw); err != nil {
		c.t.Fatalf("cannot send %.60q: %v", raw, err)
	}
}

// do sends a command and returns its reply.
func (c *client) do(args ...string) answer {
	c.t.Helper()
	c.send(encode(args...))
	return c.recv()
}

// words is do for a command without spaces in its arguments.
func (c *client) words(line string) string {
	c.t.Helper()
	return c.do(strings.Fields(line)...).String()
}

func (c *client) recv() answer {
	c.t.Helper()
	r, err := readReply(c.r)
	if err != nil {
		c.t.Fatalf("cannot read a reply: %v", err)
	}
	return r
}

// answer is a reply of any type: its first line and what follows.
type answer struct {
	line  string // with the type, without CRLF
	bulk  string
	elems []answer
}

func readReply(r *bufio.Reader) (answer, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return answer{}, err
	}
	if !strings.HasSuffix(line, "\r\n") {
		return answer{}, fmt.Errorf("reply line %q does not end with CRLF", line)
	}
	rep := answer{line: line[:len(line)-2]}
	n := 0
	switch line[0] {
	case '$', '=', '*', '%', '~', '>':
		if n, err = strconv.Atoi(rep.line[1:]); err != nil {
			return answer{}, err
		}
	}
	switch line[0] {
	case '$', '=':
		if n < 0 {
			return rep, nil
		}
		b := make([]byte, n+2)
		if _, err := io.ReadFull(r, b); err != nil {
			return answer{}, err
		}
		rep.bulk = string(b[:n])
	case '%':
		n *= 2
		fallthrough
	case '*', '~', '>':
		for range n {
			e, err := readReply(r)
			if err != nil {
				return answer{}, err
			}
			rep.elems = append(rep.elems, e)
		}
	}
	return rep, nil
}

// String shows a reply as a test writes it: bulk strings quoted, aggregates
// in brackets after their type.
func (r answer) String() string {
	switch r.line[0] {
	case '$':
		if r.line == "$-1" {
			return "nil"
		}
		return strconv.Quote(r.bulk)
	case '=':
		return "=" + strconv.Quote(r.bulk)
	case '*', '%', '~', '>':
		if r.line == "*-1" {
			return "*nil"
		}
		parts := make([]string, len(r.elems))
		for i, e := range r.elems {
			parts[i] = e.String()
		}
		kind := ""
		if r.line[0] != '*' {
			kind = r.line[:1]
		}
		return kind + "[" + strings.Join(parts, " ") + "]"
	}
	return r.line
}

// sorted is r with its elements in order, in groups of n.
func (r answer) sorted(n int) answer {
	groups := slices.Collect(slices.Chunk(r.elems, n))
	slices.SortFunc(groups, func(a, b []answer) int {
		return strings.Compare(answer{line: "*", elems: a}.String(), answer{line: "*", elems: b}.String())
	})
	r.elems = slices.Concat(groups...)
	return r
}

// eventually waits until ok, which another goroutine or process brings about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(testTimeout)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s did not come about in %v", what, testTimeout)
		}
	}
}
