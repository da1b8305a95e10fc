package robustness

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"polder/internal/proctest"
)

// cutter passes connections on to a node, and cuts them when they have
// carried a number of bytes.
type cutter struct {
	lis  net.Listener
	to   string
	left atomic.Int64 // bytes until the cut; negative: no cut
	cuts atomic.Int64
	wg   sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{} // guarded by mu; nil when closed
}

func newCutter(t *testing.T, to string) *cutter {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{lis: lis, to: to, conns: map[net.Conn]struct{}{}}
	c.left.Store(-1)
	c.wg.Go(c.accept)
	t.Cleanup(c.close)
	return c
}

func (c *cutter) accept() {
	for {
		from, err := c.lis.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", c.to)
		if err != nil {
			_ = from.Close()
			continue
		}
		if !c.track(from, to) {
			return
		}
		cut := sync.OnceFunc(func() {
			_, _ = from.Close(), to.Close() // cut is cut
			c.mu.Lock()
			delete(c.conns, from)
			delete(c.conns, to)
			c.mu.Unlock()
		})
		c.wg.Go(func() { c.carry(to, from); cut() })
		c.wg.Go(func() { c.carry(from, to); cut() })
	}
}

func (c *cutter) track(conns ...net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range conns {
		if c.conns == nil {
			_ = conn.Close()
		} else {
			c.conns[conn] = struct{}{}
		}
	}
	return c.conns != nil
}

// carry copies until the cut. Bytes up to the cut are passed on.
func (c *cutter) carry(to io.Writer, from io.Reader) {
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		if armed := c.left.Load() >= 0; armed {
			if left := c.left.Add(int64(-n)); left < 0 {
				_, _ = to.Write(buf[:max(0, int64(n)+left)]) // as far as it goes
				c.cuts.Add(1)
				return
			}
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (c *cutter) close() {
	_ = c.lis.Close()
	c.mu.Lock()
	for conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
	c.mu.Unlock()
	c.wg.Wait()
}

// TestAConnectionCutInTheMiddleIsMadeAgain cuts the connection between server
// and node again and again, anywhere within frames, while both directions are
// busy. The session is resumed, and not a byte is lost.
func TestAConnectionCutInTheMiddleIsMadeAgain(t *testing.T) {
	const (
		keys = 3000 // 24 MiB
		size = 8 << 10
		cuts = 12
	)
	node := startNode(t, "256MiB", "--grace", "1m")
	proxy := newCutter(t, node.Addr("verbs"))
	server := startServer(t, proxy.lis.Addr().String(), "4MiB", "--op-timeout", "20s")
	client := connect(t, server)
	ctx := context.Background()
	name := func(i int) string { return fmt.Sprint("key:", i) }
	store := func(version int) {
		t.Helper()
		if err := pipelined(ctx, client, keys, func(p redis.Pipeliner, i int) { p.Set(ctx, name(i), value(name(i), version, size), 0) },
			func(_ int, cmd redis.Cmder) error { return cmd.Err() }); err != nil {
			t.Fatalf("version %d: %v", version, err)
		}
	}
	compare := func(version int) {
		t.Helper()
		if err := pipelined(ctx, client, keys, func(p redis.Pipeliner, i int) { p.Get(ctx, name(i)) },
			func(i int, cmd redis.Cmder) error {
				if got, err := cmd.(*redis.StringCmd).Result(); err != nil || got != value(name(i), version, size) {
					return fmt.Errorf("%s: got %d bytes, %v", name(i), len(got), err)
				}
				return nil
			}); err != nil {
			t.Fatalf("version %d: %v", version, err)
		}
	}
	store(0)
	for cut := range cuts {
		// Odd distances: into headers, checksums and payloads.
		proxy.left.Store(int64(1 + cut*cut*4099))
		if cut%2 == 0 {
			store(cut + 2)
		} else {
			compare(cut + 1)
		}
	}
	if cuts%2 == 1 {
		compare(cuts + 1)
	} else {
		compare(cuts)
	}
	proctest.Until(t, "connections were cut", func() bool { return proxy.cuts.Load() >= cuts/2 })
	t.Logf("%d connections cut", proxy.cuts.Load())
}
