package memcached

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/soft"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t testing.TB, change func(*Config)) (*Server, string) {
	t.Helper()
	h, err := soft.Open(soft.Config{Budget: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Heap: h, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(lis) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, lis.Addr().String()
}

// talk sends everything at once and returns all that is answered until the
// server closes the connection.
func talk(t testing.TB, addr, in string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.WriteString(conn, in+"quit\r\n") }()
	out, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestTranscripts(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{
			"storing and reading", "set a 5 0 3\r\nabc\r\nget a b\r\ngets a\r\nadd a 0 0 1\r\nx\r\nreplace b 0 0 1\r\nx\r\nadd b 1 0 2\r\nxy\r\nget a b\r\n",
			"STORED\r\nVALUE a 5 3\r\nabc\r\nEND\r\nVALUE a 5 3 1\r\nabc\r\nEND\r\nNOT_STORED\r\nNOT_STORED\r\nSTORED\r\nVALUE a 5 3\r\nabc\r\nVALUE b 1 2\r\nxy\r\nEND\r\n",
		},
		{"append and prepend", "set a 5 0 1\r\nb\r\nappend a 9 0 1\r\nc\r\nprepend a 9 0 1\r\na\r\nget a\r\nappend z 0 0 1\r\nx\r\n", "STORED\r\nSTORED\r\nSTORED\r\nVALUE a 5 3\r\nabc\r\nEND\r\nNOT_STORED\r\n"},
		{"noreply", "set a 0 0 1 noreply\r\nx\r\ndelete b noreply\r\nincr a 1 noreply\r\nget a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n"},
		{"cas", "set a 0 0 1\r\nx\r\ncas a 0 0 1 1\r\ny\r\ncas a 0 0 1 1\r\nz\r\ncas b 0 0 1 1\r\nz\r\nget a\r\n", "STORED\r\nSTORED\r\nEXISTS\r\nNOT_FOUND\r\nVALUE a 0 1\r\ny\r\nEND\r\n"},
		{"numbers", "set n 0 0 2\r\n10\r\nincr n 5\r\ndecr n 100\r\nincr n x\r\nincr m 1\r\nset n 0 0 20\r\n18446744073709551615\r\nincr n 2\r\n", "STORED\r\n15\r\n0\r\nCLIENT_ERROR invalid numeric delta argument\r\nNOT_FOUND\r\nSTORED\r\n1\r\n"},
		{"deleting", "set a 0 0 1\r\nx\r\ndelete a\r\ndelete a\r\nset a 0 0 1\r\nx\r\nflush_all 9\r\nget a\r\nflush_all\r\nget a\r\nflush_all 0 noreply\r\n", "STORED\r\nDELETED\r\nNOT_FOUND\r\nSTORED\r\nOK\r\nVALUE a 0 1\r\nx\r\nEND\r\nOK\r\nEND\r\n"},
		{"touching", "set a 0 0 1\r\nx\r\ntouch a 100\r\ntouch b 100\r\ngat 50 a b\r\ngats -1 a\r\nget a\r\n", "STORED\r\nTOUCHED\r\nNOT_FOUND\r\nVALUE a 0 1\r\nx\r\nEND\r\nVALUE a 0 1 1\r\nx\r\nEND\r\nEND\r\n"},
		{"expired at once", "set a 0 -1 1\r\nx\r\nget a\r\n", "STORED\r\nEND\r\n"},
		{"errors", "get\r\nnonsense\r\n\r\nset a\r\nset a x 0 1\r\nget " + strings.Repeat("k", 251) + "\r\nset a 0 0 1\r\nxyz\r\nget a\r\n", "ERROR\r\nERROR\r\nERROR\r\nERROR\r\nCLIENT_ERROR bad command line format\r\nCLIENT_ERROR bad command line format\r\nCLIENT_ERROR bad data chunk\r\nEND\r\n"},
		{"a value too large", fmt.Sprintf("set a 0 0 1\r\nx\r\nset a 0 0 %d\r\n%s\r\nget a\r\n", MaxValue+1, strings.Repeat("x", MaxValue+1)), "STORED\r\nSERVER_ERROR object too large for cache\r\nEND\r\n"},
		{"verbosity and version", "verbosity 1\r\nversion\r\nmn\r\n", "OK\r\nVERSION " + version + "\r\nMN\r\n"},
		{
			"meta get and set", "ms a 3 F7 T100\r\nabc\r\nmg a v f s k O9 c t\r\nmg a\r\nmg b v\r\nmg b v q\r\nmn\r\n",
			"HD\r\nVA 3 f7 s3 ka O9 c1 t100\r\nabc\r\nHD\r\nEN\r\nMN\r\n",
		},
		{"meta modes", "ms a 1 ME\r\nx\r\nms a 1 ME\r\ny\r\nms a 1 MA\r\ny\r\nms a 1 MP\r\nw\r\nms b 1 MR\r\nx\r\nms a 1 MZ\r\nx\r\nmg a v\r\n", "HD\r\nNS\r\nHD\r\nHD\r\nNS\r\nCLIENT_ERROR invalid mode for ms M token\r\nVA 3\r\nwxy\r\n"},
		{"meta compare and swap", "ms a 1 E100\r\nx\r\nms a 1 C99\r\ny\r\nms a 1 C100 c\r\ny\r\nms b 1 C1\r\nx\r\nmg a v\r\n", "HD\r\nEX\r\nHD c1\r\nNF\r\nVA 1\r\ny\r\n"},
		{"meta delete", "ms a 1\r\nx\r\nmd a C99\r\nmd a q\r\nmd a\r\nmd a q\r\nmn\r\n", "HD\r\nEX\r\nNF\r\nNF\r\nMN\r\n"},
		{"meta invalidation", "ms a 1\r\nx\r\nmd a I T30\r\nmg a v t\r\nms a 1\r\ny\r\nmg a v\r\n", "HD\r\nHD\r\nVA 1 t30 X W\r\nx\r\nHD\r\nVA 1\r\ny\r\n"},
		{"meta vivify", "mg a v N30 t\r\nmg a v t\r\n", "VA 0 t30 W\r\n\r\nVA 0 t30 Z\r\n\r\n"},
		{"meta numbers", "ma n\r\nma n N0 J5 v\r\nma n D10 v\r\nma n MD D100 v\r\nma n q\r\nmg n v\r\nma n Dx\r\n", "NF\r\nVA 1\r\n5\r\nVA 2\r\n15\r\nVA 1\r\n0\r\nVA 1\r\n1\r\nCLIENT_ERROR invalid or duplicate flag\r\n"},
		{"meta base64 keys", "ms YQ== 1 b\r\nx\r\nget a\r\nmg YQ== b k v\r\nmg !! b\r\n", "HD\r\nVALUE a 0 1\r\nx\r\nEND\r\nVA 1 kYQ== b\r\nx\r\nCLIENT_ERROR error decoding key\r\n"},
		{"meta debug", "ms a 2\r\nxx\r\nme a\r\nme b\r\n", "HD\r\nME a exp=-1 la=0 cas=1 fetch=no cls=1 size=32\r\nEN\r\n"},
		{"meta errors", "mg\r\nmg a !\r\nmg a v v\r\nms a\r\nms a x\r\n", "ERROR\r\nCLIENT_ERROR invalid flag\r\nCLIENT_ERROR duplicate flag\r\nCLIENT_ERROR bad command line format\r\nCLIENT_ERROR bad command line format\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, addr := start(t, nil)
			now := time.Now()
			s.clock = func() time.Time { return now } // what is left of a time is said in seconds
			if got := talk(t, addr, c.in); got != c.want {
				t.Errorf("got\n%q\nwant\n%q", got, c.want)
			}
		})
	}
}

