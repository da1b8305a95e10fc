package resp

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"polder/far"
	"polder/resp/clientmem"
	"polder/resp/feed"
)

var monitorHead = regexp.MustCompile(`^\+\d+\.\d{6} \[0 [^\]]*\] `)

// TestMonitorShowsWhatRedisShows plays the same commands to both and compares what
// a monitor sees, byte for byte but for times and addresses.
func TestMonitorShowsWhatRedisShows(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		_, addr := startServer(t, roomy, cfg)
		var seen [2][]string
		for i, addr := range []string{addr, startRedis(t)} {
			mon, c := dial(t, addr), dial(t, addr)
			expect(t, mon, "MONITOR", "+OK")
			for _, line := range []string{
				"SET k v", "GET k", "nosuch x", "GET", "AUTH open-sesame", "AUTH me open-sesame", "HELLO 3 AUTH me open-sesame", "HELLO 2 SETNAME x",
				"CONFIG GET save", "SLOWLOG LEN", "CLIENT LIST", "CLIENT ID", "HSET k f v", "MULTI", "SET a b", "AUTH open-sesame", "HGET a f", "EXEC",
				"MULTI", "SET a c", "DISCARD", "WATCH a", "INFO server", "MEMORY USAGE a", "CLIENT REPLY ON",
			} {
				c.words(line)
			}
			c.do("SET", "\x00\x01\xff\"\\\r\n\t\a\b end", strings.Repeat("x", 300))
			c.words("ECHO last")
			for {
				line := mon.recv().line
				if !monitorHead.MatchString(line) {
					t.Fatalf("a monitor was sent %q", line)
				}
				if seen[i] = append(seen[i], monitorHead.ReplaceAllString(line, "")); strings.Contains(line, `"last"`) {
					break
				}
			}
			expect(t, mon, "GET k", "-ERR Replica can't interact with the keyspace")
			expect(t, mon, "RESET", "+RESET")
			expect(t, mon, "GET k", `"v"`)
			expect(t, mon, "PING", "+PONG")
		}
		ours, theirs := strings.Join(seen[0], "\n"), strings.Join(seen[1], "\n")
		if ours != theirs {
			t.Errorf("a monitor saw\n%s\nRedis's saw\n%s", ours, theirs)
		}
		if strings.Contains(ours, "sesame") {
			t.Errorf("a monitor was shown a secret:\n%s", ours)
		}
	})
}

// TestNoSecretIsShown also where Redis would: in a HELLO that is not well-formed,
// and in the slow log.
func TestNoSecretIsShown(t *testing.T) {
	_, addr := startServer(t, roomy, Config{Password: "open-sesame"})
	mon, c := dial(t, addr), dial(t, addr)
	expect(t, mon, "AUTH open-sesame", "+OK")
	expect(t, mon, "CONFIG SET slowlog-log-slower-than 0", "+OK")
	expect(t, mon, "MONITOR", "+OK")
	for _, line := range []string{
		"AUTH sesame-wrong", "AUTH default open-sesame", "HELLO 3 AUTH open-sesame", "HELLO 3 SETNAME x AUTH default open-sesame", "HELLO 3 AUTH AUTH sesame AUTH sesame",
		"AUTH a b sesame", "CONFIG SET requirepass sesame", "CONFIG SET masterauth sesame", "MULTI", "AUTH open-sesame", "EXEC", "ECHO last",
	} {
		c.words(line)
	}
	for {
		line := mon.recv().line
		if strings.Contains(line, "sesame") || !strings.Contains(line, " [0 127.0.0.1:") {
			t.Errorf("a monitor was shown %s", line)
		}
		if strings.Contains(line, `"last"`) {
			break
		}
	}
	if log := c.words("SLOWLOG GET -1"); strings.Contains(log, "sesame") || !strings.Contains(log, `"(redacted)"`) || !strings.Contains(log, `"last"`) {
		t.Errorf("the slow log shows a secret, or not what ran: %s", log)
	}
}

