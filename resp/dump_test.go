package resp

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"polder/far"
	"polder/resp/clientmem"
	"polder/resp/forward"
	"polder/resp/keyspace"
	"polder/resp/rdb"
	"polder/resp/reply"
	"polder/soft"
)

// contents is all that a server has, as it tells it.
func contents(t testing.TB, c *client) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, k := range c.do("KEYS", "*").elems {
		v := c.do("GET", k.bulk)
		text := v.line + v.bulk
		if strings.HasPrefix(v.line, "-WRONGTYPE") {
			var pairs []string
			for p := range slices.Chunk(c.do("HGETALL", k.bulk).elems, 2) {
				pairs = append(pairs, fmt.Sprintf("%d %s=%s", len(p[0].bulk), p[0].bulk, p[1].bulk))
			}
			slices.Sort(pairs)
			text = strings.Join(pairs, "\n")
		}
		all[k.bulk] = text + c.do("PEXPIRETIME", k.bulk).line
	}
	return all
}

// same says what two servers do not agree about.
func same(t testing.TB, what string, got, want map[string]string) {
	t.Helper()
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if got[k] != want[k] {
			t.Fatalf("%s: key %.40q: got %.100s (%d bytes), want %.100s (%d bytes)", what, k, got[k], len(got[k]), want[k], len(want[k]))
		}
	}
	for k := range got {
		if _, ok := want[k]; !ok {
			t.Fatalf("%s: there is a key %.40q, which was never set", what, k)
		}
	}
}

// furnish stores values of all kinds and sizes.
func furnish(c *client, r *rand.Rand, keys int) {
	noise := make([]byte, 1<<20)
	for i := 0; i < len(noise); i += 8 {
		binary.LittleEndian.PutUint64(noise[i:], r.Uint64())
	}
	text := func(n int) string {
		at := r.IntN(len(noise) - n)
		return string(noise[at : at+n])
	}
	for i := range keys {
		key := fmt.Sprint("key:", i, text(i%70))
		switch i % 6 {
		case 0:
			c.do("SET", key, strconv.FormatInt(int64(r.Uint64())>>r.IntN(64), 10))
		case 1:
			c.do("SET", key, strings.Repeat("abc", r.IntN(3000)))
		case 2:
			c.do("APPEND", key, "12")
		case 3:
			args := []string{"HSET", key}
			for range 1 + r.IntN(200) {
				args = append(args, text(r.IntN(12)), strconv.Itoa(r.IntN(1e6)))
			}
			c.do(args...)
		default:
			c.do("SET", key, text(r.IntN(200)))
		}
		if i%5 == 0 {
			c.do("PEXPIREAT", key, strconv.FormatInt(time.Now().UnixMilli()+1e9+int64(i), 10))
		}
	}
	c.do("SET", "large value", text(600<<10))
	c.do("SET", "", "the empty key")
	for name, size := range map[string]int{"blocks": 40, "many blocks": 2500} {
		args := []string{"HSET", name}
		for i := range 600 {
			args = append(args, fmt.Sprint("field", i), text(size))
		}
		c.do(args...)
		c.do("HDEL", name, "field7", "field99")
		c.do("PEXPIREAT", name, "9999999999999")
	}
}

// dumped has redis-cli take a dump, which redis-check-rdb has to find right.
func dumped(t testing.TB, addr string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "dump.rdb")
	port := addr[strings.LastIndex(addr, ":")+1:]
	if out, err := exec.Command("redis-cli", "-p", port, "--rdb", file).CombinedOutput(); err != nil {
		t.Fatalf("redis-cli --rdb: %v\n%s", err, out)
	}
	if out, err := exec.Command("redis-check-rdb", file).CombinedOutput(); err != nil {
		t.Fatalf("redis-check-rdb: %v\n%s", err, out)
	}
	return file
}

// loaded starts a Redis with a file.
func loaded(t testing.TB, file string) *client {
	t.Helper()
	c := dial(t, startRedis(t, "--dir", filepath.Dir(file), "--dbfilename", filepath.Base(file)))
	eventually(t, "that Redis has loaded the file", func() bool { return c.words("PING") == "+PONG" })
	return c
}