func TestItemsExpire(t *testing.T) {
	s, addr := start(t, nil)
	now := time.Now()
	s.clock = func() time.Time { return now }
	talk(t, addr, "set a 0 10 1\r\nx\r\n")
	now = now.Add(9 * time.Second)
	if got := talk(t, addr, "get a\r\nmg a t R30\r\n"); got != "VALUE a 0 1\r\nx\r\nEND\r\nHD t1 W\r\n" {
		t.Errorf("before its time: got %q", got)
	}
	now = now.Add(2 * time.Second)
	if got := talk(t, addr, "get a\r\n"); got != "END\r\n" {
		t.Errorf("after its time: got %q", got)
	}
}

func TestWhatWasStoredBeforeAFlushIsGoneWhenItComes(t *testing.T) {
	s, addr := start(t, nil)
	now := time.Unix(1e9, 0)
	s.clock = func() time.Time { return now }
	expect := func(in, want string) {
		t.Helper()
		if got := talk(t, addr, in); got != want {
			t.Errorf("%v, %q: got %q, want %q", now, in, got, want)
		}
	}
	expect("set a 0 0 1\r\nx\r\nflush_all 10\r\nget a\r\n", "STORED\r\nOK\r\nVALUE a 0 1\r\nx\r\nEND\r\n")
	now = now.Add(9 * time.Second)
	expect("set b 0 0 1\r\ny\r\nget a b\r\n", "STORED\r\nVALUE a 0 1\r\nx\r\nVALUE b 0 1\r\ny\r\nEND\r\n")
	now = now.Add(2 * time.Second)
	expect("get a b\r\nadd a 0 0 1\r\nz\r\nget a\r\n", "END\r\nSTORED\r\nVALUE a 0 1\r\nz\r\nEND\r\n")
	// Another one, which is yet to come, brings nothing back.
	expect("flush_all 10 noreply\r\nget a b\r\n", "VALUE a 0 1\r\nz\r\nEND\r\n")
	now = now.Add(time.Minute)
	expect("get a b\r\nset b 0 0 1\r\nw\r\nget b\r\n", "END\r\nSTORED\r\nVALUE b 0 1\r\nw\r\nEND\r\n")
	// One at a Unix time, and one that has been.
	expect(fmt.Sprintf("flush_all %d\r\nget b\r\n", now.Unix()+5), "OK\r\nVALUE b 0 1\r\nw\r\nEND\r\n")
	now = now.Add(5 * time.Second)
	expect("get b\r\nset b 0 0 1\r\nv\r\nflush_all -1\r\nget b\r\nflush_all soon\r\n", "END\r\nSTORED\r\nOK\r\nEND\r\nCLIENT_ERROR invalid exptime argument\r\n")
}