// TestAMonitorThatDoesNotReadIsDisconnected, and makes nobody wait.
func TestAMonitorThatDoesNotReadIsDisconnected(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		cfg.OutputLimit = 256 << 10
		srv, addr := startServer(t, roomy, cfg)
		mon, c := dial(t, addr), dial(t, addr)
		expect(t, mon, "MONITOR", "+OK")
		value := strings.Repeat("\x00", 32<<10) // each byte is four of the line
		eventually(t, "the end of the monitor", func() bool {
			expect(t, c, "SET k "+value, "+OK")
			return srv.Stats().Clients == 1
		})
		if st := srv.Stats(); st.OutputDrops != 1 || srv.monitors.Load() != nil {
			t.Errorf("%d clients were dropped for not reading, want 1; monitors: %v", st.OutputDrops, srv.monitors.Load())
		}
		expect(t, c, "SET k "+value, "+OK")
		if held := srv.cfg.ClientMemory.Held(); held > 512<<10 {
			t.Errorf("clients hold %d bytes once the monitor is gone", held)
		}
	})
}

// TestLinesThatNobodyTakesAreBounded: those of a monitor whose own command waits.
func TestLinesThatNobodyTakesAreBounded(t *testing.T) {
	srv, _ := startServer(t, roomy, Config{OutputLimit: 64 << 10})
	s := srv.newSession()
	defer s.close()
	s.fed = func(*feed.Feed) {}
	s.monitor()
	other := srv.newSession()
	defer other.close()
	echo := commandTable().By["echo"]
	for range 1000 {
		other.tell(echo, [][]byte{[]byte("ECHO"), make([]byte, 1000)})
	}
	lines := s.news.Take()
	defer clientmem.Free(lines)
	if n := len(lines); n == 0 || n > 64<<10 || !s.killed.Load() || srv.Stats().OutputDrops != 1 {
		t.Errorf("%d bytes of lines wait, want at most %d and the end of the monitor: %v", n, 64<<10, s.killed.Load())
	}
}

// TestTheSlowLogKeepsWhatRedisKeeps compares entries of both: long arguments and
// many of them are cut short in the same way.
func TestTheSlowLogKeepsWhatRedisKeeps(t *testing.T) {
	_, addr := startServer(t, roomy, Config{})
	var logs [2]string
	for i, addr := range []string{addr, startRedis(t)} {
		c := dial(t, addr)
		c.words("CLIENT SETNAME me")
		c.words("CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 5")
		c.words("SLOWLOG RESET")
		c.do("SET", strings.Repeat("k", 128), strings.Repeat("v", 200))
		del := []string{"DEL"}
		for k := range 32 {
			del = append(del, strconv.Itoa(k))
		}
		c.do(del[:32]...)
		c.do(del...)
		c.words("HGET a")
		c.words("AUTH secret")
		c.words("CONFIG SET slowlog-log-slower-than -1")
		c.words("PING")
		for _, e := range c.do("SLOWLOG", "GET").elems {
			e.elems[1].line, e.elems[2].line, e.elems[4].bulk = ":at", ":took", "client"
			logs[i] += e.String() + "\n"
		}
		expect(t, c, "CONFIG SET slowlog-max-len 2", "+OK")
		if i == 0 { // Redis forgets them when the next one comes
			expect(t, c, "SLOWLOG LEN", ":2")
		}
		expect(t, c, "SLOWLOG RESET", "+OK")
		expect(t, c, "SLOWLOG GET -1", "[]")
	}
	if logs[0] != logs[1] {
		t.Errorf("the slow log has\n%s\nRedis's has\n%s", logs[0], logs[1])
	}
}

// TestLatencyCountsCommands: those of each kind by how long they took.
func TestLatencyCountsCommands(t *testing.T) {
	_, addr := startServer(t, roomy, Config{})
	c := dial(t, addr)
	expect(t, c, "LATENCY RESET", ":0")
	for range 5 {
		c.words("STRLEN nosuch")
	}
	h := c.do("LATENCY", "HISTOGRAM", "strlen")
	if s := h.String(); !strings.HasPrefix(s, `["strlen" ["calls" :5 "histogram_usec" [`) || !strings.HasSuffix(s, ":5]]]") {
		t.Errorf("LATENCY HISTOGRAM: %s, want 5 calls, and as many in the last bucket", s)
	}
}

