package pooltest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"polder/memnode"
	"polder/pool"
)

func resume(t *testing.T, s Setup) {
	cl := NewCluster(t, s, node(200))
	k := cl.Open(pool.Config{})
	var chunks []*pool.Chunk
	for i := range 150 { // more than fit into one message
		c := k.MustAlloc(t)
		mustWrite(t, c, pattern(uint64(i), 100), 50)
		chunks = append(chunks, c)
	}
	for round := range 3 {
		k.Cut(cl.Nodes[0])
		for i, c := range chunks {
			wantBytes(t, c, 50, pattern(uint64(i), 100))
		}
		v, err := chunks[0].FetchAdd(t.Context(), 0, 1)
		if err != nil || v != uint64(round) {
			t.Fatalf("after %d cuts: FetchAdd gives %d, %v", round+1, v, err)
		}
	}
	st := k.Stats().Nodes[0]
	if st.Lost != 0 || st.Reconnects != 3 || st.Chunks != 150 {
		t.Fatalf("after three cuts: %+v", st)
	}
	for _, c := range chunks {
		mustFree(t, c)
	}
	if got := cl.Nodes[0].Stats().Lent; got != 0 {
		t.Fatalf("%d chunks are still lent after all were freed", got)
	}
}

func cutInFlight(t *testing.T, s Setup) {
	cl := NewCluster(t, s, node(16))
	k := cl.Open(pool.Config{})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 8 {
		c := k.MustAlloc(t)
		wg.Go(func() {
			var least, most uint64
			for round := 0; ; round++ {
				select {
				case <-stop:
					v, err := c.FetchAdd(context.Background(), 0, 0)
					for errors.Is(err, pool.ErrOutcomeUnknown) { // the last cut has met it
						v, err = c.FetchAdd(context.Background(), 0, 0)
					}
					if err != nil || v < least || v > most {
						t.Errorf("the counter is %d (%v), want %d to %d", v, err, least, most)
					}
					return
				default:
				}
				p := pattern(uint64(i<<12|round), 30000)
				mustWrite(t, c, p, 8)
				wantBytes(t, c, 8, p)
				_, err := c.FetchAdd(context.Background(), 0, 1)
				most++
				if err == nil {
					least++
				} else if !errors.Is(err, pool.ErrOutcomeUnknown) {
					t.Errorf("an addition failed with %v", err)
				}
			}
		})
	}
	for range 10 {
		reads := k.Stats().Nodes[0].Reads
		Eventually(t, "the callers go on", func() bool { return k.Stats().Nodes[0].Reads > reads+20 })
		k.Cut(cl.Nodes[0])
	}
	close(stop)
	wg.Wait()
	if used := k.Stats().BufferUsed; used != 0 {
		t.Fatalf("%d bytes of the buffer are still in use", used)
	}
}

func freeDuringOutage(t *testing.T, s Setup) {
	cl := NewCluster(t, s, node(3))
	k := cl.Open(pool.Config{})
	a, b := k.MustAlloc(t), k.MustAlloc(t)
	mustWrite(t, b, []byte("stays"), 0)
	k.Unreachable(cl.Nodes[0], true)
	k.Cut(cl.Nodes[0])
	Eventually(t, "the pool notices", func() bool { return k.Stats().Nodes[0].State == "down" })
	mustFree(t, a)
	k.Unreachable(cl.Nodes[0], false)
	Eventually(t, "the chunk goes back", func() bool { return cl.Nodes[0].Stats().Lent == 1 })
	wantBytes(t, b, 0, []byte("stays"))
}

