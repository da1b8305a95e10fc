package resp

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"polder/far"
	"polder/partition"
	"polder/soft"
)

var (
	diffCommands = flag.Int("resp.commands", 1000, "commands per run of the differential test")
	diffSeed     = flag.Uint64("resp.seed", 1, "seed of the differential test")
)

// generator makes random commands, most of them sensible.
type generator struct {
	r     *rand.Rand
	small bool   // no value that makes a hash too large for a cache
	tag   string // of all keys, if they are to be in one slot of a cluster
	away  bool   // commands are forwarded to the server that has it
	// faults, if set, is what makes far memory fail: what it fails must have
	// changed nothing.
	faults *faults
}

func (g *generator) of(list ...string) string { return list[g.r.IntN(len(list))] }

func (g *generator) key() string {
	return g.tag + g.of("a", "b", "c", "d", "e", "k{1}", "h1", "h2", "h3", "")
}

func (g *generator) hashKey() string {
	if g.r.IntN(12) == 0 {
		return g.key()
	}
	return g.tag + g.of("h1", "h2", "h3")
}

func (g *generator) field() string {
	if g.r.IntN(20) == 0 {
		return "f" + strings.Repeat("x", 60+g.r.IntN(10))
	}
	return "f" + strconv.Itoa(g.r.IntN(150))
}

func (g *generator) value() string {
	switch g.r.IntN(12) {
	case 0:
		return strconv.FormatInt(int64(g.r.Uint64()), 10)
	case 1, 2, 3:
		return strconv.Itoa(g.r.IntN(2000) - 1000)
	case 4:
		return fmt.Sprint(float64(g.r.IntN(2000)-1000) / 8)
	case 5:
		return strings.Repeat("v", g.r.IntN(100))
	case 6:
		n := 3000
		if g.small {
			n = 30
		}
		return strings.Repeat("big", 1+g.r.IntN(n))
	case 7:
		return g.of("\x00\r\n\xff", "", " 1", "+1", "01", "-0", "0", "9223372036854775807", "-9223372036854775808",
			"9223372036854775808", "3.0e3", "inf", "-inf", "nan", "0x10", "1e400", "1e5000", "1e-500000000", "0x1p500000000", "1_0", "1.", ".5", "-", ".", "1e-30", "12345678901234567890.12345")
	}
	return g.of("hello", "world", "x", "some text")
}

func (g *generator) num() string {
	return g.of("0", "1", "-1", "5", "-5", "100", "3", "10", "9223372036854775807", "-9223372036854775808", "x", "1.5", "")
}

// badTime is a time that is wrong, or in the past: nothing expires while the
// test runs.
func (g *generator) badTime() string {
	return g.of("0", "-1", "9223372036854775807", "-9223372036854775808", "x", "1.5", "")
}

func (g *generator) future() string { return g.of("1000", "2000", "3000") }

func (g *generator) expiry() []string {
	now := time.Now().Unix()
	switch g.r.IntN(8) {
	case 0:
		return []string{"ex", g.future()}
	case 1:
		return []string{"PX", g.future() + "000"}
	case 2:
		return []string{"exat", strconv.FormatInt(now+5000, 10)}
	case 3:
		return []string{"pxat", strconv.FormatInt(now*1000+5_000_000, 10)}
	case 4:
		return []string{g.of("ex", "px", "exat", "pxat"), g.badTime()}
	case 5:
		return []string{g.of("ex", "px", "keepttl", "persist", "bogus", "get")}
	}
	return nil
}

func (g *generator) some(n int, f func() string) []string {
	var list []string
	for range 1 + g.r.IntN(n) {
		list = append(list, f())
	}
	return list
}

func (g *generator) pairs(f, v func() string) []string {
	var list []string
	for range 1 + g.r.IntN(5) {
		list = append(list, f(), v())
	}
	if g.r.IntN(20) == 0 {
		list = list[1:]
	}
	return list
}

// maybe returns args with a probability of one in n.
func (g *generator) maybe(n int, args ...string) []string {
	if g.r.IntN(n) == 0 {
		return args
	}
	return nil
}

