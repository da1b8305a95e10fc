package origin

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// script is an origin that says what a test wants it to, on the link.
type script struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
}

const greeting = "%1\r\n$5\r\nproto\r\n:3\r\n+OK\r\n+OK\r\n"

// scripted makes a server whose link leads to a script. Its PINGs are answered until the
// returned function is called.
func scripted(t *testing.T) (*Server, chan *script) {
	links := make(chan *script, 8)
	s := newServer(t, Config{Lag: time.Second, Timeout: 2 * time.Second, dial: func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		links <- &script{t, theirs, bufio.NewReader(theirs)}
		return ours, nil
	}})
	return s, links
}

// greet answers a new link.
func greet(t *testing.T, links chan *script) *script {
	t.Helper()
	o := <-links
	for _, want := range []string{"HELLO", "SELECT", "CLIENT"} {
		if got := o.command(); got[0] != want {
			t.Fatalf("the link sends %q, want %s", got, want)
		}
	}
	o.say(greeting)
	synctest.Wait()
	return o
}

// command reads a command.
func (o *script) command() (args []string) {
	o.t.Helper()
	var n int
	if _, err := fmt.Fscanf(o.r, "*%d\r\n", &n); err != nil {
		o.t.Fatal(err)
	}
	for range n {
		var size int
		if _, err := fmt.Fscanf(o.r, "$%d\r\n", &size); err != nil {
			o.t.Fatal(err)
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(o.r, b); err != nil {
			o.t.Fatal(err)
		}
		args = append(args, string(b[:size]))
	}
	return args
}

// asked reads what is asked until that is GET and PTTL of a key, and answers PINGs.
func (o *script) asked(key string) {
	o.t.Helper()
	for {
		switch c := strings.Join(o.command(), " "); c {
		case "PING":
			o.say("+PONG\r\n")
		case "GET " + key:
			if c := strings.Join(o.command(), " "); c != "PTTL "+key {
				o.t.Fatalf("got %s, want PTTL %s", c, key)
			}
			return
		default:
			o.t.Fatalf("got %s, want GET %s", c, key)
		}
	}
}

// fill has a cache fetch a key, and answers with a value that stays.
func (o *script) fill(s *Server, key, value string) {
	o.t.Helper()
	f := s.tracker.fetch([]byte(key))
	o.asked(key)
	o.say(fmt.Sprintf("$%d\r\n%s\r\n:-1\r\n", len(value), value))
	<-f.done
}

func (o *script) say(text string) {
	o.t.Helper()
	if _, err := io.WriteString(o.conn, text); err != nil {
		o.t.Fatal(err)
	}
	synctest.Wait()
}

func invalidation(key string) string {
	return fmt.Sprintf(">2\r\n$10\r\ninvalidate\r\n*1\r\n$%d\r\n%s\r\n", len(key), key)
}

const nullInvalidation = ">2\r\n$10\r\ninvalidate\r\n_\r\n"

// cached is what the cache would answer.
func cached(s *Server, key string) string {
	switch k, value := s.tracker.lookup([]byte(key), new([]byte)); k {
	case kindValue:
		return string(value)
	case kindNull:
		return "(nothing)"
	case kindLarge:
		return "(large)"
	}
	return "(unknown)"
}

// brought is what a flight brought.
func brought(f *flight) string {
	<-f.done
	return fmt.Sprint(f.kind, string(f.value))
}

func TestWhatAnInvalidationHasOvertakenIsNotCached(t *testing.T) {
	const value, ttl = "$3\r\nold\r\n", ":-1\r\n"
	for _, c := range []struct{ name, says, want string }{
		{"nothing comes between", value + ttl, "old"},
		{"an invalidation before the replies", invalidation("k") + value + ttl, "(unknown)"},
		{"an invalidation between them", value + invalidation("k") + ttl, "(unknown)"},
		{"an invalidation behind them", value + ttl + invalidation("k"), "(unknown)"},
		{"an invalidation of all before", nullInvalidation + value + ttl, "(unknown)"},
		{"an invalidation of all between", value + nullInvalidation + ttl, "(unknown)"},
		{"an invalidation of all behind", value + ttl + nullInvalidation, "(unknown)"},
		{"an invalidation of another key", value + invalidation("j") + ttl, "old"},
		{"nothing there", "_\r\n:-2\r\n", "(nothing)"},
		{"it came into being between", "_\r\n:-1\r\n", "(unknown)"},
		{"it expired between", value + ":-2\r\n", "(unknown)"},
		{"it expires at once", value + ":0\r\n", "(unknown)"},
		{"it is of another type", "-WRONGTYPE no\r\n:-1\r\n", "(unknown)"},
		{"its time is an error", value + "-ERR no\r\n", "(unknown)"},
		{"it is long", fmt.Sprintf("$%d\r\n%s\r\n:-1\r\n", 1<<20+1, strings.Repeat("x", 1<<20+1)), "(large)"},
		{"another push comes between", value + ">3\r\n+message\r\n*1\r\n:1\r\n#t\r\n" + ttl, "old"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, links := scripted(t)
				o := greet(t, links)
				f := s.tracker.fetch([]byte("k"))
				o.asked("k")
				o.say(c.says)
				<-f.done
				if got := cached(s, "k"); got != c.want {
					t.Errorf("the cache says %s, want %s", got, c.want)
				}
				o.conn.Close()
			})
		})
	}
}