// waits reports that c has got nothing so far.
func waits(t *testing.T, c *client) {
	t.Helper()
	c.c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if b, err := c.r.Peek(1); err == nil {
		t.Errorf("a client that is paused was sent %q", b)
	}
	c.c.SetReadDeadline(time.Now().Add(testTimeout))
}

func TestClientPause(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		var srv *Server
		t.Cleanup(func() { // once the server is closed
			if srv.pause.what.Load() != pauseNone {
				t.Error("a pause outlives its server")
			}
		})
		var addr string
		srv, addr = startServer(t, roomy, cfg)
		boss, a, b := dial(t, addr), dial(t, addr), dial(t, addr)
		expect(t, boss, "CLIENT PAUSE 3600000 WRITE", "+OK")
		expect(t, a, "GET k", "nil")
		a.send(encode("MULTI") + encode("GET", "k") + encode("EXEC") + encode("PING") + encode("SET", "k", "v") + encode("GET", "k"))
		for _, want := range []string{"+OK", "+QUEUED", "[nil]", "+PONG"} {
			if got := a.recv().String(); got != want {
				t.Errorf("while writes are paused: got %s, want %s", got, want)
			}
		}
		waits(t, a)
		expect(t, b, "GET k", "nil")
		expect(t, boss, "CLIENT PAUSE 3600000", "+OK")
		b.send(encode("GET", "k"))
		waits(t, a)
		waits(t, b)
		expect(t, boss, "CLIENT UNPAUSE", "+OK")
		for _, want := range []string{"+OK", `"v"`} {
			if got := a.recv().String(); got != want {
				t.Errorf("after the pause: got %s, want %s", got, want)
			}
		}
		b.recv()
		// Only who runs other commands while it has subscribed can wait, and is sent messages meanwhile.
		for _, ver := range []string{"2", "3"} {
			c := dial(t, addr)
			c.words("HELLO " + ver)
			c.words("SUBSCRIBE news")
			if ver == "2" {
				c.words("UNSUBSCRIBE news")
			}
			expect(t, boss, "CLIENT PAUSE 3600000 WRITE", "+OK")
			c.send(encode("SET", "k", "v"))
			waits(t, c)
			if ver == "3" {
				srv.channels.Publish(feed.Channel, []byte("news"), []byte("good"))
				if got := c.recv().String(); !strings.Contains(got, "good") {
					t.Errorf("in a pause a subscriber was sent %s, want the message", got)
				}
				waits(t, c)
			}
			expect(t, boss, "CLIENT UNPAUSE", "+OK")
			if got := c.recv().String(); got != "+OK" {
				t.Errorf("after the pause: got %s, want +OK", got)
			}
			c.c.Close()
		}
		// Who publishes waits, as in Redis.
		for _, line := range []string{"PUBLISH news x", "SPUBLISH news x", "EXEC"} {
			c := dial(t, addr)
			if line == "EXEC" {
				c.words("MULTI")
				c.words("PUBLISH news x")
			}
			expect(t, boss, "CLIENT PAUSE 3600000 WRITE", "+OK")
			c.send(encode(strings.Fields(line)...))
			waits(t, c)
			expect(t, boss, "CLIENT UNPAUSE", "+OK")
			c.recv()
			c.c.Close()
		}
		// It ends by itself.
		expect(t, boss, "CLIENT PAUSE 20 ALL", "+OK")
		expect(t, a, "GET k", `"v"`)
		// One who is paused can be killed, and so is one who paused the others.
		expect(t, boss, "CLIENT PAUSE 3600000 ALL", "+OK")
		b.send(encode("GET", "k"))
		waits(t, b)
		id := regexp.MustCompile(`id=(\d+) addr=` + regexp.QuoteMeta(b.c.LocalAddr().String())).FindStringSubmatch(boss.do("CLIENT", "LIST").bulk)
		expect(t, boss, "CLIENT KILL ID "+id[1], ":1")
		if got := b.rest(); got != "" {
			t.Errorf("a killed client was sent %q", got)
		}
		a.send(encode("GET", "k"))
		waits(t, a)
		a.c.Close()
		boss.c.Close()
		eventually(t, "a client that is not paused", func() bool { return srv.Stats().Clients <= 1 })
		expect(t, dial(t, addr), "CLIENT LIST TYPE pubsub", `""`)
		last := dial(t, addr)
		last.send(encode("SET", "k", "w"))
		waits(t, last)
		// The server ends although the pause would not: see serve's clean-up.
	})
}

