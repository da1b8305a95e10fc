package resp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"polder/resp/clientmem"
)

// greedy are the ways in which a client makes the server hold memory. Each
// holds about size bytes, in a connection of its own.
var greedy = []struct {
	name string
	hold func(c *client, size int)
}{
	{"an argument that does not end", func(c *client, size int) {
		press(c, fmt.Sprintf("*2\r\n$4\r\nECHO\r\n$%d\r\n%s", 2*size, strings.Repeat("v", size)), 0)
	}},
	{"arguments without end", func(c *client, size int) {
		const each = 24 + len("$0\r\n\r\n") // what the parser will need, and what it reads
		press(c, "*1000000\r\n$4\r\nMSET\r\n"+strings.Repeat("$0\r\n\r\n", size/each), 0)
	}},
	{"a transaction", func(c *client, size int) {
		echo := encode("ECHO", strings.Repeat("v", 1<<16))
		for ok, i := press(c, encode("MULTI"), 1), 0; ok && i < size>>16; i++ {
			ok = press(c, echo, 1)
		}
	}},
	{"watched keys", func(c *client, size int) {
		const batch = 200
		for ok, i := true, 0; ok && i < size; i += batch * 400 {
			cmd := []string{"WATCH"}
			for k := range batch {
				cmd = append(cmd, fmt.Sprint("key", i, "/", k))
			}
			ok = press(c, encode(cmd...), 1)
		}
	}},
	{"replies", func(c *client, size int) {
		// The sockets' own buffers take some, so ask for more.
		press(c, strings.Repeat(encode("GET", "value"), size>>16+200), 0)
	}},
}

// press sends raw and waits for so many replies. It reports false if the server has
// evicted the client, which it may at any time.
func press(c *client, raw string, replies int) bool {
	c.c.SetDeadline(time.Now().Add(testTimeout))
	_, err := io.WriteString(c.c, raw)
	for ; err == nil && replies > 0; replies-- {
		_, err = readReply(c.r)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Errorf("after %.60q: %v", raw, err)
	}
	return err == nil
}

// TestClientsShareTheirMemory: whatever clients have the server hold counts,
// and the one that holds most loses first.
func TestClientsShareTheirMemory(t *testing.T) {
	const clients, size = 20, 1 << 20
	for _, g := range greedy {
		t.Run(g.name, func(t *testing.T) {
			drivers(t, func(t *testing.T, cfg Config) {
				cfg.MaxBulk, cfg.ClientMemory = 2<<20, clientmem.New(6<<20)
				srv, addr := startServer(t, roomy, cfg)
				other := dial(t, addr)
				other.do("SET", "value", strings.Repeat("v", 1<<16))
				n := clients
				if g.name == "watched keys" {
					n = 8
				}
				for i := range n {
					c := dial(t, addr)
					g.hold(c, size-i<<10) // the first one is greediest
				}
				// Replies make their clients wait rather than be evicted.
				if g.name != "replies" {
					eventually(t, "eviction of those that do not fit", func() bool { return srv.Stats().EvictedClients >= int64(n-8) })
				}
				eventually(t, "what they held to be released", func() bool { return srv.Stats().ClientMemory <= cfg.ClientMemory.Max() })
				eventually(t, "the memory of at least one client to count", func() bool { return srv.Stats().ClientMemory >= size })
				info := other.do("INFO", "memory").bulk
				if !strings.Contains(info, "maxmemory_clients:6291456\r\n") || !strings.Contains(info, "mem_clients_normal:") {
					t.Errorf("INFO memory says nothing of it: %q", info)
				}
				if got := len(other.do("GET", "value").bulk); got != 1<<16 {
					t.Errorf("another client got %d bytes", got)
				}
			})
		})
	}
}

