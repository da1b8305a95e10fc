package forward

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// kinds says which of the kinds of failure err is.
func kinds(err error) (all string) {
	var reply *ReplyError
	if errors.Is(err, ErrUnsent) {
		all += "unsent"
	}
	if errors.Is(err, ErrUncertain) {
		all += "uncertain"
	}
	if errors.As(err, &reply) {
		all += "reply"
	}
	return all
}

func TestWhatGoesWrongBehindTheCommandIsUncertain(t *testing.T) {
	for _, c := range []struct {
		name, text string
		goOn       bool
	}{
		{"no reply", "", false},
		{"half a line", "+O", false},
		{"half a string", "$10\r\nabc", false},
		{"half an array", "*2\r\n:1\r\n", false},
		{"a push and no reply", ">1\r\n+x\r\n", false},
		{"garbage", "HTTP/1.1 400 Bad Request", true},
		{"a length that is none", "$x\r\n", true},
		{"one byte too many", "$97\r\n" + strings.Repeat("x", 97) + "\r\n", true}, // of 100, with "$97"
		{"a long line without end", "+" + strings.Repeat("x", 1000), true},
	} {
		s := listen(t, func(cmd string) (string, bool) {
			if cmd == "SET k v" {
				return c.text, c.goOn
			}
			return "", true
		})
		l := newLinks(t, Config{MaxReply: 103})
		dst, err := l.Do(timeout(t), s.addr(), 3, []byte("before"), words("SET k v"))
		if kinds(err) != "uncertain" || string(dst) != "before" {
			t.Errorf("%s: got %q and %v, want %v", c.name, dst, err, ErrUncertain)
		}
		until(t, "the connection is closed", func() bool { open, _, _ := s.counts(); return open == 0 })
		if got, err := l.Do(timeout(t), s.addr(), 3, nil, words("GET k")); string(got) != "+OK\r\n" {
			t.Errorf("%s: the next call got %q (%v), want +OK", c.name, got, err)
		}
	}
}

// breaking fails to write SET, of which some bytes have gone.
type breaking struct {
	*net.TCPConn
	gone int
}

func (c breaking) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("SET")) {
		return c.gone, net.ErrClosed
	}
	return c.TCPConn.Write(b)
}

func TestOnlyWhatHasNotBeenWrittenIsUnsent(t *testing.T) {
	s := listen(t, fine)
	for gone, want := range []string{"unsent", "uncertain"} {
		l := newLinks(t, Config{Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				return nil, err
			}
			return breaking{c.(*net.TCPConn), gone}, nil
		}})
		if _, err := l.Do(timeout(t), s.addr(), 2, nil, words("SET k v")); kinds(err) != want {
			t.Errorf("%d bytes have gone: got %v, want %s", gone, err, want)
		}
		until(t, "the connection is closed", func() bool { open, _, _ := s.counts(); return open == 0 })
	}
}

func TestAReplyAsLongAsAllowed(t *testing.T) {
	text := "$97\r\n" + strings.Repeat("x", 97) + "\r\n"
	s := listen(t, func(cmd string) (string, bool) {
		if cmd == "GET k" {
			return text, true
		}
		return "", true
	})
	l := newLinks(t, Config{MaxReply: len(text)})
	if got, err := l.Do(timeout(t), s.addr(), 2, []byte("before "), lines("GET k", "GET k")...); string(got) != "before "+text {
		t.Errorf("got %q (%v), want %q", got, err, "before "+text)
	}
}

func TestAServerThatIsNotThere(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := lis.Addr().String()
	_ = lis.Close()
	if _, err := newLinks(t, Config{}).Do(timeout(t), addr, 2, nil, words("GET k")); kinds(err) != "unsent" {
		t.Errorf("got %v, want %v", err, ErrUnsent)
	}
}

// TestACallThatIsGivenUp: wherever it stands, it ends, and its connection with it.
func TestACallThatIsGivenUp(t *testing.T) {
	for _, c := range []struct{ hangs, want string }{{"HELLO 3", "unsent"}, {"SET k v", "uncertain"}, {"nothing", "unsent"}} {
		ctx, cancel := context.WithCancel(timeout(t))
		release := make(chan struct{})
		s := listen(t, func(cmd string) (string, bool) {
			if cmd == c.hangs {
				cancel()
				<-release
			}
			return "", true
		})
		if c.hangs == "nothing" {
			cancel() // before the call
		}
		_, err := newLinks(t, Config{}).Do(ctx, s.addr(), 3, nil, words("SET k v"))
		close(release)
		cancel()
		if kinds(err) != c.want || !errors.Is(err, context.Canceled) {
			t.Errorf("%s hangs: got %v, want %s and %v", c.hangs, err, c.want, context.Canceled)
		}
		until(t, "the connection is closed", func() bool { open, _, _ := s.counts(); return open == 0 })
	}
}

