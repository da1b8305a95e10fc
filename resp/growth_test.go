//go:build !race

package resp

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// growth is a command with n arguments, or on n of what it is about.
type growth struct {
	command string // as in the command table
	setup   func(n int) string
	input   func(n int) string
}

// repeated is words, and then n times more with # as a number from 0.
func repeated(words, more string) func(n int) string {
	return func(n int) string {
		args := strings.Fields(words)
		for i := range n {
			args = append(args, strings.Fields(strings.ReplaceAll(more, "#", fmt.Sprint(i)))...)
		}
		return encode(args...)
	}
}

// each is n commands of the words, with # as a number from 0, between others.
func each(before, words, after string) func(n int) string {
	return func(n int) string {
		var b strings.Builder
		for line := range strings.SplitSeq(before, "\n") {
			b.WriteString(line + "\r\n")
		}
		for i := range n {
			b.WriteString(encode(strings.Fields(strings.ReplaceAll(words, "#", fmt.Sprint(i)))...))
		}
		b.WriteString(after + "\r\n")
		return b.String()
	}
}

func always(line string) func(int) string { return func(int) string { return line + "\r\n" } }

var (
	nothing = always("")
	nKeys   = repeated("mset", "k# v")
	nFields = repeated("hset h", "f# v")

	longField = func(n int) string { return encode("hset", "h", strings.Repeat("a", 20*n), "v") }
)

// growths has every command of the table that takes any number of arguments,
// and those whose work depends on how much there is of something else.
var growths = []growth{
	{"mget", nKeys, repeated("mget", "k#")},
	{"mset", nothing, nKeys},
	{"msetnx", nothing, repeated("msetnx", "k# v")},
	{"set", nothing, repeated("set k v", "ex 100")},
	{"getex", always("set k v"), repeated("getex k", "ex 100")},
	{"del", nKeys, repeated("del", "k#")},
	{"unlink", nKeys, repeated("unlink", "k#")},
	{"exists", nKeys, repeated("exists", "k#")},
	{"touch", nKeys, repeated("touch", "k#")},
	{"expire", always("set k v"), repeated("expire k 100", "nx")},
	{"pexpire", always("set k v"), repeated("pexpire k 100", "nx")},
	{"expireat", always("set k v"), repeated("expireat k 100", "xx")},
	{"pexpireat", always("set k v"), repeated("pexpireat k 100", "xx")},
	{"copy", always("set k v"), repeated("copy k l", "replace")},
	{"scan", nKeys, repeated("scan 0", "count 10")},
	{"scan", nKeys, func(n int) string { return fmt.Sprintf("scan 0 count %d match *x*y\r\n", n) }},
	{"keys", nKeys, always("keys *")},
	{"object", nothing, repeated("object", "x")},

	{"hset", nothing, nFields},
	{"hset", nFields, nFields},
	{"hset", always("hset h f0 v f1 v f2 v"), repeated("hset h", "f1 w")},
	{"hmset", nothing, repeated("hmset h", "f# v")},
	{"hmget", nFields, repeated("hmget h", "f#")},
	{"hmget", always("hset h f0 v f1 v"), repeated("hmget h", "f#")},
	{"hdel", nFields, repeated("hdel h", "f#")},
	{"hdel", nFields, repeated("hdel h", "x#")},
	{"hgetall", nFields, always("hgetall h")},
	{"hkeys", nFields, always("hkeys h")},
	{"hvals", nFields, always("hvals h")},
	{"hscan", nFields, repeated("hscan h 0", "count 10")},
	{"hscan", nFields, func(n int) string { return fmt.Sprintf("hscan h 0 count %d match *x*y\r\n", n) }},
	{"hscan", longField, func(n int) string { return encode("hscan", "h", "0", "match", "*"+strings.Repeat("a", 10*n)+"b*") }},
	{"hscan", longField, func(n int) string { return encode("hscan", "h", "0", "match", strings.Repeat("*a?", n)+"b") }},
	{"hrandfield", nFields, func(n int) string { return fmt.Sprintf("hrandfield h %d withvalues\r\n", n) }},
	{"hrandfield", nFields, func(n int) string { return fmt.Sprintf("hrandfield h -%d\r\n", n) }},

	{"watch", nothing, repeated("watch", "k#")},
	{"watch", nKeys, repeated("watch", "k#")},
	{"unwatch", repeated("watch", "k#"), always("unwatch")},
	{"discard", func(n int) string { return repeated("watch", "k#")(n) + each("multi", "get k#", "")(n) }, always("discard")},
	{"exec", repeated("watch", "k#"), each("multi", "set k# v", "exec")},
	{"exec", nothing, each("multi", "incr k", "exec")},
	{"exec", nothing, each("multi", "hset h f# v", "exec")},
	{"flushall", repeated("watch", "k#"), always("flushall")},
	{"flushdb", nothing, repeated("flushdb", "async")},
	{"flushall", nothing, repeated("flushall", "async")},

	{"ping", nothing, repeated("ping", "x")},
	{"quit", nothing, always("ping")}, // it takes any arguments, and looks at none
	{"auth", nothing, repeated("auth", "x")},
	{"hello", nothing, repeated("hello 3", "setname x")},
	{"client", nothing, repeated("client", "x")},
	{"client|list", nothing, repeated("client list id", "#")},
	{"client|kill", nothing, repeated("client kill", "id 1000000#")}, // nobody's
	{"client|pause", nothing, repeated("client pause", "x")},
	{"slowlog", nothing, repeated("slowlog", "x")},
	{"slowlog|get", nothing, repeated("slowlog get", "1")},
	{"latency", nothing, repeated("latency", "x")},
	{"latency|histogram", nFields, repeated("latency histogram", "hset")},
	{"latency|reset", nothing, repeated("latency reset", "command")},
	{"subscribe", nothing, repeated("subscribe", "c#")},
	{"psubscribe", nothing, repeated("psubscribe", "c#*")},
	{"ssubscribe", nothing, repeated("ssubscribe", "c#")},
	{"sunsubscribe", repeated("ssubscribe", "c#"), always("sunsubscribe")},
	{"pubsub|shardchannels", repeated("ssubscribe", "c#"), always("reset")},
	{"unsubscribe", repeated("subscribe", "c#"), always("unsubscribe")},
	{"punsubscribe", repeated("psubscribe", "c#*"), always("punsubscribe")},
	{"pubsub", nothing, repeated("pubsub", "x")},
	{"pubsub|channels", repeated("subscribe", "c#"), always("reset")},
	{"pubsub|numsub", nothing, repeated("pubsub numsub", "c#")},
	{"pubsub|shardnumsub", nothing, repeated("pubsub shardnumsub", "c#")},
	{"bgsave", nothing, repeated("bgsave", "schedule")},
	{"info", nothing, repeated("info", "nosuch#")},
	{"replconf", nothing, repeated("replconf", "capa eof")},
	{"debug", nothing, repeated("debug", "x")},
	{"memory", nothing, repeated("memory", "x")},
	{"memory|usage", always("set k v"), repeated("memory usage k", "samples 5")},
	{"config", nothing, repeated("config", "x")},
	{"config|get", nothing, repeated("config get", "*nosuch*#")},
	{"config|set", nothing, repeated("config set", "nosuch# x")},
	{"command", nothing, repeated("command", "x")},
	{"command|info", nothing, repeated("command info", "get")},
	{"command|docs", nothing, repeated("command docs", "get")},
	{"command|getkeys", nothing, repeated("command getkeys mset", "k# v")},
	{"sentinel", nothing, repeated("sentinel", "x")},
	{"cluster", nothing, repeated("cluster", "x")},
	{"polder", nothing, repeated("polder", "x")},
	{"polder|snapshot", nothing, repeated("polder snapshot", "0123456789abcdef")},
}

