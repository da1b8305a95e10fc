package pool_test

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	"polder/memnode"
	"polder/pool"
	"polder/pool/memfd"
	"polder/verbs"
	"polder/verbs/inproc"
	"polder/verbs/shm"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

func TestDialMapsTheMemoryOfANodeOnThisMachine(t *testing.T) {
	dev, err := shm.NewDevice(softnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	node, err := memnode.New(dev, memnode.Config{Manager: memnode.MemFD, Lend: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	l, err := shm.Listen(dev, filepath.Join(t.TempDir(), "node.sock"), shm.Config{})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- node.Serve(l) }()
	defer func() {
		node.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	p, err := pool.Dial(t.Context(), l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c, err := p.Alloc(t.Context(), int64(p.ChunkSize()))
	if err != nil {
		t.Fatal(err)
	}
	awake := node.Stats().Wakeups
	got := make([]byte, 5)
	for range 100 {
		if _, err := c.WriteAt([]byte("hello"), 7); err != nil {
			t.Fatal(err)
		}
		if _, err := c.ReadAt(got, 7); err != nil || string(got) != "hello" {
			t.Fatalf("got %q, %v", got, err)
		}
		if _, err := c.FetchAdd(t.Context(), 64, 1); err != nil {
			t.Fatal(err)
		}
	}
	// It may learn only now that its answer to Alloc was sent.
	if n := node.Stats().Wakeups - awake; n > 1 {
		t.Errorf("the node's control goroutine woke %d times for reads and writes", n)
	}
}

func TestDialRefusesWhatItFillsIn(t *testing.T) {
	if _, err := pool.Dial(t.Context(), "broker:/nonexistent", "127.0.0.1:1"); err == nil {
		t.Error("a broker and a node were accepted")
	}
	if _, err := pool.DialUnix(t.Context(), shm.Config{}, pool.Config{Manager: memfd.Manager{}}, "unix:/nonexistent"); err == nil {
		t.Error("a manager was accepted")
	}
	if _, err := pool.DialUnix(t.Context(), shm.Config{}, pool.Config{}, "127.0.0.1:1"); err == nil {
		t.Error("an address that is no socket was accepted")
	}
	if _, err := pool.Dial(t.Context(), "unix:/nonexistent/socket"); err == nil {
		t.Error("a socket that is not there was dialled")
	}
}

// TestAPoolHasNodesOnSeveralFabrics: one on this machine, whose memory is mapped, one over TCP and one within the process. One batch
// reads and writes at all of them.
func TestAPoolHasNodesOnSeveralFabrics(t *testing.T) {
	shmDev, err := shm.NewDevice(softnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shmDev.Close() })
	tcpDev, err := tcp.NewDevice(softnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tcpDev.Close() })
	inside := inproc.NewFabric()
	here, err := inside.NewDevice(softnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { here.Close() })
	borrower, err := inside.NewDevice(softnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { borrower.Close() })
	serve := func(dev verbs.Device, manager string, listen func() (verbs.Listener, error)) string {
		node, err := memnode.New(dev, memnode.Config{Manager: manager, Lend: 4 << 20})
		if err != nil {
			t.Fatal(err)
		}
		l, err := listen()
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- node.Serve(l) }()
		t.Cleanup(func() {
			node.Close()
			if err := <-served; err != nil {
				t.Error(err)
			}
		})
		return l.Addr()
	}
	socket := serve(shmDev, memnode.MemFD, func() (verbs.Listener, error) {
		return shm.Listen(shmDev, filepath.Join(t.TempDir(), "node.sock"), shm.Config{})
	})
	port := serve(tcpDev, "", func() (verbs.Listener, error) { return tcp.Listen(tcpDev, "127.0.0.1:0", tcp.Config{}) })
	serve(here, "", func() (verbs.Listener, error) { return inside.Listen(here, "inside") })

	p, err := pool.Dial(t.Context(), socket, port)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if got := p.Nodes(); !slices.Equal(got, []string{socket, port}) {
		t.Errorf("the nodes are %q, want them in the order in which they were given", got)
	}
	if err := p.Add(pool.NodeConfig{Name: "nowhere", Dial: func(context.Context) (verbs.Conn, error) { return nil, nil }}); err == nil {
		t.Error("a node without a device joined a pool that has several")
	}
	if err := p.Add(pool.NodeConfig{Name: "inside", Device: borrower, Dial: func(ctx context.Context) (verbs.Conn, error) {
		return inside.Dial(ctx, borrower, "inside")
	}}); err != nil {
		t.Fatal(err)
	}
	var chunks []*pool.Chunk
	var ops []pool.Op
	for _, node := range p.Nodes() {
		c, err := p.AllocAt(t.Context(), node, int64(p.ChunkSize()))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.WriteAt([]byte(node), 100); err != nil {
			t.Fatal(err)
		}
		chunks = append(chunks, c)
		ops = append(ops, pool.Op{Kind: pool.OpRead, Chunk: c, Off: 100, Buf: make([]byte, len(node))})
	}
	if err := p.Do(t.Context(), ops); err != nil {
		t.Fatal(err)
	}
	for i, node := range p.Nodes() {
		if string(ops[i].Buf) != node {
			t.Errorf("at %s there is %q", node, ops[i].Buf)
		}
		if err := chunks[i].Free(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