func restart(t *testing.T, s Setup) {
	cl := NewCluster(t, s, node(4), node(4))
	k := cl.Open(pool.Config{})
	var dead, alive []*pool.Chunk
	for range 6 {
		c := k.MustAlloc(t)
		mustWrite(t, c, []byte("here"), 0)
		if c.Nodes()[0] == "node0" {
			dead = append(dead, c)
		} else {
			alive = append(alive, c)
		}
	}
	cl.Nodes[0].Crash()
	cl.Nodes[0].Start()
	for _, c := range dead {
		select {
		case <-c.Lost():
		case <-time.After(Patience):
			t.Fatal("a chunk of the node that restarted is not lost")
		}
		_, err := c.ReadAt(make([]byte, 4), 0)
		wantErr(t, "reading a lost chunk", err, pool.ErrLost)
		mustFree(t, c)
	}
	for _, c := range alive {
		wantBytes(t, c, 0, []byte("here"))
		select {
		case <-c.Lost():
			t.Fatal("a chunk of the other node is lost")
		default:
		}
	}
	on := make(map[string]int)
	for range 8 - len(alive) {
		c := k.MustAlloc(t)
		wantBytes(t, c, 0, make([]byte, 8))
		on[c.Nodes()[0]]++
	}
	if on["node0"] != 4 {
		t.Fatalf("the node that restarted gave %d chunks, want 4", on["node0"])
	}
}

func nodeGone(t *testing.T, s Setup) {
	cl := NewCluster(t, s, node(4), node(4))
	k := cl.Open(pool.Config{Timeout: time.Hour}) // nothing may wait for it
	var c *pool.Chunk
	for c == nil || c.Nodes()[0] != "node0" {
		c = k.MustAlloc(t)
	}
	cl.Nodes[0].Crash()
	_, err := c.ReadAt(make([]byte, 4), 0)
	if s.Manager != nil && s.Manager.Name() == "memfd" {
		// Memory that is accessed in place can be read until its node is
		// known to be gone.
		Eventually(t, "reading fails", func() bool {
			_, err = c.ReadAt(make([]byte, 4), 0)
			return err != nil
		})
	}
	wantErr(t, "reading", err, pool.ErrNodeGone)
	_, err = c.FetchAdd(t.Context(), 0, 1)
	wantErr(t, "adding", err, pool.ErrNodeGone)
	for range 3 {
		if other := k.MustAlloc(t); other.Nodes()[0] != "node1" {
			t.Fatalf("a node that is gone gave %s", other.Name())
		}
	}
	cl.Nodes[1].Crash()
	Eventually(t, "allocation fails", func() bool {
		_, err = k.AllocOne(t.Context())
		return err != nil
	})
	wantErr(t, "allocating", err, pool.ErrNodeGone)
	cl.Nodes[1].Start()
	Eventually(t, "allocation succeeds again", func() bool {
		_, err = k.AllocOne(t.Context())
		return err == nil
	})
}

func graceOver(t *testing.T, s Setup) {
	cfg := node(4)
	cfg.Grace = 30 * time.Millisecond
	cl := NewCluster(t, s, cfg)
	k, other := cl.Open(pool.Config{}), cl.Open(pool.Config{})
	c := k.MustAlloc(t)
	mustWrite(t, c, []byte("secret"), 0)
	k.Unreachable(cl.Nodes[0], true)
	k.Cut(cl.Nodes[0])
	<-c.Lost()
	Eventually(t, "the node reclaims the chunk", func() bool {
		st := cl.Nodes[0].Stats()
		return (st.Reclaimed == 1 || s.Brokers) && st.Lent == 0 && int(st.Sessions) == 1+s.brokers(2)
	})
	for range 4 {
		wantBytes(t, other.MustAlloc(t), 0, make([]byte, chunkSize))
	}
	k.Unreachable(cl.Nodes[0], false)
	Eventually(t, "the pool is connected again", func() bool { return k.Stats().Nodes[0].State == "up" })
	_, err := c.ReadAt(make([]byte, 4), 0)
	wantErr(t, "reading", err, pool.ErrLost)
}

