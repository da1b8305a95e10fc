package origin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
)

// hits is how many reads the cache has answered by itself.
func hits(s *Server) int64 { return s.Stats().Hits }

func TestReadsAreCachedAndSeeWhatOthersWriteAtTheOrigin(t *testing.T) {
	for _, version := range []int{2, 3} {
		t.Run(fmt.Sprint("RESP", version), func(t *testing.T) {
			o := startRedis(t)
			s, addr := startServer(t, o.Addr, Config{})
			direct, c := connect(t, o.Addr), connect(t, addr, func(o *redis.Options) { o.Protocol = version })
			ctx := t.Context()
			direct.Set(ctx, "k", "one", 0)
			for i := range 10 {
				if got, err := c.Get(ctx, "k").Result(); got != "one" || err != nil {
					t.Fatalf("read %d: got %q, %v, want one", i, got, err)
				}
			}
			if n := hits(s); n != 9 {
				t.Errorf("%d reads were answered from the cache, want 9", n)
			}
			direct.Set(ctx, "k", "two", 0)
			until(t, "the other's write is seen", func() bool { return c.Get(ctx, "k").Val() == "two" })
			for what, change := range map[string]func() error{
				"DEL":      func() error { return direct.Del(ctx, "k").Err() },
				"EXPIRE":   func() error { return direct.PExpire(ctx, "k", time.Millisecond).Err() },
				"FLUSHALL": func() error { return direct.FlushAll(ctx).Err() },
			} {
				direct.Set(ctx, "k", "x", 0)
				until(t, "what was set before "+what+" is seen", func() bool { return c.Get(ctx, "k").Val() == "x" })
				if err := change(); err != nil {
					t.Fatal(err)
				}
				until(t, what+" is seen", func() bool { return errors.Is(c.Get(ctx, "k").Err(), redis.Nil) })
			}
			// A cached key that expires is dropped by its own time, and again when the origin
			// says so: that may come between two reads.
			until(t, "what is not there is cached", func() bool {
				before := hits(s)
				return errors.Is(c.Get(ctx, "k").Err(), redis.Nil) && hits(s) > before
			})
		})
	}
}

// TestWhatIsKnownOfACachedValueIsTheOriginsAnswer asks for parts of values, for their
// lengths, and whether they are there: first the origin, and then the cache, which has them.
func TestWhatIsKnownOfACachedValueIsTheOriginsAnswer(t *testing.T) {
	o := startRedis(t)
	s, addr := startServer(t, o.Addr, Config{})
	direct, c := dial(t, o.Addr), dial(t, addr)
	direct.do("SET a hello")
	direct.do("SET empty x")
	direct.do("SETRANGE big 100 x")
	direct.do("LPUSH list x")
	questions := []string{"STRLEN KEY", "EXISTS KEY", "EXISTS KEY a KEY none", "GETRANGE KEY 0 9223372036854775807",
		"GETRANGE KEY -9223372036854775808 -1", "GETRANGE KEY 0 -9223372036854775808", "SUBSTR KEY 1 3",
		"GETRANGE KEY 0", "GETRANGE KEY x 1", "STRLEN KEY KEY", "EXISTS"}
	for start := -8; start <= 8; start++ {
		for end := -8; end <= 8; end++ {
			questions = append(questions, fmt.Sprintf("GETRANGE KEY %d %d", start, end))
		}
	}
	for _, key := range []string{"a", "empty", "big", "none", "list"} {
		for _, k := range []string{key, "a", "none"} {
			c.do("GET %s", k)
		}
		before := hits(s)
		for _, q := range questions {
			q = strings.ReplaceAll(q, "KEY", key)
			if got, want := c.do("%s", q), direct.do("%s", q); got != want {
				t.Errorf("%s: got %q, want %q", q, got, want)
			}
		}
		if n := hits(s) - before; n < 100 && key != "list" || n > 0 && key == "list" {
			t.Errorf("%d of %d questions about %s were answered from the cache", n, len(questions), key)
		}
	}
	direct.do("SETRANGE long 2097151 x")
	c.do("GETRANGE long 0 3")
	if n, size := c.do("EXISTS long"), c.do("STRLEN long"); n != ":1" || size != ":2097152" {
		t.Errorf("a long value: EXISTS %s, STRLEN %s", n, size)
	}
	if s.items.Len() != 4 {
		t.Errorf("%d keys are cached, want 4: what is asked of a value does not bring it", s.items.Len())
	}
}