// TestNoCommandPassesBetweenTwoPauses: one pause replaces another with no moment
// between them.
func TestNoCommandPassesBetweenTwoPauses(t *testing.T) {
	p := &pause{srv: new(Server)}
	p.begin(pauseAll, time.Hour)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 20_000 {
			p.begin(pauseWrites, time.Hour)
			p.begin(pauseAll, time.Hour)
		}
	}()
	gaps := 0
	for {
		select {
		case <-done:
			if gaps > 0 {
				t.Errorf("there was no pause %d times", gaps)
			}
			p.close()
			return
		default:
			if p.what.Load() == pauseNone {
				gaps++
			}
		}
	}
}

func TestClientKill(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		srv, addr := startServer(t, roomy, cfg)
		boss := dial(t, addr)
		expect(t, boss, "PING", "+PONG")
		for _, how := range []string{"KILL %s", "KILL ADDR %s", "KILL ADDR %s TYPE normal USER default", "KILL SKIPME no ADDR %s"} {
			c := dial(t, addr)
			expect(t, c, "PING", "+PONG")
			if got := boss.words("CLIENT " + fmt.Sprintf(how, c.c.LocalAddr())); got != "+OK" && got != ":1" {
				t.Errorf("CLIENT "+how+": got %s, want one client killed", got)
			}
			if got := c.rest(); got != "" {
				t.Errorf("a killed client was sent %q", got)
			}
			eventually(t, "the end of the session", func() bool { return srv.Stats().Clients == 1 })
		}
		expect(t, boss, "CLIENT KILL TYPE normal", ":0") // not oneself
		boss.send(encode("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no") + encode("PING"))
		if got := boss.rest(); got != ":1\r\n" {
			t.Errorf("who kills itself gets %q, want the answer and no more", got)
		}
		self := dial(t, addr)
		self.send(encode("CLIENT", "KILL", self.c.LocalAddr().String()) + encode("PING"))
		if got := self.rest(); got != "+OK\r\n" {
			t.Errorf("who kills itself by address gets %q, want the answer and no more", got)
		}
		eventually(t, "the end of all sessions", func() bool { return srv.Stats().Clients == 0 })
	})
}

func TestClientReply(t *testing.T) {
	for name, addr := range map[string]string{"ours": "", "Redis's": startRedis(t)} {
		if addr == "" {
			_, addr = startServer(t, roomy, Config{})
		}
		c := dial(t, addr)
		for _, line := range []string{
			"CLIENT REPLY SKIP", "PING a", "PING b", "CLIENT REPLY OFF", "PING c", "nosuch", "CLIENT REPLY SKIP", "PING d", "MULTI", "PING e", "EXEC",
			"CLIENT REPLY ON", "PING f", "CLIENT REPLY SKIP", "CLIENT REPLY SKIP", "PING g", "CLIENT REPLY SKIP", "CLIENT REPLY ON", "CLIENT REPLY OFF", "PING h", "RESET", "PING i", "CLIENT REPLY SKIP", "RESET", "PING j", "QUIT",
		} {
			c.send(encode(strings.Fields(line)...))
		}
		const want = "$1\r\nb\r\n+OK\r\n$1\r\nf\r\n+OK\r\n+RESET\r\n$1\r\ni\r\n$1\r\nj\r\n+OK\r\n"
		if got := c.rest(); got != want {
			t.Errorf("%s replies: %q, want %q", name, got, want)
		}
	}
}