func TestWhoComesAfterAnInvalidationJoinsNoFlightOfBefore(t *testing.T) {
	for _, says := range []string{invalidation("k"), nullInvalidation} {
		synctest.Test(t, func(t *testing.T) {
			s, links := scripted(t)
			o := greet(t, links)
			before := s.tracker.fetch([]byte("k"))
			if s.tracker.fetch([]byte("k")) != before {
				t.Error("a second read is a flight of its own")
			}
			o.asked("k")
			o.say(says)
			after := s.tracker.fetch([]byte("k"))
			o.say("$3\r\nold\r\n:-1\r\n")
			if after == before {
				t.Fatal("who comes after the invalidation joins the flight of before")
			}
			o.asked("k")
			o.say("$3\r\nnew\r\n:-1\r\n")
			if b, a := brought(before), brought(after); b != "1old" || a != "1new" {
				t.Errorf("the flights brought %s and %s, want 1old and 1new", b, a)
			}
			if got := cached(s, "k"); got != "new" {
				t.Errorf("the cache says %s, want new", got)
			}
			o.conn.Close()
		})
	}
}

func TestTimeToLiveCountsFromBeforeTheQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, links := scripted(t)
		o := greet(t, links)
		f := s.tracker.fetch([]byte("k"))
		o.asked("k")
		time.Sleep(100 * time.Millisecond) // the answer is slow
		o.say("$1\r\nv\r\n:200\r\n")
		<-f.done
		time.Sleep(99 * time.Millisecond)
		if got := cached(s, "k"); got != "v" {
			t.Errorf("199 ms after the question the cache says %s, want v", got)
		}
		time.Sleep(2 * time.Millisecond)
		if got := cached(s, "k"); got != "(unknown)" {
			t.Errorf("201 ms after the question the cache says %s", got)
		}
		o.conn.Close()
	})
}

func TestWithoutAConfirmationTheCacheAnswersForTheLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, links := scripted(t)
		o := greet(t, links)
		o.fill(s, "k", "v")
		time.Sleep(999 * time.Millisecond)
		if got := cached(s, "k"); got != "v" {
			t.Errorf("999 ms after the last answer the cache says %s, want v", got)
		}
		time.Sleep(time.Millisecond)
		if got := cached(s, "k"); got != "(unknown)" {
			t.Errorf("a second after the last answer the cache says %s", got)
		}
		if s.Health() != nil {
			t.Error("the link is given up before the time-out")
		}
		time.Sleep(1500 * time.Millisecond)
		if s.Health() == nil || s.items.Len() != 0 {
			t.Errorf("a silent link is kept, with %d keys", s.items.Len())
		}
		o = greet(t, links)
		if got := cached(s, "k"); got != "(unknown)" {
			t.Errorf("after a new link the cache says %s", got)
		}
		o.conn.Close()
	})
}

// TestABrokenLinkForgetsBeforeAnybodyIsTold: what waits for the link is let go when
// nothing is cached any more.
func TestABrokenLinkForgetsBeforeAnybodyIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, links := scripted(t)
		o := greet(t, links)
		o.fill(s, "k", "v")
		f := s.tracker.fetch([]byte("j"))
		o.asked("j")
		o.say("$1\r\nv\r\n") // and in the midst of the answer
		settled := make(chan string)
		go func() {
			s.tracker.settle()
			settled <- fmt.Sprint(cached(s, "k"), s.items.Len())
		}()
		synctest.Wait()
		o.conn.Close()
		if got := <-settled; got != "(unknown)0" {
			t.Errorf("after waiting for a link that broke, the cache says %s", got)
		}
		<-f.done
		if got := cached(s, "j"); got != "(unknown)" {
			t.Errorf("half an answer is cached: %s", got)
		}
	})
}

