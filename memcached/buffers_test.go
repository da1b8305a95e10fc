package memcached

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"polder/resp/clientmem"
)

// until waits for what a server's goroutine brings about.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// TestClientsShareTheirMemory has many clients send most of a large value and
// then stop: those who hold most are closed, and others are served.
func TestClientsShareTheirMemory(t *testing.T) {
	budget := clientmem.New(4 * MaxValue)
	_, addr := start(t, func(c *Config) { c.ClientMemory = budget })
	const clients, sent = 40, MaxValue / 2
	for range clients {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		if _, err := fmt.Fprintf(conn, "set k 0 0 %d\r\n%s", MaxValue, strings.Repeat("v", sent)); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "all but what fits to be closed", func() bool { return budget.Evicted() >= clients-8 })
	if got := budget.Held(); got > 2*budget.Max() {
		t.Errorf("%d bytes are held, of %d", got, budget.Max())
	}
	if got := talk(t, addr, "set k 0 0 1\r\nx\r\nget k\r\n"); got != "STORED\r\nVALUE k 0 1\r\nx\r\nEND\r\n" {
		t.Errorf("another client got %q", got)
	}
	until(t, "what they held to be released", func() bool { return budget.Held() <= budget.Max() })
}

// TestAnnouncedBlocksCostNothing: the buffer of a block grows as it comes.
func TestAnnouncedBlocksCostNothing(t *testing.T) {
	budget := clientmem.New(4 * MaxValue)
	_, addr := start(t, func(c *Config) { c.ClientMemory = budget })
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	_, _ = fmt.Fprintf(conn, "set k 0 0 %d\r\n%s", MaxValue, strings.Repeat("v", 10<<10))
	until(t, "the first bytes to be taken", func() bool { return budget.Held() >= 10<<10 })
	if got := budget.Held(); got > 64<<10 {
		t.Errorf("%d bytes are held for 10 KiB that have come", got)
	}
}

// TestLongLinesComeThroughAndAreForgotten: a line is up to MaxLine long, and an
// idle connection does not keep a buffer for one.
func TestLongLinesComeThroughAndAreForgotten(t *testing.T) {
	budget := clientmem.New(4 * MaxValue)
	_, addr := start(t, func(c *Config) { c.ClientMemory = budget })
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	keys := strings.Repeat(" k", (MaxLine-10)/2)
	if _, err := io.WriteString(conn, "set k 0 0 1\r\nx\r\nget"+keys+"\r\n"); err != nil {
		t.Fatal(err)
	}
	r, values := bufio.NewReader(conn), 0
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(line, "VALUE k 0 1") {
			values++
		}
		if line == "END\r\n" {
			break
		}
	}
	if want := len(keys) / 2; values != want {
		t.Errorf("got %d values, want %d", values, want)
	}
	until(t, "the buffers to be released", func() bool { return budget.Held() == 0 })
}
