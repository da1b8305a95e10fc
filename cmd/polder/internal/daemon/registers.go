package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"polder/far/named"
	"polder/holder"
	"polder/holder/etcd"
	"polder/holder/witness"
	client "polder/internal/etcd"
	"polder/internal/operator"
	"polder/internal/scheme"
	"polder/verbs/tcp"
)

// Registers are the registers that keep the manifests of heaps in the memory of nodes: one register for each heap.
type Registers interface {
	// String names what keeps the registers, with an article.
	String() string
	// Register returns a heap's register. The caller closes it before it closes the Registers.
	Register(heap string) (holder.Register, error)
	// Names are the names of the heaps that there are or were, in order.
	Names(ctx context.Context) ([]string, error)
	Close() error
}

// stayOpen are registers whose Close does nothing: somebody else closes them.
type stayOpen struct{ Registers }

// Close implements Registers.
func (stayOpen) Close() error { return nil }

// WithRegisters calls f with the registers that cfg names, and closes them. f may use them until it returns.
func WithRegisters(ctx context.Context, c *operator.Control, cfg BorrowConfig, f func(Registers) error) (err error) {
	p := newProcess("heap", c)
	defer p.close(&err)
	all, err := p.registers(&cfg)
	if err != nil {
		return err
	}
	if err := reach(ctx, all); err != nil {
		return errors.Join(err, all.Close())
	}
	return errors.Join(f(all), all.Close())
}

// reach fails if none of the witnesses answers, and says what is wrong with each. Commands call it because they do
// not wait for witnesses, as daemons do.
func reach(ctx context.Context, all Registers) error {
	w, ok := all.(*witnessRegisters)
	if !ok {
		return nil
	}
	var wrong []error
	for _, g := range w.Greet(ctx, w.addrs) {
		if g.Err == nil {
			return nil
		}
		wrong = append(wrong, fmt.Errorf("%s: %w", g.Addr, g.Err))
	}
	return fmt.Errorf("none of the witnesses answers: %w", errors.Join(wrong...))
}

func (k *kept) reach(ctx context.Context) error {
	if k.registers == nil {
		return nil // keeper has failed already, and its error is reported
	}
	return reach(ctx, k.registers)
}

// registers opens the registers that the witnesses, etcd or the two nodes of cfg keep. A partition gets its server's.
func (p *process) registers(cfg *BorrowConfig) (Registers, error) {
	if p.manifests != nil {
		return stayOpen{p.manifests}, nil
	}
	if cfg.TwoNodes != "" {
		return &pairRegisters{cfg.Far, p.pair(cfg)}, nil
	}
	if cfg.inEtcd() {
		c, cluster, err := p.etcdClient("witness", cfg.Witness[0], cfg.EtcdAuth)
		if err != nil {
			return nil, err
		}
		return &etcdRegisters{cfg.Witness[0], cluster, c}, nil
	}
	c, err := witness.NewClient(witness.ClientConfig{Witnesses: cfg.Witness, TLS: p.Security.Dial, Insecure: p.Security.Insecure})
	if err != nil {
		return nil, err
	}
	return &witnessRegisters{cfg.Witness, c}, nil
}

// inEtcd reports whether etcd keeps the manifest.
func (c *BorrowConfig) inEtcd() bool {
	return len(c.Witness) == 1 && scheme.Of(c.Witness[0]) == scheme.Etcd
}

// checkHolder refuses a cluster in etcd together with witnesses, or with another cluster.
func (c *BorrowConfig) checkHolder() error {
	if len(c.Witness) < 2 {
		return nil
	}
	for _, w := range c.Witness {
		if scheme.Of(w) == scheme.Etcd {
			return refuse("witness", strings.Join(c.Witness, ","), "one cluster in etcd alone, or witnesses")
		}
	}
	return nil
}

// pair returns a client for the manifests that the two nodes of cfg keep.
func (p *process) pair(cfg *BorrowConfig) *witness.Pair {
	return witness.NewPair(witness.PairConfig{
		Nodes: [2]string(cfg.Far), GoOn: cfg.TwoNodes == GoOn, Free: named.IsFree, Logger: p.Logger,
		Dial: func(ctx context.Context, addr string) (net.Conn, error) { return tcp.DialGuest(ctx, addr, p.toNodes()) },
	})
}

// ForceHeap is an operator's word that the owner of a heap with two nodes is dead. Then another server may open the
// heap although one of the nodes does not answer. ForceHeap returns the node whose manifest the heap goes on with.
func ForceHeap(ctx context.Context, c *operator.Control, cfg BorrowConfig) (node string, err error) {
	p := newProcess("heap", c)
	defer p.close(&err)
	pair := p.pair(&cfg)
	defer func() { err = errors.Join(err, pair.Close()) }()
	reg, err := pair.Register(cfg.Heap)
	if err != nil {
		return "", err
	}
	defer reg.Close()
	return reg.Force(ctx, named.Free)
}

type pairRegisters struct {
	nodes []string
	*witness.Pair
}

func (p *pairRegisters) String() string { return "the two nodes (" + strings.Join(p.nodes, ", ") + ")" }

func (p *pairRegisters) Register(heap string) (holder.Register, error) { return p.Pair.Register(heap) }

type witnessRegisters struct {
	addrs []string
	*witness.Client
}

func (w *witnessRegisters) String() string {
	return fmt.Sprintf("the witnesses (%s)", strings.Join(w.addrs, ", "))
}

func (w *witnessRegisters) Register(heap string) (holder.Register, error) {
	return w.Client.Register(heap)
}

type etcdRegisters struct {
	name, cluster string
	client        *client.Client
}

func (e *etcdRegisters) String() string { return "etcd (" + e.name + ")" }

func (e *etcdRegisters) Register(heap string) (holder.Register, error) {
	return etcd.New(e.client, e.cluster, heap)
}

func (e *etcdRegisters) Names(ctx context.Context) ([]string, error) {
	return etcd.Names(ctx, e.client, e.cluster)
}

func (e *etcdRegisters) Close() error {
	e.client.Close()
	return nil
}