func cat(parts ...any) []string {
	var list []string
	for _, p := range parts {
		switch p := p.(type) {
		case string:
			list = append(list, p)
		case []string:
			list = append(list, p...)
		}
	}
	return list
}

// words is cat of what is between spaces.
func words(parts ...any) []string { return strings.Fields(strings.Join(cat(parts...), " ")) }

func (g *generator) command() []string {
	makers := []func() []string{
		func() []string { return cat("GET", g.key()) },
		func() []string { return cat("set", g.key(), g.value()) },
		func() []string {
			return cat("SET", g.key(), g.value(), g.maybe(3, g.of("nx", "XX")), g.maybe(3, "get"), g.expiry(), g.maybe(6, "keepttl"), g.maybe(20, "nx"), g.maybe(20, g.expiry()...))
		},
		func() []string { return cat("setex", g.key(), g.of(g.future(), g.badTime()), g.value()) },
		func() []string { return cat("psetex", g.key(), g.of(g.future()+"000", g.badTime()), g.value()) },
		func() []string { return cat(g.of("getset", "setnx"), g.key(), g.value()) },
		func() []string { return cat("getdel", g.key()) },
		func() []string {
			return cat("getex", g.key(), g.expiry(), g.maybe(4, "persist"), g.maybe(20, g.expiry()...))
		},
		func() []string { return cat("mget", g.some(5, g.key)) },
		func() []string { return cat(g.of("mset", "msetnx"), g.pairs(g.key, g.value)) },
		func() []string { return cat("append", g.key(), g.value()) },
		func() []string { return cat("strlen", g.key()) },
		func() []string { return cat(g.of("getrange", "substr"), g.key(), g.num(), g.num()) },
		func() []string {
			return cat("setrange", g.key(), g.of("0", "3", "10", "200", "-1", "x", "1048576", "1048575"), g.of("", "x", "yyy"))
		},
		func() []string { return cat(g.of("incr", "decr"), g.key()) },
		func() []string { return cat(g.of("incrby", "decrby"), g.key(), g.num()) },
		func() []string { return cat("incrbyfloat", g.key(), g.of(g.value(), "1.5", "-0.1", "3")) },
		func() []string { return cat(g.of("del", "unlink", "exists", "touch"), g.some(3, g.key)) },
		func() []string {
			return cat(g.of("expire", "expireat"), g.key(), g.of(g.future(), g.badTime(), strconv.FormatInt(time.Now().Unix()+4000, 10)),
				g.maybe(2, g.of("nx", "XX", "gt", "LT", "foo")), g.maybe(5, g.of("nx", "xx", "gt", "lt")))
		},
		func() []string {
			return cat(g.of("pexpire", "pexpireat"), g.key(), g.of(g.future()+"000", g.badTime(), strconv.FormatInt(time.Now().UnixMilli()+4000_000, 10)),
				g.maybe(2, g.of("nx", "xx", "gt", "lt")))
		},
		func() []string {
			return cat(g.of("ttl", "pttl", "expiretime", "pexpiretime", "persist", "type"), g.key())
		},
		func() []string { return cat(g.of("rename", "renamenx"), g.key(), g.key()) },
		func() []string {
			return cat("copy", g.key(), g.key(), g.maybe(2, "replace"), g.maybe(8, "db", g.of("0", "1", "x", "2147483648")), g.maybe(20, "foo"))
		},
		func() []string { return cat("keys", g.of("*", "h*", "?", "[a-c]", "[^a]", "k{1}", "\\a", "[", "*1*")) },
		func() []string {
			return cat("scan", g.of("0", "0", "0", "x", "1x", ""), g.maybe(2, "match", g.of("*", "h*", "[ab]")), "count", g.of("1000", "1000", "1000", "0", "x"),
				g.maybe(4, "type", g.of("hash", "string", "list")), g.maybe(20, "foo"))
		},
		func() []string { return cat("dbsize") },
		func() []string { return cat("object", g.of("encoding", "refcount", "freq", "help1"), g.key()) },
		func() []string { return cat(g.of("hset", "hmset", "HSET"), g.hashKey(), g.pairs(g.field, g.value)) },
		func() []string {
			return cat("hset", g.hashKey(), g.pairs(g.field, func() string { return g.of("1", "2", "v") }))
		},
		func() []string { return cat("hsetnx", g.hashKey(), g.field(), g.value()) },
		func() []string { return cat(g.of("hget", "hexists", "hstrlen"), g.hashKey(), g.field()) },
		func() []string { return cat(g.of("hmget", "hdel"), g.hashKey(), g.some(4, g.field)) },
		func() []string { return cat(g.of("hgetall", "hkeys", "hvals", "hlen"), g.hashKey()) },
		func() []string { return cat("hincrby", g.hashKey(), g.field(), g.num()) },
		func() []string {
			return cat("hincrbyfloat", g.hashKey(), g.field(), g.of(g.value(), "1.5", "-0.1", "3"))
		},
		func() []string {
			return cat("hscan", g.hashKey(), g.of("0", "0", "x"), "count", g.of("100000", "100000", "0"), g.maybe(3, "match", g.of("f1*", "*2")))
		},
		func() []string {
			return cat("hrandfield", g.hashKey(), g.of("1000", "x", "0"), g.maybe(2, g.of("withvalues", "foo")))
		},
		func() []string { return cat(g.of("multi", "exec", "exec", "discard", "unwatch")) },
		func() []string { return cat("watch", g.some(3, g.key)) },
		func() []string { return cat(g.of("ping", "echo", "PiNg"), g.maybe(2, "hi"), g.maybe(8, "there")) },
		func() []string { return cat("select", g.of("0", "1", "x", "-1", "-2147483648", "99999999999")) },
		func() []string {
			return cat(g.of("nosuch", "GETT", "foo\r\nbar", strings.Repeat("long", 40)), g.some(4, g.value))
		},
		func() []string {
			return cat(g.of("get", "set", "hset", "expire", "mset", "object", "config", "client", "multi", "del", "auth", "hello", "time", "wait"), g.maybe(3, g.value()), g.maybe(5, g.value()))
		},
		func() []string { return cat("config", g.of("foo", "get"), g.maybe(2, "nosuchthing*")) },
		func() []string {
			return cat("client", g.of("setname", "getname", "foo"), g.maybe(2, g.of("me", "a b")))
		},
		func() []string { return cat("hello", g.of("4", "x", "1", "2", "3", "3")) },
		func() []string { return cat("auth", g.some(3, g.value)) },
		func() []string { return cat("wait", "0", g.of("0", "x", "-1")) },
		func() []string { return cat(g.of("randomkey", "time", "reset")) },
		func() []string { return cat("debug", g.of("sleep", "object", "x"), g.maybe(2, "0")) },
		func() []string {
			return cat("memory", "usage", g.key(), g.maybe(3, "samples", g.of("0", "5", "-1", "x")), g.maybe(10, "foo"))
		},
		func() []string {
			return cat("command", g.of("count", "getkeys", "nosuch"), g.maybe(2, g.of("get", "mset", "ping", "foo")), g.maybe(2, g.some(3, g.key)...))
		},
		func() []string {
			return cat("client", g.of("id", "list", "getname", "no-evict"), g.maybe(3, g.of("type", "id", "on", "x")), g.maybe(3, g.of("normal", "pubsub", "x", "-1", "0")))
		},
		func() []string {
			return cat("config", "get", g.some(3, func() string {
				return g.of("save", "appendonly", "maxmemory-policy", "nosuch", "requirepas?", "databases", "slowlog-*", "timeout", "latency-monitor-threshol?")
			}))
		},
		func() []string { return cat("info", g.of("nosuch", "cluster", "CLUSTER")) },
		func() []string { return cat(g.of("flushall", "flushdb"), "foo") },
	}
	operators := []func() []string{
		func() []string {
			return words("config set", g.some(2, func() string {
				return g.of("slowlog-max-len 100", "slowlog-log-slower-than 20000", "slowlog-log-slower-than -2", "timeout x", "timeout 0", "timeout -1",
					"latency-monitor-threshold 0", "latency-monitor-threshold -1", "maxmemory x", "maxmemory", "nosuch 1", "SlowLog-Max-Len 128")
			}))
		},
		func() []string {
			return cat("client", g.of("kill", "unpause", "reply", "no-evict"), g.maybe(2, g.of("0", "x", "-1", "on", "id", "addr", "type", "user", "skipme", "laddr")),
				g.maybe(2, g.of("0", "x", "-1", "999999", "write", "all", "pubsub", "127.0.0.1:1")))
		},
		func() []string {
			return words(g.of("client kill", "client kill id 888888"), g.some(2, func() string {
				return g.of("id 999999", "addr x", "laddr x", "type replica", "type x", "user x", "user default", "skipme yes", "skipme x", "foo bar", "id")
			}))
		},
		func() []string {
			return cat("client", "pause", g.maybe(10, "0", "all", "0"), g.of("0", "x", "-1"), g.maybe(2, g.of("write", "all", "x")))
		},
		func() []string {
			return cat("slowlog", g.of("get", "reset", "foo"), g.maybe(2, g.of("-2", "x", "0")), g.maybe(8, "1"))
		},
		func() []string {
			return words("latency", g.of("latest", "history", "reset", "foo", "histogram nosuch"), g.maybe(2, g.of("fork", "nosuch")))
		},
	}
	if g.faults == nil { // far memory has no part in them
		makers = append(makers, operators...)
	}
	if g.r.IntN(400) == 0 {
		return []string{g.of("flushall", "flushdb")}
	}
	if g.faults != nil && (g.faults.full || g.r.IntN(3) == 0) {
		return g.wide()
	}
	return makers[g.r.IntN(len(makers))]()
}

