package broker_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"polder/memnode"
	"polder/pool/broker"
	"polder/pool/pooltest"
	"polder/verbs"
)

// overBroker is a set-up of the pools' suite in which every pool is an application of
// a broker of its own, over the fabric of s.
func overBroker(s pooltest.Setup) pooltest.Setup {
	return pooltest.Setup{
		Name:    s.Name,
		Manager: broker.Manager{},
		Brokers: true,
		Fabric: func(t testing.TB) pooltest.Fabric {
			return &fabric{Fabric: s.Fabric(t), t: t, dialers: make(map[target]*broker.Dialer)}
		},
	}
}

type target struct {
	dev  verbs.Device
	addr string
}

// fabric is a fabric whose connections come with one to a broker.
type fabric struct {
	pooltest.Fabric
	t testing.TB

	mu      sync.Mutex
	dialers map[target]*broker.Dialer
}

func (f *fabric) Dial(ctx context.Context, dev verbs.Device, addr string) (verbs.Conn, error) {
	f.mu.Lock()
	d := f.dialers[target{dev, addr}]
	if d == nil {
		dir := f.t.TempDir()
		startBroker(f.t, f.Fabric, broker.Config{}, filepath.Join(dir, "sock"), addr)
		d = broker.NewDialer(filepath.Join(dir, "sock"))
		f.t.Cleanup(func() { d.Close() })
		f.dialers[target{dev, addr}] = d
	}
	f.mu.Unlock()
	return d.Dial(ctx, addr, func(ctx context.Context) (verbs.Conn, error) { return f.Fabric.Dial(ctx, dev, addr) })
}

// startBroker starts a broker for the nodes at addrs. It ends with the test.
func startBroker(t testing.TB, f pooltest.Fabric, cfg broker.Config, path string, addrs ...string) *broker.Broker {
	t.Helper()
	dev, err := f.NewDevice()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Device = dev
	if cfg.Timeout == 0 {
		cfg.Timeout = pooltest.Patience
	}
	for _, addr := range addrs {
		cfg.Nodes = append(cfg.Nodes, broker.Node{
			Addr: addr,
			Dial: func(ctx context.Context) (verbs.Conn, error) { return f.Dial(ctx, dev, addr) },
		})
	}
	b, err := broker.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := b.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- b.Serve(l) }()
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		dev.Close()
	})
	return b
}

// rig is a memory node, a broker, and where it listens.
type rig struct {
	*pooltest.Cluster
	broker *broker.Broker
	path   string
}

func newRig(t *testing.T, node memnode.Config, cfg broker.Config) *rig {
	t.Helper()
	s := pooltest.TCP
	s.Manager = broker.Manager{}
	r := &rig{Cluster: pooltest.NewCluster(t, s, node), path: filepath.Join(t.TempDir(), "sock")}
	r.broker = startBroker(t, r.Fabric, cfg, r.path, r.Nodes[0].Addr)
	return r
}

// dial connects an application.
func (r *rig) dial() *broker.Client {
	r.T.Helper()
	c, err := broker.Dial(r.T.Context(), r.path)
	if err != nil {
		r.T.Fatal(err)
	}
	r.T.Cleanup(func() { c.Close() })
	return c
}

// attach attaches an application to the node.
func (r *rig) attach(c *broker.Client) broker.NodeInfo {
	r.T.Helper()
	info, err := c.Attach(r.T.Context(), 0)
	if err != nil {
		r.T.Fatal(err)
	}
	return info
}

func (r *rig) mustAlloc(c *broker.Client, session uint64, class int) broker.Block {
	r.T.Helper()
	b, err := c.Alloc(r.T.Context(), 0, session, class)
	if err != nil {
		r.T.Fatal(err)
	}
	return b
}

// lent waits until the node has lent so many bytes.
func (r *rig) lent(bytes int64) {
	r.T.Helper()
	pooltest.Eventually(r.T, "the node has lent what was expected", func() bool {
		return r.Nodes[0].Stats().Lent*int64(r.Nodes[0].Stats().ChunkSize) == bytes
	})
}

var small = memnode.Config{Lend: 4 << 20, ChunkSize: 4096, Grace: time.Minute}