// A dump that redis-cli takes is loaded by Redis, which then has the same: whether all is local or most is far.
func TestARedisLoadsWhatIsDumped(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		_, addr := startServer(t, far.MinLocal, cfg)
		c := dial(t, addr)
		furnish(c, rand.New(rand.NewPCG(1, 2)), 600)
		want := contents(t, c)
		same(t, "loaded by Redis", contents(t, loaded(t, dumped(t, addr))), want)
	})
}

// While everything changes, what does not is in a dump, once, and a hash is as it was between two commands.
func TestADumpOfWhatChanges(t *testing.T) {
	_, addr := startServer(t, far.MinLocal, Config{Loops: 2})
	c := dial(t, addr)
	furnish(c, rand.New(rand.NewPCG(3, 4)), 100)
	want := contents(t, c)
	delete(want, "many blocks")
	var stop atomic.Bool
	var writers sync.WaitGroup
	for w := range 2 {
		c := dial(t, addr)
		writers.Go(func() {
			for i := 0; !stop.Load(); i++ {
				n := strconv.Itoa(i)
				c.do("HSET", "many blocks", fmt.Sprint("left", w), n, fmt.Sprint("field", i%600), "x", fmt.Sprint("right", w), n)
				c.do("SET", fmt.Sprint("change", w, i%1000), n)
				c.do("DEL", fmt.Sprint("change", w, (i+500)%1000))
			}
		})
	}
	eventually(t, "that there are changes", func() bool { return c.do("HEXISTS", "many blocks", "right1").line == ":1" })
	file := dumped(t, addr)
	stop.Store(true)
	writers.Wait()
	redis := loaded(t, file)
	for w := range 2 {
		l, r := redis.do("HGET", "many blocks", fmt.Sprint("left", w)), redis.do("HGET", "many blocks", fmt.Sprint("right", w))
		if l.String() != r.String() {
			t.Errorf("one command has set two fields to the same number, and the dump has %s and %s", l, r)
		}
	}
	got := contents(t, redis)
	maps.DeleteFunc(got, func(k, _ string) bool { return strings.HasPrefix(k, "change") || k == "many blocks" })
	same(t, "loaded by Redis", got, want)
}

// Nobody has to wait for a client that does not read its dump. If it reads it after all, a hash that others have changed
// meanwhile is as it was; if it goes, what was copied for it goes, too.
func TestADumpThatIsNotRead(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		cfg.OutputLimit = 64 << 10
		srv, addr := startServer(t, roomy, cfg)
		c := dial(t, addr)
		set := func(value string, every int) string {
			args := []string{"HSET", "h"}
			for i := 0; i < 600; i += every {
				args = append(args, strconv.Itoa(i), value)
			}
			return c.do(args...).String()
		}
		before := strings.Repeat("v", 10_000)
		set(before, 1)
		blocks := srv.Stats().HashBlocks
		for _, reads := range []bool{true, false} {
			slow := dial(t, addr)
			slow.send(encode("REPLCONF", "capa", "eof") + "SYNC\r\n")
			eventually(t, "a copy of the hash", func() bool { return srv.Stats().HashBlocks >= 2*blocks })
			// Few fields, since who has not read for clientmem.Window is disconnected.
			if got := set("w"+before[1:], 100); got != ":0" {
				t.Errorf("HSET meanwhile: %s, want :0", got)
			}
			if reads {
				file := slow.dump()
				if n := strings.Count(file, before); n != 600 || strings.Contains(file, "w"+before[1:]) {
					t.Errorf("the dump has %d of 600 fields as they were", n)
				}
				set(before, 100)
			}
			slow.c.Close()
			eventually(t, "that the copy is freed", func() bool { return srv.Stats().HashBlocks == blocks })
		}
	})
}

