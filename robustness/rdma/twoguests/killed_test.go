//go:build ibverbs

package twoguests

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"polder/memnode"
	"polder/pool"
	"polder/pool/finemem"
	"polder/pool/rpcmw"
	"polder/robustness/rdma/plan"
	"polder/verbs/ibv"
)

const (
	// lent is how many chunks a node of this test lends, and stolen how many of
	// them the client has that is killed.
	lent   = 32
	stolen = 24
	// keepAlive is how often the ends of a connection ping each other, and grace
	// how long a node waits for a client to come back.
	keepAlive = time.Second
	grace     = 3 * time.Second
)

// lenders are the nodes of this test, at ports of their own. The client's guest
// waits for port 7070, which is the last.
var lenders = []struct {
	manager pool.Manager
	port    string
}{
	{finemem.Manager{}, "7071"},
	{rpcmw.Manager{}, "7070"},
}

// borrow opens a pool on the node at addr.
func borrow(t *testing.T, m pool.Manager, addr string) *pool.Pool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, err := pool.DialRDMA(ctx, device(t), ibv.Config{Insecure: true, KeepAlive: keepAlive}, pool.Config{Manager: m}, addr)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func device(t *testing.T) string {
	t.Helper()
	if rdmaDevice == "" {
		t.Fatal("POLDER_RDMA_DEVICE is not set: these tests run in two guests (make test-rdma)")
	}
	return rdmaDevice
}