func TestItemsKnowWhenTheyWereUsed(t *testing.T) {
	s, addr := start(t, nil)
	now := time.Unix(1e9, 0)
	s.clock = func() time.Time { return now }
	talk(t, addr, "set a 0 0 1\r\nx\r\nset b 0 0 1\r\nx\r\n")
	for i, want := range []string{"HD h0 l10\r\n", "HD h1 l10\r\n", "HD h1 l10\r\n"} {
		now = now.Add(10 * time.Second)
		if got := talk(t, addr, "mg a h l\r\n"); got != want {
			t.Errorf("time %d: got %q, want %q", i, got, want)
		}
	}
	if got := talk(t, addr, "mg b h l u\r\nmg b h\r\nset b 0 0 1\r\ny\r\nmg b h l\r\n"); got != "HD h0 l30\r\nHD h0\r\nSTORED\r\nHD h0 l0\r\n" {
		t.Errorf("got %q", got)
	}
}

func TestStatsTellOfTheMemoryThereIs(t *testing.T) {
	_, addr := start(t, nil)
	got := talk(t, addr, "set a 0 0 1\r\nx\r\nget a\r\nget b\r\nstats\r\n")
	for _, want := range []string{"STAT limit_maxbytes 67108864\r\n", "STAT get_hits 1\r\n", "STAT get_misses 1\r\n", "STAT curr_items 1\r\n", "STAT curr_connections 1\r\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("stats do not say %q:\n%s", want, got)
		}
	}
}

func TestManyConnectionsCountTogether(t *testing.T) {
	_, addr := start(t, nil)
	talk(t, addr, "set n 0 0 1\r\n0\r\n")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { talk(t, addr, strings.Repeat("incr n 1\r\n", 500)) })
	}
	wg.Wait()
	if got := talk(t, addr, "get n\r\n"); !strings.Contains(got, "\r\n4000\r\n") {
		t.Errorf("got %q, want 4000", got)
	}
}