func TestAKeyEndsNoLaterThanAtTheOrigin(t *testing.T) {
	o := startRedis(t)
	s, addr := startServer(t, o.Addr, Config{})
	direct, c := connect(t, o.Addr), dial(t, addr)
	for i := range 5 {
		key := fmt.Sprint("k", i)
		direct.Set(t.Context(), key, "v", 50*time.Millisecond)
		for c.do("GET %s", key) == "v" {
			ttl, err := direct.PTTL(t.Context(), key).Result()
			if ttl == -2 && c.do("GET %s", key) == "v" {
				t.Fatalf("%s is there and has expired at the origin (%v)", key, err)
			}
		}
	}
	if hits(s) == 0 {
		t.Error("nothing was cached")
	}
}

// TestWhoeverHasWrittenKnowsThatNobodyReadsWhatWasBefore writes in every way there is, on
// one connection, and reads on another.
func TestWhoeverHasWrittenKnowsThatNobodyReadsWhatWasBefore(t *testing.T) {
	o := startRedis(t)
	s, addr := startServer(t, o.Addr, Config{})
	w, r := dial(t, addr), dial(t, addr)
	ways := []string{
		"SET k %d", "GETSET k %d", "MSET a x k %d", "SETEX k 1000 %d", "EVAL \"return redis.call('set','k',ARGV[1])\" 0 %d",
		"SETRANGE k 0 %d", "COPY src%d k REPLACE", "RENAME src%d k",
	}
	for i := range 200 {
		n, way := 1000+i, ways[i%len(ways)]
		w.do("SET src%d %d", n, n)
		r.do("GET k")
		if rep := w.do(way, n); strings.HasPrefix(rep, "-") {
			t.Fatalf("%s: %s", way, rep)
		}
		if got := r.do("GET k"); got != fmt.Sprint(n) {
			t.Fatalf("after %s: got %s, want %d", way, got, n)
		}
	}
	w.send("MULTI", "SET k in", "SET j in", "EXEC")
	w.want("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n")
	if got := r.do("GET k"); got != "in" {
		t.Errorf("after EXEC: got %s, want in", got)
	}
	r.do("GET j")
	w.do("FLUSHALL")
	if got := r.do("GET j"); got != "$-1" {
		t.Errorf("after FLUSHALL: got %s, want nothing", got)
	}
	w.do("SET k 1")
	r.do("GET k")
	w.do("SWAPDB 0 1") // of which Redis says nothing
	if got := r.do("GET k"); got != "$-1" {
		t.Errorf("after SWAPDB: got %s, want nothing", got)
	}
	if st := s.Stats(); st.Settled == 0 || st.Hits == 0 {
		t.Errorf("nothing was cached, or nobody waited: %+v", st)
	}
}

func TestRepliesOfAPipelineComeInItsOrder(t *testing.T) {
	o := startRedis(t)
	s, addr := startServer(t, o.Addr, Config{})
	w := dial(t, addr)
	w.send("SET a 1", "GET a", "GET b", "INCR a", "GET a")
	w.want("+OK\r\n$1\r\n1\r\n$-1\r\n:2\r\n$1\r\n2\r\n")
	before := s.Stats()
	w.send("GET a", "GET b", "GET c", "GET a", "GET b", "GET c", "MGET a b c", "PING")
	w.want("$1\r\n2\r\n$-1\r\n$-1\r\n$1\r\n2\r\n$-1\r\n$-1\r\n*3\r\n$1\r\n2\r\n$-1\r\n$-1\r\n+PONG\r\n")
	if st := s.Stats(); st.Passed != before.Passed+1 {
		t.Errorf("%d commands were passed on, want PING alone", st.Passed-before.Passed)
	}
	w.send("GET a", "SET a 5", "GET a", "GET a")
	w.want("$1\r\n2\r\n+OK\r\n$1\r\n5\r\n$1\r\n5\r\n")
	// More than the kernel keeps, before the client reads anything.
	big := strings.Repeat("x", 1<<16)
	w.do("SET big %s", big[:60000])
	const many = 400
	for range many {
		w.send("GET big")
	}
	for range many {
		w.want("$60000\r\n" + big[:60000] + "\r\n")
	}
}

