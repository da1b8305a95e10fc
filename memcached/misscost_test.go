package memcached

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// TestWhatMissesCostIsLearntFromClients: a client asks for keys in vain, takes its time,
// and stores them.
func TestWhatMissesCostIsLearntFromClients(t *testing.T) {
	const takes = 10 * time.Millisecond
	for _, c := range []struct {
		miss, then string // which have one line of answer each
		rebuilds   uint64
	}{
		{"get user:1", "set user:1 0 0 1\r\nv", 1},
		{"gets user:1", "add user:1 0 0 1\r\nv", 1},
		{"mg user:1 v", "ms user:1 1\r\nv", 1},
		{"mg user:1 N30", "ms user:1 1\r\nv", 1}, // and is told to recache it
		{"get user:1", "set user:2 0 0 1\r\nv", 0},
		{"delete user:1", "set user:1 0 0 1\r\nv", 0},
	} {
		s, addr := start(t, nil)
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(conn)
		say := func(command string) string {
			t.Helper()
			if _, err := io.WriteString(conn, command+"\r\n"); err != nil {
				t.Fatal(err)
			}
			line, err := r.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			return line
		}
		began := time.Now()
		say(c.miss)
		time.Sleep(takes)
		say(c.then)
		most := time.Since(began)
		h := s.cfg.Heap.Stats()
		n := time.Duration(c.rebuilds)
		if h.Rebuilds != c.rebuilds || h.RebuildTime < n*takes || h.RebuildTime > n*most {
			t.Errorf("%s, then %s: got %d rebuilds in %v, want %d in %v to %v", c.miss, strings.Fields(c.then)[0], h.Rebuilds, h.RebuildTime, n, n*takes, n*most)
		}
	}
}

// TestKeysThatAreMissedTogetherShareTheTime: one get for several keys.
func TestKeysThatAreMissedTogetherShareTheTime(t *testing.T) {
	const keys = 8
	s, addr := start(t, nil)
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	get := "get"
	for i := range keys {
		get += fmt.Sprint(" user:", i)
	}
	began := time.Now()
	fmt.Fprintf(conn, "%s\r\n", get)
	if line, err := r.ReadString('\n'); err != nil || line != "END\r\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	for i := range keys {
		fmt.Fprintf(conn, "set user:%d 0 0 1\r\nv\r\n", i)
		if line, err := r.ReadString('\n'); err != nil || line != "STORED\r\n" {
			t.Fatalf("got %q, %v", line, err)
		}
	}
	took := time.Since(began)
	if h := s.cfg.Heap.Stats(); h.Rebuilds == 0 || h.RebuildTime > took {
		t.Errorf("got %d rebuilds in %v, want some, in at most the %v that there were", h.Rebuilds, h.RebuildTime, took)
	}
}