func closing(t *testing.T, s Setup) {
	cl := NewCluster(t, s, node(8))
	k := cl.Open(pool.Config{})
	var wg sync.WaitGroup
	var last *pool.Chunk
	running := make(chan struct{}, 4)
	for range 4 {
		c := k.MustAlloc(t)
		last = c
		wg.Go(func() {
			buf := make([]byte, 10000)
			for i := 0; ; i++ {
				if _, err := c.ReadAt(buf, 0); err != nil {
					wantErr(t, "reading while the pool closes", err, pool.ErrClosed)
					return
				}
				if i == 0 {
					running <- struct{}{}
				}
			}
		})
	}
	for range 4 {
		<-running
	}
	for range 2 {
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	_, err := k.AllocOne(t.Context())
	wantErr(t, "allocating", err, pool.ErrClosed)
	_, err = last.WriteAt([]byte("x"), 0)
	wantErr(t, "writing", err, pool.ErrClosed)
	if err := last.Free(t.Context()); err != nil {
		t.Fatalf("freeing what Close gave back: %v", err)
	}
	Eventually(t, "the node has everything back", func() bool {
		st := cl.Nodes[0].Stats()
		return st.Lent == 0 && int(st.Sessions) == s.brokers(1)
	})
}

func opening(t *testing.T, s Setup) {
	cl := NewCluster(t, s, node(2), node(2))
	cl.Nodes[0].Crash()
	k := cl.Open(pool.Config{})
	if c := k.MustAlloc(t); c.Nodes()[0] != "node1" {
		t.Fatalf("got %s, want a chunk of node1", c.Name())
	}
	cl.Nodes[0].Start()
	Eventually(t, "the second node joins", func() bool { return k.Stats().Nodes[0].State == "up" })
	cl.Nodes[0].Crash()
	cl.Nodes[1].Crash()
	if _, err := cl.TryOpen(pool.Config{}); !errors.Is(err, pool.ErrNodeGone) {
		t.Fatalf("opening a pool without nodes: got %v, want %v", err, pool.ErrNodeGone)
	}
}

// leaving checks that a node that is drained says so to all clients, lets no others in, and is drained when nothing
// is lent any more.
func leaving(t *testing.T, s Setup) {
	cl := NewCluster(t, s, node(4), node(4))
	k := cl.Open(pool.Config{})
	Eventually(t, "both nodes are there", func() bool { return k.Node("node0").Up && k.Node("node1").Up })
	n := cl.Nodes[0].Memnode()
	c, err := k.AllocAt(t.Context(), "node0", chunkSize)
	if err != nil {
		t.Fatal(err)
	}
	drain := func() (cancel context.CancelFunc, drained chan error) {
		ctx, cancel := context.WithCancel(t.Context())
		drained = make(chan error, 1)
		go func() { drained <- memnode.Drain(ctx, n) }()
		Eventually(t, "the pool knows that the node is leaving", func() bool { return k.Node("node0").Leaving })
		return cancel, drained
	}
	cancel, drained := drain()
	if err := memnode.Drain(t.Context(), n); err != memnode.ErrDraining {
		t.Errorf("draining a node that is being drained: got %v, want %v", err, memnode.ErrDraining)
	}
	if st := k.Stats().Nodes[0]; st.State != "leaving" {
		t.Errorf("the pool says that the node is %s, want leaving", st.State)
	}
	for range 3 { // one more than would make node1 the fuller one
		if c := k.MustAlloc(t); c.Nodes()[0] != "node1" {
			t.Errorf("got a chunk of %s, which is leaving", c.Nodes()[0])
		}
	}
	mustWrite(t, c, []byte("still there"), 0)
	wantBytes(t, c, 0, []byte("still there"))
	if cl.Open(pool.Config{}).Node("node0").Up {
		t.Error("a node that is leaving let in another client")
	}
	cancel()
	err = <-drained
	var held *memnode.HeldError
	if !errors.As(err, &held) || len(held.Clients) != 1 || held.Clients[0].Chunks == 0 {
		t.Fatalf("draining a node that has lent something: got %v, want who has it", err)
	}
	Eventually(t, "the pool knows that the node stays", func() bool { return !k.Node("node0").Leaving })
	cancel, drained = drain()
	defer cancel()
	mustFree(t, c)
	select {
	case err := <-drained:
		if err != nil {
			t.Errorf("draining: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the node is not drained though everything was given back")
	}
}
