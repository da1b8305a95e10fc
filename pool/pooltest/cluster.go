// Package pooltest is the conformance suite of pools: every driver of verbs and every way of managing memory must
// pass it, with the same results.
package pooltest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"polder/memnode"
	"polder/memnode/ledger"
	"polder/pool"
	"polder/verbs"
)

// A Fabric connects devices of one driver.
type Fabric interface {
	// NewDevice opens a device.
	NewDevice() (verbs.Device, error)
	// Listen announces dev at addr, or at an address of the fabric's choice
	// if addr is empty.
	Listen(dev verbs.Device, addr string) (verbs.Listener, error)
	// Dial connects dev to the listener at addr.
	Dial(ctx context.Context, dev verbs.Device, addr string) (verbs.Conn, error)
}

// A Setup is what the suite runs over.
type Setup struct {
	Name    string
	Fabric  func(t testing.TB) Fabric
	Manager pool.Manager // nil: the default
	// Groups and Pairs are the pools' (pool.Config).
	Groups, Pairs int
	// Brokers says that every pool allocates through a process of its own, which has a session with every node, and
	// which gives back what the pool gives up.
	Brokers bool
	// Outlives says that the nodes' memory outlives them.
	Outlives bool
	// InPlace says that the nodes pass their memory to pools, which read it in place.
	InPlace bool
}

// brokers is how many sessions a node has with the brokers of that many pools.
func (s *Setup) brokers(pools int) int {
	if s.Brokers {
		return pools
	}
	return 0
}

// Patience is how long a test waits for something that must happen soon. It decides when a broken test fails, not
// whether a sound one passes.
const Patience = time.Minute

// Cluster is a number of memory nodes and the pools that use them.
type Cluster struct {
	T      testing.TB
	Setup  Setup
	Fabric Fabric
	Nodes  []*Node
}

// Node is a memory node that can be crashed and started again.
type Node struct {
	Addr string
	cfg  memnode.Config
	c    *Cluster
	dev  verbs.Device
	mem  *memnode.Node
	done chan error
	left *shelf // nil if its memory ends with it
	out  *ledger.Outliving
}

// A shelf is a ledger.Store in this process.
type shelf struct {
	mu    sync.Mutex
	files map[string]*os.File
}

func newShelf(t testing.TB) *shelf {
	s := &shelf{files: make(map[string]*os.File)}
	t.Cleanup(func() { // runs after the cleanups of the nodes
		for _, f := range s.files {
			f.Close()
		}
	})
	return s
}

func (s *shelf) dup(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func (s *shelf) Keep(name string, f *os.File) error {
	g, err := s.dup(f)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.files[name]; old != nil {
		old.Close()
	}
	s.files[name] = g
	return nil
}

func (s *shelf) Forget(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.files[name]; f != nil {
		f.Close()
		delete(s.files, name)
	}
	return nil
}

func (s *shelf) Kept(name string) *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.files[name] == nil {
		return nil
	}
	f, err := s.dup(s.files[name])
	if err != nil {
		return nil
	}
	return f
}

// Left is the file with the node's memory, if that outlives the node.
func (n *Node) Left() *os.File { return n.left.files["memory"] }

// Reconfigure gives the node another configuration for its next start.
func (n *Node) Reconfigure(cfg memnode.Config) { n.cfg = cfg }

// NewCluster starts one node for every configuration. Nodes and pools end with the test.
func NewCluster(t testing.TB, s Setup, cfgs ...memnode.Config) *Cluster {
	t.Helper()
	c := &Cluster{T: t, Setup: s, Fabric: s.Fabric(t)}
	for _, cfg := range cfgs {
		n := &Node{cfg: cfg, c: c}
		if s.Outlives {
			n.left = newShelf(t)
		}
		c.Nodes = append(c.Nodes, n)
		n.Start()
		t.Cleanup(n.Crash)
	}
	return c
}