// normal makes replies comparable whose order or exact figure is free.
func normal(args []string, r answer) string {
	if len(args) == 0 || len(r.line) == 0 || r.line[0] == '-' {
		return r.String()
	}
	switch name := strings.ToLower(args[0]); name {
	case "keys", "hkeys", "hvals":
		return r.sorted(1).String()
	case "hgetall":
		return r.sorted(2).String()
	case "hrandfield":
		if len(r.elems) > 0 && len(r.elems[0].elems) == 0 && len(args) > 3 {
			return r.sorted(2).String()
		}
		return r.sorted(1).String()
	case "scan", "hscan":
		if len(r.elems) == 2 {
			n := 1
			if name == "hscan" {
				n = 2
			}
			r.elems[1] = r.elems[1].sorted(n)
		}
	case "ttl", "pttl", "expiretime", "pexpiretime":
		if v, err := strconv.ParseInt(strings.TrimPrefix(r.line, ":"), 10, 64); err == nil && v > 0 {
			unit := int64(10_000)
			if !strings.HasPrefix(name, "p") {
				unit = 10
			}
			if v > 1<<42 || unit == 10 && v > 1<<42/1000 {
				return "in more than a century" // which is cut short
			}
			return fmt.Sprintf("about %d", (v+unit/2)/unit)
		}
	case "object":
		if len(args) > 1 && strings.EqualFold(args[1], "refcount") && r.line[0] == ':' {
			return ":count" // Redis shares small integers
		}
	case "time":
		return "time"
	case "slowlog":
		if strings.HasPrefix(r.line, "*") {
			return "entries" // of what took long
		}
	case "randomkey":
		if r.line[0] == '$' && r.line != "$-1" {
			return "a key"
		}
	case "memory":
		if r.line[0] == ':' {
			return ":bytes"
		}
	case "command":
		if r.line[0] == ':' {
			return ":count"
		}
	case "client":
		switch {
		case r.line[0] == ':':
			return ":id"
		case len(r.bulk) > 10:
			return r.line[:1] + "list"
		}
	case "config":
		return r.sorted(2).String()
	case "hello":
		if len(r.elems) > 7 {
			r.elems[3].bulk = "version"
			r.elems[7].line = ":id"
		}
	}
	return r.String()
}