func TestOtherTypesAndErrorsAreTheOriginsOwn(t *testing.T) {
	o := startRedis(t)
	_, addr := startServer(t, o.Addr, Config{MaxValue: 1000})
	w := dial(t, addr)
	for _, c := range []struct{ send, want string }{
		{"LPUSH l a b", ":2"},
		{"GET l", "-WRONGTYPE Operation against a key holding the wrong kind of value"},
		{"GET", "-ERR wrong number of arguments for 'get' command"},
		{"NONSENSE x", "-ERR unknown command 'NONSENSE', with args beginning with: 'x' "},
		{"GET l", "-WRONGTYPE Operation against a key holding the wrong kind of value"},
		{"SET l s", "+OK"},
		{"GET l", "s"},
		{"GET l", "s"},
		{"OBJECT ENCODING l", "embstr"},
	} {
		if got := w.do("%s", c.send); got != c.want {
			t.Errorf("%s: got %q, want %q", c.send, got, c.want)
		}
	}
	w.do("RPUSH m x")
	w.send("MGET l m nothing")
	w.want("*3\r\n$1\r\ns\r\n$-1\r\n$-1\r\n")
	direct := connect(t, o.Addr)
	long := strings.Repeat("y", 5000)
	direct.Set(t.Context(), "long", long, 0)
	for range 3 {
		if got := w.do("GET long"); got != long {
			t.Fatalf("got %d bytes, want the whole long value", len(got))
		}
	}
	direct.Set(t.Context(), "long", "short", 0)
	until(t, "the value is short", func() bool { return w.do("GET long") == "short" })
	w.send("HELLO 3", "GET nothing")
	for {
		line, err := w.r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == "_\r\n" {
			break
		}
	}
	if got := w.do("GET nothing"); got != "_" {
		t.Errorf("after HELLO 3, got %q for nothing, want _", got)
	}
}

func TestATransactionWatchesTheOriginAndNotTheCache(t *testing.T) {
	o := startRedis(t)
	s, addr := startServer(t, o.Addr, Config{})
	direct, w := connect(t, o.Addr), dial(t, addr)
	w.do("SET k 1")
	w.do("GET k")
	w.do("GET k")
	w.do("WATCH k")
	before := hits(s)
	if got := w.do("GET k"); got != "1" || hits(s) != before {
		t.Errorf("after WATCH: got %q, from the cache: %v", got, hits(s) != before)
	}
	direct.Set(t.Context(), "k", "2", 0)
	w.send("MULTI", "GET k", "SET k 3", "EXEC")
	w.want("+OK\r\n+QUEUED\r\n+QUEUED\r\n*-1\r\n")
	if got := w.do("GET k"); got != "2" {
		t.Errorf("got %q, want 2", got)
	}
	w.do("GET k")
	if hits(s) == before {
		t.Error("after EXEC, nothing is answered from the cache any more")
	}
	// What a transaction may have changed of the connection is not guessed.
	w.do("SELECT 1")
	w.send("MULTI", "SELECT 0", "DISCARD")
	w.want("+OK\r\n+QUEUED\r\n+OK\r\n")
	if got := w.do("GET k"); got != "$-1" {
		t.Errorf("in database 1, got %q of database 0", got)
	}
}

