package load

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve answers every connection with handle until the test ends.
func serve(t *testing.T, handle func(io.ReadWriter)) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	conns := make(chan struct{}, 1024)
	go func() {
		defer close(done)
		n := 0
		for {
			c, err := lis.Accept()
			if err != nil {
				break
			}
			n++
			go func() {
				handle(c)
				_ = c.Close()
				conns <- struct{}{}
			}()
		}
		for range n {
			<-conns
		}
	}()
	t.Cleanup(func() {
		_ = lis.Close()
		<-done
	})
	return lis.Addr().String()
}

// answer reads requests, each of size bytes, and writes what reply says to
// the key in it.
func answer(size int, reply func(k string) string) func(io.ReadWriter) {
	return func(c io.ReadWriter) {
		req := make([]byte, size)
		for {
			if _, err := io.ReadFull(c, req); err != nil {
				return
			}
			i := bytes.Index(req, []byte(keyPrefix))
			if _, err := io.WriteString(c, reply(string(req[i:i+KeySize]))); err != nil {
				return
			}
		}
	}
}

func number(t *testing.T, key string) uint32 {
	var k uint32
	if _, err := fmt.Sscanf(key, keyPrefix+"%d", &k); err != nil {
		t.Errorf("got the key %q: %v", key, err)
	}
	return k
}

func config(addr string, op Op) Config {
	return Config{Addr: addr, Conns: 3, Pipeline: 4, Op: op, ValueSize: 64, Sequence: Ascending(10), Count: 1003}
}

