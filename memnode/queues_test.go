package memnode_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"polder/memnode"
	"polder/pool"
	"polder/pool/baseline"
	"polder/pool/finemem"
	"polder/pool/onesided"
	"polder/pool/rpcmw"
	"polder/verbs"
	"polder/verbs/inproc"
	"polder/verbs/softnic"
)

// TestEveryClientFindsItsQueues: a device with as many queues and keys as a node says that it
// needs has them for the last client, too, whatever each asks for; on one with fewer the node does
// not start, and says what to do.
func TestEveryClientFindsItsQueues(t *testing.T) {
	for _, m := range []pool.Manager{rpcmw.Manager{}, finemem.Manager{}, onesided.Manager{}, onesided.Manager{Native: true}, baseline.ODRP{}} {
		t.Run(m.Name(), func(t *testing.T) {
			cfg := memnode.Config{Manager: m.Name(), Lend: 1 << 20, ChunkSize: 4096, MaxClients: 20} // so that one too few for each is seen
			qps, cqs, keys := cfg.Needs()
			f := inproc.NewFabric()
			for _, few := range []struct {
				dev  softnic.Config
				says string
			}{
				{softnic.Config{MaxQPs: qps - 1}, fmt.Sprintf("%d queue pairs are needed to serve 20 clients by %s, and this function of the device has %d: serve no more than 19 (--max-clients)", qps, m.Name(), qps-1)},
				{softnic.Config{MaxCQs: cqs - 1}, fmt.Sprintf("%d completion queues are needed", cqs)},
			} {
				dev, err := f.NewDevice(few.dev)
				if err != nil {
					t.Fatal(err)
				}
				if n, err := memnode.New(dev, cfg); err == nil {
					n.Close()
					t.Errorf("a node starts on a device of %+v", few.dev)
				} else if !strings.Contains(err.Error(), few.says) || strings.Contains(err.Error(), "--groups") != (m.Name() != memnode.ODRP) {
					t.Errorf("got %q, want it to say %q, and to name --groups if that helps", err, few.says)
				}
				dev.Close()
			}
			dev, err := f.NewDevice(softnic.Config{MaxQPs: qps, MaxCQs: cqs, MaxKeys: keys})
			if err != nil {
				t.Fatal(err)
			}
			defer dev.Close()
			n, err := memnode.New(dev, cfg)
			if err != nil {
				t.Fatal(err)
			}
			l, err := f.Listen(dev, "node")
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- n.Serve(l) }()
			defer func() {
				n.Close()
				<-served
			}()
			for i := range cfg.MaxClients {
				dev, err := f.NewDevice(softnic.Config{})
				if err != nil {
					t.Fatal(err)
				}
				defer dev.Close()
				p, err := pool.Open(t.Context(), pool.Config{Device: dev, Manager: m, Groups: pool.MaxGroups, Pairs: pool.MaxPairs, Nodes: []pool.NodeConfig{{
					Name: "node", Dial: func(ctx context.Context) (verbs.Conn, error) { return f.Dial(ctx, dev, "node") },
				}}})
				if err != nil {
					t.Fatalf("client %d: %v", i, err)
				}
				defer p.Close()
				if _, err := p.Alloc(t.Context(), 4096); err != nil {
					t.Fatalf("client %d: %v", i, err)
				}
			}
		})
	}
}
