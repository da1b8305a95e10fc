package forward

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/resp/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testTimeout = time.Minute

func words(line string) (args [][]byte) {
	for _, w := range strings.Fields(line) {
		args = append(args, []byte(w))
	}
	return args
}

func lines(ls ...string) (cmds [][][]byte) {
	for _, l := range ls {
		cmds = append(cmds, words(l))
	}
	return cmds
}

func newLinks(t testing.TB, cfg Config) *Links {
	t.Helper()
	l := New(cfg)
	t.Cleanup(l.Close)
	return l
}

func timeout(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// until waits for a condition.
func until(t testing.TB, what string, done func() bool) {
	t.Helper()
	for limit := time.Now().Add(testTimeout); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// scripted is a server that answers as a test says.
type scripted struct {
	lis net.Listener

	mu    sync.Mutex
	conns map[net.Conn]bool // guarded by mu: those that are open
	most  int               // guarded by mu: of conns, ever
	made  int               // guarded by mu: connections ever
	seen  []string          // guarded by mu: commands
}

// listen starts a server that answers the greeting and, by answer, all other commands. If
// answer returns false the connection is closed behind the text.
func listen(t testing.TB, answer func(cmd string) (text string, goOn bool)) *scripted {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listenOn(t, lis, answer)
}

// listenOn is listen with a listener.
func listenOn(t testing.TB, lis net.Listener, answer func(cmd string) (text string, goOn bool)) *scripted {
	t.Helper()
	s := &scripted{lis: lis, conns: map[net.Conn]bool{}}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns[c] = true
			s.made++
			s.most = max(s.most, len(s.conns))
			s.mu.Unlock()
			all.Go(func() { s.serve(c, answer) })
		}
	})
	t.Cleanup(func() {
		_ = lis.Close()
		s.hangUp()
		all.Wait()
	})
	return s
}

func (s *scripted) addr() string { return s.lis.Addr().String() }

func (s *scripted) serve(c net.Conn, answer func(string) (string, bool)) {
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		_ = c.Close()
	}()
	p := proto.Parser{Limits: proto.Limits{MaxBulk: 1 << 30, MaxArgs: 1 << 20, MaxInline: 1 << 10}}
	var buf []byte
	for r := bufio.NewReader(c); ; {
		args, n, err := p.Next(buf)
		if err != nil {
			return
		}
		if n == 0 {
			if _, err := r.Peek(1); err != nil {
				return
			}
			b, _ := r.Peek(r.Buffered())
			buf = append(buf, b...)
			_, _ = r.Discard(len(b))
			continue
		}
		var parts []string
		for _, a := range args {
			parts = append(parts, string(a))
		}
		cmd := strings.Join(parts, " ")
		buf = buf[n:]
		s.mu.Lock()
		s.seen = append(s.seen, cmd)
		s.mu.Unlock()
		text, goOn := answer(cmd)
		if text == "" && goOn {
			text = "+OK\r\n"
			if strings.HasPrefix(cmd, "HELLO") {
				text = "%1\r\n$5\r\nproto\r\n:3\r\n"
			}
		}
		if _, err := io.WriteString(c, text); err != nil || !goOn {
			return
		}
	}
}

// hangUp closes all connections that are open.
func (s *scripted) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.Close()
	}
}

// counts returns how many connections are open, have been at a time, and were made.
func (s *scripted) counts() (open, most, made int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns), s.most, s.made
}

// commands are those that have been received.
func (s *scripted) commands() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.seen, "|")
}

// fine answers every command with +OK.
func fine(string) (string, bool) { return "", true }