func TestRunCountsAndChecksReplies(t *testing.T) {
	addr := serve(t, answer(newBatch(Get, 1, 64).size, func(key string) string {
		switch k := number(t, key); k {
		case 3:
			return "$-1\r\n"
		case 7:
			return "-LOADING not yet\r\n"
		default:
			return "$64\r\n" + string(Value(k, 64)) + "\r\n"
		}
	}))
	cfg := config(addr, Get)
	cfg.Offset = 20 // the same as 0
	got, err := Run(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got.Ops != 1003 || got.Latency.TotalCount() != 1003 {
		t.Errorf("got %d answers and %d latencies, want 1003", got.Ops, got.Latency.TotalCount())
	}
	// Keys 0 to 9 a hundred times, and then 0, 1 and 2.
	if got.Missing != 100 || got.Failed != 100 || got.Failure != "LOADING not yet" {
		t.Errorf("got %d missing, %d failed (%q), want 100 and 100", got.Missing, got.Failed, got.Failure)
	}
	if got.Throughput() <= 0 {
		t.Errorf("got a throughput of %v", got.Throughput())
	}
}

func TestRunBeginsAtItsOffset(t *testing.T) {
	keys := make(chan uint32, 1)
	addr := serve(t, answer(newBatch(Get, 1, 64).size, func(key string) string {
		keys <- number(t, key)
		return "$-1\r\n"
	}))
	cfg := config(addr, Get)
	cfg.Conns, cfg.Pipeline, cfg.Count, cfg.Offset = 1, 1, 1, 8
	if _, err := Run(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
	if k := <-keys; k != 8 {
		t.Errorf("the first key was number %d, want 8", k)
	}
}

func TestRunSets(t *testing.T) {
	addr := serve(t, answer(newBatch(Set, 1, 64).size, func(string) string { return "+OK\r\n" }))
	cfg := config(addr, Set)
	cfg.Count, cfg.Duration = 0, 20*time.Millisecond
	got, err := Run(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got.Ops == 0 || got.Failed != 0 || got.Elapsed < cfg.Duration {
		t.Errorf("got %d answers, %d failed, in %v", got.Ops, got.Failed, got.Elapsed)
	}
}

func TestRunFailsWhenTheServerDoesNotDoItsPart(t *testing.T) {
	size := newBatch(Get, 1, 64).size
	for _, tt := range []struct {
		name   string
		handle func(io.ReadWriter)
		want   string
	}{
		{"another key's value", answer(size, func(string) string { return "$64\r\n" + string(Value(99, 64)) + "\r\n" }),
			"got other bytes than were stored under key:0"},
		{"a value of another size", answer(size, func(string) string { return "$3\r\nabc\r\n" }), `got the reply "$3\r\n" to GET`},
		{"not a reply", answer(size, func(string) string { return "HTTP/1.1 400\r\n" }), "got the reply"},
		{"endless line", answer(size, func(string) string { return "-" + strings.Repeat("x", 2*maxLine) }), "reply line of more than"},
		{"too many replies", answer(size, func(string) string { return strings.Repeat("$-1\r\n", 2) }), "more than there were replies to come"},
		{"end of the connection", func(io.ReadWriter) {}, ""}, // reset or closed
		{"silence", func(c io.ReadWriter) { _, _ = io.Copy(io.Discard, c) }, "no reply for"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config(serve(t, tt.handle), Get)
			if tt.name == "silence" {
				cfg.Stall = 100 * time.Millisecond
			}
			_, err := Run(context.Background(), cfg)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	addr := serve(t, func(c io.ReadWriter) { _, _ = io.Copy(io.Discard, c) })
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := Run(ctx, config(addr, Get)); err == nil || !strings.Contains(err.Error(), "deadline") {
		t.Errorf("got %v, want the context's error", err)
	}
}

func TestRunRefusesAnImpossibleLoad(t *testing.T) {
	if _, err := Run(context.Background(), Config{Conns: 1, Pipeline: 1, ValueSize: 3, Sequence: Ascending(1)}); err == nil {
		t.Error("got no error for values too small to tell whose they are")
	}
}

func TestRunSaysThatNobodyListens(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := lis.Addr().String()
	_ = lis.Close()
	if _, err := Run(context.Background(), config(addr, Get)); err == nil || !strings.Contains(err.Error(), "cannot connect") {
		t.Errorf("got %v, want that it cannot connect", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("$64\r\n"+string(Value(5, 64))+"\r\n"), false)
	f.Add([]byte("$-1\r\n"), false)
	f.Add([]byte("+OK\r\n"), true)
	f.Add([]byte("-ERR no\r\n"), true)
	get, set := newParser(Get, 64), newParser(Set, 64)
	f.Fuzz(func(t *testing.T, b []byte, isSet bool) {
		p := get
		if isSet {
			p = set
		}
		n, what, err := p.parse(b, 5)
		if err == nil && (n <= 0 || n > len(b)) {
			t.Fatalf("parse(%q) took %d of %d bytes", b, n, len(b))
		}
		if err == nil && what == replyOK && !isSet && !bytes.Contains(b, Value(5, 64)) {
			t.Fatalf("parse(%q) took it for a hit", b)
		}
	})
}

// TestSetWaitWantsReplicas: a WAIT that has found too few has failed.
func TestSetWaitWantsReplicas(t *testing.T) {
	for _, tt := range []struct {
		op   Op
		in   string
		n    int
		what reply
		err  bool
	}{
		{SetWait, "+OK\r\n:1\r\n+OK", 9, replyOK, false},
		{SetWait, "+OK\r\n:0\r\n", 9, replyFailed, false},
		{SetWait, "+OK\r\n:1", 0, 0, true},
		{SetWait, "+OK\r\n", 0, 0, true},
		{SetWait, "+OK\r\n-ERR\r\n", 0, 0, true},
		{SetWait, "+OK\r\n:\r\n", 0, 0, true},
		{SetWaitTwo, "+OK\r\n:2\r\n", 9, replyOK, false},
		{SetWaitTwo, "+OK\r\n:10\r\n", 10, replyOK, false},
		{SetWaitTwo, "+OK\r\n:1\r\n", 9, replyFailed, false},
	} {
		p := newParser(tt.op, KeySize)
		if n, what, err := p.parse([]byte(tt.in), 0); n != tt.n || what != tt.what || (err != nil) != tt.err {
			t.Errorf("%v, %q: got %d bytes, %v, %v; want %d, %v", tt.op, tt.in, n, what, err, tt.n, tt.what)
		}
	}
}
