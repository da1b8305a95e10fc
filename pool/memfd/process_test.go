package memfd_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"polder/memnode"
	"polder/pool"
	"polder/pool/pooltest"
	"polder/verbs/shm"
	"polder/verbs/softnic"
)

// childEnv makes the test binary a process of its own: a node, or a client.
const childEnv = "POLDER_TEST_MEMFD_CHILD"

var children = map[string]func(addr string) error{"node": nodeChild, "client": clientChild}

func beChild() {
	job := os.Getenv(childEnv)
	if job == "" {
		return
	}
	if err := children[job](os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, job, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// startChild starts a child and waits until it is ready. kill is SIGKILL.
func startChild(t *testing.T, job, addr string) (kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0], addr)
	cmd.Env = append(os.Environ(), childEnv+"="+job)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	killed := false
	kill = func() {
		if !killed {
			killed = true
			_ = cmd.Process.Kill() // it may have ended
			_ = cmd.Wait()
		}
	}
	t.Cleanup(kill)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the %s says %q, %v", job, line, err)
	}
	return kill
}

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
		c, err := p.Alloc(context.Background())
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
	kill := startChild(t, "node", addr)
	p, err := pool.Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c, err := p.Alloc(t.Context())
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
	startChild(t, "node", addr)
	select {
	case <-c.Lost():
	case <-time.After(10 * time.Second):
		t.Fatal("the chunk was not lost with the node that had it")
	}
	pooltest.Eventually(t, "the pool connects again", func() bool {
		_, err := p.Alloc(t.Context())
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
	kill := startChild(t, "client", addr)
	if got := node.Stats().Lent; got != 3 {
		t.Fatalf("%d chunks are lent, want 3", got)
	}
	kill()
	pooltest.Eventually(t, "its chunks are taken back", func() bool {
		s := node.Stats()
		return s.Lent == 0 && s.Dirty == 0 && s.Reclaimed == 3 && s.Sessions == 0
	})
	startChild(t, "client", addr)
	if got := node.Stats().Lent; got != 3 {
		t.Fatalf("%d chunks are lent to the next client, want 3", got)
	}
}
