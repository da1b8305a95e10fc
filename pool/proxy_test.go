package pool_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"polder/memnode"
	"polder/pool"
	"polder/pool/pooltest"
	"polder/verbs"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// proxy forwards TCP connections until it is told to hold them up, or has
// forwarded so many bytes.
type proxy struct {
	l  net.Listener
	to string
	wg sync.WaitGroup

	mu     sync.Mutex
	conns  []net.Conn
	frozen chan struct{} // nil, or closed when the proxy thaws
	left   int           // bytes until everything is cut; negative: no end
}

func newProxy(t *testing.T, to string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l, to: to, left: -1}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.thaw()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		a, err := p.l.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", p.to)
		if err != nil {
			a.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, a, b)
		p.mu.Unlock()
		p.wg.Go(func() { p.forward(a, b) })
		p.wg.Go(func() { p.forward(b, a) })
	}
}

func (p *proxy) forward(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		frozen := p.frozen
		last := false
		if p.left >= 0 {
			n = min(n, p.left)
			p.left -= n
			if last = p.left == 0; last {
				p.left = -1
			}
		}
		p.mu.Unlock()
		if frozen != nil {
			<-frozen
		}
		_, werr := to.Write(buf[:n])
		if last {
			p.cut()
		}
		if werr != nil || err != nil {
			return
		}
	}
}

func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = make(chan struct{})
}

func (p *proxy) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen != nil {
		close(p.frozen)
		p.frozen = nil
	}
}

// cutAfter cuts all connections when n more bytes have been forwarded.
func (p *proxy) cutAfter(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = n
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

// openThrough opens a pool over a node of its own, through a proxy.
func openThrough(t *testing.T, timeout time.Duration) (*pool.Pool, *proxy, *pooltest.Cluster) {
	c := pooltest.NewCluster(t, pooltest.TCP, memnode.Config{Lend: 16 << 20, Grace: time.Minute})
	x := newProxy(t, c.Nodes[0].Addr)
	dev, err := tcp.NewDevice(softnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	k, err := pool.Open(t.Context(), pool.Config{
		Device: dev, Timeout: timeout,
		Nodes: []pool.NodeConfig{{Name: "far", Dial: func(ctx context.Context) (verbs.Conn, error) {
			return tcp.Dial(ctx, dev, x.l.Addr().String(), tcp.Config{})
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return k, x, c
}

func TestANodeThatHangs(t *testing.T) {
	k, x, c := openThrough(t, 300*time.Millisecond)
	ch, err := k.Alloc(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("still here "), 1000)
	if _, err := ch.WriteAt(want, 0); err != nil {
		t.Fatal(err)
	}
	x.freeze()

	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err = ch.ReadContext(ctx, make([]byte, 5000), 0)
	var op *pool.OpError
	if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &op) || !op.Timeout() {
		t.Fatalf("reading within 1 ms: got %v, want %v", err, context.DeadlineExceeded)
	}
	if used := k.Stats().BufferUsed; used == 0 {
		t.Fatal("the buffer of an operation in flight was given to others")
	}

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			_, err := ch.ReadAt(make([]byte, 1000), 0)
			if !errors.Is(err, pool.ErrTimeout) && !errors.Is(err, pool.ErrNodeGone) {
				t.Errorf("reading: got %v, want %v or %v", err, pool.ErrTimeout, pool.ErrNodeGone)
			}
		})
	}
	if _, err := ch.FetchAdd(t.Context(), 1<<19, 1); err == nil {
		t.Error("a node that hangs has added")
	}
	if _, err := k.Alloc(t.Context()); err == nil {
		t.Error("a node that hangs has lent a chunk")
	}
	wg.Wait()
	pooltest.Eventually(t, "the node is seen to be gone", func() bool { return k.Stats().Nodes[0].State == "down" })
	pooltest.Eventually(t, "the buffer is free", func() bool { return k.Stats().BufferUsed == 0 })
	_, err = ch.ReadAt(make([]byte, 1), 0)
	if !errors.Is(err, pool.ErrNodeGone) {
		t.Fatalf("reading from a node that is gone: got %v, want %v", err, pool.ErrNodeGone)
	}

	x.thaw()
	got := make([]byte, len(want))
	pooltest.Eventually(t, "the chunk can be read again", func() bool {
		_, err := ch.ReadAt(got, 0)
		return err == nil
	})
	if !bytes.Equal(got, want) {
		t.Fatal("the chunk does not hold what was written")
	}
	// What the late requests may have allocated went back.
	if err := ch.Free(t.Context()); err != nil {
		t.Fatal(err)
	}
	pooltest.Eventually(t, "everything is free", func() bool { return c.Nodes[0].Stats().Lent == 0 })
}

func TestAConnectionThatIsCutMidFrame(t *testing.T) {
	k, x, _ := openThrough(t, 20*time.Second)
	ch, err := k.Alloc(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want, got := make([]byte, 100000), make([]byte, 100000)
	for i, after := range []int{1, 17, 100, 5000, 99999, 150001, 250000} {
		for j := range want {
			want[j] = byte(i + j>>8 + j)
		}
		x.cutAfter(after)
		for range 2 {
			if _, err := ch.WriteAt(want, 7); err != nil {
				t.Fatal(err)
			}
			if _, err := ch.ReadAt(got, 7); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("cut after %d bytes: read differs from what was written (%v)", after, err)
			}
		}
	}
	if n := k.Stats().Nodes[0].Reconnects; n != 7 {
		t.Fatalf("%d connections were lost, want 7", n)
	}
}