// playFar is play with a server over far memory.
func playFar(t *testing.T, local int64, cfg Config, version string, seed uint64) {
	cfg.MaxBulk = 1 << 20 // as startRedis
	heap := newHeap(t, local)
	churn := newChurn(heap)
	srv, addr := startOn(t, heap, cfg)
	g := &generator{r: rand.New(rand.NewPCG(seed, 7))}
	play(t, addr, g, version, seed, func(i int) {
		if local < roomy && i%10 == 0 {
			churn.evict(t)
		}
	})
	if st := srv.Stats(); local < roomy && st.Fetches == 0 {
		t.Errorf("no key was fetched: the test has not tested what it should")
	}
}

// play sends the same random commands to our server and to redis-server and
// compares every reply. Between is called after each command.
func play(t *testing.T, addr string, g *generator, version string, seed uint64, between func(i int), options ...string) {
	ours, theirs := dial(t, addr), dial(t, startRedis(t, options...))
	if g.tag != "" {
		theirs.words("CLUSTER ADDSLOTSRANGE 0 16383")
		eventually(t, "a cluster of one", func() bool { return strings.Contains(theirs.words("CLUSTER INFO"), "cluster_state:ok") })
	}
	var history []string
	var queue [][]string // commands of the transaction
	wrong, multi := 0, false
	compare := func(args []string, a, b answer) {
		t.Helper()
		x, y := normal(args, a), normal(args, b)
		if x == y || roundedApart(x, y) {
			return
		}
		t.Errorf("seed %d: %.200q\n ours   %.500s\n theirs %.500s\nafter %s", seed, args, x, y, strings.Join(history[max(0, len(history)-40):], "\n      "))
		if wrong++; wrong == 10 {
			t.FailNow()
		}
	}
	both := func(args ...string) answer {
		t.Helper()
		history = append(history, fmt.Sprintf("%.60q", args))
		a := ours.do(args...)
		if g.faults.failed(t, args, queue, a) {
			if strings.EqualFold(args[0], "exec") {
				queue = nil
				theirs.do("DISCARD")
			}
			return a
		}
		b := theirs.do(args...)
		if len(queue) > 0 && strings.EqualFold(args[0], "exec") && len(a.elems) == len(queue) && len(b.elems) == len(queue) {
			for i, q := range queue {
				compare(q, a.elems[i], b.elems[i])
			}
		} else {
			compare(args, a, b)
		}
		switch {
		case b.line == "+QUEUED":
			queue = append(queue, args)
		case !strings.HasPrefix(b.line, "-") || strings.EqualFold(args[0], "exec"):
			queue = nil
		}
		return b
	}
	if version == "3" {
		ours.do("HELLO", "3")
		theirs.do("HELLO", "3")
	}
	for i := range *diffCommands {
		args := g.command()
		for (g.away || g.tag != "" && multi) && slices.Contains(ofAllKeys, strings.ToLower(args[0])) {
			args = g.command()
		}
		switch r := both(args...); strings.ToLower(args[0]) {
		case "multi":
			multi = multi || r.line == "+OK"
		case "exec", "discard", "reset":
			multi = false
		}
		between(i)
		if i%500 != 499 || g.away {
			continue
		}
		// Compare all that is stored.
		ours.do("DISCARD")
		theirs.do("DISCARD")
		queue = nil
		if x, y := walk(t, ours, 1, "scan"), walk(t, theirs, 1, "scan"); x != y {
			t.Errorf("seed %d: all of SCAN\n ours   %.500s\n theirs %.500s", seed, x, y)
		}
		for _, k := range both("keys", "*").elems {
			both("pttl", k.bulk)
			both("object", "encoding", k.bulk)
			if both("type", k.bulk).line == "+hash" {
				both("hgetall", k.bulk)
				both("hlen", k.bulk)
				if x, y := walk(t, ours, 2, "hscan", k.bulk), walk(t, theirs, 2, "hscan", k.bulk); x != y {
					t.Errorf("seed %d: all of HSCAN %q\n ours   %.500s\n theirs %.500s", seed, k.bulk, x, y)
				}
			} else {
				both("get", k.bulk)
			}
		}
	}
}