// Start starts a node that is not running, at the address that it had before.
func (n *Node) Start() {
	t := n.c.T
	t.Helper()
	var err error
	if n.dev, err = n.c.Fabric.NewDevice(); err != nil {
		t.Fatal(err)
	}
	cfg := n.cfg
	if m := n.c.Setup.Manager; m != nil {
		cfg.Manager = m.Name()
	}
	if n.left != nil {
		if cfg.Outliving, err = ledger.NewOutliving(n.left, "memory", slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		n.out = cfg.Outliving
	}
	cfg.InPlace = cfg.InPlace || n.c.Setup.InPlace
	cfg.TrustClients = true // there are several clients, also where the device does not check bounds
	if cfg.Heartbeat == 0 {
		cfg.Heartbeat = Patience // the machine may be too busy for seconds
	}
	if n.mem, err = memnode.New(n.dev, cfg); err != nil {
		t.Fatal(err)
	}
	l, err := n.c.Fabric.Listen(n.dev, n.Addr)
	if err != nil {
		t.Fatal(err)
	}
	n.Addr = l.Addr()
	n.done = make(chan error, 1)
	go func(mem *memnode.Node, done chan error) { done <- mem.Serve(l) }(n.mem, n.done)
}

// Crash ends the node without telling its clients: its device is closed first.
func (n *Node) Crash() {
	if n.mem == nil {
		return
	}
	n.dev.Close()
	n.mem.Close()
	<-n.done
	n.mem = nil
	if n.out != nil {
		n.out.Close()
	}
}

// Stats returns the statistics of the running node.
func (n *Node) Stats() memnode.Stats { return n.mem.Stats() }

// Memnode returns the running node.
func (n *Node) Memnode() *memnode.Node { return n.mem }

// A Client is a pool, and the connections under it.
type Client struct {
	*pool.Pool
	Device verbs.Device

	mu      sync.Mutex
	conns   map[string]verbs.Conn // the latest, by address
	refused map[string]bool
}

var errUnreachable = errors.New("unreachable")

// Open opens a pool over all nodes. Device, Nodes and Manager of cfg are
// filled in.
func (c *Cluster) Open(cfg pool.Config) *Client {
	c.T.Helper()
	k, err := c.TryOpen(cfg)
	if err != nil {
		c.T.Fatal(err)
	}
	return k
}

// TryOpen is Open for pools that may fail to open.
func (c *Cluster) TryOpen(cfg pool.Config) (*Client, error) {
	dev, err := c.Fabric.NewDevice()
	if err != nil {
		return nil, err
	}
	c.T.Cleanup(func() { dev.Close() })
	k := &Client{Device: dev, conns: make(map[string]verbs.Conn), refused: make(map[string]bool)}
	cfg.Device, cfg.Manager, cfg.Nodes = dev, c.Setup.Manager, nil
	cfg.Groups, cfg.Pairs = c.Setup.Groups, c.Setup.Pairs
	for i, n := range c.Nodes {
		addr := n.Addr
		cfg.Nodes = append(cfg.Nodes, pool.NodeConfig{
			Name: fmt.Sprintf("node%d", i),
			Dial: func(ctx context.Context) (verbs.Conn, error) { return k.dial(ctx, c.Fabric, addr) },
		})
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = Patience
	}
	if k.Pool, err = pool.Open(context.Background(), cfg); err != nil {
		return nil, err
	}
	c.T.Cleanup(func() {
		if err := k.Pool.Close(); err != nil {
			c.T.Error(err)
		}
	})
	return k, nil
}

func (k *Client) dial(ctx context.Context, f Fabric, addr string) (verbs.Conn, error) {
	k.mu.Lock()
	refused := k.refused[addr]
	k.mu.Unlock()
	if refused {
		return nil, errUnreachable
	}
	conn, err := f.Dial(ctx, k.Device, addr)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.conns[addr] = conn
	return conn, nil
}

// Cut breaks the pool's connection to n.
func (k *Client) Cut(n *Node) {
	k.mu.Lock()
	conn := k.conns[n.Addr]
	k.mu.Unlock()
	conn.Close()
}

// Unreachable makes attempts to connect to n fail, or succeed again.
func (k *Client) Unreachable(n *Node, yes bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refused[n.Addr] = yes
}

// Eventually waits until cond holds.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(Patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: did not happen within %v", what, Patience)
		}
	}
}

// AllocOne borrows as little as the nodes lend.
func (k *Client) AllocOne(ctx context.Context) (*pool.Chunk, error) {
	return k.Alloc(ctx, int64(k.ChunkSize()))
}

// MustAlloc is AllocOne, which must not fail.
func (k *Client) MustAlloc(t testing.TB) *pool.Chunk {
	t.Helper()
	c, err := k.AllocOne(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// mustFree gives a chunk back.
func mustFree(t testing.TB, c *pool.Chunk) {
	t.Helper()
	if err := c.Free(context.Background()); err != nil {
		t.Fatal(err)
	}
}