func TestAContextThatEndsBehindTheCallDoesNoHarm(t *testing.T) {
	s := listen(t, fine)
	l := newLinks(t, Config{})
	for range 100 {
		ctx, cancel := context.WithCancel(timeout(t))
		got, err := l.Do(ctx, s.addr(), 3, nil, words("GET k"))
		cancel()
		if string(got) != "+OK\r\n" {
			t.Fatalf("got %q (%v), want +OK", got, err)
		}
	}
	if _, _, made := s.counts(); made != 1 {
		t.Errorf("%d connections were made, want 1", made)
	}
}

// TestAnIdleLinkThatWasClosedIsNotUsed, nor one by which something came.
func TestAnIdleLinkThatWasClosedIsNotUsed(t *testing.T) {
	s := listen(t, fine)
	l := newLinks(t, Config{})
	do := func() {
		t.Helper()
		if got, err := l.Do(timeout(t), s.addr(), 3, nil, words("SET k v")); string(got) != "+OK\r\n" {
			t.Fatalf("got %q (%v), want +OK", got, err)
		}
	}
	idle := func() *link {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.servers[s.addr()].idle[0]
	}
	for range 20 {
		do()
		k := idle()
		s.hangUp()
		until(t, "it is seen that the link is closed", func() bool { return !k.quiet() })
		do()
	}
	k := idle()
	s.mu.Lock()
	for c := range s.conns {
		_, _ = c.Write([]byte("+stale\r\n"))
	}
	s.mu.Unlock()
	until(t, "what nobody asked for has come", func() bool { return !k.quiet() })
	do()
}

// TestAReplyTooManyIsNotTheNextOnes: it came with the reply, so that the socket does not
// show it any more.
func TestAReplyTooManyIsNotTheNextOnes(t *testing.T) {
	s := listen(t, func(cmd string) (string, bool) {
		if cmd == "GET k" {
			return "+one\r\n+stale\r\n", true
		}
		if cmd == "DEL k" {
			return "+DEL k\r\n", true
		}
		return "", true
	})
	l := newLinks(t, Config{})
	for _, c := range []struct{ cmd, want string }{{"GET k", "+one\r\n"}, {"DEL k", "+DEL k\r\n"}} {
		if got, err := l.Do(timeout(t), s.addr(), 2, nil, words(c.cmd)); string(got) != c.want {
			t.Errorf("%s: got %q (%v), want %q", c.cmd, got, err, c.want)
		}
	}
	if _, _, made := s.counts(); made != 2 {
		t.Errorf("%d connections were made, want 2", made)
	}
}

// TestACallThatHasEndedBeforeItBegins sends nothing by a link that is idle.
func TestACallThatHasEndedBeforeItBegins(t *testing.T) {
	s := listen(t, fine)
	l := newLinks(t, Config{})
	if _, err := l.Do(timeout(t), s.addr(), 2, nil, words("GET k")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 100 {
		if _, err := l.Do(ctx, s.addr(), 2, nil, words("SET k v")); kinds(err) != "unsent" {
			t.Fatalf("got %v, want %v", err, ErrUnsent)
		}
	}
	if got, err := l.Do(timeout(t), s.addr(), 2, nil, words("GET k")); string(got) != "+OK\r\n" || s.commands() != "READONLY|GET k|GET k" {
		t.Errorf("got %q (%v), and the server %s, want only what was not given up", got, err, s.commands())
	}
}

func TestLinksAreBoundedAndCallsWait(t *testing.T) {
	release := make(chan struct{})
	var asked atomic.Int32
	s := listen(t, func(cmd string) (string, bool) {
		if cmd == "SLOW" {
			asked.Add(1)
			<-release
		}
		return "", true
	})
	l := newLinks(t, Config{Conns: 2})
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			if _, err := l.Do(timeout(t), s.addr(), 2+i%2, nil, words("SLOW")); err != nil {
				t.Error(err)
			}
		})
	}
	until(t, "two are asked", func() bool { return asked.Load() == 2 })
	ctx, cancel := context.WithCancel(context.Background())
	var given sync.WaitGroup
	given.Go(func() {
		if _, err := l.Do(ctx, s.addr(), 2, nil, words("SLOW")); kinds(err) != "unsent" || !errors.Is(err, context.Canceled) {
			t.Errorf("who waits in vain gets %v, want %v", err, ErrUnsent)
		}
	})
	cancel()
	given.Wait()
	if n := asked.Load(); n != 2 {
		t.Errorf("%d commands are at the server, want 2", n)
	}
	close(release)
	all.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.servers[s.addr()].idle); n < 1 || n > 2 {
		t.Errorf("%d links are idle, want 1 or 2", n)
	}
}

