package forward

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"polder/internal/child"
	"polder/internal/testcert"
)

// startRedis runs a redis-server which, in cluster mode, knows READONLY, and owns all slots.
func startRedis(t *testing.T, password string) string {
	t.Helper()
	r, err := child.StartRedis(timeout(t), "--cluster-enabled", "yes")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	l := newLinks(t, Config{})
	if reply, err := l.Do(timeout(t), r.Addr, 2, nil, words("CLUSTER ADDSLOTSRANGE 0 16383")); string(reply) != "+OK\r\n" {
		t.Fatalf("got %q (%v), want +OK", reply, err)
	}
	until(t, "the cluster is up", func() bool {
		reply, _ := l.Do(timeout(t), r.Addr, 2, nil, words("CLUSTER INFO"))
		return bytes.Contains(reply, []byte("cluster_state:ok"))
	})
	if reply, err := l.Do(timeout(t), r.Addr, 2, nil, words("CONFIG SET requirepass "+password)); string(reply) != "+OK\r\n" {
		t.Fatalf("got %q (%v), want +OK", reply, err)
	}
	return r.Addr
}

func TestRepliesComeByteForByte(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", 1<<17) // 2 MiB
	addr := startRedis(t, "secret")
	cfg := Config{Password: func() string { return "secret" }}
	l := newLinks(t, cfg)
	for _, c := range []struct{ cmds, two, three string }{
		{"SET k v", "+OK\r\n", "+OK\r\n"},
		{"GET k", "$1\r\nv\r\n", "$1\r\nv\r\n"},
		{"GET none", "$-1\r\n", "_\r\n"},
		{"INCR k", "-ERR value is not an integer or out of range\r\n", "-ERR value is not an integer or out of range\r\n"},
		{"SET k v|DEL k {k}none", ":1\r\n", ":1\r\n"},
		{"HSET h f v", ":1\r\n", ":0\r\n"},
		{"HGETALL h", "*2\r\n$1\r\nf\r\n$1\r\nv\r\n", "%1\r\n$1\r\nf\r\n$1\r\nv\r\n"},
		{"HMGET h f g", "*2\r\n$1\r\nv\r\n$-1\r\n", "*2\r\n$1\r\nv\r\n_\r\n"},
		{"KEYS x*", "*0\r\n", "*0\r\n"},
		{"SET l " + large, "+OK\r\n", "+OK\r\n"},
		{"GET l", "$2097152\r\n" + large + "\r\n", "$2097152\r\n" + large + "\r\n"},
		{"SET a 1|INCR a|GET a", "$1\r\n2\r\n", "$1\r\n2\r\n"},
		{"MULTI|SET a 5|INCR a|GET {a}none|EXEC", "*3\r\n+OK\r\n:6\r\n$-1\r\n", "*3\r\n+OK\r\n:6\r\n_\r\n"},
	} {
		for ver, want := range []string{2: c.two, 3: c.three} {
			if ver < 2 {
				continue
			}
			got, err := l.Do(timeout(t), addr, ver, []byte("before "), lines(strings.Split(c.cmds, "|")...)...)
			if err != nil || string(got) != "before "+want {
				t.Errorf("version %d, %.40s: got %.80q (%v), want %.80q", ver, c.cmds, got, err, "before "+want)
			}
		}
	}
	dst := []byte("before")
	got, err := l.Do(timeout(t), addr, 3, dst, lines("MULTI", "NOSUCH", "SET a 9", "NOSUCHEITHER", "EXEC")...)
	var reply *ReplyError
	if !errors.As(err, &reply) || !strings.Contains(reply.Text, "'NOSUCH'") || strings.ContainsAny(reply.Text[:1]+reply.Text[len(reply.Text)-1:], "-\r\n") || string(got) != "before" {
		t.Errorf("got %q and %v, want the first error of those before the last", got, err)
	}
	if got, err := l.Do(timeout(t), addr, 3, nil, words("GET a")); string(got) != "$1\r\n6\r\n" {
		t.Errorf("got %q (%v) behind a refused transaction, want 6", got, err)
	}
}