// TestAReplyWaitsForTheInvalidationBehindIt: the origin has answered a write and the
// invalidation is still under way.
func TestAReplyWaitsForTheInvalidationBehindIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, links := scripted(t)
		o := greet(t, links)
		o.fill(s, "k", "old")
		ours, theirs := net.Pipe()
		s.accept(ours)
		app := &script{t, theirs, bufio.NewReader(theirs)}
		app.say("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\nnew\r\n*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$1\r\n1\r\n")
		own := <-links
		for _, want := range []string{"k", "x"} {
			if got := own.command(); got[0] != "SET" || got[1] != want {
				t.Fatalf("the origin gets %q", got)
			}
		}
		own.say("+OK\r\n+OK\r\n")
		answered := make(chan string, 1)
		go func() {
			b := make([]byte, 10)
			n, _ := io.ReadFull(app.r, b)
			answered <- fmt.Sprint(string(b[:n]), cached(s, "k"))
		}()
		synctest.Wait()
		select {
		case got := <-answered:
			t.Fatalf("the client is told %q before the cache is", got)
		default:
		}
		if got := o.command(); got[0] != "PING" {
			t.Fatalf("the link sends %q, want PING", got)
		}
		o.say(invalidation("k") + "+PONG\r\n")
		if got := <-answered; got != "+OK\r\n+OK\r\n(unknown)" {
			t.Errorf("the client is told and the cache says %q", got)
		}
		app.conn.Close()
		own.conn.Close()
		o.conn.Close()
	})
}

// TestMGETSeesOneMoment: two keys change together, as fast as the link could say, and no
// answer from the cache has one as it was before and the other as it was after.
func TestMGETSeesOneMoment(t *testing.T) {
	s := newServer(t, Config{URL: URL{Network: "unix", Address: "/nowhere"}})
	tr := s.tracker
	tr.confirmed.Store(int64(tr.now()))
	tr.up.Store(true)
	ours, theirs := net.Pipe()
	defer theirs.Close()
	c := newClient(s, ours)
	defer func() { c.conn.Close(); c.mem.Leave() }()
	var writer sync.WaitGroup
	defer writer.Wait()
	stop := make(chan struct{})
	defer close(stop)
	writer.Go(func() { // in the order of the link: both are forgotten before either is fetched
		for n := 0; ; n = (n + 1) % 100000 {
			select {
			case <-stop:
				return
			default:
			}
			tr.forget([]byte("a"))
			tr.forget([]byte("b"))
			for _, key := range []string{"a", "b"} {
				tr.keep(&question{flight: &flight{key: key, kind: kindValue, value: fmt.Append(nil, 100000+n)}}, never)
			}
			runtime.Gosched()
		}
	})
	keys := [][]byte{[]byte("a"), []byte("b")}
	limit := time.Now().Add(testTimeout / 3) // a busy machine answers fewer times
	for whole := 0; whole < 5000; {
		if c.local = c.local[:0]; c.mget(keys) {
			whole++
			var a, b int
			if _, err := fmt.Sscanf(string(c.local), "*2\r\n$6\r\n%d\r\n$6\r\n%d\r\n", &a, &b); err != nil || a != b {
				t.Fatalf("MGET says %q, %v", c.local, err)
			}
		}
		if time.Now().After(limit) {
			if whole < 100 {
				t.Errorf("MGET was answered %d times", whole)
			}
			break
		}
	}
}

func TestWhatIsNoReplyEndsTheLink(t *testing.T) {
	for _, text := range []string{
		"+nobody asked\r\n", "?\r\n", "\r\n", "$5\r\nhello", ">2\r\n$10\r\ninvalidate\r\n:1\r\n", ">0\r\n",
		">2\r\n$10\r\ninvalidate\r\n*1\r\n:1\r\n", ">1\r\n" + strings.Repeat("*1\r\n", 100), "$600000000\r\n",
		">9\r\n$" + strings.Repeat("9", 30) + "\r\n", strings.Repeat("x", 1<<17),
	} {
		synctest.Test(t, func(t *testing.T) {
			s, links := scripted(t)
			o := greet(t, links)
			f := s.tracker.fetch([]byte("k"))
			o.asked("k")
			if text[0] == '+' {
				o.say("$1\r\nv\r\n:-1\r\n")
				<-f.done
			}
			_, _ = io.WriteString(o.conn, text) // the link may break before all is written
			o.conn.Close()
			<-f.done
			time.Sleep(firstPause / 2)
			if s.Health() == nil || cached(s, "k") != "(unknown)" {
				t.Errorf("after %.20q: health %v, the cache says %s", text, s.Health(), cached(s, "k"))
			}
		})
	}
}