// walk gathers what an iteration in small steps yields, in groups of n, without
// what it yields twice.
func walk(t *testing.T, c *client, n int, args ...string) string {
	t.Helper()
	seen := make(map[string]bool)
	for cursor := "0"; ; {
		r := c.do(slices.Concat(args, []string{cursor, "count", "3"})...)
		if len(r.elems) != 2 {
			t.Fatalf("%q: %s", args, r)
		}
		for group := range slices.Chunk(r.elems[1].elems, n) {
			seen[answer{line: "*", elems: group}.String()] = true
		}
		if cursor = r.elems[0].bulk; cursor == "0" {
			return strings.Join(slices.Sorted(maps.Keys(seen)), " ")
		}
	}
}

// churn pushes what a server stores out of local memory.
type churn struct {
	m *far.ByteMap
	n int
}

func newChurn(h *far.Heap) *churn { return &churn{m: h.NewByteMap("churn")} }

func (c *churn) evict(t testing.TB) {
	t.Helper()
	value := make([]byte, 8<<10)
	for range 64 {
		c.n++
		if err := c.m.Set(context.Background(), []byte(strconv.Itoa(c.n%4096)), far.Entry{Value: value}); err != nil {
			t.Fatal(err)
		}
	}
}

// roundedApart reports whether two times were rounded to neighbours.
func roundedApart(x, y string) bool {
	var a, b int64
	if _, err := fmt.Sscanf(x, "about %d", &a); err != nil {
		return false
	}
	if _, err := fmt.Sscanf(y, "about %d", &b); err != nil {
		return false
	}
	return a-b <= 1 && b-a <= 1
}

