package memnode_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"polder/internal/arena"
	"polder/memnode"
	"polder/pool"
	"polder/pool/baseline"
	"polder/pool/onesided"
	"polder/pool/pooltest"
	"polder/verbs"
	"polder/verbs/inproc"
	"polder/verbs/softnic"
)

// plainDevice is a software RNIC that says of itself what Soft-RoCE says: no
// chains, no allocation verb, no bounds of windows, pinned memory.
type plainDevice struct{ verbs.Device }

func (d plainDevice) Attr() verbs.DeviceAttr {
	a := d.Device.Attr()
	a.Name, a.WaitEnable, a.Alloc, a.BoundsMW, a.Pinned = "plain0", false, false, false, true
	return a
}

// plain is a fabric of them, with a node.
type plain struct {
	t    *testing.T
	f    *inproc.Fabric
	node *memnode.Node
	log  bytes.Buffer
}

func (p *plain) device() plainDevice {
	p.t.Helper()
	dev, err := p.f.NewDevice(softnic.Config{})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { dev.Close() })
	return plainDevice{dev}
}

func newPlain(t *testing.T, cfg memnode.Config) *plain {
	t.Helper()
	p := &plain{t: t, f: inproc.NewFabric()}
	cfg.Logger = slog.New(slog.NewTextHandler(&p.log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	dev := p.device()
	var err error
	if p.node, err = memnode.New(dev, cfg); err != nil {
		t.Fatal(err)
	}
	l, err := p.f.Listen(dev.Device, "node")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- p.node.Serve(l) }()
	t.Cleanup(func() {
		if err := p.node.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *plain) open() (*pool.Pool, error) { return p.openBy(nil) }

// openBy opens a pool that borrows by m, or by the device's own choice.
func (p *plain) openBy(m pool.Manager) (*pool.Pool, error) {
	p.t.Helper()
	dev := p.device()
	cfg := pool.Config{Device: dev, Manager: m, Nodes: []pool.NodeConfig{{Name: "node",
		Dial: func(ctx context.Context) (verbs.Conn, error) { return p.f.Dial(ctx, dev.Device, "node") }}}}
	k, err := pool.Open(p.t.Context(), cfg)
	if err == nil {
		p.t.Cleanup(func() { k.Close() })
	}
	return k, err
}

// A node and a pool on such a device choose messages, and say so if they are
// told otherwise.
func TestADeviceWithoutChainsIsLentByMessages(t *testing.T) {
	p := newPlain(t, node(4))
	k, err := p.open()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Alloc(t.Context(), int64(k.ChunkSize())); err != nil {
		t.Fatal(err)
	}
	for _, by := range []pool.Manager{onesided.Manager{}, onesided.Manager{Native: true}} {
		cfg, m := node(4), by.Name()
		cfg.Manager = m
		if n, err := memnode.New(p.device(), cfg); err == nil {
			n.Close()
			t.Errorf("a node lends by %s on a device that cannot", m)
		} else if !strings.Contains(err.Error(), "plain0") || !strings.Contains(err.Error(), memnode.RPCMW) {
			t.Errorf("%s: got %q, want an error that names the device and what to use instead", m, err)
		}
		if _, err := p.openBy(by); err == nil || !strings.Contains(err.Error(), "rpcmw") {
			t.Errorf("a pool that borrows by %s: got %v, want an error that says what to use instead", m, err)
		}
	}
}

func TestWithoutBoundsANodeLendsToOneClientAtATime(t *testing.T) {
	p := newPlain(t, node(4))
	if got := p.log.String(); !strings.Contains(got, "by window and not by range") {
		t.Errorf("at start the node said %q, want how clients are kept apart", got)
	}
	first, err := p.open()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.open(); err == nil || !strings.Contains(err.Error(), "one client at a time") {
		t.Fatalf("a second client: got %v, want a refusal that says why", err)
	}
	first.Close()
	pooltest.Eventually(t, "the node has seen the first go", func() bool { return p.node.Stats().Sessions == 0 })
	if _, err := p.open(); err != nil {
		t.Errorf("the next client, when the first has gone: %v", err)
	}
}

func TestWithoutBoundsClientsCanBeTrusted(t *testing.T) {
	for name, by := range map[string]pool.Manager{"told so": nil, "no window, finemr": baseline.FineMR{}} {
		cfg := node(4)
		if by == nil {
			cfg.TrustClients = true
		} else {
			cfg.Manager = by.Name()
		}
		p := newPlain(t, cfg)
		for range 2 {
			if _, err := p.openBy(by); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// The device has the pages that there were when the memory was registered: it
// would go on with them, and the node with others.
func TestPinnedMemoryIsZeroedAndNotGivenBack(t *testing.T) {
	const size = 1 << 16
	p := newPlain(t, memnode.Config{Lend: size, ChunkSize: size})
	k, err := p.open()
	if err != nil {
		t.Fatal(err)
	}
	c, err := k.Alloc(t.Context(), int64(k.ChunkSize()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WriteAt(bytes.Repeat([]byte{1}, size), 0); err != nil {
		t.Fatal(err)
	}
	if err := c.Free(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c, err = k.Alloc(t.Context(), int64(k.ChunkSize())); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, size)
	if _, err := c.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, make([]byte, size)) {
		t.Error("the next borrower reads what the last one wrote")
	}
	if got, want := resident(t, p.node.Memory()), size/arena.PageSize; got != want {
		t.Errorf("%d of %d pages are resident: the others were given back", got, want)
	}
}