func TestOneDatabaseIsCachedAndTheOthersArePassedOn(t *testing.T) {
	o := startRedis(t)
	s, addr := startServer(t, o.Addr, Config{URL: URL{DB: 2}})
	w := dial(t, addr)
	for _, db := range []int{0, 2, 1, 2} {
		w.do("SELECT %d", db)
		before := hits(s)
		w.do("SET k of%d", db)
		for range 3 {
			if got := w.do("GET k"); got != fmt.Sprint("of", db) {
				t.Errorf("database %d: got %q", db, got)
			}
		}
		if cached := hits(s) > before; cached != (db == 2) {
			t.Errorf("database %d is cached: %v", db, cached)
		}
	}
	w.do("SELECT 99") // fails
	before := hits(s)
	if w.do("GET k"); hits(s) == before {
		t.Error("a SELECT that fails has changed the database")
	}
}

func requirePassword(t *testing.T, o *child.Redis, password string) {
	t.Helper()
	if err := connect(t, o.Addr).ConfigSet(t.Context(), "requirepass", password).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestOnlyTheLinksUserIsAnsweredFromTheCache(t *testing.T) {
	o := startRedis(t, "--user", "other", "on", ">pw", "~k", "+@all")
	requirePassword(t, o, "secret")
	s, addr := startServer(t, o.Addr, Config{URL: URL{Password: "secret"}})
	w := dial(t, addr)
	w.do("AUTH secret")
	w.do("SET k v")
	w.do("GET k")
	if w.do("GET k"); hits(s) == 0 {
		t.Fatal("nothing is cached")
	}
	for _, c := range []struct{ auth, get string }{
		{"PING", "-NOAUTH Authentication required."},
		{"AUTH wrong", "-NOAUTH Authentication required."},
		{"AUTH other pw", "v"},
		{"AUTH secret", "v"},
	} {
		w, before := dial(t, addr), hits(s)
		w.do("%s", c.auth)
		if got := w.do("GET k"); got != c.get {
			t.Errorf("after %s: got %q, want %q", c.auth, got, c.get)
		}
		if cached := hits(s) > before; cached != (c.auth == "AUTH secret") {
			t.Errorf("after %s, answered from the cache: %v", c.auth, cached)
		}
	}
	c := connect(t, addr, func(o *redis.Options) { o.Password = "secret"; o.Protocol = 3 })
	before := hits(s)
	if got := c.Get(t.Context(), "k").Val(); got != "v" || hits(s) == before {
		t.Errorf("after HELLO 3 AUTH: got %q, from the cache: %v", got, hits(s) > before)
	}
	bad := startRedis(t)
	requirePassword(t, bad, "other")
	b := newServer(t, Config{URL: URL{Network: "tcp", Address: bad.Addr, Password: "hush-hush"}})
	until(t, "the origin refuses the password", func() bool {
		err := b.Health()
		return err != nil && strings.Contains(err.Error(), "WRONGPASS")
	})
	if err := b.Health(); strings.Contains(err.Error(), "hush") {
		t.Errorf("the password is in %v", err)
	}
}

func TestSubscriptionsMonitorsAndBlockingCommandsArePassedOn(t *testing.T) {
	o := startRedis(t)
	_, addr := startServer(t, o.Addr, Config{})
	direct := connect(t, o.Addr)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	sub := connect(t, addr).Subscribe(ctx, "news")
	defer func() { _ = sub.Close() }()
	if _, err := sub.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	direct.Publish(ctx, "news", "hello")
	if m, err := sub.ReceiveMessage(ctx); err != nil || m.Payload != "hello" {
		t.Fatalf("got %v, %v", m, err)
	}
	w := dial(t, addr)
	w.send("BLPOP q 0")
	until(t, "the client is blocked", func() bool { return strings.Contains(direct.Info(ctx, "clients").Val(), "blocked_clients:1") })
	direct.RPush(ctx, "q", "job")
	w.want("*2\r\n$1\r\nq\r\n$3\r\njob\r\n")
	m := dial(t, addr)
	if got := m.do("MONITOR"); got != "+OK" {
		t.Fatal(got)
	}
	direct.Set(ctx, "seen", "1", 0)
	if line, err := m.r.ReadString('\n'); err != nil || !strings.HasPrefix(line, "+") {
		t.Errorf("the monitor sees %q, %v", line, err)
	}
	track := dial(t, addr)
	track.do("HELLO 3 SETNAME t")
	for range 60 { // the rest of HELLO's answer
		if line, _ := track.r.ReadString('\n'); strings.HasPrefix(line, "*0") {
			break
		}
	}
	if got := track.do("CLIENT TRACKING ON"); got != "+OK" {
		t.Fatal(got)
	}
	track.do("GET seen")
	direct.Set(ctx, "seen", "2", 0)
	track.want(">2\r\n$10\r\ninvalidate\r\n*1\r\n$4\r\nseen\r\n")
	if got := dial(t, addr).do("PSYNC ? -1"); !strings.HasPrefix(got, "-ERR this is a cache") {
		t.Errorf("a replica is told %q", got)
	}
}

func TestAnOriginThatGoesAwayIsForgottenAndComesBackWithOtherData(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "redis.sock")
	o := startRedis(t, "--unixsocket", socket)
	s, addr := startServer(t, socket, Config{URL: URL{Network: "unix"}})
	direct, w := connect(t, o.Addr), dial(t, addr)
	w.do("SET k old")
	w.do("GET k")
	if got := w.do("GET k"); got != "old" {
		t.Fatal(got)
	}
	// The link alone is cut, and what changes then is not told.
	for range 5 {
		before := s.Stats().Flushes
		if err := direct.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
			t.Fatal(err)
		}
		direct.Set(t.Context(), "k", fmt.Sprint("new", before), 0)
		until(t, "the cut is noticed", func() bool { return s.Stats().Flushes > before })
		if got := dial(t, addr).do("GET k"); got != fmt.Sprint("new", before) {
			t.Fatalf("after the link was cut: got %q", got)
		}
		until(t, "the origin is cached again", func() bool { return s.Health() == nil })
	}
	r := dial(t, addr)
	r.do("GET k")
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, "the origin is gone", func() bool { return s.Health() != nil })
	if got := dial(t, addr).do("GET k"); !strings.HasPrefix(got, "-ERR the origin cannot be reached: ") {
		t.Errorf("without the origin: got %q", got)
	}
	startRedis(t, "--unixsocket", socket)
	until(t, "the origin is cached again", func() bool { return s.Health() == nil })
	if got := dial(t, addr).do("GET k"); got != "$-1" {
		t.Errorf("after a restart: got %q, want nothing", got)
	}
}