// dump reads the replies to REPLCONF and SYNC.
func (c *client) dump() (file string) {
	c.t.Helper()
	if got := c.recv().String(); got != "+OK" {
		c.t.Fatal(got)
	}
	mark, err := c.r.ReadString('\n')
	if err != nil || !strings.HasPrefix(mark, "$EOF:") {
		c.t.Fatalf("SYNC: %q, %v", mark, err)
	}
	mark = strings.TrimSpace(mark[len("$EOF:"):])
	var b []byte
	for part := make([]byte, 64<<10); !strings.HasSuffix(string(b[max(0, len(b)-len(mark)):]), mark); {
		n, err := c.r.Read(part)
		if b = append(b, part[:n]...); err != nil {
			c.t.Fatalf("the dump ends after %d bytes: %v", len(b), err)
		}
	}
	return string(b[:len(b)-len(mark)])
}

// Servers that share a heap dump the partitions that they have, and a Redis that loads all of their dumps has everything.
func TestServersOfPartitionsAreDumped(t *testing.T) {
	c := startCluster(t, 2, 5, far.MinLocal)
	cls := []*client{dial(t, c.addrs[0]), dial(t, c.addrs[1])}
	furnish(cls[0], rand.New(rand.NewPCG(5, 6)), 600)
	got, both := map[string]string{}, 0
	for i, addr := range c.addrs {
		want := contents(t, cls[i])
		all := contents(t, loaded(t, dumped(t, addr)))
		same(t, addr+" loaded by Redis", all, want)
		maps.Copy(got, all)
		both += len(all)
	}
	if both != len(got) || both < 600 {
		t.Errorf("the dumps have %d keys, %d different ones, want 603", both, len(got))
	}
	for p := range 5 {
		c.move(p, 0)
	}
	cls[1].send(encode("REPLCONF", "capa", "eof") + "SYNC\r\n")
	for _, want := range []string{"+OK", "-" + string(errNoPartition)} {
		if got := cls[1].recv().String(); got != want {
			t.Errorf("of a server that has nothing: %s, want %s", got, want)
		}
	}
}

// A partition is not kept from going by a client that does not read its dump, which does not come to its end then, as if it were whole.
func TestAPartitionGoesThoughItIsDumped(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		cfg.OutputLimit = 64 << 10
		c := startClusterOver(t, 2, 2, roomy, cfg, forward.Config{})
		server := 0
		if cfg.Loops < 0 {
			server = 1 // which has none
		}
		cl := dial(t, c.addrs[server])
		value := strings.Repeat("v", 100_000)
		tag := "{" + c.keyIn(server, "k") + "}"
		for i := range 30 {
			if got := cl.do("SET", tag+strconv.Itoa(i), value).String(); got != "+OK" {
				t.Fatal(got)
			}
		}
		for _, hash := range []bool{false, true} {
			if hash { // it is copied for the dump
				cl.do("FLUSHALL")
				for i := range 300 {
					cl.do("HSET", tag+"h", strconv.Itoa(i), value[:10_000])
				}
			}
			slow := dialNarrow(t, c.servers[server], 64<<10)
			slow.send(encode("REPLCONF", "capa", "eof") + "SYNC\r\n")
			if got := slow.recv().String(); got != "+OK" {
				t.Fatal(got)
			}
			if _, err := slow.r.Peek(1000); err != nil {
				t.Fatal(err)
			}
			unread, looks := 0, 0
			eventually(t, "that nothing more fits into what is between", func() bool {
				was := unread
				if unread = slow.unread(); unread != was {
					looks = 0
				}
				looks++
				return looks > 20
			})
			c.move(server, 1-server)
			if c.servers[server].Stats().OutputDrops != 0 {
				t.Error("the partition went only when the client had been disconnected, since it does not read")
			}
			mark, _ := slow.r.ReadString('\n')
			b, _ := io.ReadAll(slow.r)
			if len(b) < 1000 || strings.HasSuffix(string(b), strings.TrimSpace(mark[len("$EOF:"):])) {
				t.Errorf("of the dump there are %d bytes, and it is whole", len(b))
			}
			c.move(server, server)
			if got := cl.do("HLEN", tag+"h").String(); hash && got != ":300" {
				t.Errorf("HLEN then: %s", got)
			}
		}
	})
}