// growthLimit is between 4.5, which is how much n log n grows when n becomes
// four times as large, and 16, which is how much its square does.
const growthLimit = 9

// growthFree is what an argument may cost in any case: caches and fresh memory
// make thousands of arguments dearer than one.
const growthFree = 2 * time.Microsecond

// TestNoCommandIsQuadratic gives every command four times as many arguments, and
// compares the processor time that its one goroutine takes, without the race
// detector, whose own time depends on how much memory was touched. A client that sends many
// arguments would otherwise hold up all others.
func TestNoCommandIsQuadratic(t *testing.T) {
	const n, tries = 3000, 3
	srv, _ := startServer(t, 2*roomy, Config{Loops: -1})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	missing := map[string]bool{}
	for name, c := range commandTable().By {
		missing[name] = c.Arity < 0
		for sub, c := range c.Subs {
			missing[name+"|"+sub] = c.Arity < 0
		}
	}
	for _, g := range growths {
		delete(missing, g.command)
		spent := func(n int) time.Duration {
			s := srv.newSession()
			defer s.close()
			s.feed([]byte("flushall\r\n" + g.setup(n)))
			in := []byte(g.input(n))
			start := threadTime()
			s.feed(in)
			return threadTime() - start
		}
		small, large := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
		fine := false
		for i := 0; i < tries && !fine; i++ {
			small, large = min(small, spent(n)), min(large, spent(4*n))
			fine = large < 4*n*growthFree || float64(large) < growthLimit*float64(small)
		}
		if !fine {
			t.Errorf("%s (%.60q and so on): %v for %d, %v for %d", g.command, g.input(1), small, n, large, 4*n)
		}
	}
	for name, is := range missing {
		if is {
			t.Errorf("%s takes any number of arguments, and nobody tries it with many", name)
		}
	}
}

// threadTime is the processor time that this thread has had.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}