func TestForgetClosesWhatIsIdleNowOrLater(t *testing.T) {
	release, asked := make(chan struct{}), make(chan struct{})
	s := listen(t, func(cmd string) (string, bool) {
		if cmd == "SLOW" {
			close(asked)
			<-release
		}
		return "", true
	})
	l := newLinks(t, Config{})
	var all sync.WaitGroup
	all.Go(func() {
		if got, err := l.Do(timeout(t), s.addr(), 2, nil, words("SLOW")); string(got) != "+OK\r\n" {
			t.Errorf("got %q (%v), want +OK", got, err)
		}
	})
	<-asked
	if _, err := l.Do(timeout(t), s.addr(), 2, nil, words("GET k")); err != nil {
		t.Fatal(err)
	}
	l.Forget(s.addr())
	l.Forget("127.0.0.1:1")
	until(t, "the idle link is closed", func() bool { open, _, _ := s.counts(); return open == 1 })
	close(release)
	all.Wait()
	until(t, "the other is closed", func() bool { open, _, _ := s.counts(); return open == 0 })
}

// TestForgetEndsCalls: those that have sent nothing at once, others if they are not answered soon. Close ends all at once.
func TestForgetEndsCalls(t *testing.T) {
	forget := func(l *Links) { l.Forget("it") }
	for _, c := range []struct {
		end         func(*Links)
		hangs, want string
		why         error
		after       time.Duration
	}{
		{forget, "HELLO 3", "unsent", errLeft, 0},
		{forget, "SET k v", "uncertain", errLeft, answerTime},
		{(*Links).Close, "SET k v", "uncertain", errClosed, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			var s scripted
			l := newLinks(t, Config{Conns: 1, Dial: func(context.Context, string) (net.Conn, error) {
				near, away := net.Pipe()
				go s.serve(away, func(cmd string) (string, bool) {
					if cmd == c.hangs {
						<-release
					}
					return "", true
				})
				return near, nil
			}})
			defer close(release)
			began := time.Now()
			set := func(want string, after time.Duration) {
				_, err := l.Do(timeout(t), "it", 3, nil, words("SET k v"))
				if took := time.Since(began); kinds(err) != want || !errors.Is(err, c.why) || took != after {
					t.Errorf("%s hangs: got %v after %v, want %s and %v after %v", c.hangs, err, took, want, c.why, after)
				}
			}
			var all sync.WaitGroup
			all.Go(func() { set(c.want, c.after) })
			synctest.Wait()
			all.Go(func() { set("unsent", 0) }) // it waits for its turn
			synctest.Wait()
			c.end(l)
			all.Wait()
		})
	}
}

func TestCloseEndsCalls(t *testing.T) {
	release, asked := make(chan struct{}), make(chan struct{})
	s := listen(t, func(cmd string) (string, bool) {
		if cmd == "SLOW" {
			close(asked)
			<-release
		}
		return "", true
	})
	defer close(release)
	l := New(Config{Conns: 1})
	var all sync.WaitGroup
	all.Go(func() {
		if _, err := l.Do(context.Background(), s.addr(), 2, nil, words("SLOW")); kinds(err) != "uncertain" || !errors.Is(err, errClosed) {
			t.Errorf("a call under way gets %v, want %v", err, ErrUncertain)
		}
	})
	<-asked
	all.Go(func() {
		if _, err := l.Do(context.Background(), s.addr(), 2, nil, words("GET k")); kinds(err) != "unsent" {
			t.Errorf("a call that waits gets %v, want %v", err, ErrUnsent)
		}
	})
	l.Close()
	l.Close()
	all.Wait()
	if _, err := l.Do(context.Background(), s.addr(), 2, nil, words("GET k")); kinds(err) != "unsent" {
		t.Errorf("a later call gets %v, want %v", err, ErrUnsent)
	}
}

func TestCloseClosesIdleLinksAndWaitsForCalls(t *testing.T) {
	s := listen(t, fine)
	var dials, ended atomic.Int32
	l := New(Config{Dial: func(ctx context.Context, addr string) (net.Conn, error) {
		if dials.Add(1) == 1 {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
		<-ctx.Done()
		time.Sleep(10 * time.Millisecond) // a Close that does not wait is seen
		ended.Add(1)
		return nil, ctx.Err()
	}})
	if _, err := l.Do(timeout(t), s.addr(), 2, nil, words("GET k")); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { _, _ = l.Do(context.Background(), s.addr(), 3, nil, words("GET k")) })
	}
	until(t, "all connect", func() bool { return dials.Load() == 9 })
	l.Close()
	if n := ended.Load(); n != 8 {
		t.Errorf("%d of 8 calls have ended when Close returns", n)
	}
	all.Wait()
	until(t, "the idle link is closed", func() bool { open, _, _ := s.counts(); return open == 0 })
}
