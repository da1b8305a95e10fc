package memfd_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"polder/internal/child/childtest"
	"polder/memnode"
	"polder/pool"
	"polder/pool/pooltest"
	"polder/verbs/shm"
	"polder/verbs/softnic"
)

var children = childtest.Jobs{"node": nodeChild, "client": clientChild}

var config = memnode.Config{Manager: memnode.MemFD, Lend: 1 << 20, ChunkSize: 1 << 16, Grace: time.Minute}

// newNode serves at addr until close is called.
func newNode(addr string, cfg memnode.Config) (node *memnode.Node, close func(), err error) {
	dev, err := shm.NewDevice(softnic.Config{})
	if err != nil {
		return nil, nil, err
	}
	if node, err = memnode.New(dev, cfg); err != nil {
		dev.Close()
		return nil, nil, err
	}
	l, err := shm.Listen(dev, addr, shm.Config{})
	if err != nil {
		node.Close()
		dev.Close()
		return nil, nil, err
	}
	served := make(chan error, 1)
	go func() { served <- node.Serve(l) }()
	return node, func() {
		node.Close()
		<-served
		dev.Close()
	}, nil
}

func nodeChild(addr string) error {
	if _, _, err := newNode(addr, config); err != nil {
		return err
	}
	fmt.Println("ready")
	select {} // until it is killed
}

func clientChild(addr string) error {
	p, err := pool.Dial(context.Background(), addr)
	if err != nil {
		return err
	}
	for range 3 {
		c, err := p.Alloc(context.Background(), int64(p.ChunkSize()))
		if err != nil {
			return err
		}
		if _, err := c.WriteAt([]byte("mine"), 0); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	select {} // until it is killed
}

func TestANodeThatIsKilledAndStartedAgain(t *testing.T) {
	addr := "unix:" + filepath.Join(t.TempDir(), "node.sock")
	kill := childtest.Start(t, "node", addr)
	p, err := pool.Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c, err := p.Alloc(t.Context(), int64(p.ChunkSize()))
	if err != nil {
		t.Fatal(err)
	}
	buf := []byte("across processes")
	if _, err := c.WriteAt(buf, 99); err != nil {
		t.Fatal(err)
	}
	clear(buf)
	if _, err := c.ReadAt(buf, 99); err != nil || string(buf) != "across processes" {
		t.Fatalf("read %q, %v", buf, err)
	}
	kill()
	// What has been mapped is there still; whether reading goes on to work
	// until the loss is noticed does not matter, but data must be right.
	pooltest.Eventually(t, "the pool notices", func() bool {
		clear(buf)
		_, err := c.ReadAt(buf, 99)
		if err == nil && string(buf) != "across processes" {
			t.Fatalf("read %q", buf)
		}
		return errors.Is(err, pool.ErrNodeGone)
	})
	childtest.Start(t, "node", addr)
	select {
	case <-c.Lost():
	case <-time.After(pooltest.Patience):
		t.Fatal("the chunk was not lost with the node that had it")
	}
	pooltest.Eventually(t, "the pool connects again", func() bool {
		_, err := p.Alloc(t.Context(), int64(p.ChunkSize()))
		return err == nil
	})
}

func TestAClientThatIsKilledLosesItsChunks(t *testing.T) {
	addr := "unix:" + filepath.Join(t.TempDir(), "node.sock")
	cfg := config
	cfg.Grace = 10 * time.Millisecond
	node, stop, err := newNode(addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	kill := childtest.Start(t, "client", addr)
	if got := node.Stats().Lent; got != 3 {
		t.Fatalf("%d chunks are lent, want 3", got)
	}
	kill()
	pooltest.Eventually(t, "its chunks are taken back", func() bool {
		s := node.Stats()
		return s.Lent == 0 && s.Dirty == 0 && s.Reclaimed == 3 && s.Sessions == 0
	})
	childtest.Start(t, "client", addr)
	if got := node.Stats().Lent; got != 3 {
		t.Fatalf("%d chunks are lent to the next client, want 3", got)
	}
}