// TestATransactionIsAnsweredWhole whatever CLIENT REPLY in it asks for, and so is what follows it.
func TestATransactionIsAnsweredWhole(t *testing.T) {
	_, addr := startServer(t, roomy, Config{})
	theirs := startRedis(t)
	for _, row := range [][2]string{{"OFF", "-" + string(errNotInMulti)}, {"skip", "-" + string(errNotInMulti)}, {"ON", "+OK"}} {
		for _, addr := range []string{addr, theirs} {
			if addr == theirs && row[0] != "ON" { // Redis replies with half an array
				continue
			}
			c := dial(t, addr)
			for _, line := range []string{"MULTI", "ECHO a", "CLIENT REPLY " + row[0], "ECHO b", "EXEC", "ECHO c", "QUIT"} {
				c.send(encode(strings.Fields(line)...))
			}
			want := "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n$1\r\na\r\n" + row[1] + "\r\n$1\r\nb\r\n$1\r\nc\r\n+OK\r\n"
			if got := c.rest(); got != want {
				t.Errorf("with CLIENT REPLY %s in it: %q, want %q", row[0], got, want)
			}
		}
	}
}

// TestMaxmemoryMovesTheLocalBudget of far memory, for real: what is resident.
func TestMaxmemoryMovesTheLocalBudget(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		heap := newHeap(t, 16<<20)
		_, addr := startOn(t, heap, cfg)
		c, other := dial(t, addr), dial(t, addr)
		value := strings.Repeat("v", 32<<10)
		for i := range 500 {
			if got := c.do("SET", strconv.Itoa(i), value).String(); got != "+OK" {
				t.Fatal(got)
			}
		}
		expect(t, c, "CONFIG GET maxmemory", `["maxmemory" "16777216"]`)
		for _, mib := range []int64{8, 32, 6, 64} {
			expect(t, c, fmt.Sprintf("CONFIG SET maxmemory %dmb slowlog-max-len %d", mib, mib), "+OK")
			if got := heap.Stats().Resident; got > mib<<20 || heap.Local() != mib<<20 {
				t.Errorf("with maxmemory at %d MiB, the budget is %d and %d bytes are resident", mib, heap.Local(), got)
			}
			expect(t, other, "CONFIG GET maxmemory slowlog-max-len", fmt.Sprintf(`["maxmemory" "%d" "slowlog-max-len" "%d"]`, mib<<20, mib))
			for i := range 500 {
				if got := other.do("GET", strconv.Itoa(i)).bulk; got != value {
					t.Fatalf("with %d MiB, key %d is not what was stored", mib, i)
				}
			}
		}
		for _, bad := range []string{"1", "65mb", "1gb", "0"} {
			got := c.words("CONFIG SET slowlog-max-len 7 maxmemory " + bad)
			if !strings.HasPrefix(got, "-ERR CONFIG SET failed (possibly related to argument 'maxmemory') - cannot set the local budget to") {
				t.Errorf("maxmemory %s: got %s", bad, got)
			}
		}
		expect(t, c, "CONFIG GET maxmemory slowlog-max-len", `["maxmemory" "67108864" "slowlog-max-len" "64"]`)
		if info := c.do("INFO", "memory").bulk; !strings.Contains(info, "maxmemory:67108864\r\n") || strings.Contains(info, "used_memory:0\r\n") {
			t.Errorf("INFO memory says\n%s", info)
		}
	})
}