// TestBorrowsUntilItIsKilled is the client: it writes to what it has borrowed until
// its machine is no more.
func TestBorrowsUntilItIsKilled(t *testing.T) {
	if peer == "" {
		t.Fatal("POLDER_RDMA_PEER is not set: these tests run in two guests (make test-rdma)")
	}
	var chunks []*pool.Chunk
	for _, n := range lenders {
		p := borrow(t, n.manager, peer+":"+n.port)
		defer p.Close()
		timeAllocations(t, n.manager.Name(), p)
		for range stolen {
			c, err := p.Alloc(t.Context(), int64(p.ChunkSize()))
			if err != nil {
				t.Fatal(err)
			}
			chunks = append(chunks, c)
		}
	}
	mine := bytes.Repeat([]byte("victim"), 1000)
	for i := 0; ; i++ {
		if _, err := chunks[i%len(chunks)].WriteAt(mine, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// timeAllocations says what it takes to allocate and to free a chunk.
func timeAllocations(t *testing.T, name string, p *pool.Pool) {
	t.Helper()
	var allocs, frees []time.Duration
	for range 100 {
		began := time.Now()
		c, err := p.AllocWait(t.Context(), int64(p.ChunkSize()))
		if err != nil {
			t.Fatal(err)
		}
		allocated := time.Now()
		if err := c.Free(t.Context()); err != nil {
			t.Fatal(err)
		}
		allocs, frees = append(allocs, allocated.Sub(began)), append(frees, time.Since(allocated))
	}
	slices.Sort(allocs)
	slices.Sort(frees)
	t.Logf("%s: a chunk is allocated in %v and freed in %v (medians)", name, allocs[len(allocs)/2], frees[len(frees)/2])
}

// A client whose machine dies without a word is noticed, its memory comes back when
// the grace period is over, and nobody else is held up. Who says goodbye is no
// warning.
func TestAClientThatIsKilled(t *testing.T) {
	dev, err := ibv.Open(device(t))
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	type lender struct {
		node      *memnode.Node
		log       *record
		neighbour *pool.Pool
		hot       *hammer
	}
	var all []*lender
	for _, n := range lenders {
		l := &lender{log: &record{}}
		l.node, err = memnode.New(dev, memnode.Config{
			Manager: n.manager.Name(), Lend: lent << 20, ChunkSize: 1 << 20, Grace: grace, TrustClients: true,
			Logger: slog.New(slog.NewTextHandler(l.log, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer l.node.Close()
		lis, err := ibv.Listen(dev, ":"+n.port, ibv.Config{Insecure: true, KeepAlive: keepAlive})
		if err != nil {
			t.Fatal(err)
		}
		go l.node.Serve(lis)
		l.neighbour = borrow(t, n.manager, "127.0.0.1:"+n.port)
		defer l.neighbour.Close()
		l.hot = startHammer(t, l.neighbour)
		all = append(all, l)
	}
	for i, l := range all {
		eventually(t, lenders[i].manager.Name()+": the client has its memory", func() bool { return l.node.Stats().Lent == stolen+1 })
	}
	ask(t, plan.KillPeer)
	killed := time.Now()
	noticed := make([]time.Duration, len(all))
	for i, l := range all {
		eventually(t, lenders[i].manager.Name()+": the client is missed", func() bool { return l.node.Stats().Clients == 1 })
		noticed[i] = time.Since(killed)
	}
	for i, l := range all {
		name := lenders[i].manager.Name()
		eventually(t, name+": its memory has come back", func() bool { return l.node.Stats().Lent == 1 })
		back := time.Since(killed)
		for i := range lent - 1 {
			c, err := l.neighbour.AllocWait(t.Context(), int64(l.neighbour.ChunkSize()))
			if err != nil {
				t.Fatalf("%s: allocating chunk %d of what has come back: %v", name, i, err)
			}
			got := make([]byte, 6000)
			if _, err := c.ReadAt(got, 0); err != nil || !bytes.Equal(got, make([]byte, len(got))) {
				t.Fatalf("%s: chunk %d that came back reads as %.16x, %v, want zero", name, i, got, err)
			}
		}
		n, slowest := l.hot.end()
		t.Logf("%s: the node noticed after %.1f s, and had the memory back after %.1f s; meanwhile a neighbour did %d operations, the slowest in %v",
			name, noticed[i].Seconds(), back.Seconds(), n, slowest)
		before := l.log.warnings()
		if err := l.neighbour.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, name+": the neighbour has left", func() bool { return l.node.Stats().Clients == 0 })
		if after := l.log.warnings(); len(after) > len(before) {
			t.Errorf("%s: a client that closed its pool gave warnings: %q", name, after[len(before):])
		}
	}
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(hang)
	defer limit.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// hammer writes and reads a chunk again and again, from a goroutine of its own.
type hammer struct {
	stop, ended chan struct{}
	once        sync.Once
	n           int           // of who ended it
	slowest     time.Duration // likewise
}

func startHammer(t *testing.T, p *pool.Pool) *hammer {
	t.Helper()
	c, err := p.Alloc(t.Context(), int64(p.ChunkSize()))
	if err != nil {
		t.Fatal(err)
	}
	h := &hammer{stop: make(chan struct{}), ended: make(chan struct{})}
	t.Cleanup(func() { h.end() })
	go func() {
		defer close(h.ended)
		got := make([]byte, 64)
		for ; ; h.n++ {
			select {
			case <-h.stop:
				return
			default:
			}
			want := fmt.Appendf(nil, "%064d", h.n)
			began := time.Now()
			_, err := c.WriteAt(want, 0)
			if err == nil {
				_, err = c.ReadAt(got, 0)
			}
			h.slowest = max(h.slowest, time.Since(began))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("a neighbour read %q, %v, want %q", got, err, want)
				return
			}
		}
	}()
	return h
}

// end stops the hammer, and says how many operations it did and how long the slowest
// took.
func (h *hammer) end() (int, time.Duration) {
	h.once.Do(func() { close(h.stop) })
	<-h.ended
	return h.n, h.slowest
}

// record keeps what is logged.
type record struct {
	mu    sync.Mutex
	lines []string // guarded by mu
}

func (r *record) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, string(b))
	_, _ = os.Stderr.Write(b)
	return len(b), nil
}

func (r *record) warnings() (list []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lines {
		if strings.Contains(l, "level=WARN") || strings.Contains(l, "level=ERROR") {
			list = append(list, l)
		}
	}
	return list
}