func TestTooManyConnectionsAreRefused(t *testing.T) {
	_, addr := start(t, func(c *Config) { c.MaxConns = 2 })
	var conns []net.Conn
	for range 2 {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "mn\r\n"); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(conn).ReadString('\n'); line != "MN\r\n" {
			t.Fatalf("got %q, %v", line, err)
		}
		conns = append(conns, conn)
	}
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if line, err := bufio.NewReader(conn).ReadString('\n'); !strings.HasPrefix(line, "ERROR") {
		t.Errorf("got %q, %v", line, err)
	}
	_ = conns
}

// FuzzConnection feeds a server arbitrary bytes: it must answer or close, and
// not fail otherwise.
func FuzzConnection(f *testing.F) {
	for _, s := range []string{"get a\r\n", "set a 0 0 3\r\nabc\r\nget a\r\n", "ms a 3 T0 F1 c\r\nabc\r\nmg a v\r\n", "ma n N0 J5\r\n", "cas a 1 2 3 4 noreply\r\n", "\x00\xff\r\n"} {
		f.Add([]byte(s))
	}
	h, err := soft.Open(soft.Config{Budget: soft.MinBudget})
	if err != nil {
		f.Fatal(err)
	}
	s, err := New(Config{Heap: h})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Close(); h.Close() })
	f.Fuzz(func(t *testing.T, in []byte) {
		var out bytes.Buffer
		c := s.newClient(bytes.NewReader(in), &out)
		defer c.mem.Leave()
		for range 1000 {
			if c.command() != nil {
				return
			}
		}
	})
}

func TestValuesOfEverySizeComeBackWhole(t *testing.T) {
	_, addr := start(t, nil)
	r := rand.New(rand.NewPCG(1, 1))
	for range 30 {
		n := r.IntN(1 << r.IntN(21))
		v := strings.Repeat(string(rune('a'+r.IntN(26))), n)
		got := talk(t, addr, fmt.Sprintf("set k 3 0 %d\r\n%s\r\nget k\r\n", n, v))
		if want := fmt.Sprintf("STORED\r\nVALUE k 3 %d\r\n%s\r\nEND\r\n", n, v); got != want {
			t.Fatalf("a value of %d bytes: got %d bytes back", n, len(got))
		}
	}
}

func TestFlushesYetToCome(t *testing.T) {
	s, addr := start(t, nil)
	now := time.Unix(1_700_000_000, 0)
	s.clock = func() time.Time { return now }
	expect := func(in, want string) {
		t.Helper()
		if got := talk(t, addr, in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	// One at once forgets the one that was to come, as memcached's does.
	expect("flush_all 10\r\nflush_all\r\nset a 0 0 1\r\nx\r\n", "OK\r\nOK\r\nSTORED\r\n")
	now = now.Add(11 * time.Second)
	expect("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n")
	// In nanoseconds modulo two to the power of 64, this is after a was stored, and has been.
	expect("flush_all 20146744074\r\n", "OK\r\n")
	expect("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n")
}

// TestTimePassesForAClientThatNeverPauses: there is always the beginning of
// its next command to be read.
func TestTimePassesForAClientThatNeverPauses(t *testing.T) {
	s, addr := start(t, nil)
	var now atomic.Int64
	now.Store(1_700_000_000)
	s.clock = func() time.Time { return time.Unix(now.Load(), 0) }
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "set a 0 10 1\r\nx\r\nset b 0 0 1\r\ny\r\nge"); err != nil {
		t.Fatal(err)
	}
	for talk(t, addr, "get b\r\n") == "END\r\n" { // until it has been read
	}
	now.Add(11)
	if _, err := io.WriteString(conn, "t a\r\nquit\r\n"); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if want := "STORED\r\nSTORED\r\nEND\r\n"; err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestUniqueNumbersHave64Bits(t *testing.T) {
	_, addr := start(t, nil)
	const most = "18446744073709551615"
	in := "ms a 1 E" + most + "\r\nx\r\nmg a c\r\nms a 1 C" + most + " E7 c\r\ny\r\nma n N0 E" + most + "\r\nma n C" + most + " v\r\nmd a C" + most + "\r\nms a 1 C-1\r\nx\r\n"
	want := "HD\r\nHD c" + most + "\r\nHD c7\r\nHD\r\nVA 1\r\n1\r\nEX\r\nCLIENT_ERROR bad token in command line format\r\n"
	if got := talk(t, addr, in); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
