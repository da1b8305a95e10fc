package memcached

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// TestAClientThatReadsNothingLocksNoKey has a client ask for much under a key, and read one byte of it: then the
// server waits for this client. Another client uses the same key meanwhile.
func TestAClientThatReadsNothingLocksNoKey(t *testing.T) {
	for _, c := range []struct{ name, asks string }{
		{"of a value", "mg k v\r\n"},
		{"of many small answers", strings.Repeat("me k\r\n", 4000)},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, addr := start(t, func(c *Config) { c.WriteTimeout = 10 * patience })
			if got := talk(t, addr, "set k 0 0 1000000\r\n"+strings.Repeat("x", 1000000)+"\r\n"); got != "STORED\r\n" {
				t.Fatalf("storing was answered with %q", got)
			}
			slow, end := net.Pipe()
			served := make(chan struct{})
			go func() { defer close(served); s.serve(end) }()
			defer func() { <-served }()
			defer slow.Close()
			go func() { _, _ = io.WriteString(slow, c.asks) }()
			if _, err := io.ReadFull(slow, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			other, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			other.SetDeadline(time.Now().Add(patience / 4))
			if _, err := io.WriteString(other, "touch k 0\r\nquit\r\n"); err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(other); err != nil || string(got) != "TOUCHED\r\n" {
				t.Errorf("another client that touches the key is answered with %q, %v", got, err)
			}
		})
	}
}