func TestRandomCommandsGetRedissRepliesFromACache(t *testing.T) {
	for _, c := range []struct {
		name    string
		loops   int
		version string
	}{{"RESP2 on an event loop", 1, "2"}, {"RESP3 on goroutines", -1, "3"}} {
		t.Run(c.name, func(t *testing.T) {
			// As much memory as redis-server: nothing is evicted.
			_, _, addr := startCache(t, Config{Loops: c.loops, MaxBulk: 1 << 20}, soft.Config{Budget: roomy})
			g := &generator{r: rand.New(rand.NewPCG(*diffSeed, 9)), small: true}
			play(t, addr, g, c.version, *diffSeed, func(int) {}, "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru")
		})
	}
}

func TestRandomCommandsGetRedissReplies(t *testing.T) {
	for _, c := range []struct {
		name    string
		local   int64
		loops   int
		version string
	}{
		{"RESP2 on an event loop", roomy, 1, "2"},
		{"RESP3 on an event loop", roomy, 1, "3"},
		{"RESP3 on goroutines", roomy, -1, "3"},
		{"most of it far, on an event loop", far.MinLocal, 1, "2"},
		{"most of it far, on goroutines", far.MinLocal, -1, "3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			playFar(t, c.local, Config{Loops: c.loops}, c.version, *diffSeed)
		})
	}
}

// ofAllKeys are the commands that a server of partitions answers out of its own, and not in a transaction.
var ofAllKeys = []string{"flushall", "flushdb", "dbsize", "keys", "scan", "randomkey", "wait", "waitaof"}

// TestRandomCommandsGetRedissRepliesFromPartitions: by the server that has them, and by another one.
func TestRandomCommandsGetRedissRepliesFromPartitions(t *testing.T) {
	for _, c := range []struct {
		name    string
		away    bool
		version string
	}{{"of the server", false, "2"}, {"of another server", true, "3"}} {
		t.Run(c.name, func(t *testing.T) {
			cl := startCluster(t, 2, 4, roomy/8)
			const tag = "{t}"
			number := partition.Of(partition.Slot([]byte(tag)), 4)
			addr := cl.addrs[number%2]
			if c.away {
				addr = cl.addrs[1-number%2]
			}
			g := &generator{r: rand.New(rand.NewPCG(*diffSeed, 11)), tag: tag, away: c.away}
			play(t, addr, g, c.version, *diffSeed, func(int) {}, "--cluster-enabled", "yes")
		})
	}
}
