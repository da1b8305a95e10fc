package forward

import (
	"errors"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func hold(t *testing.T, l *Links, addr string) *Held {
	t.Helper()
	h, err := l.Hold(addr)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestAHeldLinkIsItsHoldersAlone: all its calls go by one connection, and no others, also when those have to wait.
func TestAHeldLinkIsItsHoldersAlone(t *testing.T) {
	s := listen(t, fine)
	l := newLinks(t, Config{Conns: 1})
	h := hold(t, l, s.addr())
	for i := range 3 {
		for j, do := range []func() error{
			func() error { _, err := h.Do(timeout(t), 2, nil, words("WATCH k")); return err },
			func() error { _, err := l.Do(timeout(t), s.addr(), 2, nil, words("GET k")); return err },
		} {
			if err := do(); err != nil {
				t.Fatalf("round %d, %d: %v", i, j, err)
			}
		}
	}
	if want := "READONLY|WATCH k|READONLY|GET k|WATCH k|GET k|WATCH k|GET k"; s.commands() != want {
		t.Errorf("got %s, want %s", s.commands(), want)
	}
	h.Release() // the one idle link is there already
	until(t, "one connection is left", func() bool { open, _, _ := s.counts(); return open == 1 })
}

// TestAReleasedLinkIsOneOfAll, and a closed one is closed.
func TestAReleasedLinkIsOneOfAll(t *testing.T) {
	s := listen(t, fine)
	l := newLinks(t, Config{Held: 1})
	for i, c := range []struct {
		end  func(*Held)
		open int
	}{{(*Held).Release, 1}, {(*Held).Release, 1}, {(*Held).Close, 0}} {
		h := hold(t, l, s.addr())
		if _, err := l.Hold(s.addr()); err == nil || err.Error() != "1 connections are held already, which is the most" {
			t.Errorf("one more is held: got %v", err)
		}
		if _, err := h.Do(timeout(t), 2, nil, words("EXEC")); err != nil {
			t.Fatal(err)
		}
		c.end(h)
		until(t, "it is closed, or not", func() bool { open, _, _ := s.counts(); return open == c.open })
		if _, _, made := s.counts(); made != 1 {
			t.Errorf("round %d: %d connections were made, want 1", i, made)
		}
	}
	h := hold(t, l, s.addr())
	h.Release() // never connected
}

// closes is a connection that can be closed.
type closes struct{ net.Conn }

func (closes) Close() error { return nil }

// TestLinksThatAreReleasedAtOnceAreNoMoreThanThereMayBe: each of them sees the room that is left when the others have
// taken theirs.
func TestLinksThatAreReleasedAtOnceAreNoMoreThanThereMayBe(t *testing.T) {
	const rounds, links = 2000, 2
	l := newLinks(t, Config{Conns: 1, Held: rounds * links})
	var begun, ended [rounds]atomic.Int32
	var all sync.WaitGroup
	for range links {
		all.Go(func() {
			for i := range rounds {
				h := hold(t, l, strconv.Itoa(i))
				h.k = &link{conn: closes{}}
				begun[i].Add(1)
				for looks := 1; begun[i].Load() < links; looks++ {
					if looks%100 == 0 {
						runtime.Gosched() // there may be no other processor
					}
				}
				h.Release()
				if ended[i].Add(1) < links {
					continue
				}
				l.mu.Lock()
				n := len(h.at.idle)
				l.mu.Unlock()
				if n != 1 {
					t.Errorf("round %d: %d links are idle, want 1", i, n)
				}
				l.Forget(h.at.addr)
			}
		})
	}
	all.Wait()
}

// TestABrokenHeldLinkStaysSo: what the server remembered with it is lost.
func TestABrokenHeldLinkStaysSo(t *testing.T) {
	for name, breaks := range map[string]func(*Links, *scripted){
		"closed by the server": func(_ *Links, s *scripted) { s.hangUp() },
		"forgotten":            func(l *Links, s *scripted) { l.Forget(s.addr()) },
		"its call fails": func(_ *Links, s *scripted) {
			s.mu.Lock()
			for c := range s.conns {
				_ = c.(*net.TCPConn).CloseWrite()
			}
			s.mu.Unlock()
		},
	} {
		s := listen(t, fine)
		l := newLinks(t, Config{})
		h := hold(t, l, s.addr())
		if _, err := h.Do(timeout(t), 2, nil, words("WATCH k")); err != nil {
			t.Fatal(err)
		}
		k := h.k
		breaks(l, s)
		until(t, "that is seen", func() bool { return name == "forgotten" || !k.quiet() })
		for range 2 {
			if _, err := h.Do(timeout(t), 2, nil, words("EXEC")); kinds(err) != "unsent" || !errors.Is(err, errBroken) {
				t.Errorf("%s: got %v, want %v, %v", name, err, ErrUnsent, errBroken)
			}
		}
		if strings.Contains(s.commands(), "EXEC") {
			t.Errorf("%s: the server got %s", name, s.commands())
		}
		h.Release()
		until(t, "the connection is closed", func() bool { open, _, _ := s.counts(); return open == 0 })
	}
}

// TestAHeldLinkSpeaksTheVersionOfTheCall, which a client may change while it watches.
func TestAHeldLinkSpeaksTheVersionOfTheCall(t *testing.T) {
	s := listen(t, fine)
	l := newLinks(t, Config{})
	h := hold(t, l, s.addr())
	for _, ver := range []int{2, 3, 3, 2} {
		if got, err := h.Do(timeout(t), ver, nil, words("WATCH k")); string(got) != "+OK\r\n" {
			t.Fatalf("version %d: got %q, %v", ver, got, err)
		}
	}
	if want := "READONLY|WATCH k|HELLO 3|WATCH k|WATCH k|HELLO 2|WATCH k"; s.commands() != want {
		t.Errorf("got %s, want %s", s.commands(), want)
	}
	h.Release()
	if got, err := l.Do(timeout(t), s.addr(), 3, nil, words("GET k")); err != nil || !strings.HasSuffix(s.commands(), "HELLO 3|READONLY|GET k") {
		t.Errorf("a call of another version than that which it was left with: got %q, %v, and the server %s", got, err, s.commands())
	}
	l.Close()
	if _, err := hold(t, l, s.addr()).Do(timeout(t), 2, nil, words("GET k")); kinds(err) != "unsent" || !errors.Is(err, errClosed) {
		t.Errorf("when all is closed: got %v", err)
	}
}