// dialNarrow is dial with socket buffers of size bytes on both sides: whatever the kernel's limits are, what is larger
// is not sent to a client that does not read.
func dialNarrow(t *testing.T, srv *Server, size int) *client {
	t.Helper()
	narrow := func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			for _, opt := range []int{unix.SO_SNDBUF, unix.SO_RCVBUF} {
				if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, opt, size); err != nil {
					t.Error(err)
				}
			}
		})
	}
	ln, err := (&net.ListenConfig{Control: narrow}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go srv.Serve(ln) // until srv is shut down
	nc, err := (&net.Dialer{Control: narrow}).DialContext(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return dialed(t, nc)
}

// TestADripReaderMakesNoProgress has a client read a few bytes at a time, which
// is never long without any: it is disconnected all the same. The sockets' buffers
// are small, or the server would write nothing at all meanwhile.
func TestADripReaderMakesNoProgress(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		t.Parallel() // it takes clientmem.Window
		cfg.OutputLimit = 1 << 20
		srv, addr := startServer(t, roomy, cfg)
		c, other := dialNarrow(t, srv, 4<<10), dial(t, addr)
		other.do("SET", "k", strings.Repeat("v", 100<<10))
		c.send(strings.Repeat(encode("GET", "k"), 200))
		stop := make(chan struct{})
		go func() {
			defer close(stop)
			b := make([]byte, 512)
			for {
				if _, err := c.c.Read(b); err != nil {
					return
				}
				time.Sleep(100 * time.Millisecond) // 5 KiB a second
			}
		}()
		eventually(t, "disconnection of the drip reader", func() bool { return srv.Stats().OutputDrops == 1 })
		c.c.Close()
		<-stop
	})
}

// TestASteadyReaderIsNotDisconnected reads faster than clientmem.Progress asks
// for, and much more slowly than the server could write.
func TestASteadyReaderIsNotDisconnected(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		cfg.OutputLimit = 256 << 10
		srv, addr := startServer(t, roomy, cfg)
		c, other := dial(t, addr), dial(t, addr)
		value := strings.Repeat("v", 100<<10)
		other.do("SET", "k", value)
		const n = 120 // more than the sockets' buffers take
		c.send(strings.Repeat(encode("GET", "k"), n))
		for i := range n {
			if got := c.recv().bulk; got != value {
				t.Fatalf("reply %d: %d bytes, want %d", i, len(got), len(value))
			}
			time.Sleep(10 * time.Millisecond)
		}
		if st := srv.Stats(); st.OutputDrops+st.EvictedClients != 0 {
			t.Errorf("%d clients were dropped for not reading and %d evicted, want none", st.OutputDrops, st.EvictedClients)
		}
	})
}

// TestALargeCommandFitsItsBuffer: once its length is known a buffer grows to
// what is to come, and not to twice as much.
func TestALargeCommandFitsItsBuffer(t *testing.T) {
	cmd := encode("SET", "key", strings.Repeat("v", 3<<20))
	var s session
	s.parser.Limits.MaxBulk, s.parser.Limits.MaxArgs = 4<<20, 10
	var buf []byte
	for sent := 0; sent < len(cmd); {
		if _, _, err := s.parser.Next(buf); err != nil {
			t.Fatal(err)
		}
		before := len(buf)
		buf = s.grow(buf)
		if cap(buf) > 2*before+minRoom {
			t.Fatalf("with %d bytes there, the buffer is %d bytes large", before, cap(buf))
		}
		n := copy(buf[before:cap(buf)], cmd[sent:])
		if n == 0 {
			t.Fatalf("with %d bytes there, the buffer has no room", before)
		}
		buf, sent = buf[:before+n], sent+n
	}
	if args, _, err := s.parser.Next(buf); err != nil || len(args) != 3 {
		t.Fatalf("got %d arguments, %v", len(args), err)
	}
	defer clientmem.Free(buf)
	if most := len(cmd) + 2*minRoom; cap(buf) > most {
		t.Errorf("the buffer is %d bytes large in the end, want at most %d", cap(buf), most)
	}
}
