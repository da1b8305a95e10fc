package pool_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"polder/memnode"
	"polder/pool"
	"polder/pool/pooltest"
	"polder/verbs"
	"polder/verbs/inproc"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

func TestWrongConfigurationsAreRefused(t *testing.T) {
	dev, err := inproc.NewFabric().NewDevice(softnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	dial := func(context.Context) (verbs.Conn, error) { return nil, errors.New("nobody there") }
	nodes := []pool.NodeConfig{{Name: "a", Dial: dial}}
	for want, cfg := range map[string]pool.Config{
		"no device":              {Nodes: nodes},
		"no nodes":               {Device: dev},
		"timeout is -1s":         {Device: dev, Nodes: nodes, Timeout: -time.Second},
		"buffer has -1 bytes":    {Device: dev, Nodes: nodes, Buffer: -1},
		"node 0: it has no name": {Device: dev, Nodes: []pool.NodeConfig{{Dial: dial}}},
		"node 1: it has no Dial": {Device: dev, Nodes: append(nodes[:1:1], pool.NodeConfig{Name: "b"})},
		`named "a"`:              {Device: dev, Nodes: append(nodes[:1:1], nodes[0])},
		"nobody there":           {Device: dev, Nodes: nodes},
	} {
		p, err := pool.Open(t.Context(), cfg)
		if err == nil {
			p.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one that says %q", err, want)
		}
	}
}

func TestDialRefusesWhatIsNoAddress(t *testing.T) {
	for _, addrs := range [][]string{{}, {"localhost"}, {"127.0.0.1:1", "nowhere"}} {
		if p, err := pool.Dial(t.Context(), addrs...); err == nil {
			p.Close()
			t.Errorf("Dial(%q) succeeded", addrs)
		}
	}
	if p, err := pool.DialTCP(t.Context(), tcp.Config{}, pool.Config{Nodes: make([]pool.NodeConfig, 1)}, "127.0.0.1:1"); err == nil {
		p.Close()
		t.Error("DialTCP took nodes beside addresses")
	}
	if p, err := pool.Dial(t.Context(), "127.0.0.1:1"); !errors.Is(err, pool.ErrNodeGone) {
		if err == nil {
			p.Close()
		}
		t.Errorf("dialling where nobody listens: got %v, want %v", err, pool.ErrNodeGone)
	}
}

func TestNodesMustAgreeOnTheChunkSize(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.Inproc, memnode.Config{Lend: 1 << 20, ChunkSize: 4096}, memnode.Config{Lend: 1 << 20, ChunkSize: 8192})
	k := c.Open(pool.Config{})
	var up int
	for _, n := range k.Stats().Nodes {
		if n.State == "up" {
			up++
		}
	}
	if up != 1 {
		t.Fatalf("%d of two nodes with different chunk sizes are in use, want 1", up)
	}
	if got := k.MustAlloc(t).Size(); got != int64(k.ChunkSize()) {
		t.Fatalf("a chunk has %d bytes, want %d", got, k.ChunkSize())
	}
}

func TestOpenGivesUpWithItsContext(t *testing.T) {
	dev, err := inproc.NewFabric().NewDevice(softnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	ctx, cancel := context.WithCancel(t.Context())
	_, err = pool.Open(ctx, pool.Config{Device: dev, Timeout: time.Hour, Nodes: []pool.NodeConfig{{
		Name: "never", Dial: func(ctx context.Context) (verbs.Conn, error) {
			cancel()
			<-ctx.Done()
			return nil, ctx.Err()
		},
	}}})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want %v", err, context.Canceled)
	}
}