// unread is how many bytes have come that have not been read.
func (c *client) unread() (n int) {
	c.t.Helper()
	raw, err := c.c.(syscall.Conn).SyscallConn()
	if err == nil {
		raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

// A checkpoint that is taken while a hash is being dumped keeps no copy of it.
func TestACheckpointDuringADump(t *testing.T) {
	k := newKept(t, keyspace.Journal{})
	value := strings.Repeat("v", 10_000)
	for i := range 300 {
		k.do("HSET", "h", strconv.Itoa(i), value)
	}
	blocks := k.srv.Stats().HashBlocks
	k.s.replica.streams = true
	k.s.in = []byte("SYNC\r\n")
	for k.s.dump == nil || k.s.dump.copied == nil {
		if st := k.s.run(); st != needFlush {
			t.Fatalf("the dump ends before it has begun: %d\n%.200q", st, k.s.Out)
		}
	}
	if err := k.heap.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.crash()
	eventually(t, "that the copy is freed", func() bool { return k.srv.Stats().HashBlocks == blocks })
	if got := k.do("HLEN", "h"); got != ":300\r\n" {
		t.Errorf("HLEN: %q, want 300", got)
	}
}

func TestWhoMayNotDump(t *testing.T) {
	_, _, cache := startCache(t, Config{}, soft.Config{Budget: roomy})
	_, server := startServer(t, roomy, Config{})
	for _, s := range []struct{ name, addr, script string }{
		{"cache", cache, `
			REPLCONF capa eof -> +OK
			SYNC -> -ERR a cache has no dump: any key may vanish meanwhile`},
		{"server", server, `
			SYNC -> -` + string(errNoReplicas) + `
			REPLCONF capa -> -ERR syntax error
			REPLCONF rdb-filter-only functions -> -ERR Unrecognized REPLCONF option: rdb-filter-only
			MULTI -> +OK
			SYNC -> -ERR Command not allowed inside a transaction
			DISCARD -> +OK
			REPLCONF listening-port 6380 -> +OK
			REPLCONF capa eof capa psync2 -> +OK
			SYNC -> -` + string(errNoReplicas) + `
			RESET -> +RESET
			SYNC -> -` + string(errNoReplicas)},
	} {
		t.Run(s.name, func(t *testing.T) { runScript(t, dial(t, s.addr), s.script) })
	}
}

// A dump that would lack what a node has taken with it is refused. One that is under way then, and comes by nothing that
// it misses, ends with an error instead of the end of the file.
func TestADumpOfWhatIsLost(t *testing.T) {
	store, srv, addr := startFaulty(t, 1<<10, Config{Loops: 2})
	c := dial(t, addr)
	fill(t, c)
	s := srv.newSession()
	defer s.close()
	d := &dump{s: s, batch: dumpKeys, rest: []*part{srv.data}}
	more, err := d.step()
	if !more || err != nil {
		t.Fatalf("the first step: %v, %v", more, err)
	}
	store.lose()
	for more && err == nil {
		s.Out, s.Mark = s.Out[:0], 0
		more, err = d.step()
	}
	s.Settle()
	clientmem.Free(s.TakeLarge())
	if err == nil || !strings.HasPrefix(reply.Text(err), "LOST ") {
		t.Errorf("the dump ends with the error %v, want LOST", err)
	}
	c.do("REPLCONF", "capa", "eof")
	c.send("SYNC\r\n")
	if got := c.recv().String(); !strings.HasPrefix(got, "-LOST ") {
		t.Errorf("SYNC: %s, want LOST", got)
	}
}

// When far memory does not answer, the connection ends before the file does.
func TestADumpThatCannotGoOn(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		cfg.OpTimeout = 500 * time.Millisecond
		store, srv, addr := startFaulty(t, 1<<10, cfg)
		fill(t, dial(t, addr))
		defer store.hold()()
		c := dial(t, addr)
		c.send(encode("REPLCONF", "capa", "eof") + "SYNC\r\n")
		got, err := io.ReadAll(c.r)
		if err != nil || !strings.HasPrefix(string(got), "+OK\r\n$EOF:"+srv.runID) || strings.HasSuffix(string(got), srv.runID) && len(got) > 100 {
			t.Errorf("the dump ends with %.60q, %v, want it to be cut off", got[max(0, len(got)-60):], err)
		}
	})
}

