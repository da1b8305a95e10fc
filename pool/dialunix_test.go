package pool_test

import (
	"path/filepath"
	"testing"

	"polder/memnode"
	"polder/pool"
	"polder/pool/memfd"
	"polder/verbs/shm"
	"polder/verbs/softnic"
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

func TestDialRefusesAMixtureAndWhatItFillsIn(t *testing.T) {
	if _, err := pool.Dial(t.Context(), "unix:/nonexistent", "127.0.0.1:1"); err == nil {
		t.Error("a mixture of addresses was accepted")
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