func TestConfigSetCountsAtOnce(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		srv, addr := startServer(t, roomy, cfg)
		c := dial(t, addr)
		expect(t, c, "CONFIG SET maxclients 1", "+OK")
		if got := dial(t, addr).rest(); got != "-ERR max number of clients reached\r\n" {
			t.Errorf("a second client with maxclients 1 gets %q", got)
		}
		expect(t, c, "CONFIG SET maxclients 10 timeout 1", "+OK")
		idle := dial(t, addr)
		expect(t, idle, "PING", "+PONG")
		if got := idle.rest(); got != "" {
			t.Errorf("a silent client was sent %q", got)
		}
		eventually(t, "the count of it", func() bool { return srv.Stats().IdleDrops > 0 })
	})
}

// TestRedisToolsLookIntoAServer runs the modes of redis-cli that people use to look
// into a server.
func TestRedisToolsLookIntoAServer(t *testing.T) {
	_, addr := startServer(t, far.MinLocal, Config{})
	c := dial(t, addr)
	for i := range 300 {
		c.do("SET", fmt.Sprint("string:", i), strings.Repeat("v", i*100))
	}
	for i := range 700 {
		c.do("HSET", "large", fmt.Sprint("field", i), "v")
	}
	c.do("HSET", "hash", "f", "v")
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"--scan", "--pattern", "h*"}, []string{"hash\n"}},
		{[]string{"--bigkeys"}, []string{`Biggest string found '"string:299"' has 29900 bytes`, `Biggest   hash found '"large"' has 700 fields`, "300 strings with 4485000 bytes", "2 hashs with 701 fields"}},
		{[]string{"--memkeys"}, []string{`Biggest string found '"string:299"' has `, `Biggest   hash found '"large"' has `}},
		{[]string{"--latency", "-i", "0.2", "--raw"}, []string{"."}},
	} {
		got := tool(t, addr, "redis-cli", tt.args...)
		for _, want := range tt.want {
			if !strings.Contains(got, want) || strings.Contains(got, "rror") {
				t.Errorf("redis-cli %s says no %q:\n%s", tt.args, want, got)
			}
		}
	}
	// --pipe loads what it is given, errors and all.
	bin, port := lookUp(t, "redis-cli"), strings.TrimPrefix(addr, "127.0.0.1:")
	pipe := exec.Command(bin, "-p", port, "--pipe")
	var in strings.Builder
	for i := range 20000 {
		in.WriteString(encode("SET", fmt.Sprint("piped:", i), strconv.Itoa(i)))
	}
	in.WriteString(encode("HGET", "piped:1", "f"))
	pipe.Stdin = strings.NewReader(in.String())
	if out, _ := pipe.CombinedOutput(); !strings.Contains(string(out), "errors: 1, replies: 20001") {
		t.Errorf("redis-cli --pipe: %s", out)
	}
	expect(t, c, "GET piped:19999", `"19999"`)
	// These go on until they are ended.
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--stat", "-i", "0.05"}, `(?s)keys +mem +clients +blocked +requests +connections.*20302 +[\d.]+M +\d+ +0 +\d+ \(\+\d+\).*\n20302`},
		{[]string{"monitor"}, `(?s)OK.*\[0 127\.0\.0\.1:\d+\] "ECHO" "seen"`},
	} {
		out := follow(t, exec.Command(bin, append([]string{"-p", port}, tt.args...)...))
		text := ""
		for want := regexp.MustCompile(tt.want); !want.MatchString(text); {
			c.words("ECHO seen")
			select {
			case s, ok := <-out:
				if text += s; !ok {
					t.Fatalf("redis-cli %s ended:\n%s", tt.args, text)
				}
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}

func lookUp(t *testing.T, name string) string {
	t.Helper()
	bin, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("this test needs %s, which is not installed (Debian: apt-get install redis-tools): %v", name, err)
	}
	return bin
}

// follow runs a program until the test ends, and hands over what it prints.
func follow(t *testing.T, cmd *exec.Cmd) <-chan string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	out, ended := make(chan string), make(chan struct{})
	go func() {
		defer close(ended)
		defer close(out)
		in := bufio.NewReader(r)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			select {
			case out <- line:
			case <-t.Context().Done():
				io.Copy(io.Discard, in)
				return
			}
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		<-ended
		r.Close()
	})
	return out
}