// With a journal, what a dump shows is on the disk before it is sent.
func TestADumpShowsWhatIsCertain(t *testing.T) {
	k := newKept(t, keyspace.Journal{Durable: true})
	k.do("SET", "k", "v")
	s := k.srv.newSession()
	defer s.close()
	s.in = []byte("REPLCONF capa eof\r\nSYNC\r\n")
	for s.run() == needFlush {
	}
	var want keyspace.Sight
	if k.srv.data.Look(&want); s.Sight != want || want == (keyspace.Sight{}) {
		t.Errorf("a dump waits for %v of the journal, want %v", s.Sight, want)
	}
	if !s.shown() {
		t.Error("it may not be shown")
	}
	clientmem.Free(s.TakeLarge())
}

// read is what contents would say of a file.
func read(t testing.TB, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := map[string]string{}
	r := rdb.NewReader(f)
	for {
		k, err := r.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		name, text := string(k.Name), ""
		switch k.Kind {
		case rdb.String:
			v, err := r.Value(nil)
			if err != nil {
				t.Fatal(err)
			}
			text = fmt.Sprintf("$%d%s", len(v), v)
		case rdb.Hash:
			var pairs []string
			if err := r.Fields(func(f, v []byte) error {
				pairs = append(pairs, fmt.Sprintf("%d %s=%s", len(f), f, v))
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			slices.Sort(pairs)
			text = strings.Join(pairs, "\n")
		default:
			continue
		}
		if k.Expire.IsZero() {
			text += ":-1"
		} else {
			text += fmt.Sprint(":", k.Expire.UnixMilli())
		}
		all[name] = text
	}
}

// What Redis writes is read as Redis has it, among keys that are passed over; and files of versions that no Redis
// writes any more are read as Redis reads them.
func TestRedisFilesAreRead(t *testing.T) {
	sock := startRedis(t, "--repl-diskless-sync-delay", "0")
	c := dial(t, sock)
	furnish(c, rand.New(rand.NewPCG(5, 6)), 600)
	want := contents(t, c)
	for i, line := range []string{"RPUSH l a b 3", "SADD s a b", "SADD i 1 2 3", "ZADD z 1 a 2.5 b", "XADD x 1-1 f v", "XGROUP CREATE x g 0",
		"XREADGROUP GROUP g c STREAMS x >", "SADD text " + strings.Repeat("m", 100), "FUNCTION LOAD \"#!lua name=lib\\nredis.register_function('f', function() end)\""} {
		args := strings.Fields(line)
		if i == 8 {
			args = []string{"FUNCTION", "LOAD", "#!lua name=lib\nredis.register_function('f', function() end)"}
		}
		if got := c.do(args...).String(); strings.HasPrefix(got, "-") {
			t.Fatalf("%s: %s", line, got)
		}
	}
	for _, compress := range []string{"yes", "no"} {
		c.do("CONFIG", "SET", "rdbcompression", compress)
		file := filepath.Join(t.TempDir(), "dump.rdb")
		if out, err := exec.Command("redis-cli", "-s", sock, "--rdb", file).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		same(t, "a file of Redis, compressed: "+compress, read(t, file), want)
	}
	for _, name := range []string{"old.rdb", "packed.rdb"} {
		b, err := os.ReadFile("rdb/testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, b, 0o644); err != nil {
			t.Fatal(err)
		}
		same(t, name, read(t, file), contents(t, loaded(t, file)))
	}
}