// TestASilentOriginIsBelievedForTheLagAndNoLonger stops the origin's process.
func TestASilentOriginIsBelievedForTheLagAndNoLonger(t *testing.T) {
	o := startRedis(t)
	s, addr := startServer(t, o.Addr, Config{Lag: 100 * time.Millisecond, Timeout: 300 * time.Millisecond})
	w := dial(t, addr)
	w.do("SET k v")
	until(t, "k is cached", func() bool {
		n := hits(s)
		w.do("GET k")
		return hits(s) > n
	})
	if err := o.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until(t, "it is forgotten", func() bool { return s.Health() != nil })
	if _, buf := s.tracker.lookup([]byte("k"), new([]byte)); buf != nil {
		t.Errorf("the cache still says %q", buf)
	}
	if err := o.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	until(t, "the origin is cached again", func() bool { return s.Health() == nil })
	if got := dial(t, addr).do("GET k"); got != "v" {
		t.Errorf("got %q, want v", got)
	}
}

func TestOneFlightBringsAKeyToAllWhoAsk(t *testing.T) {
	o := startRedis(t)
	s, addr := startServer(t, o.Addr, Config{})
	direct := connect(t, o.Addr)
	direct.Set(t.Context(), "k", "v", 0)
	const clients = 20
	var all []*wire
	for range clients {
		all = append(all, dial(t, addr))
	}
	if err := o.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for _, w := range all {
		w.send("GET k")
	}
	until(t, "all wait", func() bool { return s.tracker.stats.joined.Load() == clients-1 })
	if err := o.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for _, w := range all {
		w.want("$1\r\nv\r\n")
	}
	if calls := direct.InfoMap(t.Context(), "commandstats").Val(); !strings.HasPrefix(calls["Commandstats"]["cmdstat_get"], "calls=1,") {
		t.Errorf("the origin has seen GETs: %q, want one", calls["Commandstats"]["cmdstat_get"])
	}
}