func TestTheGreeting(t *testing.T) {
	for _, c := range []struct {
		ver            int
		password, want string
	}{
		{2, "", "READONLY|GET k"},
		{3, "", "HELLO 3|READONLY|GET k"},
		{2, "pw", "AUTH default pw|READONLY|GET k"},
		{3, "pw", "HELLO 3 AUTH default pw|READONLY|GET k"},
	} {
		s := listen(t, fine)
		l := newLinks(t, Config{Password: func() string { return c.password }})
		if _, err := l.Do(timeout(t), s.addr(), c.ver, nil, words("GET k")); err != nil || s.commands() != c.want {
			t.Errorf("version %d, password %q: sent %s (%v), want %s", c.ver, c.password, s.commands(), err, c.want)
		}
	}
	for _, c := range []struct{ to, with string }{
		{"READONLY", "-ERR unknown command\r\n"},
		{"READONLY", "+QUEUED\r\n"},
		{"READONLY", "+OK\r\n+OK\r\n"},
		{"HELLO", "-WRONGPASS no\r\n"},
		{"READONLY", "HTTP/1.1 400"},
		{"HELLO", "$70000\r\n" + strings.Repeat("x", 70000) + "\r\n"},
	} {
		s := listen(t, func(cmd string) (string, bool) {
			if strings.HasPrefix(cmd, c.to) {
				return c.with, true
			}
			return "", true
		})
		l := newLinks(t, Config{})
		_, err := l.Do(timeout(t), s.addr(), 3, nil, words("SET k v"))
		if !errors.Is(err, ErrUnsent) || strings.Contains(s.commands(), "SET") {
			t.Errorf("%s is answered %.20q: got %v and %s, want %v", c.to, c.with, err, s.commands(), ErrUnsent)
		}
		until(t, "the connection is closed", func() bool { open, _, _ := s.counts(); return open == 0 })
	}
}

func TestThePasswordIsThatOfTheMoment(t *testing.T) {
	s := listen(t, fine)
	password := "one"
	l := newLinks(t, Config{Password: func() string { return password }})
	for _, password = range []string{"one", "two"} {
		if _, err := l.Do(timeout(t), s.addr(), 2, nil, words("GET k")); err != nil {
			t.Fatal(err)
		}
		l.Forget(s.addr())
	}
	if want := "AUTH default one|READONLY|GET k|AUTH default two|READONLY|GET k"; s.commands() != want {
		t.Errorf("got %s, want %s", s.commands(), want)
	}
}

func TestPushesArePassedOver(t *testing.T) {
	const push = ">2\r\n$10\r\ninvalidate\r\n_\r\n"
	s := listen(t, func(cmd string) (string, bool) {
		switch cmd {
		case "A":
			return push + "+one\r\n" + push, true
		case "B":
			return push + push + "|1\r\n+a\r\n:1\r\n*1\r\n:2\r\n", true
		}
		return "", true
	})
	got, err := newLinks(t, Config{}).Do(timeout(t), s.addr(), 3, []byte(">"), lines("A", "B")...)
	if want := ">|1\r\n+a\r\n:1\r\n*1\r\n:2\r\n"; string(got) != want {
		t.Errorf("got %q (%v), want %q", got, err, want)
	}
}

func TestOverTLS(t *testing.T) {
	ca := testcert.NewAuthority(t, "ca")
	pair, err := tls.LoadX509KeyPair(ca.Issue(t, "server"))
	if err != nil {
		t.Fatal(err)
	}
	lis, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	s := listenOn(t, lis, fine)
	d := tls.Dialer{Config: ca.Client(t, "client", ca)}
	l := newLinks(t, Config{Dial: func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }})
	for range 3 {
		if got, err := l.Do(timeout(t), s.addr(), 3, nil, words("GET k")); string(got) != "+OK\r\n" {
			t.Fatalf("got %q (%v), want +OK", got, err)
		}
	}
	if _, _, made := s.counts(); made != 1 {
		t.Errorf("%d connections were made for 3 calls, one after the other, want 1", made)
	}
}

func TestManyCallsAtOnce(t *testing.T) {
	s := listen(t, func(cmd string) (string, bool) {
		if k, ok := strings.CutPrefix(cmd, "GET "); ok {
			return fmt.Sprintf("$%d\r\n%s\r\n", len(k), k), true
		}
		return "", true
	})
	const conns = 3
	l := newLinks(t, Config{Conns: conns})
	var all sync.WaitGroup
	for g := range 16 {
		all.Go(func() {
			for i := range 50 {
				key := fmt.Sprint("key", g, "-", i)
				want := fmt.Sprintf("$%d\r\n%s\r\n", len(key), key)
				if got, err := l.Do(timeout(t), s.addr(), 2+(g+i/10)%2, nil, lines("SET a b", "GET "+key)...); string(got) != want {
					t.Errorf("got %q (%v), want %q", got, err, want)
				}
			}
		})
	}
	all.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	srv := l.servers[s.addr()]
	if n := len(srv.idle); n > conns || len(srv.turns) != 0 {
		t.Errorf("%d links are idle and %d in use, want %d and none at most", n, len(srv.turns), conns)
	}
}
