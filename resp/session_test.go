package resp

import (
	"bufio"
	"bytes"
	"io"
	"strings"
	"testing"

	"polder/far"
)

// newTestSession makes a session without a driver, on a server without loops.
func newTestSession(t testing.TB) *session {
	t.Helper()
	srv, _ := startServer(t, roomy, Config{Loops: -1, MaxBulk: 1 << 16, MaxArgs: 1000})
	return srv.newSession()
}

// feed gives input to a session and returns what it replies.
func (s *session) feed(in []byte) []byte {
	s.in = in
	s.Out = s.Out[:0]
	for s.run() == needFlush {
	}
	return s.Out
}

// TestAPatternThatWouldTakeLongIsAnErrorOfItsCommand has what package glob refuses, in every command that takes a pattern.
func TestAPatternThatWouldTakeLongIsAnErrorOfItsCommand(t *testing.T) {
	pattern := "*" + strings.Repeat("?", 1025) + "*"
	for _, cmd := range [][]string{
		{"KEYS", pattern}, {"SCAN", "0", "MATCH", pattern}, {"HSCAN", "h", "0", "MATCH", pattern}, {"CONFIG", "GET", pattern},
		{"PSUBSCRIBE", pattern}, {"PUBSUB", "CHANNELS", pattern},
	} {
		s := newTestSession(t)
		s.feed([]byte(encode("HSET", "h", "f", "v")))
		want := "-ERR the pattern has more than 1024 characters with ? or [ between two *\r\n"
		if got := string(s.feed([]byte(encode(cmd...)))); got != want {
			t.Errorf("%s: got %.200q, want %q", cmd[0], got, want)
		}
		s.close()
	}
}

// FuzzSession feeds arbitrary bytes to a session. It must answer with whole,
// well-formed replies, whatever comes, and not panic.
func FuzzSession(f *testing.F) {
	for _, seed := range []string{
		encode("SET", "a", "1") + encode("INCR", "a") + encode("GET", "a"),
		encode("HELLO", "3") + encode("HSET", "h", "f", "v") + encode("HGETALL", "h") + encode("HSCAN", "h", "0"),
		encode("MULTI") + encode("SET", "a", "b") + encode("EXEC") + "QUIT\r\n",
		"set a b ex 10 get\r\nttl a\r\nobject encoding a\r\nkeys *\r\nscan 0\r\n",
		encode("WATCH", "a") + encode("MULTI") + encode("FLUSHALL") + encode("EXEC"),
		encode("COMMAND") + encode("COMMAND", "DOCS") + encode("INFO") + encode("CONFIG", "GET", "*") + encode("CLIENT", "LIST"),
		encode("SETRANGE", "a", "60000", "x") + encode("GETRANGE", "a", "-5", "-1") + encode("INCRBYFLOAT", "b", "1e300"),
		"*2\r\n$4\r\nECHO\r\n$-1\r\n", "*9999999\r\n", "\"\\x", "*1\r\n$99999999999\r\n",
		encode("HRANDFIELD", "h", "-5", "WITHVALUES") + encode("COPY", "h", "g") + encode("RENAME", "g", "h"),
	} {
		f.Add([]byte(seed))
	}
	srv, _ := startServer(f, roomy, Config{Loops: -1, MaxBulk: 1 << 16, MaxArgs: 1000})
	f.Fuzz(func(t *testing.T, in []byte) {
		s := srv.newSession()
		defer s.close()
		out := s.feed(in)
		r := bufio.NewReader(bytes.NewReader(out))
		for {
			if _, err := readReply(r); err == io.EOF {
				return
			} else if err != nil {
				t.Fatalf("%.200q was answered with %.200q: %v", in, out, err)
			}
		}
	})
}

// TestHotCommandsDoNotAllocate holds the hot paths to their promise.
func TestHotCommandsDoNotAllocate(t *testing.T) {
	s := newTestSession(t)
	defer s.close()
	value := strings.Repeat("v", 1000)
	for _, in := range []string{
		encode("SET", "key", value), encode("GET", "key"), encode("GET", "nosuch"), encode("EXISTS", "key"), encode("STRLEN", "key"),
		encode("DEL", "nosuch"), encode("PING"), encode("INCR", "n"), encode("HSET", "h", "f", value), encode("HGET", "h", "f"),
		encode("MGET", "key", "n", "nosuch"), encode("MSET", "a", "1", "b", "2"), encode("TTL", "key"),
	} {
		b := []byte(strings.Repeat(in, 10))
		s.feed(b)
		if n := testing.AllocsPerRun(50, func() { s.feed(b) }); n > 0 {
			t.Errorf("%.20q: %v allocations in ten commands, want 0", in, n)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	heap := newHeap(t, far.MinLocal)
	defer heap.Close()
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{MaxBulk: -1}, "option MaxBulk is -1"},
		{Config{MaxArgs: 1}, "option MaxArgs is 1"},
		{Config{OpTimeout: -1}, "option OpTimeout is -1ns"},
		{Config{IdleTimeout: -1}, "option IdleTimeout is -1ns"},
	} {
		if _, err := NewServer(heap, c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want an error with %q", err, c.want)
		}
	}
}

func TestStatsAndMetrics(t *testing.T) {
	srv, addr := startServer(t, roomy, Config{ExtraStats: func() []Stat { return []Stat{{"extra", "42"}} }})
	c := dial(t, addr)
	expect(t, c, "SET a b", "+OK")
	expect(t, c, "HGET a f", "-WRONGTYPE Operation against a key holding the wrong kind of value")
	got := map[string]string{}
	stats := c.do("POLDER", "STATS").elems
	for i := 0; i+1 < len(stats); i += 2 {
		got[stats[i].bulk] = stats[i+1].bulk
	}
	for name, want := range map[string]string{"commands": "2", "errors": "1", "keys": "1", "clients": "1", "extra": "42"} {
		if got[name] != want {
			t.Errorf("POLDER STATS: %s is %q, want %q", name, got[name], want)
		}
	}
	if info := c.do("INFO", "polder", "keyspace").bulk; !strings.Contains(info, "extra:42\r\n") || !strings.Contains(info, "db0:keys=1,") || strings.Contains(info, "# Server") {
		t.Errorf("INFO: %q", info)
	}
	families := gather(t, srv)
	if families["polder_resp_commands_total"] < 3 || families["polder_resp_keys"] != 1 {
		t.Errorf("metrics: %v", families)
	}
}
